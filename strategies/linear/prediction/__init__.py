"""Predictions with coefficients that stay at the parties."""
