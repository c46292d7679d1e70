"""Shared by the test folders: small models of every family, snapshots of a model's state, second formulas."""
