"""Suites: methods by metrics by models by data, from YAML files, with pages of results."""
