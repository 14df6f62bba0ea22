"""What each party could do alone: the same strategy, run with one party at a time."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.errors import VerticalError
from flwr_vertical.log import logger
from flwr_vertical.result import Result
from flwr_vertical.strategy import Strategy
from flwr_vertical.tables import Table

NOBODY = "nobody"
"""Name of a party without any information, where a strategy needs a second one."""


def single_party_results(
    strategy: Strategy, parties: Mapping[str, Table], run: Callable[[Mapping[str, Any]], Result]
) -> tuple[dict[str, Result], list[str]]:
    """Run a strategy with each party alone."""
    found, notes = {}, []
    for name, table in parties.items():
        alone: dict[str, Any] = {name: table}
        if strategy.needs_parties > 1:
            # One value, so nothing to learn from: the second party is there for the protocol only.
            blank = pd.DataFrame({"blank": np.zeros(len(table.frame))}, table.frame.index)
            alone |= {
                f"{NOBODY}-{k}" if k else NOBODY: blank for k in range(strategy.needs_parties - 1)
            }
        try:
            with _log_of(name):
                found[name] = run(alone)
        except VerticalError as error:
            notes.append(f"party {name!r} was not run alone: {error}")
            logger.warning(notes[-1])
    return found, notes


@contextmanager
def _log_of(name: str) -> Iterator[None]:
    """Say in the log which party's run a line is of, and nothing of the blank party."""

    def filter_record(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        record.msg, record.args = f"party {name!r} alone: {text}", ()
        return NOBODY not in text

    logger.addFilter(filter_record)
    try:
        yield
    finally:
        logger.removeFilter(filter_record)


def predictions_of(results: Mapping[str, Result]) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Return what parties predict alone, and notes on those that predict nothing."""
    found, notes = {}, []
    for name, result in results.items():
        if result.predictions is None or not len(result.predictions):
            notes.append(f"party {name!r} alone predicts no sample")
        else:
            found[f"{name} alone"] = result.predictions
    return found, notes
