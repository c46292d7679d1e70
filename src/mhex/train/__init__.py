"""Training of the zoo's models: augmentation, one loop, and the recipes that made the shipped weights."""
