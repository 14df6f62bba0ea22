"""Short import path of `strategies.imputation.fknn`."""

from strategies.imputation.fknn import FKNN, FKNNArbiter, FKNNParty

__all__ = ["FKNN", "FKNNArbiter", "FKNNParty"]
