"""Forests of which the server learns summed votes alone: routing stays with the parties."""
