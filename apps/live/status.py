"""What can be seen of a run while it lasts: progress, round, and what the ledger has counted."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.results import Ledger, Progress
from flwr_vertical.results.ledger import Message
from flwr_vertical.server.discovery import Presence
from flwr_vertical.server.federation import Federation

GREETINGS = "(greetings)"
"""The row of messages to nodes whose names were not known yet."""

_COUNTED = ("bytes_down", "bytes_up", "values_up")
_NOTHING = {"messages": 0, **dict.fromkeys(_COUNTED, 0), "epsilon": 0.0}


class Counts:
    """The ledger's totals, by node and in all, brought up to date with what is new in it."""

    def __init__(self) -> None:
        self._read = self._spent = 0  # entries of the ledger that are in the totals
        self._rounds: set[int] = set()
        self._nodes: dict[str, dict[str, Any]] = {}

    def update(self, ledger: Ledger) -> None:
        """Add what the ledger has got since."""
        for message in ledger.since(self._read):
            self._add(message)
            self._read += 1
        for party, _, epsilon in ledger.spendings(self._spent):
            self._of(party)["epsilon"] += epsilon
            self._spent += 1

    def totals(self) -> dict[str, int]:
        """Return the totals over all nodes."""
        names = ("messages", *_COUNTED)
        sums = {name: sum(node[name] for node in self._nodes.values()) for name in names}
        return {"rounds": len(self._rounds), **sums}

    def nodes(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return a row for each of these nodes, the arbiter and greetings of unnamed nodes."""
        known = [*names, *([ARBITER] if ARBITER in self._nodes else [])]
        rows = [{"name": name, **self._nodes.get(name, _NOTHING)} for name in known]
        if rest := [node for name, node in self._nodes.items() if name not in known]:
            sums = {key: sum(node[key] for node in rest) for key in ("messages", *_COUNTED)}
            rows.append({"name": GREETINGS, **_NOTHING, **sums})
        return rows

    def _of(self, name: str) -> dict[str, Any]:
        return self._nodes.setdefault(name, dict(_NOTHING))

    def _add(self, message: Message) -> None:
        self._rounds.add(message.round)
        node = self._of(message.party)
        node["messages"] += 1
        for name in _COUNTED:
            node[name] += getattr(message, name)


@dataclass
class LiveStatus:
    """What is known of a run, for threads that show it; the run itself writes nothing for it.

    Parameters
    ----------
    run : str
        Name of the run.
    strategy, aggregation : str
        As in the run config.
    presence : Presence
        Knows the nodes that are there before the run begins.
    """

    run: str
    strategy: str
    aggregation: str
    presence: Presence

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._watched: tuple[Federation, Progress] | None = None
        self._counts, self._lock = Counts(), threading.Lock()

    def watch(self, federation: Federation, progress: Progress) -> None:
        """Look at a federation that is about to open; see `Strategy.start`."""
        self._watched = federation, progress

    def read(self) -> dict[str, Any]:
        """Return the state of now as plain values, which JSON can hold."""
        seconds = time.monotonic() - self._began
        found: dict[str, Any] = {
            "run": self.run,
            "strategy": self.strategy,
            "aggregation": self.aggregation,
            "seconds": seconds,
            "state": "waiting for nodes",
            "progress": None,
            "round": None,
        }
        names: list[str] = []
        with self._lock:
            if self._watched is not None:
                federation, progress = self._watched
                names = list(federation.parties)
                self._counts.update(federation.ledger)
                found |= _seen(progress)
            if names:
                found["state"] = "running"
            else:
                names = [self.presence.name(node_id) for node_id in self.presence.here]
            return found | {"ledger": self._counts.totals(), "nodes": self._counts.nodes(names)}


def _seen(progress: Progress) -> dict[str, Any]:
    seen = progress.seen()
    found: dict[str, Any] = {
        "progress": {
            "title": progress.title,
            "done": seen.done,
            "total": seen.total,
            "step": seen.name,
            "detail": seen.detail,
            "values": {name: _number(value) for name, value in seen.values.items()},
            "per_second": seen.rate,
            "seconds_left": seen.left,
        }
    }
    if (now := seen.round) is not None:
        spent = time.monotonic() - now.since
        found["round"] = {
            "number": now.number,
            "step": now.step,
            "asked": list(now.names),
            "seconds": spent,
        }
    return found


def _number(value: SupportsFloat) -> float | str:
    """Return a number, or as text what JSON has no number for."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else str(number)
