"""A party's data: tables of typed columns, their files, vertical splits and missingness mechanisms.

A table is a pandas DataFrame indexed by sample ID. No row means a missing block, NaN a missing
cell.
"""

from flwr_vertical.incomplete import (
    COPULA_MCAR_RATES,
    FALSE_VFL_REGIMES,
    MECHANISMS,
    at_least_one_party,
    blank_cells,
    draw_blocks,
    drop_blocks,
    mar_blocks_1,
    mar_blocks_2,
    mar_complex,
    mar_simple,
    mcar_blocks,
    mcar_cells,
    mnar_blocks,
    sample_missing,
)
from flwr_vertical.incomplete.held_out import hide_cells, put_back
from flwr_vertical.incomplete.imputation_error import imputation_accuracy
from flwr_vertical.incomplete.splits import split_columns
from flwr_vertical.tables.checks import check_table
from flwr_vertical.tables.csv_format import CsvFormat
from flwr_vertical.tables.findings import DataWarning, Finding, Severity
from flwr_vertical.tables.kinds import Kind, infer_kinds, is_discrete, is_numeric
from flwr_vertical.tables.readers import read_frame, read_labels, read_table
from flwr_vertical.tables.table import Table, checked_ids
from flwr_vertical.tables.writers import write_table

__all__ = [
    "COPULA_MCAR_RATES",
    "FALSE_VFL_REGIMES",
    "MECHANISMS",
    "CsvFormat",
    "DataWarning",
    "Finding",
    "Kind",
    "Severity",
    "Table",
    "at_least_one_party",
    "blank_cells",
    "check_table",
    "checked_ids",
    "draw_blocks",
    "drop_blocks",
    "hide_cells",
    "imputation_accuracy",
    "infer_kinds",
    "is_discrete",
    "is_numeric",
    "mar_blocks_1",
    "mar_blocks_2",
    "mar_complex",
    "mar_simple",
    "mcar_blocks",
    "mcar_cells",
    "mnar_blocks",
    "put_back",
    "read_frame",
    "read_labels",
    "read_table",
    "sample_missing",
    "split_columns",
    "write_table",
]
