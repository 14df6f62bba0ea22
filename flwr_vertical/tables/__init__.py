"""A party's data: tables of typed columns, and their files.

A table is a pandas DataFrame indexed by sample ID. No row means a missing block, NaN a missing
cell.
"""

from flwr_vertical.tables.checks import check_table
from flwr_vertical.tables.cleaning import Cleaning
from flwr_vertical.tables.csv_format import CsvFormat
from flwr_vertical.tables.findings import DataWarning, Finding, Severity
from flwr_vertical.tables.kinds import Kind, infer_kinds, is_discrete, is_numeric
from flwr_vertical.tables.readers import label_numbers, read_frame, read_labels, read_table
from flwr_vertical.tables.table import Table, checked_ids, label_index
from flwr_vertical.tables.writers import write_table

__all__ = [
    "Cleaning",
    "CsvFormat",
    "DataWarning",
    "Finding",
    "Kind",
    "Severity",
    "Table",
    "check_table",
    "checked_ids",
    "infer_kinds",
    "is_discrete",
    "is_numeric",
    "label_index",
    "label_numbers",
    "read_frame",
    "read_labels",
    "read_table",
    "write_table",
]
