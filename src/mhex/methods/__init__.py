"""Post-hoc explanation methods: one file each, one decorator each. See `mhex.registry.Method` for the contract."""
