"""A loop of many rounds with snapshots: after a loss server and parties go back to the last one.

A journal of every round is right for ten rounds and wrong for ten thousand. In a loop nothing of a
round is kept but its rows of the ledger. Every so many steps all nodes write a snapshot, then the
server writes its own, then the journal says that it is complete. Who goes back to it makes new
keys: what was sent after it under the old ones is sent again, perhaps as other numbers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flwr_vertical.log import logger
from flwr_vertical.protocol.messages import SNAPSHOT
from flwr_vertical.server.journal import Journal
from flwr_vertical.server.nodes import Nodes
from flwr_vertical.server.rounds import PartyStateLostError
from flwr_vertical.server.run_record import RunRecord

Body = Callable[[int], Any]


class SnapshotLoop:
    """One loop of a strategy."""

    def __init__(
        self,
        nodes: Nodes,
        journal: Journal,
        record: RunRecord,
        total: int | None,
        body: Body,
        live: Mapping[str, Any],
        every: int,
    ) -> None:
        self._nodes, self._journal, self._record = nodes, journal, record
        self._total, self._body, self._every = total, body, every
        # What the server draws at random belongs to what it trains.
        self._live = {**live, "federation.rng": nodes.rng}
        self._number: int | None = None  # of the last complete snapshot
        self._saved: dict[str, Any] = {}  # what its entry in the journal says
        self._step = 0
        self._done = False
        self._behind = False  # whether all have to go back to it first
        self._furthest = -1
        self._losses = 0

    def run(self) -> None:
        """Take the steps."""
        self._record.begin_loop()
        try:
            if self._known():
                return
            while True:
                try:
                    if self._behind:
                        self._go_back()
                    self._go_on()
                    return
                except PartyStateLostError as error:
                    self._note_loss(error)
        finally:
            self._record.transient = False
            self._nodes.between_snapshots = False

    def _known(self) -> bool:
        """Take up what the journal has of this loop; return whether it has all of it."""
        entries = self._journal.next_loop()
        for entry in entries:
            self._record.take_up_loop(entry["position"])
            if entry["kind"] == "snapshot":
                self._saved, self._number = entry, int(entry["number"])
        if self._number is None:
            return False
        if self._journal.ended:
            self._behind = self._nodes.between_snapshots = True
            return False
        self._take_up()
        self._nodes.stand_at(self._number)
        self._record.answered |= entries[-1]["position"]["answered"]
        return True

    def _go_on(self) -> None:
        while not self._done and (self._total is None or self._step < self._total):
            due = self._step % self._every == 0 and self._step != self._saved.get("step")
            if self._number is None or due:
                self._take_snapshot()
            self._done = bool(self._body(self._step))
            self._step += 1
        # The steps after the loop are answered from the journal, but not those in it.
        self._done = True
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        self._journal.sync()
        self._nodes.tell_all(SNAPSHOT)
        number = self._record.sequence
        self._journal.snapshots.write(number, self._journal.token, self._live)
        meta = {
            "number": number,
            "step": self._step,
            "done": self._done,
            "course": self._record.course,
            "begin": self._number is None,
        }
        self._journal.add_snapshot(self._record.position(), **meta)
        if self._number is not None:
            self._journal.snapshots.remove(self._number)
        self._number, self._saved = number, meta
        self._nodes.snapshot = number
        self._nodes.between_snapshots = True

    def _go_back(self) -> None:
        assert self._number is not None
        self._take_up()
        self._nodes.restore_all(self._number)
        self._journal.add_rows(self._record.position())
        self._behind = False
        logger.info("all nodes have gone back to step %d of the loop", self._step)

    def _take_up(self) -> None:
        """Put the server where its snapshot is."""
        assert self._number is not None
        self._journal.snapshots.read(self._number, self._journal.token, self._live)
        self._step, self._done = int(self._saved["step"]), bool(self._saved["done"])
        self._record.course = int(self._saved["course"])

    def _note_loss(self, error: PartyStateLostError) -> None:
        """Go back after a loss, unless the loop gets no further that way."""
        if self._number is None:
            raise error
        if self._step > self._furthest:
            self._furthest, self._losses = self._step, 0
        self._losses += 1
        allowed = max(1, self._nodes.retries)
        if self._losses > allowed:
            cause = f"{error.cause} (step {self._step} of the loop, lost {self._losses} times)"
            raise PartyStateLostError(error.party, error.step, cause) from error
        logger.warning("%s; all go back to the snapshot of step %d", error, self._saved["step"])
        self._behind = True
