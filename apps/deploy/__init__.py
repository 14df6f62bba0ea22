"""A whole secured federation on one machine, to try deployments on: see ``federation``."""
