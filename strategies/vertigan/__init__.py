"""VertiGAN: new joint samples from one generator with a branch at each party, and local critics."""

from strategies.vertigan.strategy import VertiGAN

__all__ = ["VertiGAN"]
