"""Short import path of `strategies.synthesis.vertigan`."""

from strategies.synthesis.vertigan import VertiGAN

__all__ = ["VertiGAN"]
