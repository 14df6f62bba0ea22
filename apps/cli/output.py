"""``--json`` of the commands that print results: one form for scripts."""

import argparse
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--json`` to a command."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def print_json(found: Any) -> None:
    """Print one JSON document; what is no number is null, and tables are lists of rows."""
    print(json.dumps(_plain(found), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, pd.DataFrame):
        named = value.index.name is not None
        return _plain((value.reset_index() if named else value).to_dict("records"))
    if isinstance(value, Mapping):
        return {str(key): _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
