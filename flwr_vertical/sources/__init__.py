"""Where tables come from besides single files: databases and folders of Parquet files.

A source is read once, into a `flwr_vertical.tables.Table`; a result can be written back to one.
"""

from flwr_vertical.sources.address import is_database, parse_address
from flwr_vertical.sources.folders import folder_digest
from flwr_vertical.sources.reading import read_frame, read_source
from flwr_vertical.sources.writing import Destination, FileDestination, table_name

__all__ = [
    "Destination",
    "FileDestination",
    "folder_digest",
    "is_database",
    "parse_address",
    "read_frame",
    "read_source",
    "table_name",
]
