"""Sums of the server's labels by bin of the parties' columns: the server half (`steps`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import PartyError
from flwr_vertical.products import PrivateProducts
from flwr_vertical.products.arithmetic import BLOCK_ROWS, fraction_bits, limb_shares
from flwr_vertical.products.labels import checked_vectors
from strategies.binning.bins import by_bin
from strategies.binning.steps import words_of


@dataclass(frozen=True)
class PartyBins:
    """Sums by bin of a party's columns, one after the other.

    Shapes: counts, free (n_bins,): the party's rows with a label, and without; sums (n_bins,): of
    the labels, exact where these have two values; withheld, free_withheld (n_columns,): columns
    with a bin too rare to be told of, whose sums and counts are 0.
    """

    columns: list[str]
    bins: list[list[str]]  # By column, what they are
    n_proper: list[int]  # By column, how many bins, the first ones, are ranges or levels
    nominal: list[bool]  # By column, whether these have no order
    counts: Indices
    sums: Array
    free: Indices
    withheld: Flags
    free_withheld: Flags

    @property
    def slices(self) -> list[slice]:
        """Bins of each column."""
        ends = np.cumsum([len(own) for own in self.bins]).tolist()
        return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]

    @property
    def frame(self) -> pd.DataFrame:
        """Counts and sums, indexed by (column, bin), NaN where they are withheld."""
        widths = [len(own) for own in self.bins]
        told, free = (~np.repeat(hidden, widths) for hidden in (self.withheld, self.free_withheld))
        values = {
            "n": np.where(told, self.counts, np.nan),
            "sum": np.where(told, self.sums, np.nan),
            "unlabelled": np.where(free, self.free, np.nan),
        }
        return pd.DataFrame(values, index=by_bin(self.columns, self.bins))


@dataclass(frozen=True)
class LabelCode:
    """How sums of labels stand in words.

    Shapes: labels, encoded (n_labelled,): encoded as high limbs.
    """

    labels: Array
    unit: float  # What labels were divided by
    field_bits: int  # Of the sum of a bin
    # Of labels of two values: the smaller one, encoded; what the larger one is more, as
    # ``odd * 2^zeros``
    low: int = 0
    odd: int = 0
    zeros: int = 0

    @classmethod
    def of(cls, labels: Array, encoded: Ring, unit: float) -> "LabelCode":
        """Choose as many fields in a word as the labels allow."""
        values = np.unique(encoded.view(np.int64)).tolist()
        if len(values) == 2 == len(np.unique(labels)):
            more = values[1] - values[0]
            zeros = (more & -more).bit_length() - 1
            width = len(labels).bit_length() + zeros
            if width <= 64:
                return cls(labels, unit, width, values[0], more >> zeros, zeros)
        return cls(labels, unit, 64)

    def sums(
        self, words: Ring, counts: Indices, n_bins: Sequence[int], hidden: Flags
    ) -> Array | None:
        """Return sums of the labels by bin; None if they cannot be.

        Shapes: words (n_words, limbs): opened; counts (n_bins,): rows of each bin; hidden
        (n_bins,): where nothing was told of; returns (n_bins,): 0 there.
        """
        if not self.odd:
            bits = fraction_bits(len(self.labels))
            signed = words.view(np.int64) * 2.0 ** -(bits * np.arange(1, words.shape[1] + 1))
            return np.where(hidden, 0.0, signed.sum(axis=1) * self.unit)
        events = np.zeros(len(counts), dtype=np.int64)
        fields, inverse, at, word = 64 // self.field_bits, pow(self.odd, -1, 1 << 64), 0, 0
        for width in n_bins:
            for first in range(0, width, fields):
                own = range(at + first, at + min(first + fields, width))
                packed = sum(int(counts[b]) << (self.field_bits * i) for i, b in enumerate(own))
                left = (int(words[word, 0]) - self.low * packed) * inverse % (1 << 64)
                for i, b in enumerate(own):
                    field = left >> (self.field_bits * i)
                    events[b] = (field & ((1 << self.field_bits) - 1)) >> self.zeros
                word += 1
            at += width
        events[hidden] = 0
        if (events > counts).any():
            return None
        low, high = self.labels.min(), self.labels.max()
        return np.asarray(low * counts + (high - low) * events)


class LabelSums(PrivateProducts):
    """The server half: sums of its labels by bin; two parties, ``masked`` or ``plain`` sums.

    Products of the run with the same labels take the same `commitment` (assign it before their
    ``send``) and the same number of limbs: the parties count the labels once then.
    """

    def send_bins(
        self,
        labels: Array,
        most: int,
        special: tuple[float, ...] = (),
        taken: Flags | None = None,
        left_out: Flags | bool = False,
    ) -> None:
        """Have every party put its columns into bins; one round.

        Shapes: labels (n_samples,): NaN where a sample has none; taken (n_samples,): samples that
        take part, all by default; left_out (n_samples,): labelled ones of these that are in no sum,
        where other products multiply with the labels of all.
        """
        taken = np.ones(len(labels), dtype=bool) if taken is None else taken
        self._known = np.isfinite(labels) & taken
        self._labels = checked_vectors(labels[self._known][:, None], int(self._known.sum()))
        n = len(self._labels)
        encoded, unit = self._encoded(self._labels, fraction_bits(n))
        self._code = LabelCode.of(self._labels[:, 0], encoded[:, 0], float(unit[0]))
        self._settings = {
            "most": most,
            "special": list(special),
            "field_bits": self._code.field_bits,
            "labelled": np.where(taken, np.where(left_out, 3, self._known), 2).astype(np.uint8),
        }
        self.send(self._labels)

    def _ask(self) -> dict[str, dict[str, Any]]:
        arguments, own = self._asked
        replies = self.federation.call(
            "send_bins",
            arguments | self._settings,
            per_party=own,
            unkept=["masked", "sketch"],  # beside the group seed it would be the table
        )
        self._sent = replies
        self._note(replies)
        for name, reply in replies.items():
            n_bins, fields = list(reply["n_bins"]), 64 // self._code.field_bits
            shape = len(self._labels), sum(words_of(n_bins, fields))
            masked = reply.get("masked")  # none from the journal of a run that is resumed
            lengths = {len(reply[key]) for key in ("columns", "n_bins", "n_proper", "nominal")}
            fits = self._n_columns[name] == shape[1] and len(reply["bins"]) == sum(n_bins)
            if not fits or len(lengths) > 1 or (masked is not None and masked.shape != shape):
                raise PartyError(
                    name, "send_bins", f"sent words and names that do not fit its bins, {n_bins}"
                )
            if masked is not None:
                self._masked[name] = masked
        return replies

    def open_bins(self) -> dict[str, PartyBins]:
        """Open numbers of rows and sums of labels by bin of each party; one round."""
        names = self.federation.parties
        own: dict[str, dict[str, Any]] = {name: {} for name in names}
        common: dict[str, Any] = {
            "limbs": self.limbs,
            "names": names,
            "widths": [self._n_columns[name] for name in names],
            "tags": [self._tags[name] for name in names],
            "commitment": self.commitment.of(self._labels),
        }
        encoded, _ = self._encoded(self._labels, fraction_bits(len(self._labels)))
        rho = self._mask_vectors(encoded, common, own)
        helping = {name: arguments.get("helper", "") for name, arguments in own.items()}
        told = self.federation.call("open_bins", common, per_party=own)
        while not self._masked and self.federation.next_step() in (None, "send_bins"):
            with self.federation.asking_again(self._asked_at):
                self._ask()

        def opened() -> dict[str, Any]:
            sums = {}
            for name in names:
                helper = helping[name]
                share = told[name]["owner"][0] + told[helper][f"helper:{name}"][0]
                for start in range(0, len(self._labels), BLOCK_ROWS):
                    rows = self._masked[name][start : start + BLOCK_ROWS]
                    mask = rho[helper].rows(start, start + len(rows))
                    share = share - limb_shares(rows, mask, 1)
                sums[name] = share[0]
            return sums

        sums = self.federation.keep("bins", opened)
        self._masked.clear()
        return {name: self._party_bins(name, told[name], np.asarray(sums[name])) for name in names}

    def _party_bins(self, name: str, told: dict[str, Any], words: Ring) -> PartyBins:
        sent = self._sent[name]
        n_bins, names = list(sent["n_bins"]), iter(sent["bins"])
        counts, free = (np.asarray(told[key], dtype=np.int64) for key in ("counts", "free"))
        withheld, free_withheld = (
            np.asarray(told[key], dtype=bool) for key in ("withheld", "free_withheld")
        )
        shapes = [part.shape for part in (counts, free, withheld, free_withheld)]
        if shapes != [(sum(n_bins),)] * 2 + [(len(n_bins),)] * 2:
            raise PartyError(name, "open_bins", f"told arrays of shapes {shapes} of {n_bins} bins")
        hidden = np.repeat(withheld, n_bins)
        sums = self._code.sums(words, counts, n_bins, hidden)
        if sums is None:
            raise PartyError(name, "open_bins", "sums of labels do not fit its numbers of rows")
        return PartyBins(
            list(sent["columns"]),
            [[str(next(names)) for _ in range(width)] for width in n_bins],
            list(sent["n_proper"]),
            list(sent["nominal"]),
            counts,
            sums,
            free,
            withheld,
            free_withheld,
        )
