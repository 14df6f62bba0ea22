"""FKNN: k-nearest-neighbour imputation from private sums of distances (Du et al., 2024)."""

from strategies.fknn.strategy import FKNN

__all__ = ["FKNN"]
