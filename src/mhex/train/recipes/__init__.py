"""Whole recipes, each runnable as a module: ``python -m mhex.train.recipes.pets --out DIR``."""
