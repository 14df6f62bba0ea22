"""What regression strategies share: tables as matrices, labels, tables of coefficients."""

from strategies.regression.coefficients import coefficient_table
from strategies.regression.data import RegressionData
from strategies.regression.design import Design, make_design
from strategies.regression.problem import LABEL_POLICIES, Problem, open_problem

__all__ = [
    "LABEL_POLICIES",
    "Design",
    "Problem",
    "RegressionData",
    "coefficient_table",
    "make_design",
    "open_problem",
]
