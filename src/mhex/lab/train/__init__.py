"""Training: recipe files, one loop that runs them, and the packaged recipes that made the shipped weights."""
