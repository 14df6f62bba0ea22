"""A server that deviates in messages: every message of an honest run, and many others in its place.

A run is carried out as it is. Before a node answers a message, it is asked many other ones: every
other step that it has, each argument missing, added, of another type, not finite, of another shape
or out of bounds, and every key of its state written; earlier messages under the new number, and the
new one under old numbers; and what others are not told: another roster, another kind of sum, own
arguments with digests that fit. Its state and what its process remembers are put back after each.
So all places of a protocol are tried, in and out of order, in one run.

An answer is looked at for cells of the node's table. Its masks must be its own: where two messages
are masked alike, a server that sends one to some parties and one to others opens the difference.

::

    python -m simulations.attacks.deviating [STRATEGY ...]
"""

import copy
import logging
import sys
import threading
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from flwr.app import Context, RecordDict

from flwr_vertical import Strategy, errors, simulate
from flwr_vertical.crypto.masks import PairwiseMasker
from flwr_vertical.errors import VerticalError
from flwr_vertical.node.live_objects import LiveObjects
from flwr_vertical.node.service import StepServer
from flwr_vertical.node.steps import steps_of
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.disk import digest
from flwr_vertical.protocol.messages import (
    FAREWELL,
    HELLO,
    RESTORE,
    SNAPSHOT,
    VALUES,
    WHO,
    read_envelope,
)
from simulations.attacks.mutations import KINDS, again, alone, others

_OWN_MESSAGES = (HELLO, WHO, FAREWELL, SNAPSHOT, RESTORE)


BY_PROTOCOL, OTHERWISE, RAW, ANSWERED = "by protocol", "by another rule", "raw error", "answered"
REPEATED = "answered as before"
OUTCOMES = (BY_PROTOCOL, OTHERWISE, RAW, ANSWERED, REPEATED)
"""How a try ends: refused in three ways, answered, or the answer comes that the number had."""


@dataclass(frozen=True)
class Try:
    """A message that the server should not send, and what came of it."""

    step: str  # Instead of whose message it was sent
    kind: str
    what: str
    outcome: str
    error: str
    n_cells: int  # Cells of the node's table in the answer


@dataclass
class Tries:
    """All tries of a run."""

    made: list[Try] = field(default_factory=list)
    # Two messages whose answers a node would mask alike
    masked_alike: list[str] = field(default_factory=list)

    def count(self) -> pd.DataFrame:
        """Return how many tries of each kind ended how, and the cells that answers held."""
        found = Counter((one.kind, one.outcome) for one in self.made)
        table = pd.DataFrame(
            [[found[kind, outcome] for outcome in OUTCOMES] for kind in KINDS],
            index=list(KINDS),
            columns=list(OUTCOMES),
        )
        table["cells found"] = [
            sum(one.n_cells for one in self.made if one.kind == kind) for kind in table.index
        ]
        return table

    def of(self, kind: str, *outcomes: str) -> list[Try]:
        """Return the tries of a kind that ended in one of these ways."""
        return [one for one in self.made if one.kind == kind and one.outcome in outcomes]


def deviate(
    strategy: Strategy,
    tables: Mapping[str, pd.DataFrame],
    labels: "pd.Series[Any] | None" = None,
    mode: str = "masked",
    **options: Any,
) -> Tries:
    """Carry out a run, and try at every message what else a server could send in its place."""
    tries, answer, lock = Tries(), StepServer.answer, threading.Lock()
    cells = {name: _cells(table) for name, table in tables.items()}
    earlier: dict[int, list[tuple[RecordDict, RecordDict]]] = {}  # by node, as they came
    asked: dict[str, tuple[bytes, str]] = {}  # by party, the message that it is at

    def one_at_a_time(self: StepServer, request: RecordDict, context: Context) -> RecordDict:
        with lock:  # nodes share what is put back
            return watched(self, request, context)

    def watched(self: StepServer, request: RecordDict, context: Context) -> RecordDict:
        envelope: Any = read_envelope(request)
        if envelope is None or envelope["step"] in _OWN_MESSAGES:
            return answer(self, request, context)
        state, caches = context.state, dict(self._caches)
        party, past = str(context.node_config.get("party", "")), earlier.get(context.node_id, [])
        known, values = _steps(self, context), decode(state, "flwr-vertical.state")
        composed = [*others(request, values, known), *again(request, past), *alone(request, party)]
        for kind, what, content in composed:
            context.state = _copied(state)
            self._caches = {k: (run, _copied_cache(cache)) for k, (run, cache) in caches.items()}
            asked[party] = _digest(content), f"{envelope['step']}: {kind}, {what}"
            reply = answer(self, content, context)
            is_before = any(reply is old for _, old in past)
            judged = _judged(reply, cells.get(party), is_before)
            tries.made.append(Try(envelope["step"], kind, what, *judged))
        context.state, self._caches = state, caches
        asked[party] = _digest(request), f"{envelope['step']}, as it is"
        reply = answer(self, request, context)
        earlier.setdefault(context.node_id, []).append((request, reply))
        return reply

    logging.disable(logging.CRITICAL)
    try:
        with (
            patch.object(StepServer, "answer", one_at_a_time),
            patch.object(PairwiseMasker, "mask", _watched_mask(asked, tries.masked_alike)),
            _graphs_kept(),
        ):
            simulate(strategy, tables, labels, mode, progress=False, **options)
    finally:
        logging.disable(logging.NOTSET)
    return tries


def _watched_mask(asked: Mapping[str, tuple[bytes, str]], masked_alike: list[str]) -> Any:
    """Return a `mask` that notes two messages of one party whose answers get the same masks."""
    mask, messages = PairwiseMasker.mask, dict[tuple[str, int, bytes], tuple[bytes, str]]()

    def watched(self: PairwiseMasker, arrays: Any, sequence: int, binding: bytes = b"") -> None:
        mask(self, arrays, sequence, binding)
        message, what = asked.get(self.own_name, (b"", ""))
        first, what_first = messages.setdefault((self.own_name, sequence, binding), (message, what))
        if first != message:
            masked_alike.append(f"{self.own_name}: {what_first}; {what}")

    return watched


@contextmanager
def _graphs_kept() -> Iterator[None]:
    """Have PyTorch keep graphs of gradients: tries of a step leave them for the step itself."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    autograd = torch.autograd
    backward, grad = (partial(f, retain_graph=True) for f in (autograd.backward, autograd.grad))
    with patch.object(autograd, "backward", backward), patch.object(autograd, "grad", grad):
        yield


def _copied_cache(cache: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of what a process remembers; what counts in place is made anew from a state."""
    return {
        key: _copied_objects(value) if isinstance(value, LiveObjects) else value
        for key, value in cache.items()
        if key != "masker"
    }


def _copied_objects(live: LiveObjects) -> LiveObjects:
    copied = copy.copy(live)
    copied._objects = copy.deepcopy(live._objects)
    copied._packed = dict(live._packed)
    return copied


def _steps(server: StepServer, context: Context) -> list[str]:
    """Return all steps that a node has, also those of other modes."""
    types = server._types(context)
    return sorted(steps_of(*types.of(server._storage.role(context))))


def _digest(request: RecordDict) -> bytes:
    """Return a digest of all that a message says."""
    envelope: Any = read_envelope(request)
    return digest(repr(sorted(envelope.items())), request)


def _copied(state: RecordDict) -> RecordDict:
    copied = RecordDict()
    for name, record in state.items():
        twin: Any = type(record)()
        twin.update(record)
        copied[name] = twin
    return copied


def _judged(
    reply: RecordDict, cells: "np.ndarray[Any, Any] | None", is_before: bool
) -> tuple[str, str, int]:
    """Return how a try ended, the error, and how many cells the answer has."""
    envelope: Any = read_envelope(reply)
    if is_before:
        return REPEATED, "", 0
    if envelope["status"] != "error":
        return ANSWERED, "", _found(reply, cells)
    error = str(envelope["error"])
    if error == "UnexpectedMessageError":
        return BY_PROTOCOL, str(envelope["message"]), 0
    named = error.endswith("Error") and hasattr(errors, error)
    return OTHERWISE if named else RAW, f"{error}: {envelope['message']}", 0


def _cells(table: pd.DataFrame) -> "np.ndarray[Any, Any]":
    """Return the numbers of a table that nobody could guess: none that comes twice."""
    numbers = table.select_dtypes("number").to_numpy(dtype=float, na_value=np.nan).ravel()
    values, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
    return np.asarray(values[(counts == 1) & (values != np.rint(values))])


def _found(reply: RecordDict, cells: "np.ndarray[Any, Any] | None") -> int:
    """Count cells that stand in an answer as they are."""
    if cells is None or not len(cells):
        return 0
    found = 0
    for value in decode(reply, VALUES).values():
        numbers = np.asarray(value)
        if numbers.dtype.kind == "f":
            found += int(np.isin(np.round(cells, 9), np.round(numbers, 9)).sum())
    return found


def main(names: list[str]) -> None:
    """Try built-in strategies, those that are named or all, and print what came of it."""
    # Imported here: the suite's own cases, of which some need PyTorch.
    from simulations.attacks.cases import cases, make_case_tables, make_strategy_of, routed_cases

    total = cells = 0
    every = [*cases(), *cases(consented=True), *routed_cases()]
    known = {case.strategy for case in every}
    if unknown := sorted({*names} - known):
        raise SystemExit(f"no case is of {unknown}; there are {', '.join(sorted(known))}")
    for case in every:
        if names and case.strategy not in names:
            continue
        tables, labels = make_case_tables(case, 400, 3)
        strategy = make_strategy_of(case, tables, labels)
        try:
            tries = deviate(strategy, tables, labels, min_rows=20)
        except VerticalError as error:  # the honest run itself, on so few rows
            print(f"\n{case.name}: not tried: {str(error)[:200]}")
            continue
        total, found = total + len(tries.made), tries.count()
        cells += int(found["cells found"].sum())
        print(f"\n{case.name}: {len(tries.made):,} tries\n{found.to_string()}", flush=True)
        print("\n".join(f"masked alike: {one}" for one in sorted({*tries.masked_alike})))
        raw = {f"raw error: {one.step}: {one.what}: {one.error}" for kind in KINDS
               for one in tries.of(kind, RAW)}  # fmt: skip
        print("\n".join(sorted(raw)))
    print(f"\n{total:,} tries in all, {cells} cells found")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("strategy", nargs="*", help="such as glm; default: all")
    main(parser.parse_args().strategy)
