"""FKNN: k-nearest-neighbour imputation from private sums of distances (Du et al., 2024)."""

from strategies.fknn.arbiter import FKNNArbiter
from strategies.fknn.party import FKNNParty
from strategies.fknn.strategy import FKNN

__all__ = ["FKNN", "FKNNArbiter", "FKNNParty"]
