"""VFEM: linear regression with block-missing covariates, with standard errors."""

from strategies.least_squares import CompleteCase, MeanImpute, Single
from strategies.vfem.strategy import VFEM

__all__ = ["VFEM", "CompleteCase", "MeanImpute", "Single"]
