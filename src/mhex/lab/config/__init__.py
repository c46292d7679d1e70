"""Files that describe work: recipes and suites, checked before anything is run."""
