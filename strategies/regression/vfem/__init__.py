"""VFEM: linear regression with block-missing covariates, with standard errors."""

from strategies.regression.least_squares import CompleteCase, MeanImpute, Single
from strategies.regression.vfem.predict import VFEMPredict
from strategies.regression.vfem.strategy import VFEM

__all__ = ["VFEM", "CompleteCase", "MeanImpute", "Single", "VFEMPredict"]
