"""Incomplete tables for studies and examples: mechanisms of the five papers, splits, all seeded.

Block-wise mechanisms take complete tables by party, with the same index, and return a mask of shape
(n_samples, n_parties), True where a party's block of a sample is missing; `drop_blocks` applies it.
Cell-wise ones return a mask for each table, which `blank_cells` applies. Labels in tables count as
their codes 0, 1, ...; `standardize` brings each column to mean 0 and variance 1 first, so that
columns with large units do not decide alone. A seed is an integer or a generator of numpy; the same
integer gives independent draws in different mechanisms. `DataError` if tables or a mask do not fit,
`ConfigError` if a setting is out of its range.
"""

from flwr_vertical.incomplete._inputs import Mask, Seed
from flwr_vertical.incomplete.apply import at_least_one_party, blank_cells, drop_blocks
from flwr_vertical.incomplete.copula import mar_complex, mar_simple
from flwr_vertical.incomplete.false_vfl import mar_blocks_1, mar_blocks_2, mnar_blocks
from flwr_vertical.incomplete.held_out import hide_cells, imputation_accuracy, put_back
from flwr_vertical.incomplete.mcar import COPULA_MCAR_RATES, mcar_blocks, mcar_cells, sample_missing
from flwr_vertical.incomplete.registry import FALSE_VFL_REGIMES, MECHANISMS, draw_blocks
from flwr_vertical.incomplete.splits import split_columns

__all__ = [
    "COPULA_MCAR_RATES",
    "FALSE_VFL_REGIMES",
    "MECHANISMS",
    "Mask",
    "Seed",
    "at_least_one_party",
    "blank_cells",
    "draw_blocks",
    "drop_blocks",
    "hide_cells",
    "imputation_accuracy",
    "mar_blocks_1",
    "mar_blocks_2",
    "mar_complex",
    "mar_simple",
    "mcar_blocks",
    "mcar_cells",
    "mnar_blocks",
    "put_back",
    "sample_missing",
    "split_columns",
]
