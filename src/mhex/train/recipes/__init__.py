"""The packaged recipes: YAML files, run by name with ``mhex train NAME``."""
