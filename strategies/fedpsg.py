"""Short import path of `strategies.synthesis.fedpsg`."""

from strategies.synthesis.fedpsg import FedPSGAR

__all__ = ["FedPSGAR"]
