"""The options of ``flwr-vertical check``."""

import argparse
from typing import Any

from ..output import add_json


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    check: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="check a table, or a folder with each party's, before a run",
        description="Prints kinds of columns, type and duplicates of sample IDs, and what is "
        "probably not as you think: numbers and dates that are text, codes for missing cells, "
        "columns that never vary. Of a folder, each file is a party, and the page says who has "
        "which samples. With --strategy, the strategy runs on this machine for a while: the page "
        "says why it would refuse the tables, or what a run takes. Nothing leaves this machine. "
        "Exits with 1 if there is an error, and with --strict for a warning, too.",
        epilog="examples: flwr-vertical check bank.csv --id-column customer | flwr-vertical check "
        "--node-config \"data='bank.csv' csv.decimal=','\" | flwr-vertical check tables/ "
        "--strategy glm --settings 'glm.family=\"binomial\"' --label-column default",
    )
    check.add_argument(
        "path",
        nargs="?",
        metavar="TABLE_OR_FOLDER",
        help="CSV, TSV or Parquet, a folder of these with a file for each party, or the address of "
        "a database (default: 'data' of --node-config)",
    )
    check.add_argument(
        "--id-column", metavar="COLUMN", help="column of sample IDs, several with commas"
    )
    check.add_argument(
        "--node-config",
        action="append",
        default=[],
        metavar="KEY=VALUE|TOML",
        help="as of the SuperNode: party, data, table, query, secret-file, id-column, csv.* and "
        "kind.*, missing.*, drop-columns and normalise-ids count here",
    )
    check.add_argument(
        "--nodes",
        metavar="FOLDER",
        help="check the tables that the node configs in a folder name, NAME.toml or NAME/node.toml",
    )
    check.add_argument(
        "--fix",
        metavar="FOLDER|TOML",
        help="write node configs by which what keys can mend is gone: missing marks, columns to "
        "drop, sample IDs, separators, dates; print what is left. No table is changed. With "
        "--label-column, its party agrees to hand over that column as labels",
    )
    check.add_argument(
        "--strategy",
        action="append",
        default=[],
        metavar="NAME",
        help="try a strategy on the tables (several times for several; 'all' for each there is)",
    )
    check.add_argument(
        "--settings",
        action="append",
        default=[],
        metavar="KEY=VALUE|TOML",
        help="of the strategies and the run, as in a run config: 'fknn.n-neighbors=7 "
        'aggregation="ckks"\'',
    )
    check.add_argument("--labels", metavar="FILE", help="labels that the server would hold")
    check.add_argument(
        "--label-column",
        metavar="COLUMN",
        help="column of --labels, or of the table whose party would hold the labels",
    )
    check.add_argument(
        "--positive-label",
        default="",
        metavar="CLASS",
        help="of labels of two classes the one that counts as 1, such as yes",
    )
    check.add_argument(
        "--limit",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="longest trial of a strategy on all samples (default: 20)",
    )
    add_json(check)
    check.add_argument("--strict", action="store_true", help="exit with 1 for a warning, too")
    return check
