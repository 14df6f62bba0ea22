"""Record a run: its messages, and what server and arbiter work out of them themselves."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from flwr_vertical import Federation, Result, Strategy, simulate
from flwr_vertical.products import PrivateProducts
from flwr_vertical.protocol import private_sum

PRODUCTS = "private products"  # the step under which moments of groups of rows are noted
MOMENTS = ("sums", "products", "with_vectors")

_ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True)
class Worked:
    """Values that a node worked out of messages, as the protocol lets it."""

    who: str  # The node
    step: str  # For which step
    at: int  # How many messages had travelled
    values: dict[str, Any]  # By name


@dataclass
class Recording:
    """A run with everything that passed."""

    strategy: Strategy  # What ran
    mode: str  # Of the private sum
    # What the parties hold: the truth that guesses are compared with
    tables: Mapping[str, pd.DataFrame]
    labels: "pd.Series[Any] | None"  # What the server holds
    result: Result  # What came of it
    transcript: list[Any]  # Every message
    # Sums, products and openings, in their order
    worked: list[Worked] = field(default_factory=list)


def record(
    strategy: Strategy,
    tables: Mapping[str, pd.DataFrame],
    labels: "pd.Series[Any] | None" = None,
    mode: str = "masked",
    **options: Any,
) -> Recording:
    """Run a strategy and keep all that passes."""
    transcript: list[Any] = []
    worked: list[Worked] = []
    with watching(worked, transcript):
        result = simulate(
            strategy, tables, labels, mode, transcript=transcript, progress=False, **options
        )
    return Recording(strategy, mode, tables, labels, result, transcript, worked)


@contextmanager
def watching(worked: list[Worked], transcript: list[Any]) -> Iterator[None]:
    """Note what server and arbiter open while the context lasts.

    The server decodes sums and corrects products within the library; repeating that here would
    show what an attacker's copy finds, not what the server's does. So these functions are
    wrapped, in this process only.
    """
    step = [""]
    sum_of, keep_of = Federation.sum, Federation.keep
    combine_of, open_of = private_sum.combine, private_sum.open_ciphertexts
    moments_of = PrivateProducts.moments

    def note(who: str, name: str, values: Mapping[str, Any]) -> None:
        worked.append(Worked(who, name, len(transcript), dict(values)))

    def summed(self: Federation, name: str, *args: Any, **kwargs: Any) -> Any:
        step[0] = name
        total = sum_of(self, name, *args, **kwargs)
        note("server", name, total.values)
        return total

    def kept(self: Federation, name: str, make: Any) -> Any:
        values = keep_of(self, name, make)
        note("server", name, values)
        return values

    def combined(replies: Any, mode: str, *args: Any, **kwargs: Any) -> Any:
        totals = combine_of(replies, mode, *args, **kwargs)
        if mode != "ckks":  # there they are ciphertexts
            note("server", step[0], totals)
        return totals

    def opened(payload: Any, state: Any, cache: Any) -> Any:
        values = open_of(payload, state, cache)
        note("arbiter", step[0], values)
        return values

    def multiplied(
        self: PrivateProducts, group: Any, n_groups: int, vectors: Any = None, *args: Any, **kw: Any
    ) -> Any:
        found = moments_of(self, group, n_groups, vectors, *args, **kw)
        given = {"group": np.asarray(group), "vectors": np.zeros((len(group), 0))}
        if vectors is not None:
            given["vectors"] = np.asarray(vectors, dtype=float)
        note("server", PRODUCTS, given | {name: getattr(found, name) for name in MOMENTS})
        return found

    with (
        _ONE_AT_A_TIME,
        patch.object(Federation, "sum", summed),
        patch.object(Federation, "keep", kept),
        patch.object(PrivateProducts, "moments", multiplied),
        patch.object(private_sum, "combine", combined),
        patch.object(private_sum, "open_ciphertexts", opened),
    ):
        yield
