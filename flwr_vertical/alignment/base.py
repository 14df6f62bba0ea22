"""The interface of alignment: from the parties' tables to a common row index and a mask."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flwr_vertical.alignment.steps import AlignmentSteps
from flwr_vertical.arrays import AnyArray, Bytes, Flags, Integers
from flwr_vertical.crypto.permutation import secret_order
from flwr_vertical.errors import ConfigError, DataError, PartyError, ProtocolError
from flwr_vertical.server.federation import Federation
from flwr_vertical.server.settings import ROWS as ROWS
from flwr_vertical.tables.ids import bytes_of, check_normalisation, id_type, normal_ids

LABELS = "server (labels)"
"""Whose sample IDs are those of the server's labels, for errors."""


@dataclass(frozen=True)
class Alignment:
    """The common row index of a run, as the server knows it."""

    parties: list[str]  # Names of the parties, in the order of the mask's columns
    # (n_samples, n_parties): true where a party does not have the sample (a missing block)
    mask: Flags
    ids: "pd.Index[Any] | None" = None  # The sample IDs where they are public, else None
    # (n_labels,): aligned row of each of the server's labels, -1 where no row belongs to it; None
    # if the server has no labels
    label_rows: Integers | None = None

    @property
    def n_samples(self) -> int:
        """Number of aligned samples."""
        return int(self.mask.shape[0])


class Aligner(ABC):
    """Brings the parties' samples into one order.

    After `align` every party's state holds ``positions`` (the aligned row number of each of its own
    rows, -1 for a row that is left out) and ``n_samples``. `rows` says which samples take part:
    ``union``, those of any party, ``intersection``, of all parties, or ``labelled``, those with a
    label; `normalise` how text IDs are made comparable. A class states as `disclosure` who learns
    what, and as `steps` the steps that every party offers.
    """

    steps: ClassVar[type[AlignmentSteps]]

    disclosure: ClassVar[tuple[tuple[str, str], ...]] = (
        ("server", "the parties' names, the number of samples, and which party has which sample"),
        (
            "every party",
            "the number of aligned samples, and which of its own take part: with rows "
            "'intersection' those that all have, with 'labelled' those with a label",
        ),
    )
    # Whether rows are numbered at random. In the order of first appearance a party could read off
    # its positions which of its samples the parties before it have.
    _random_rows: ClassVar[bool] = True

    def __init__(self, rows: str = "union", normalise: Sequence[str] | str = ()) -> None:
        if rows not in ROWS:
            raise ConfigError(f"unknown rows {rows!r} to align; expected one of {list(ROWS)}")
        self.rows = rows
        self.normalise = check_normalisation(normalise)

    @abstractmethod
    def align(
        self,
        federation: Federation,
        label_ids: "pd.Index[Any] | None" = None,
        label_holder: str | None = None,
    ) -> Alignment:
        """Align the samples of all parties; `DataError` if ID types differ or no sample is left.

        `label_ids` are sample IDs of the labels that the server holds, `label_holder` the party
        that holds them instead.
        """

    def finish(
        self,
        federation: Federation,
        tokens: Mapping[str, AnyArray],
        labels: AnyArray | None,
        label_holder: str | None,
    ) -> tuple[Alignment, AnyArray]:
        """Join tokens that are equal exactly where sample IDs are; tell every party its rows.

        Positions ride with the next message of the federation. Shapes: tokens (n_own,): of each
        party's rows; labels (n_labels,): tokens of the server's labels, if it has them; returns
        (n_samples,): the token of each aligned row, in a random order, `plain` in that of first
        appearance.
        """
        parts = [tokens[name] for name in federation.parties]
        if labels is not None:
            parts.append(labels)
        codes, values = pd.factorize(np.concatenate(parts))
        pieces = np.split(codes, np.cumsum([len(part) for part in parts])[:-1])
        owned, label_codes = pieces[: len(tokens)], pieces[-1] if labels is not None else None

        present = np.zeros((len(values), len(tokens)), dtype=bool)
        for k, own in enumerate(owned):
            present[own, k] = True
        kept = np.flatnonzero(self._kept(present, federation.parties, label_codes, label_holder))
        if self._random_rows:
            kept = kept[secret_order(len(kept), federation.random_bytes)]
        row_of = np.full(len(values), -1, dtype=np.int64)
        row_of[kept] = np.arange(len(kept))
        for name, own in zip(federation.parties, owned, strict=True):
            federation.update(name, {"positions": row_of[own], "n_samples": len(kept)})
        label_rows = None if label_codes is None else row_of[label_codes]
        alignment = Alignment(list(federation.parties), ~present[kept], None, label_rows)
        return alignment, np.asarray(values)[kept]

    def finish_pseudonyms(
        self,
        federation: Federation,
        sets: Mapping[str, Bytes],
        labels: Bytes | None,
        label_holder: str | None,
    ) -> Alignment:
        """As `finish`, of pseudonyms (n_own, 32) of each party's IDs and (n_labels, 32)."""
        parts = [sets[name] for name in federation.parties]
        tokens = to_tokens(parts if labels is None else [*parts, labels])
        label_tokens = None if labels is None else tokens.pop()
        named = dict(zip(federation.parties, tokens, strict=True))
        return self.finish(federation, named, label_tokens, label_holder)[0]

    def _kept(
        self,
        present: Flags,
        parties: list[str],
        label_codes: Integers | None,
        label_holder: str | None,
    ) -> Flags:
        """Choose the rows that take part, array of shape (n_values,)."""
        if self.rows == "union":
            return np.asarray(present.any(axis=1))
        if self.rows == "intersection":
            return np.asarray(present.all(axis=1))
        if label_holder is not None:
            if label_holder not in parties:
                raise ConfigError(
                    f"no party {label_holder!r} in this run to hold the labels; its parties are "
                    f"{parties}"
                )
            return present[:, parties.index(label_holder)]
        if label_codes is None:
            raise ConfigError("rows='labelled' needs labels, or a party that holds them")
        kept = np.zeros(len(present), dtype=bool)
        kept[label_codes] = True
        return kept


class ServerIds:
    """Sample IDs of the server's labels in a secret order, on their way through a protocol."""

    def __init__(
        self, ids: "pd.Index[Any]", normalise: Sequence[str], random: Callable[[int], bytes]
    ) -> None:
        self.id_type = id_type(ids, LABELS)
        self._order = secret_order(len(ids), random)
        self.values = bytes_of(normal_ids(ids, normalise, LABELS)[self._order])

    def own_order(self, rows: Bytes) -> Bytes:
        """Undo the shuffling: rows in the order of the labels."""
        own = np.empty_like(rows)
        own[self._order] = rows
        return own


def handed_on(reply: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return values of a reply that go to other parties, and who vouches for them."""
    return {key: reply[key] for key in (*names, "identity", "signature") if key in reply}


def checked_rows(rows: Any, shape: tuple[int | None, ...], party: str, step_name: str) -> Bytes:
    """Check the form of bytes that a party returned; None stands for any number."""
    fits = rows.dtype == np.uint8 and rows.ndim == len(shape)
    if not fits or any(n not in (None, m) for n, m in zip(shape, rows.shape, strict=True)):
        expected = ", ".join("n" if n is None else str(n) for n in shape)
        raise PartyError(
            party,
            step_name,
            f"returned values of shape {rows.shape} ({rows.dtype}), expected ({expected}) of uint8",
        )
    return np.asarray(rows)


def to_tokens(sets: Sequence[Bytes]) -> list[AnyArray]:
    """Give pseudonyms (n_k, 32) numbers (n_k,), equal ones the same in whichever set."""
    rows = np.ascontiguousarray(np.concatenate(sets))
    # Eight bytes tell two million pseudonyms apart but for a chance of 1e-7; all 32 are compared.
    codes, _ = pd.factorize(np.ascontiguousarray(rows[:, :8]).view(np.uint64)[:, 0])
    first = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    if not np.array_equal(rows, rows[first[codes]]):
        raise ProtocolError("two pseudonyms agree in eight bytes, a rare accident; run again")
    return np.split(codes, np.cumsum([len(part) for part in sets])[:-1])


def check_id_types(types: Mapping[str, str]) -> None:
    """Raise `DataError` if some parties have integers and others text as sample IDs."""
    if len(set(types.values())) > 1:
        raise DataError(
            f"the parties' sample IDs are of different types: {dict(types)}; store them all as "
            "text or all as integers"
        )


def check_overlap(alignment: Alignment, needed: bool = True) -> list[str]:
    """Return the parties that share no sample; `DataError` if one must, or nothing is aligned."""
    present = ~alignment.mask
    if not len(present):
        raise DataError(
            "no sample is left after alignment: check that all parties (and the labels) use the "
            "same kind of sample ID, written the same way"
        )
    alone: list[str] = []
    if len(alignment.parties) < 2:
        return alone
    for k, name in enumerate(alignment.parties):
        others = np.delete(present, k, axis=1).any(axis=1)
        if (present[:, k] & others).any():
            continue
        if needed:
            raise DataError(
                f"party {name!r} has no common sample with any of "
                f"{[other for other in alignment.parties if other != name]}: check that all "
                "parties use the same kind of sample ID, written the same way"
            )
        alone.append(name)
    return alone
