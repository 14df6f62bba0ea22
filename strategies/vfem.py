"""Short import path of `strategies.regression.vfem`."""

from strategies.regression.vfem import VFEM, CompleteCase, MeanImpute, Single, VFEMPredict

__all__ = ["VFEM", "CompleteCase", "MeanImpute", "Single", "VFEMPredict"]
