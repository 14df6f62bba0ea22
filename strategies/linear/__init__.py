"""What linear methods share: tables as matrices, labels, moments, masked means, predictions."""

from strategies.linear.coefficients import coefficient_table
from strategies.linear.data import RegressionData
from strategies.linear.design import Design, make_design
from strategies.linear.problem import LABEL_POLICIES, Problem, open_problem

__all__ = [
    "LABEL_POLICIES",
    "Design",
    "Problem",
    "RegressionData",
    "coefficient_table",
    "make_design",
    "open_problem",
]
