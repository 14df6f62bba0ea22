"""Vertical federated learning on incomplete data, as a Flower plugin."""
