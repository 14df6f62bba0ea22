"""Try a strategy on the tables: whether it refuses them, and what a run would cost.

The strategy itself is asked, by a run on this machine in a process of its own that is ended when
its time is up. A run on all samples that ends in time gives exact rounds and bytes. Otherwise it
runs on samples of the rows, each twice as large as the one before, and the last two that end in
time are scaled, which is rough, and said to be. Few rows cost in other ways than many: there are
fewer sets of rows that all may be told of, and smaller trees.
"""

import hashlib
import logging
import math
import multiprocessing as mp
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError, VerticalError
from flwr_vertical.incomplete import hide_cells
from flwr_vertical.pages.page import human_bytes, human_seconds
from flwr_vertical.registry import available_strategies, load_strategy, make_strategy
from flwr_vertical.server import RunSettings
from flwr_vertical.settings import nearest
from flwr_vertical.single_parties import NOBODY
from flwr_vertical.tables import Table

from ...settings import AppSettings

SAMPLE, LARGEST = 250, 16_000
"""Samples of the smallest trial run and of the largest; each has twice as many as the last."""
CHANNEL_SECONDS, MESSAGE_SECONDS = 0.0025, 5.0
"""What a round takes beside its work: over a channel, and by Flower's messages on real nodes."""
_START_SECONDS = 60.0
_COSTS = "rounds", "traffic", "seconds", "memory"
_OF_THE_RUN = "aggregation", "alignment", "align_rows", "normalise_ids", "fraction_bits", "seed"


@dataclass(frozen=True)
class Trial:
    """What a strategy makes of the tables."""

    strategy: str  # Its name
    refusal: str = ""  # Why it would not run; "" if nothing was found
    # rounds, traffic, seconds: Of a run: rounds, bytes both ways over all parties, and seconds of
    # work without the network. None if no run ended in time.
    rounds: float | None = None
    traffic: float | None = None
    seconds: float | None = None
    memory: float = 0.0  # Bytes, of all parties and the server in one process; 0: not known
    # Samples of the larger trial run; 0 if all samples took part, and nothing is scaled
    scaled_from: int = 0
    named: bool = True  # Whether the user asked for this strategy by name
    note: str = ""  # What else there is to say

    @property
    def refused(self) -> bool:
        """Whether the strategy would not run on the tables."""
        return bool(self.refusal)

    def text(self) -> str:
        """Return it in words."""
        if self.refused:
            return f"refuses: {self.refusal}"
        if self.rounds is None or self.traffic is None or self.seconds is None:
            return f"no refusal, and no estimate: {self.note}"
        about = "" if not self.scaled_from else "about "
        rounds = f"{self.rounds:.2g}" if about and self.rounds < 100 else f"{self.rounds:,.0f}"
        memory = f" with {human_bytes(self.memory)} of memory for all" if self.memory else ""
        cost = (
            f"{about}{rounds} rounds, "
            f"{human_bytes(self.traffic)} of traffic, {human_seconds(self.seconds)} of work here"
            f"{memory}; "
            f"with the network {human_seconds(self.seconds + self.rounds * CHANNEL_SECONDS)} over "
            f"channels, {human_seconds(self.seconds + self.rounds * MESSAGE_SECONDS)} by Flower's "
            "messages"
        )
        return f"{cost} ({self.note})" if self.note else cost

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "strategy": self.strategy,
            "refusal": self.refusal,
            "rounds": self.rounds,
            "traffic_bytes": self.traffic,
            "seconds": self.seconds,
            "memory_bytes": self.memory or None,
            "scaled_from": self.scaled_from,
            "note": self.note,
        }


def try_strategy(
    name: str,
    settings: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
    labels: "pd.Series[Any] | None" = None,
    *,
    kinds: Mapping[str, Mapping[str, str]] | None = None,
    run: Mapping[str, Any] | None = None,
    held_out: Mapping[str, float] | None = None,
    limit: float = 20.0,
    named: bool = True,
) -> Trial:
    """Run a strategy on tables of this machine for a limited time.

    `run` is what `run_options` returns; `held_out` the share of cells that a party's node config
    hides from imputations.
    """
    try:
        strategy = make_strategy(name, settings)
        strategy.check_requirements()
    except (ConfigError, TypeError) as error:
        if named and not isinstance(error, TypeError):
            raise
        return Trial(name, refusal=str(error), named=named)
    if strategy.needs_labels and labels is None:
        return Trial(name, refusal="it needs labels, and none are given", named=named)
    if not (strategy.needs_labels or strategy.uses_labels):
        labels = None
    chosen = dict(tables)
    imputing, most = strategy.party.imputing(), max([0.0, *(held_out or {}).values()])
    for party, share in (held_out or {}).items():
        if share and "" in imputing:
            given = Table.of(chosen[party], (kinds or {}).get(party))
            chosen[party] = hide_cells(given, share, party).frame
    note = ""
    if (lacking := strategy.needs_parties - len(tables)) > 0:
        index = next(iter(tables.values())).index
        blank = pd.DataFrame({"blank": 0.0}, index)
        chosen |= {f"{NOBODY}-{k}": blank for k in range(lacking)}
        note = f"it needs {lacking + len(tables)} parties; blank ones stand in"
    task = {"name": name, "settings": dict(settings), "kinds": dict(kinds or {})}
    # Of stages one share for all is near enough.
    task["run"] = {**(run or {}), **({"hold_out": most} if most and imputing - {""} else {})}
    whole = _run_apart([task | _part(chosen, labels, None)], limit)[0]
    if whole is not None:
        return Trial(name, **whole, named=named, note=note)
    ids = _all_ids(chosen)
    late = f"none on all {len(ids):,} samples within {limit:g} s"
    if len(ids) <= 2 * SAMPLE:
        return Trial(name, named=named, note=late)
    doubled = (SAMPLE << k for k in range(64))
    sizes = [*takewhile(lambda size: size <= min(LARGEST, len(ids) - 1), doubled)]
    ordered = _in_order_of_digests(ids)
    runs = _run_apart([task | _part(chosen, labels, ordered[:size]) for size in sizes], limit)
    # Few rows are refused where many are not, so nothing is concluded from that.
    ended = {k: run for k, run in enumerate(runs) if run is not None and "refusal" not in run}
    k = max((k for k in ended if k - 1 in ended), default=0)
    if not k:
        return Trial(name, named=named, note=f"{late}, nor on {2 * SAMPLE:,}")
    factor = len(ids) / sizes[k]
    costs: dict[str, Any] = {c: scaled(ended[k - 1][c], ended[k][c], factor) for c in _COSTS}
    said = f"rough: scaled from {sizes[k - 1]:,} and {sizes[k]:,} of {len(ids):,} samples"
    return Trial(
        name, **costs, scaled_from=sizes[k], named=named, note=f"{note}; {said}" if note else said
    )


def run_options(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return what a run config says of the run that changes its cost; refuse a key of nothing."""
    known = AppSettings.config_defaults() | RunSettings.config_defaults()
    own = {
        "demo",
        *names,
        *available_strategies(),
        *(load_strategy(n).name for n in names if ":" in n),
    }
    for key in settings:
        table, dot, _ = key.partition(".")
        if key not in known and not (dot and table in own):
            raise ConfigError(f"unknown setting {key!r}{nearest(key, [*known, *own])}")
    run = RunSettings.from_config(settings)
    stated = [name for name in _OF_THE_RUN if name.replace("_", "-") in settings]
    return {name: getattr(run, name) for name in stated}


def scaled(small: float, large: float, factor: float) -> float:
    """Scale what a run costs to more samples, from two runs of which one has twice as many."""
    if small <= 0 or large <= small:
        return large
    if large <= 2 * small:
        return large + (large - small) * 2 * (factor - 1)
    return float(large * factor ** min(math.log2(large / small), 3.0))


def _all_ids(tables: Mapping[str, pd.DataFrame]) -> "pd.Index[Any]":
    union: pd.Index[Any] = pd.Index([])
    for frame in tables.values():
        union = union.append(frame.index) if len(union) else frame.index
    return union.unique()


def _in_order_of_digests(ids: "pd.Index[Any]") -> "pd.Index[Any]":
    """Order samples by a digest of their IDs, so that the first of them are a random choice."""
    order = [hashlib.blake2b(str(value).encode(), digest_size=8).digest() for value in ids]
    return ids[pd.Series(order).argsort().to_numpy()]


def _part(
    tables: Mapping[str, pd.DataFrame], labels: "pd.Series[Any] | None", ids: "pd.Index[Any] | None"
) -> dict[str, Any]:
    if ids is None:
        return {"tables": dict(tables), "labels": labels, "min_rows": None}
    some = {name: frame[frame.index.isin(ids)] for name, frame in tables.items()}
    held = {name: frame for name, frame in some.items() if len(frame)}
    known = None if labels is None else labels[labels.index.isin(ids)]
    return {"tables": held, "labels": known, "min_rows": 1}


def _run_apart(tasks: Sequence[dict[str, Any]], limit: float) -> list[dict[str, Any] | None]:
    """Run tasks one after the other in a process that ends when its time is up."""
    context = mp.get_context("spawn")  # threads of this process do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    found: list[dict[str, Any] | None] = []
    try:
        if not ours.poll(_START_SECONDS) or ours.recv() != "ready":
            return [None] * len(tasks)
        deadline = time.monotonic() + limit
        for task in tasks:
            ours.send(task)
            if not ours.poll(max(deadline - time.monotonic(), 0.0)):
                break
            found.append(ours.recv())
    except (EOFError, OSError):  # it was killed, for want of memory perhaps
        pass
    finally:
        process.terminate()
        process.join()
        ours.close()
    return [*found, *[None] * (len(tasks) - len(found))]


def _serve(pipe: Connection) -> None:
    """Run tasks that come over a pipe; their logs and warnings are of no interest."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    import flwr_vertical.simulation  # noqa: F401 (what takes time to import is not counted)

    before = most_held()
    pipe.send("ready")
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(_run_one(before, **task))


def _run_one(
    before: float,
    name: str,
    settings: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
    labels: "pd.Series[Any] | None",
    kinds: Mapping[str, Mapping[str, str]],
    run: Mapping[str, Any],
    min_rows: int | None,
) -> dict[str, Any]:
    from flwr_vertical.simulation import simulate

    strategy = make_strategy(name, settings)
    own = {party: found for party, found in kinds.items() if party in tables}
    started = time.perf_counter()
    try:
        result = simulate(
            strategy, tables, labels, kinds=own, min_rows=min_rows, progress=False,
            **{"alignment": strategy.default_alignment, **run},
        )  # fmt: skip
    except VerticalError as error:
        return {"refusal": str(error)}
    ledger = result.ledger
    return {
        "rounds": float(ledger.rounds),
        "traffic": float(ledger.bytes_up + ledger.bytes_down),
        "seconds": time.perf_counter() - started,
        "memory": most_held() - before,
    }


def most_held() -> float:
    """Return the most memory that this process has held, in bytes; 0 where nobody says."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return 1024.0 * int(status.partition("VmHWM:")[2].split()[0])
