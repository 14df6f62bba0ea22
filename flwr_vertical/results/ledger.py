"""The ledger: what a run cost in rounds, messages, bytes, seconds and privacy."""

import math
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.pages.page import human_bytes, human_seconds

MODES = frozenset({"call", "plain", "masked", "ckks", "open"})
_SUMMARY = (
    "rounds",
    "messages",
    "bytes_up",
    "bytes_down",
    "values_up",
    "bytes_per_value",
    "seconds",
)


class Message(NamedTuple):
    """One message to a party and its reply."""

    round: int  # Its number, from 1; messages of one round travel together
    step: str  # The step that the party was asked to take
    mode: str  # How the reply was protected; "open" is an arbiter opening a ciphertext
    party: str  # Name of the party (or of the arbiter)
    bytes_down: int  # Size of the message to the party
    bytes_up: int  # Size of its reply
    values_up: int  # How many numbers of the reply enter a private sum
    seconds: float  # From sending the message to having its reply


class _Messages:
    """A list of messages in columns: 40 bytes each, where a tuple of objects takes 250."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], int] = {}
        self._whole = {name: array("q") for name in ("bytes_down", "bytes_up", "values_up")}
        self._round, self._kind, self._seconds = array("I"), array("I"), array("d")

    def append(self, message: Message) -> None:
        """Write down a message."""
        kind = self._kinds.setdefault(message[1:4], len(self._kinds))
        self._round.append(message.round)
        self._kind.append(kind)
        for name, column in self._whole.items():
            column.append(getattr(message, name))
        self._seconds.append(message.seconds)

    def __len__(self) -> int:
        return len(self._seconds)  # which is written last

    def since(self, first: int = 0) -> Iterator[Message]:
        """Yield the messages from one on; another thread may be writing further ones."""
        part, kinds = slice(first, len(self)), list(self._kinds)
        whole = [column[part] for column in self._whole.values()]
        columns = zip(self._round[part], self._kind[part], *whole, self._seconds[part], strict=True)
        for number, kind, down, up, values, seconds in columns:
            step, mode, party = kinds[kind]
            yield Message(number, step, mode, party, down, up, values, seconds)

    __iter__ = since


class Spending(NamedTuple):
    """Privacy that one release of a party has spent."""

    party: str
    what: str
    epsilon: float


class Ledger:
    """Counts what every round of a run sent, received and spent.

    The federation writes one line per party and round. Writing costs about a microsecond, so
    ledgers stay on in runs of many thousand rounds; sums are taken when somebody asks.

    Examples
    --------
    >>> ledger = Ledger()
    >>> now = ledger.next_round()
    >>> ledger.add(Message(now, "fit", "masked", "bank", 80, 160, values_up=10, seconds=0.5))
    >>> ledger.rounds, ledger.bytes_up
    (1, 160)
    """

    def __init__(self) -> None:
        self._messages = _Messages()
        self._spendings: list[Spending] = []
        self._round = 0

    def next_round(self) -> int:
        """Open a round and return its number; the first is 1."""
        self._round += 1
        return self._round

    def add(self, message: Message) -> None:
        """Write down a message; its round may be one that `next_round` did not give."""
        if message.mode not in MODES:
            raise ConfigError(
                f"step {message.step!r}, party {message.party!r}: mode must be one of "
                f"{', '.join(sorted(MODES))}, got {message.mode!r}"
            )
        self._messages.append(message)
        self._round = max(self._round, message.round)

    def spend(self, party: str, epsilon: float, what: str) -> None:
        """Write down that releasing `what` cost the samples of `party` a privacy of `epsilon`."""
        if not epsilon >= 0:  # also refuses NaN
            raise ConfigError(f"party {party!r}, {what}: epsilon must be at least 0, got {epsilon}")
        self._spendings.append(Spending(party, what, float(epsilon)))

    def spendings(self, first: int = 0) -> list[Spending]:
        """Return what was spent, in the order of writing, from an entry on."""
        return self._spendings[first:]

    def since(self, first: int) -> Iterator[Message]:
        """Return the messages from an entry on; may be asked by another thread during a run."""
        return self._messages.since(first)

    @property
    def rounds(self) -> int:
        """Number of rounds in which a message was sent."""
        return len({m.round for m in self._messages})

    @property
    def messages(self) -> int:
        """Number of messages sent to parties, each with its reply."""
        return len(self._messages)

    @property
    def bytes_up(self) -> int:
        """Bytes from the parties to the server."""
        return sum(m.bytes_up for m in self._messages)

    @property
    def bytes_down(self) -> int:
        """Bytes from the server to the parties."""
        return sum(m.bytes_down for m in self._messages)

    @property
    def values_up(self) -> int:
        """Numbers that entered private sums, over all parties."""
        return sum(m.values_up for m in self._messages)

    @property
    def seconds(self) -> float:
        """Seconds spent in rounds; a round lasts as long as its slowest message."""
        slowest: dict[int, float] = {}
        for m in self._messages:
            slowest[m.round] = max(m.seconds, slowest.get(m.round, 0.0))
        return math.fsum(slowest.values())

    @property
    def privacy(self) -> pd.DataFrame:
        """Privacy spent: one row per release, with columns party, what and epsilon."""
        return pd.DataFrame(self._spendings, columns=list(Spending._fields))

    @property
    def epsilon(self) -> dict[str, float]:
        """Privacy spent by each party in all, by basic composition (the epsilons add up)."""
        total: dict[str, float] = {}
        for s in self._spendings:
            total[s.party] = total.get(s.party, 0.0) + s.epsilon
        return total

    def totals(self) -> dict[str, Any]:
        """Return the totals over all steps as plain numbers."""
        names = ("rounds", "messages", "bytes_up", "bytes_down", "values_up", "seconds")
        return {name: getattr(self, name) for name in names} | {"epsilon": self.epsilon}

    def to_frame(self) -> pd.DataFrame:
        """Return one row per message: round, step, mode, party, bytes, values and seconds."""
        return pd.DataFrame(list(self._messages), columns=list(Message._fields))

    def summary(self, by: str = "step") -> pd.DataFrame:
        """Return the totals of each step, in the order of their first message.

        Parameters
        ----------
        by : {"step", "party", "mode", "round", "total"}, optional
            What to group the messages by; "total" gives one row of all.

        Returns
        -------
        DataFrame
            Columns rounds, messages, bytes_up, bytes_down, values_up, bytes_per_value (bytes up per
            number entering a private sum; NaN where there is none) and seconds.
        """
        parts = self._parts(by)
        rows = [part._row() for part in parts.values()]
        return pd.DataFrame(rows, columns=list(_SUMMARY), index=pd.Index(list(parts), name=by))

    def table(self, by: str = "step") -> str:
        """Return the summary as text, with readable sizes, the total and the privacy spent."""
        parts = self._parts(by)
        lines = [[by, "rounds", "messages", "up", "down", "B/value", "seconds"]]
        lines += [[str(key), *part._cells()] for key, part in parts.items()]
        lines += [["total", *self._cells()]]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        rule = "-" * len(text[0])
        text = [text[0], rule, *text[1:-1], rule, text[-1]]
        spent = [f"{party} {epsilon:.4g}" for party, epsilon in self.epsilon.items()]
        if spent:
            text.append("privacy spent (epsilon, added up): " + ", ".join(spent))
        return "\n".join(text)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return (
            f"Ledger({self.rounds} rounds, {self.messages} messages, "
            f"{human_bytes(self.bytes_up)} up, {human_bytes(self.bytes_down)} down)"
        )

    @classmethod
    def from_frames(cls, messages: pd.DataFrame, privacy: pd.DataFrame | None = None) -> "Ledger":
        """Rebuild a ledger from what `to_frame` and `privacy` gave."""
        ledger = cls()
        for row in messages[list(Message._fields)].to_dict("records"):
            ledger.add(Message(**{str(key): value for key, value in row.items()}))
        if privacy is not None:
            for row in privacy.to_dict("records"):
                ledger.spend(str(row["party"]), float(row["epsilon"]), str(row["what"]))
        return ledger

    def _parts(self, by: str) -> dict[Any, "Ledger"]:
        if by == "total":
            return {"total": self}
        if by not in ("step", "party", "mode", "round"):
            raise ConfigError(f"by must be step, party, mode, round or total, got {by!r}")
        parts: dict[Any, Ledger] = {}
        for m in self._messages:
            parts.setdefault(getattr(m, by), Ledger())._messages.append(m)
        return parts

    def _row(self) -> dict[str, float]:
        # Only messages of private sums: the other steps' bytes carry no value of a sum.
        summing = [m for m in self._messages if m.values_up]
        values = sum(m.values_up for m in summing)
        per_value = sum(m.bytes_up for m in summing) / values if values else math.nan
        return {name: getattr(self, name, per_value) for name in _SUMMARY}

    def _cells(self) -> list[str]:
        row = self._row()
        per_value = row["bytes_per_value"]
        return [
            f"{self.rounds:,}",
            f"{self.messages:,}",
            human_bytes(self.bytes_up),
            human_bytes(self.bytes_down),
            "–" if math.isnan(per_value) else f"{per_value:.1f}",
            human_seconds(self.seconds),
        ]
