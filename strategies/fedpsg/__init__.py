"""FedPSG-AR: generate the samples a party lacks from the other parties' attributes."""

from strategies.fedpsg.strategy import FedPSGAR

__all__ = ["FedPSGAR"]
