"""The methods: one folder per method, with a server half, a party half and pure numerics."""
