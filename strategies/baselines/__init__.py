"""Baselines for imputation: one value per column, from a party's own table alone."""

from strategies.baselines.strategy import ConstantImputation, Max, Mean, Min, MostFrequent

__all__ = ["ConstantImputation", "Max", "Mean", "Min", "MostFrequent"]
