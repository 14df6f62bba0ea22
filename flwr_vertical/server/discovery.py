"""Which nodes are there, and the names of those that are not.

Flower knows nodes by numbers and lists a node that died for up to a minute more. So nodes that
others wait for are asked their names, and the server remembers who had which number last.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from flwr_vertical.errors import ConfigError
from flwr_vertical.grids.poll import pauses
from flwr_vertical.log import logger
from flwr_vertical.protocol import messages
from flwr_vertical.protocol.codec import decode
from flwr_vertical.whole_files import write_text_atomically

_TOLD_EVERY = 10.0
_ASKING = 10.0  # seconds for nodes that are there to tell their names; Flower needs some six
_POLL = 0.2
_KEPT = 256  # node IDs in the file: restarted SuperNodes have new ones


class Presence:
    """Waits for nodes, at most ``patience`` seconds in all, and names who is absent."""

    def __init__(
        self,
        patience: float,
        expected: Sequence[str] | None = None,
        arbiter_for: str | None = None,
        path: Path | None = None,
        until: float | None = None,
    ) -> None:
        self.patience = patience
        self.here: list[int] = []  # node IDs, as `wait` saw them last
        self.until = time.monotonic() + patience if until is None else until
        self._expected = list(expected or ())
        self._arbiter_for = arbiter_for
        self._path = path
        self._told: dict[int, str] = {}  # by node ID, the names that nodes told
        self._asked: dict[str, int] = {}  # node ID by the message that asks it
        kept = _read(path)
        self._earlier: dict[int, str] = kept["nodes"]
        self._last: list[str] = kept["last"]

    @property
    def left(self) -> float:
        """Seconds of patience that are left."""
        return max(0.0, self.until - time.monotonic())

    def wait(self, grid: Grid, wanted: int) -> list[int]:
        """Wait until so many nodes are connected and return their IDs."""
        started = told = time.monotonic()
        waits = pauses(min(1.0, self.patience / 10))
        one = self._arbiter_for
        needed = f"; one of them is the arbiter, which {one} needs" if one else ""
        while True:
            self.here = node_ids = list(grid.get_node_ids())
            if len(node_ids) >= wanted:
                return node_ids
            if not self.left:
                self.ask(grid, self._unknown(node_ids), _ASKING)
                raise ConfigError(
                    f"{len(node_ids)} of {wanted} nodes are connected after {self.patience:.0f} s; "
                    f"start the missing SuperNodes{self._absent(node_ids)}, or in a simulation set "
                    f"--federation-config 'num-supernodes={wanted}'{needed}"
                )
            if time.monotonic() - told > _TOLD_EVERY:
                told = time.monotonic()
                self.ask(grid, self._unknown(node_ids), 0.0)
                logger.info(
                    "waiting for nodes: %d of %d are connected after %.0f s%s, the run gives up "
                    "after %.0f s%s",
                    len(node_ids), wanted, told - started, self._absent(node_ids), self.patience,
                    needed,
                )  # fmt: skip
            time.sleep(next(waits))

    def ask(self, grid: Grid, node_ids: Collection[int], seconds: float) -> None:
        """Ask nodes their names and wait some seconds for the answers; silence is no error."""
        fresh = [n for n in node_ids if n not in self._told and n not in self._asked.values()]
        if fresh:
            asks = [
                messages.make_message(messages.make_request(messages.WHO, 0, {}), n) for n in fresh
            ]
            numbers = grid.push_messages(asks)
            self._asked |= {m: n for m, n in zip(numbers, fresh, strict=False) if m}
        deadline = time.monotonic() + seconds
        while waiting := [m for m, n in self._asked.items() if n in set(node_ids)]:
            for reply in grid.pull_messages(waiting):
                node_id = self._asked.pop(reply.metadata.reply_to_message_id, None)
                name = "" if reply.has_error() else _name(reply.content)
                if node_id is not None and name:
                    self._told[node_id] = name
            if time.monotonic() > deadline:
                return
            time.sleep(min(_POLL, seconds / 10))

    def remember(self, nodes: Mapping[str, int]) -> None:
        """Keep who has which node ID, for a later run in which one is silent."""
        self._told = {node_id: name for name, node_id in nodes.items()}
        if self._path is None:
            return
        others = {n: who for n, who in self._earlier.items() if n not in self._told}
        newest = list({**self._told, **others}.items())[:_KEPT]
        kept = {"nodes": {str(n): who for n, who in newest}, "last": sorted(nodes)}
        try:
            write_text_atomically(self._path, json.dumps(kept), mode=0o600)
        except OSError as error:  # names in a later error are all that is lost
            logger.warning("%s cannot be written: %s", self._path, error)

    def known(self, node_id: int) -> str:
        """Return the name of the party that a node told, now or in an earlier run; "" if none."""
        return self._told.get(node_id) or self._earlier.get(node_id, "")

    def name(self, node_id: int) -> str:
        """Return how people know a node: by its party, if it or an earlier run told it."""
        if node_id in self._told:
            return _label(self._told[node_id])
        if node_id in self._earlier:
            return f"node {node_id} ({_label(self._earlier[node_id])} in the last run)"
        return f"node {node_id}"

    def names_of_silent(self, grid: Grid, silent: Collection[int]) -> dict[int, str]:
        """Name nodes that do not answer, after asking those that do."""
        # A silent node that nobody knows is one of the parties that nobody else is.
        others = [n for n in grid.get_node_ids() if n not in silent]
        self.ask(grid, self._unknown(others), _ASKING)
        found = {n: self.name(n) for n in silent}
        unknown = self._unknown(silent)
        known = {self.known(n) for n in [*others, *silent]}
        left = [name for name in self._expected if name not in known]
        if left and not self._unknown(others):
            who = " or ".join(map(_label, left))
            found |= {n: f"node {n} (which must be {who})" for n in unknown}
        return found

    def _unknown(self, node_ids: Collection[int]) -> list[int]:
        return [n for n in node_ids if not self.known(n)]

    def _absent(self, node_ids: Collection[int]) -> str:
        """Say who is not there: of the parties that must be, or of those of the last run."""
        here = {self.known(n) or None for n in node_ids}
        wanted = self._expected or self._last
        absent = sorted(name for name in wanted if name not in here)
        if not absent or (None in here and not self._expected):
            return ""
        listed = ", ".join(map(_label, absent))
        if None in here:  # a node that tells no name may be one of them
            return f" (no node has answered as {listed})"
        last = "" if self._expected else " of the last run"
        return f" ({listed}{last} is absent)" if len(absent) == 1 else f" ({listed} are absent)"


def _label(name: str) -> str:
    return "the arbiter" if name == messages.ARBITER else f"party {name!r}"


def _name(content: RecordDict) -> str:
    """Return the name that a node told, also in an error reply; "" if none."""
    envelope: Any = messages.read_envelope(content) or {}
    if envelope.get("status") == "ok":
        told = decode(content, messages.VALUES)
        return messages.ARBITER if told.get("role") == "arbiter" else str(told.get("party", ""))
    return str(envelope.get("party", ""))


def _read(path: Path | None) -> dict[str, Any]:
    """Read what `Presence.remember` wrote; a damaged file is as good as none."""
    try:
        kept = json.loads(path.read_text()) if path is not None and path.is_file() else {}
        nodes = {int(n): str(who) for n, who in kept.get("nodes", {}).items()}
        return {"nodes": nodes, "last": [str(name) for name in kept.get("last", [])]}
    except (OSError, ValueError, AttributeError, TypeError):
        return {"nodes": {}, "last": []}
