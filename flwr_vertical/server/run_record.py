"""The record of a run: its ledger, and its journal if it keeps one."""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from flwr_vertical.errors import PartyError
from flwr_vertical.log import logger
from flwr_vertical.protocol import private_sum
from flwr_vertical.protocol.codec import Payload, payload_bytes
from flwr_vertical.protocol.disk import digest
from flwr_vertical.results.ledger import Ledger, Message
from flwr_vertical.server.journal import Identity, Journal, JournalEntry
from flwr_vertical.server.recovery import RESUME, ReturnedNode

Answers = tuple[Payload, dict[str, Payload]]


class RunRecord:
    """Writes down what every round cost and gave."""

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self.ledger = Ledger()
        self.sequence = 0
        self.answered: dict[str, int] = {}
        self.course = 0
        self.transient = False
        self._spent = 0  # how many of the ledger's spendings the journal need not repeat
        self._rows: list[list[Any]] = []  # of the ledger, not yet in the journal

    def random_bytes(self, count: int) -> bytes:
        """Return bytes of the system's generator; a resumed run gets those it had."""
        if self.journal is None or self.transient:
            return secrets.token_bytes(count)
        return self.journal.random_bytes(count)

    def open(self, greetings: Mapping[str, Payload]) -> None:
        """Write down who takes part."""
        self.answered = dict.fromkeys(greetings, self.sequence)
        if self.journal is not None:
            self.journal.add_opening(greetings, self.position())

    def once(
        self, step: str, requests: Mapping[str, RecordDict], live: Callable[[], Answers]
    ) -> Answers:
        """Return what a round gave, from the journal if it is there, else by taking it."""
        if self.journal is None:
            return live()
        if self.transient:
            answers = live()
            self.journal.add_rows(self.position())
            return answers
        known: dict[int, bytes] = {}
        asked = b"".join(
            digest(f"{step} {name}", requests[name], known) for name in sorted(requests)
        )
        shown = hashlib.blake2b(asked, digest_size=16).hexdigest()
        entry = self.journal.next_round(step, shown)
        if entry is None:
            values, public = live()
            entry = self.journal.add_round(step, shown, values, public, self.position())
        else:
            self.take_up(entry)
        return entry.values, entry.public

    def take_up(self, entry: JournalEntry) -> None:
        """Stand where the run stood after a round in the journal."""
        self.sequence = int(entry.position["sequence"])
        self.answered = dict(entry.position["answered"])
        for row in entry.position["rows"]:
            self.ledger.add(Message(*row))

    def take_up_loop(self, position: Mapping[str, Any]) -> None:
        """Stand where the run stood in a loop, whose rounds are not in the journal."""
        self.sequence = int(position["sequence"])
        for row in position["rows"]:
            self.ledger.add(Message(*row))
        for party, what, epsilon in position["spent"]:
            self.ledger.spend(party, epsilon, what)
        self._spent = len(self.ledger.spendings())

    def begin_loop(self) -> None:
        """Leave the rounds that follow out of the journal."""
        self.transient, self._spent = True, len(self.ledger.spendings())

    def position(self) -> dict[str, Any]:
        """Return where the run stands, and the rows of the ledger since this was asked last."""
        rows, self._rows = self._rows, []
        found: dict[str, Any] = {
            "sequence": self.sequence,
            "answered": dict(self.answered),
            "rows": rows,
        }
        if self.transient:  # what the strategy spends elsewhere it spends again when it is resumed
            spent = [list(spending) for spending in self.ledger.spendings(self._spent)]
            found["spent"] = spent
            self._spent += len(spent)
        return found

    # -- the ledger ------------------------------------------------------------------------

    def note_round(
        self,
        number: int,
        step: str,
        mode: str,
        requests: Mapping[str, RecordDict],
        answered: Mapping[str, RecordDict],
        seconds: float,
        terms: Mapping[str, Payload],
    ) -> None:
        """Write down the messages of a round; `terms` are what the parties sent into a sum."""
        for name, reply in answered.items():
            size = payload_bytes(requests[name]), payload_bytes(reply)
            count = private_sum.count_values(terms.get(name, {}))
            self._note(number, step, mode, name, *size, count, seconds)

    def note_greeted(
        self, number: int, request: RecordDict, found: Mapping[str, ReturnedNode]
    ) -> None:
        """Write down the greetings of nodes that came back."""
        down = payload_bytes(request)
        for name, node in found.items():
            self._note(number, RESUME, "call", name, down, node.bytes_up, 0, node.seconds)

    def _note(self, *row: Any) -> None:
        self.ledger.add(Message(*row))
        if self.journal is not None:
            self._rows.append(list(row))


@contextmanager
def journaled(
    folder: str | os.PathLike[str] | None, resume: bool, identity: Identity
) -> Iterator[Journal | None]:
    """Keep a journal in a folder while a run lasts; None if there is no folder."""
    # Where the run fails the journal stays, and the error says how to go on. There is none of a run
    # that succeeded, or that no party took part in.
    if folder is None:
        yield None
        return
    begin = Journal.resume if resume else Journal.create
    journal = begin(Path(folder), identity)
    try:
        yield journal
    except Exception as error:
        if journal.opening is None:
            if not resume:  # else it can be tried again
                journal.discard()
            raise
        logger.error("%s", journal.hint())
        if isinstance(error, PartyError):
            cause = f"{error.cause}; {journal.hint()}"
            raise PartyError(error.party, error.step, cause) from error
        error.add_note(journal.hint())
        raise
    else:
        journal.discard()
    finally:
        journal.close()


def describe(value: Any) -> str:
    """Write a setting so that two runs can be compared by it."""
    try:
        return json.dumps(
            value,
            sort_keys=True,
            default=lambda one: one.item() if hasattr(one, "item") else type(one).__name__,
        )
    except (TypeError, ValueError):
        return type(value).__name__
