"""Sums of the server's labels by bin of the parties' columns: the party half.

No column is multiplied with another one.

The arithmetic is that of products with vectors (`products.arithmetic`), of columns of whole
numbers: a word ``sum_b 2^(w b) x_b`` holds the flags ``x_b`` of several bins of a column in fields
of w bits, so that a row takes a word for each three bins or so. A product of a word with a vector
of labels of two values ``a`` and ``a + d`` is

    sum_b 2^(w b) (a n_b + d e_b)    modulo 2^64,

``n_b`` being the rows of a bin, which its owner tells, ``e_b`` those with the larger label. With
``d = 2^k d'`` and ``d'`` odd, multiplying with the inverse of ``d'`` leaves ``2^k sum_b 2^(w b)
e_b``, exactly, as long as its fields fit 64 - k bits. Of other labels a word holds one bin.
"""

import hashlib
from typing import Annotated, Any, Unpack

import numpy as np

from flwr_vertical import Party, StepGroup, step
from flwr_vertical.arrays import Bytes, Flags, Indices, Ring
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.products import GroupKeySteps, HeldColumns
from flwr_vertical.products.arithmetic import BLOCK_ROWS, Layout, own_place
from flwr_vertical.products.labels import ATTEMPT_BYTES, LabelSketch, VectorShares
from flwr_vertical.products.masked import SendFields, taken_with
from flwr_vertical.products.pair_keys import Names, Widths
from flwr_vertical.products.streams import SEED_BYTES, KeyStream, tag_of_blocks
from flwr_vertical.products.told_rows import COMMITMENT_BYTES
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Shape, Within
from flwr_vertical.protocol.declaration import FACTS, ROWS, Protocol, Round
from strategies.binning.bins import ColumnBins, fit_column_bins
from strategies.binning.rules import ToldBins
from strategies.trees.binning import Codes

# Under a prefix that the server may not write to.
_ASKED = "node.bins."
MOST_BINS = 50

BINS_OPENING = Protocol(
    Round(
        "send_bins",
        "names of columns and of their bins; which bin each labelled row is in, under the group's "
        "key stream",
        tells=FACTS,
        again=True,
    ),
    Round("open_bins", "numbers of rows and sums of labels by bin", tells=ROWS),
)
"""What label sums by bin exchange, once the group seed is sealed."""

TOLD_BINS = (
    "server",
    "names of the parties' columns, and of levels that are not rare; of each bin of a column, how "
    "many rows with and without a label are in it, and the sum of their labels; columns with a bin "
    "that is too rare to be told of among these rows. Limits of ranges stay with their owner",
)


class BinSteps(StepGroup):
    """A party's half: which bin its cells are in; the party also uses `GroupKeySteps`.

    `purpose` says what the sums are for: another purpose has other key streams.
    """

    party: Party

    def __init__(self, party: Party, purpose: str) -> None:
        super().__init__(party)
        self._purpose = purpose
        self._told = ToldBins(party, purpose)

    @step
    def send_bins(
        self,
        limbs: Annotated[int, Within(1, 2)],
        most: Annotated[int, Within(2, MOST_BINS)],
        special: Annotated[list[float], Within(0, MOST_BINS), DISTINCT],
        field_bits: Annotated[int, Within(1, 64)],
        labelled: Annotated[Bytes, Shape("n_samples"), Within(0, 3)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[SendFields],
    ) -> dict[str, Any]:
        """Put the own columns into bins, and hand over which one each labelled row is in.

        Message: limbs: of the server's vectors; most, special: see `fit_column_bins`; field_bits:
        of the sum of a bin in a word; labelled (n_samples,): 1 where a sample has a label, 2 where
        it takes no part, 3 where it has a label and is in no sum; owner, sealed, **keys: see
        `PrivateProductSteps.send_masked`; returns ``masked`` (n_labelled, n_words), uint64; the
        ``tag`` of its content; ``n_columns``, the number of words; ``columns``, and of each
        ``n_bins``, ``n_proper`` and ``nominal``, see `ColumnBins`; ``bins``, what all these are as
        far as others may know; ``min_rows``, if the policy states it; and what
        `LabelSketch.answer` tells.
        """
        given: dict[str, Any] = dict(keys)
        labels = taken_with("labels_", given)
        if commitment := given.pop("commitment", b""):
            self._told.commit(commitment)
        group_key = self.other(GroupKeySteps)
        group_key.take(owner, sealed, given)
        asked = {"most": most, "special": special, "field": field_bits, "labelled": labelled}
        self.state.update({_ASKED + key: value for key, value in asked.items()})
        for key in ("bins.fitted", "bins.words"):
            self.cache.pop(key, None)
        words, tag = self._words
        masks = KeyStream(group_key.seed, self._label(self.name), words.shape, tag)
        masked = np.empty(words.shape, dtype=np.uint64)
        for start, stop in words.blocks():
            masked[start:stop] = words.rows(start, stop) + masks.rows(start, stop)
        bins = self.bins
        told = {"masked": masked, "tag": tag, "n_columns": words.shape[1]}
        told |= {"columns": bins.columns, "n_bins": bins.n_bins}
        told |= {"n_proper": bins.n_proper, "nominal": bins.nominal}
        told["bins"] = [label for own in bins.told for label in own]
        told |= self._told.stated_minimum
        if labels:
            held = self._held
            assert held.own is not None
            told |= LabelSketch(self.party).answer(
                group_key.seed, held=held, at=np.asarray(held.own), **labels
            )
        return told

    @step
    def open_bins(
        self,
        limbs: Annotated[int, Within(1, 2)],
        names: Names,
        widths: Widths,
        tags: Annotated[list[bytes], Within("names", "names")],
        attempt: Annotated[bytes, Within(ATTEMPT_BYTES, ATTEMPT_BYTES)],
        commitment: Annotated[bytes, Within(COMMITMENT_BYTES, COMMITMENT_BYTES)],
        helper: Annotated[str, OWN] = "",
        masked_vectors: Annotated[Ring | None, Shape(None, "limbs"), OWN] = None,
        helps: Annotated[list[str] | None, Within(0, "names"), DISTINCT, OWN] = None,
        rho_seed: Annotated[bytes, Within(0, SEED_BYTES), OWN] = b"",
        sketched: Annotated[Ring | None, Shape("limbs"), OWN] = None,
    ) -> dict[str, Any]:
        """Tell numbers of own rows by bin, and what lets the server open its labels' sums by bin.

        Message: see `PrivateProductSteps.open_products`; the group is the own rows with a label.
        Returns ``counts`` and ``free`` (n_bins,): rows with and without a label, bins of all
        columns one after the other; ``withheld`` and ``free_withheld`` (n_columns,): columns of
        which they are 0, since a bin is too rare; the own share, ``owner``, and ``helper:<name>``
        for each party that this one helps.
        """
        seed = self.other(GroupKeySteps).seed
        words, tag = self._words
        place = own_place(self.name, names, widths, words.shape[1])
        if tags[place] != tag:
            raise ProtocolError(
                f"party {self.name!r}: its bins are no longer those that it sent; a key stream "
                "hides one content only, so send them again"
            )
        if masked_vectors is not None and len(masked_vectors) != words.shape[0]:
            raise ProtocolError(
                f"party {self.name!r}: masked labels are {len(masked_vectors)}, and "
                f"{words.shape[0]} samples have one"
            )
        sketch, held, bins = LabelSketch(self.party), self._held, self.bins
        sketch.check_help(helps or [], rho_seed)
        recognised = sketch.commitment(sketched, masked_vectors, helper)
        own = np.asarray(held.own)
        withheld = self._told.admit_bins(
            words.bins, bins.n_bins, own, 1, attempt, commitment, recognised
        )
        lacking = np.flatnonzero(np.asarray(self._asked("labelled")) == 0)
        unlabelled: Indices = self.party.rows_of(lacking)[1]
        numbers = self.numbers[unlabelled]
        free_withheld = self._told.admit_bins(numbers, bins.n_bins, unlabelled)
        layout = Layout(dict(zip(names, widths, strict=True)))
        streams = {
            name: KeyStream(seed, self._label(name), (words.shape[0], width), other)
            for name, width, other in zip(names, widths, tags, strict=True)
        }
        shape = words.shape[0], limbs
        rho = KeyStream(rho_seed, "rho", shape) if helps else None
        # Pads cancel only where owner and helper were asked for the same.
        said = repr((limbs, names, widths, tags, attempt, commitment)).encode()
        bound = hashlib.sha256(self.party.services.binding() + said).digest()
        shares = VectorShares(
            self.name, seed, layout, 1, limbs, bound, helper, masked_vectors, helps or [], rho
        )
        for start, stop in words.blocks():
            masks = {name: streams[name].rows(start, stop) for name in helps or []}
            everyone = np.arange(stop - start)
            shares.add(start, stop, words.rows(start, stop), masks, [everyone])
        return {
            "counts": _counted(words.bins, bins.n_bins, withheld),
            "free": _counted(numbers, bins.n_bins, free_withheld),
            "withheld": withheld,
            "free_withheld": free_withheld,
            **shares.told(np.repeat(withheld, words.widths)[None], None),
        }

    @kept("bins.fitted")
    def bins(self) -> ColumnBins:
        """The own bins, from all rows of the table."""
        most, special = int(self._asked("most")), list(self._asked("special"))
        return fit_column_bins(
            self.party.table, most, special, self.party.policy.min_rows, self.name
        )

    def _asked(self, name: str) -> Any:
        if _ASKED + name not in self.state:
            raise ProtocolError(f"party {self.name!r} has no bins yet: 'send_bins' comes first")
        return self.state[_ASKED + name]

    def _label(self, owner: str) -> str:
        return f"bins {self._purpose} of {owner}"

    @kept("bins.numbers")
    def numbers(self) -> Codes:
        """Bins of the own rows, (n_own, n_columns)."""
        return self.bins.numbers(self.party.table, self.name)

    @property
    def _held(self) -> HeldColumns:
        """The own labelled rows, numbered among the labelled samples; no values."""
        asked = np.asarray(self._asked("labelled"))
        labelled = asked[np.isin(asked, (1, 3))] == 1
        rows = np.flatnonzero(labelled)
        held, own = self.party.rows_of(np.flatnonzero(asked == 1))
        return HeldColumns(np.zeros((len(own), 0)), rows[held], len(labelled), own=own)

    @kept("bins.words")
    def _words(self) -> "tuple[_Words, bytes]":
        """The bins of labelled rows in words, and the tag of these."""
        held, seed = self._held, self.other(GroupKeySteps).seed
        numbers = self.numbers[np.asarray(held.own)]
        words = _Words(numbers, self.bins.n_bins, held, int(self._asked("field")))
        blocks = (words.rows(start, stop) for start, stop in words.blocks())
        return words, tag_of_blocks(seed, words.shape, blocks)


class _Words:
    """Flags of bins in words, made some rows at a time; 0 in samples that the party lacks."""

    def __init__(self, bins: Codes, n_bins: list[int], held: HeldColumns, bits: int) -> None:
        self.bins, self._held, self._bits = bins, held, bits
        self._fields = 64 // bits
        self.widths = words_of(n_bins, self._fields)
        self.shape = held.n_samples, sum(self.widths)

    def blocks(self) -> list[tuple[int, int]]:
        """Return where blocks of rows begin and end."""
        n = self.shape[0]
        return [(start, min(start + BLOCK_ROWS, n)) for start in range(0, n, BLOCK_ROWS)]

    def rows(self, start: int, stop: int) -> Ring:
        """Return rows of the words."""
        out = np.zeros((stop - start, self.shape[1]), dtype=np.uint64)
        first, last = np.searchsorted(self._held.rows, [start, stop])
        at, word = self._held.rows[first:last] - start, 0
        for own, width in zip(self.bins[first:last].T, self.widths, strict=True):
            shift = (own % self._fields).astype(np.uint64) * np.uint64(self._bits)
            out[at, word + own // self._fields] = np.uint64(1) << shift
            word += width
        return out


def words_of(n_bins: list[int], fields: int) -> list[int]:
    """Return how many words the bins of each column take."""
    return [-(-width // fields) for width in n_bins]


def _counted(bins: Codes, n_bins: list[int], withheld: Flags) -> Indices:
    counts = [
        np.bincount(own, minlength=width) * (not hidden)
        for own, width, hidden in zip(bins.T, n_bins, withheld, strict=True)
    ]
    return np.concatenate(counts).astype(np.int64)
