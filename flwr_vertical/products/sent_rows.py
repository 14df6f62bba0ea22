"""Rows of masked columns travel in parts, so that neither side has a table of them in memory.

The first part comes with `send_masked`, and with it how many rows there are; the others are asked
for one by one. All are under one key stream, whose tag is that of the whole content.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import numpy as np

from flwr_vertical.arrays import Ring
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.node import StepGroup, step
from flwr_vertical.products.columns import EncodedColumns
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.protocol.arguments import Within
from flwr_vertical.protocol.declaration import FACTS, Protocol, Repeat, Round
from flwr_vertical.scratch import ScratchFile, is_large
from flwr_vertical.server import Federation

PART_ROWS = 1 << 20
"""Rows in a message, at most: of 20 columns in two limbs, 336 MB."""

SENDING = Protocol(
    Round("send_masked", "its columns under the group's key stream", tells=FACTS, again=True),
    Repeat(Round("send_rows", "more rows of them", again=True), at_most="n_samples"),
)
"""How a party hands over its columns; more rows follow where there are very many."""


class SentRows(StepGroup, ABC):
    """The party half: gives the rows of its encoded columns in parts."""

    @step
    def send_rows(
        self, limbs: Annotated[int, Within(1, 2)], start: Annotated[int, Within(1, 2**40)]
    ) -> dict[str, Any]:
        """Hand over ``masked``, the next `PART_ROWS` rows at most, under the same key stream."""
        return {"masked": self._part(limbs, start)["masked"]}

    def _part(self, limbs: int, start: int = 0) -> dict[str, Any]:
        """Return ``masked`` rows, and ``n_rows``, how many there are, if these are not all."""
        encoded, masks = self._encoded(limbs)[0], self._masks(limbs)
        n_rows = encoded.shape[0]
        stop = min(start + PART_ROWS, n_rows)
        more = {"n_rows": n_rows} if start == 0 and stop < n_rows else {}
        return {"masked": masks.mask(encoded.blocks(start, stop), start), **more}

    @abstractmethod
    def _encoded(self, limbs: int) -> tuple[EncodedColumns, bytes]:
        """Return the encoded columns, and their tag."""

    @abstractmethod
    def _masks(self, limbs: int) -> KeyStream:
        """Return the key stream of the columns."""


def ask_for_rows(
    federation: Federation, arguments: Mapping[str, Any], per_party: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Have every party hand over its columns; one round, and one for each further part.

    Returns by party its answer to ``send_masked`` with all rows as ``masked``, on disk if they are
    many; without ``masked`` where a journal answers, which keeps no rows.
    """
    # Beside the group seed the rows would be the table.
    unkept = ["masked", "sketch"]
    replies = federation.call("send_masked", arguments, per_party=per_party, unkept=unkept)
    lengths = {name: int(r["n_rows"]) for name, r in replies.items() if "n_rows" in r}
    if not lengths:
        return replies
    n_rows = next(iter(lengths.values()))
    if len(lengths) < len(replies) or len(set(lengths.values())) > 1:
        raise DataError(
            f"the parties sent columns of different lengths: {lengths}, and {PART_ROWS} rows or "
            f"less of {[name for name in replies if name not in lengths]}"
        )
    # Where a journal answers, go on to its next part: it has one of every round.
    rows = ReceivedRows("send_rows", n_rows, PART_ROWS)
    rows.add(replies, 0)
    for start in range(PART_ROWS, n_rows, PART_ROWS):
        asked = {"limbs": arguments["limbs"], "start": start}
        rows.add(federation.call("send_rows", asked, unkept=unkept), start)
    whole = rows.whole() if rows.are_there else {}
    return {
        name: {key: value for key, value in reply.items() if key != "masked"}
        | ({"masked": whole[name]} if whole else {})
        for name, reply in replies.items()
    }


class ReceivedRows:
    """Masked rows of all parties, in memory or on disk; they come in parts of `part_rows`."""

    def __init__(self, step: str, n_rows: int, part_rows: int) -> None:
        self._step, self._n_rows, self._part_rows = step, n_rows, part_rows
        self.are_there = True  # unless a journal answers, which keeps none
        self._widths: dict[str, int] = {}
        self._parts: dict[str, list[Ring]] = {}
        self._files: dict[str, ScratchFile] = {}

    def add(self, replies: Mapping[str, Mapping[str, Any]], start: int) -> None:
        """Put a part of each party in its place."""
        self.are_there &= all("masked" in reply for reply in replies.values())
        if not self.are_there:
            self._parts, self._files = {}, {}
            return
        if not start:
            self._widths = {name: reply["masked"].shape[1] for name, reply in replies.items()}
            if is_large(8 * self._n_rows * sum(self._widths.values())):
                self._files = {n: ScratchFile(f"what {n!r} sent") for n in replies}
        for name, reply in replies.items():
            part, width = reply["masked"], self._widths[name]
            expected = min(self._part_rows, self._n_rows - start), width
            if part.shape != expected:
                raise PartyError(
                    name, self._step, f"sent rows of shape {part.shape}, expected {expected}"
                )
            if self._files:
                self._files[name].write(8 * start * width, part)
            else:
                self._parts.setdefault(name, []).append(part)

    def whole(self) -> dict[str, Ring]:
        """Return all rows of each party; called once."""
        if self._files:
            return {name: rows(0, self._n_rows) for name, rows in self.on_disk().items()}
        return {name: np.concatenate(self._parts.pop(name)) for name in self._widths}

    def on_disk(self) -> dict[str, Callable[[int, int], Ring]]:
        """Return what maps a range of rows of each party, and no others; empty if in memory."""

        def rows(name: str, start: int, stop: int) -> Ring:
            width = self._widths[name]
            return self._files[name].array(8 * start * width, np.uint64, (stop - start, width))

        return {name: partial(rows, name) for name in self._files}
