"""What regression strategies share: tables as matrices, labels, tables of coefficients."""

from strategies.regression.coefficients import coefficient_table
from strategies.regression.design import Design, DesignParty, check_design_settings
from strategies.regression.party import RegressionParty
from strategies.regression.problem import LABEL_POLICIES, Problem, open_problem

__all__ = [
    "LABEL_POLICIES",
    "Design",
    "DesignParty",
    "Problem",
    "RegressionParty",
    "check_design_settings",
    "coefficient_table",
    "open_problem",
]
