"""Short import path of `strategies.imputation.baselines`."""

from strategies.imputation.baselines import ConstantImputation, Max, Mean, Min, MostFrequent

__all__ = ["ConstantImputation", "Max", "Mean", "Min", "MostFrequent"]
