"""Which samples take part in a fit, and which columns have no penalty."""

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flwr_vertical import Result
from flwr_vertical.errors import ConfigError, DataError
from strategies.linear import Problem

logger = logging.getLogger("flwr_vertical")

_LEAST = 3


def used_samples(problem: Problem, result: Result, penalty: str) -> npt.NDArray[np.int64]:
    """Return the numbers of the labelled samples that all parties hold."""
    used = np.flatnonzero(~problem.mask.any(axis=1))
    held = dict(zip(problem.columns, (~problem.mask).sum(axis=0).tolist(), strict=True))
    needed = problem.n_columns + 2 if penalty == "none" else _LEAST
    if len(used) < needed:
        why = (
            f"but without a penalty their {problem.n_columns} columns need at least {needed}"
            if penalty == "none"
            else f"but a fit needs at least {needed}"
        )
        raise DataError(
            f"all parties hold {len(used)} of the {len(problem.y)} labelled samples in common "
            f"(each by itself: {held}), {why}; leave out columns or the party that holds the "
            "fewest, or use a method for incomplete tables (strategy 'vfem')"
        )
    lacking = len(problem.y) - len(used)
    if lacking:
        text = (
            f"{lacking:,} of {len(problem.y):,} labelled samples are left out of the fit, since "
            f"some party lacks them (each by itself holds: {held})"
        )
        logger.warning("%s", text)
        result.notes.append(text)
    return used


def names_by_party(text: str, parties: Sequence[str]) -> dict[str, list[str]]:
    """Split ``"party:column, ..."`` by party."""
    found: dict[str, list[str]] = {party: [] for party in parties}
    for item in filter(None, (part.strip() for part in text.split(","))):
        party, colon, column = item.partition(":")
        if not colon or party.strip() not in found:
            raise ConfigError(
                f"unpenalized must name columns as 'party:column', got {item!r}; the parties are "
                f"{list(parties)}"
            )
        found[party.strip()].append(column.strip())
    return found
