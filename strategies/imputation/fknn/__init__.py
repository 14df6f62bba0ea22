"""FKNN: k-nearest-neighbour imputation from private sums of distances (Du et al., 2024)."""

from strategies.imputation.fknn.arbiter import FKNNArbiter
from strategies.imputation.fknn.party import FKNNParty
from strategies.imputation.fknn.strategy import FKNN

__all__ = ["FKNN", "FKNNArbiter", "FKNNParty"]
