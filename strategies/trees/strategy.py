"""Gradient boosting over columns of several parties, with missing cells and missing blocks.

==============  ===================================================================================
round           what travels
==============  ===================================================================================
prepare         up: bins of each column, without names; public keys; of the arbiter, too
(group seed)    see `GroupKey`; one round
send_masked     up, once for all trees: the rows of all slots under a key stream
share           three rounds a level, see `growing`; two with open histograms
compare
route
finish          parties keep their splits, and erase all keys
==============  ===================================================================================

So a run takes ``4 + 3 depth trees`` rounds after greeting and alignment (``4 + 2 depth trees`` with
open histograms), less where trees end early; all classes of an iteration share them.
"""

from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from strategies.regression.problem import sample_index
from strategies.trees.arbiter import TreeArbiter
from strategies.trees.binning import Layout
from strategies.trees.boosting import Boosting
from strategies.trees.growing import Grower, Growth, Slots
from strategies.trees.model import prediction_table
from strategies.trees.objectives import OBJECTIVES, Objective
from strategies.trees.party import TreeParty
from strategies.trees.shares import HISTOGRAMS

Flags = npt.NDArray[np.bool_]

_SNAPSHOT = 10  # trees


class VerticalGBDT(Strategy):
    """Boost trees whose splits are columns of any party.

    Every sample of the union takes part: a missing cell, and a block that a party lacks, is a code
    of its own, and each split learns on which side it goes.

    Neither the server nor a party sees a histogram. Whoever knows the gradients and sees sums of
    them over bins can solve for the columns, so the server has one share of these sums and another
    party the other. An arbiter, who has no data, compares gains that are scaled, noised and
    shuffled candidate by candidate. ``histograms="open"`` needs no arbiter, takes two rounds a
    level in place of three, and tells the server these sums; each node must agree to the exchange
    ``histograms``.

    Samples whose label is NaN are predicted: `Result.predictions` has ``prediction`` and, of
    classes, ``probability_<class>``. `Result.predict` predicts new rows, whichever parties are
    there. ``Result.model`` has gain, cover and number of splits by party.

    Notes
    -----
    Trees grow level by level to `max_depth`. A split is the best by second-order gain, and the
    first of those that are equal to 2^-18: in the order of parties, columns, bins. A split of a
    nominal column sets one level against the others. Sums are of whole numbers, so trees are those
    of a central booster to the split, but where two splits are closer than rounding: some 2^-15 of
    a gain, more of a gain that is next to nothing.

    A node's ``min-rows`` bounds the two sides of splits by its own columns.
    """

    objective: str = setting("binary", "What is predicted.", choices=OBJECTIVES)
    n_trees: int = setting(100, "Iterations; of classes, each has a tree for each.", at_least=1)
    max_depth: int = setting(6, "Levels of splits.", at_least=1, at_most=12)
    learning_rate: float = setting(0.1, "What the values of leaves are multiplied by.", above=0)
    n_bins: int = setting(
        32, "Bins of a column at most, beside that of missing cells.", at_least=2, at_most=254
    )
    l2: float = setting(0.0, "Added to the second derivatives of a leaf.", at_least=0)
    min_child: int = setting(20, "The fewest samples of a leaf.", at_least=1)
    subsample: float = setting(
        1.0, "Share of the samples that each iteration's trees are fitted to.", above=0, at_most=1
    )
    colsample: float = setting(
        1.0, "Share of all columns that each iteration's trees may use.", above=0, at_most=1
    )
    validation_share: float = setting(
        0.0, "Share of the labelled samples that tell when to stop.", at_least=0, below=1
    )
    early_stopping: int = setting(
        10,
        "With validation: iterations without a better one after which boosting ends; the best "
        "number of iterations is kept.",
        at_least=1,
    )
    histograms: str = setting(
        "hidden",
        "Whether the server sees sums of gradients over bins, which each node must allow.",
        choices=("hidden", "open"),
    )

    name: ClassVar[str] = "gbdt"
    party = TreeParty
    arbiter = TreeArbiter
    needs_labels: ClassVar[bool] = True
    demo = MappingProxyType({"demo.dataset": "bank", "labels": "demo"})
    disclosure = (
        (
            "server",
            "of each party: how many columns it has, how many bins each, and whether these have an "
            "order; no names",
        ),
        (
            "server",
            "of each split: whose column, which bin (by numbers), which equal splits there were, "
            "where missing cells go, and which side each sample is on. Of columns of 32 bins that "
            "matter, 50 trees told 3.3 to 4.1 of 5 bits (benchmarks/trees_told.py)",
        ),
        (
            "every party",
            "in which node each labelled sample is, above the last split: from 100 trees a party "
            "guessed labels with AUC 0.70, and with 0.75 where it knew 50 of them; which samples "
            "have a label; with l2, a power of two above l2 over the largest second derivative",
        ),
        (
            "the owner of a split",
            "which samples come to it, with and without a label, and that it was the best",
        ),
        (
            "arbiter",
            "of each node, ratios of gains of its legal splits, to 2^-18, without knowing which "
            "split is which or of whom; how many there are; the number of bins of all columns",
        ),
        (
            "server",
            "with histograms='open', which each node must allow: sums of gradients over the bins "
            "of each column and node. It knows the gradients, and can solve for the columns: with "
            "1,000 samples, least squares over 20 trees returned 96 % of a column's bins",
        ),
        ("server and any one party together", "all columns, in bins"),
        ("a party and its helper together", "the gradients, and so the labels"),
        ("arbiter and server together", "sums of gradients over bins, as with open histograms"),
        (
            "nobody else",
            "a gradient, a label, or a value within a bin, but for what sides of splits tell",
        ),
    )

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter."""
        return "histograms 'hidden'" if self.histograms == "hidden" else None

    @property
    def exchanges_asked(self) -> tuple[str, ...]:
        """What every node must agree to."""
        return (HISTOGRAMS,) if self.histograms == "open" else ()

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Grow trees, and predict samples without a label."""
        names = list(federation.parties)
        if len(names) < 2:
            raise DataError(
                f"vertical boosting needs two parties or more, since each one's sums are shared "
                f"with another, and {names[0]!r} is alone; use a booster such as scikit-learn's "
                "HistGradientBoostingClassifier on its table"
            )
        if federation.aggregation == "ckks":
            raise ConfigError(
                "trees add whole numbers modulo 2^64, which 'ckks' sums do not carry; use "
                "aggregation='masked' (the arbiter is asked for all the same)"
            )
        labels = np.asarray(federation.labels, dtype=float)
        known = ~np.isnan(labels)
        objective = Objective.of(self.objective, labels[known])
        if int(known.sum()) < 2 * self.min_child:
            raise DataError(
                f"{int(known.sum())} samples have a label, and min_child={self.min_child} samples "
                "on each side of a split need twice as many; lower min_child"
            )
        if federation.checkpoint_every is None:
            # The parties' masked rows go into no journal: a run goes back to a snapshot.
            federation.checkpoint_every = _SNAPSHOT
        progress.total = self.n_trees
        slots, arguments, keys = self._prepare(federation, names, result)
        growth = Growth(self.max_depth, self.min_child, self.l2)
        grower = Grower(federation, slots, growth, self.histograms == "hidden", keys)
        boosting = Boosting(self, objective, labels, federation.rng)

        def send() -> None:
            replies = federation.call(
                "send_masked",
                {"dtype": str(grower.dtype)},
                per_party=arguments,
                unkept=["masked"],  # beside the group seed it would be the table
            )
            slots.tags = {name: bytes(replies[name]["tag"]) for name in names}
            slots.masked = {n: replies[n]["masked"] for n in names if "masked" in replies[n]}

        def iterate(i: int) -> bool:
            if not slots.masked:
                send()
            ended = boosting.iterate(i, grower, result)
            progress.step(i + 1, self.n_trees)
            return ended

        send()
        federation.loop(
            self.n_trees, iterate, {"boosting": boosting.state, "history": result.history}
        )
        self._finish(federation, alignment, result, boosting)

    def _prepare(
        self, federation: Federation, names: list[str], result: Result
    ) -> tuple[Slots, dict[str, dict[str, Any]], dict[str, Any]]:
        """Have columns cut and keys made; return slots, arguments of `send_masked`, and keys."""
        pairs = PairKeys(federation)
        asked = {"nonce": pairs.nonce, "n_bins": self.n_bins}
        hidden = self.histograms == "hidden"
        told = federation.call("prepare", asked, parties=[*names, ARBITER] if hidden else names)
        pairs.collect(told)
        layouts = {
            name: Layout(
                tuple(int(n) for n in told[name]["n_bins"]),
                tuple(bool(n) for n in told[name]["nominal"]),
            )
            for name in names
        }
        for name in names:
            few = [n for n in layouts[name].n_bins if n < self.n_bins]
            if few:
                result.notes.append(
                    f"party {name!r}: {len(few)} columns have fewer than {self.n_bins} bins, as "
                    "they have no more distinct values"
                )
        arguments = GroupKey(federation, pairs).arguments()
        keys: dict[str, Any] = {}
        if hidden:
            own = told[ARBITER]
            box = [own["public"], own.get("identity", b""), own.get("signature", b"")]
            for name in names:
                arguments[name]["arbiter"] = box
            keys = {
                "nonce": pairs.nonce,
                "names": names,
                "publics": [told[n]["parcel_public"] for n in names],
                "identities": [told[n].get("parcel_identity", b"") for n in names],
                "signatures": [told[n].get("parcel_signature", b"") for n in names],
            }
        return Slots(names, layouts), arguments, keys

    def _finish(
        self, federation: Federation, alignment: Alignment, result: Result, boosting: Boosting
    ) -> None:
        """Have the parties keep their splits; fill in the result."""
        name = federation.random_bytes(16).hex()
        everybody = list(federation.parties)
        if self.histograms == "hidden":
            everybody.append(ARBITER)
        federation.call("finish", {"model": name}, parties=everybody)
        result.predictor = model = boosting.model(name, list(federation.parties))
        result.model = model.importance()
        raw = boosting.raw_of_kept(model)
        result.metrics |= boosting.metrics(raw, len(model.roots) // model.width)
        rows = np.flatnonzero(np.isnan(boosting.labels))
        if len(rows):
            found = prediction_table(model.loss, raw[:, rows])
            result.predictions = found.set_axis(sample_index(alignment, result.labels, rows))
