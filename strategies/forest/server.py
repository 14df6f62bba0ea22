"""The server half of a forest of which it learns summed votes: it deals labels, and passes on.

Shares are dealt once for each class with trees of its own (`share_arithmetic`). A level takes three
rounds: what gains are compared by, sealed for the arbiter; its answer, and then the sides of rows,
sealed for the parties.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError
from flwr_vertical.products.arithmetic import helpers
from flwr_vertical.products.streams import SEED_BYTES, KeyStream, stream
from flwr_vertical.protocol.messages import ARBITER
from strategies.forest.arbiter import check_bits_of
from strategies.forest.batch import columns_of
from strategies.forest.share_arithmetic import dealt
from strategies.trees.gain import Candidates, fraction_bits, rounded
from strategies.trees.masked_store import Slots, fetch, prepare
from strategies.trees.node_sums import Ring
from strategies.trees.objectives import Objective


@dataclass(frozen=True)
class WholeTargets:
    """Labels as whole numbers from 0."""

    whole: Ring  # (n_classes, n_samples): 0 where a sample has no label
    bits: int  # None exceeds 2^bits
    low: float  # What 0 stands for, and by how much 2^bits exceeds it
    span: float  # What 0 stands for, and by how much 2^bits exceeds it

    @classmethod
    def of(cls, labels: Array, objective: Objective) -> "WholeTargets":
        """Encode labels, NaN where unknown."""
        known = ~np.isnan(labels)
        whole = np.zeros((objective.width, len(labels)), dtype=np.uint64)
        if objective.name == "mean":
            low, high = float(labels[known].min()), float(labels[known].max())
            bits = int(fraction_bits(int(known.sum())))
            scaled = (labels[known] - low) / (high - low) * 2.0**bits
            whole[0, known] = np.minimum(rounded(scaled), 2.0**bits)
            return cls(whole, bits, low, high - low)
        classes = np.arange(objective.width)[:, None] if objective.width > 1 else 1.0
        whole[:, known] = labels[known] == classes
        return cls(whole, 0, 0.0, 1.0)


class VoteRounds:
    """Takes the rounds of one forest; labels are NaN where a sample has none."""

    def __init__(
        self,
        federation: Federation,
        settings: Any,
        labels: Array,
        objective: Objective,
        result: Result,
    ) -> None:
        self.federation, self.settings, self.result = federation, settings, result
        self.objective, self.targets = objective, WholeTargets.of(labels, objective)
        self.names = list(federation.parties)
        self.fit = np.packbits(~np.isnan(labels))
        self.seed = int(federation.rng.integers(2**62))
        self.state: dict[str, Any] = {"grid": 0}
        self.slots: Slots
        n_sides = settings.n_trees * objective.width * settings.max_depth
        self.slots, self._arguments, self.keys = prepare(
            federation, settings.n_bins, n_sides, True, result
        )
        if stating := [name for name, own in self.slots.monotone.items() if own.any()]:
            raise ConfigError(
                f"parties {stating} state directions of columns (trees.monotone.* in their node "
                "configs), which a forest does not follow; take the keys out, or boost trees "
                "('gbdt')"
            )
        self._deal, self._dealt_class = b"", -1

    @property
    def n_batches(self) -> int:
        """Batches of each class."""
        return -(-int(self.settings.n_trees) // int(self.settings.batch))

    def grow(self, i: int) -> None:
        """Grow a batch of trees of one class."""
        of_class, number = divmod(i, self.n_batches)
        settings, width = self.settings, self.objective.width
        first = number * settings.batch
        draws = np.arange(first, min(first + settings.batch, settings.n_trees))
        asked = {
            "names": self.names,
            "seed": self.seed,
            "draws": draws,
            "trees": draws * width + of_class,
            "n_classes": width,
            "bootstrap": settings.bootstrap,
            "fit": self.fit,
            "min_child": settings.min_child,
        }
        while True:
            if self._dealt_class != of_class:
                self._deal_products(of_class)
            told = self.federation.call("begin_batch", {**asked, "deal": self._deal})
            self.state["grid"] = min(int(reply["grid"]) for reply in told.values())
            check_bits_of(self.state["grid"], width)
            if all(reply["holds"] for reply in told.values()):
                break
            self._dealt_class = -1  # a process that had the shares has ended
        self._grow_levels(number)
        self.result.history.append({"trees": int(draws[-1]) + 1, "class": of_class})

    def _grow_levels(self, batch: int) -> None:
        widths = [width for own in self.slots.ordered for width in own.widths]
        columns = np.repeat(np.arange(len(widths)), widths)
        chosen = columns_of(self.seed, batch, int(columns[-1]) + 1, self.settings.colsample)
        level = {"names": self.names, "target_bits": self.targets.bits}
        slots = {
            "widths": self.slots.widths,
            "observed": Candidates.of(self.slots.ordered).observed,
            "usable": chosen[columns],
        }
        sides: dict[str, list[bytes]] = {}
        for _ in range(self.settings.max_depth):
            told = self.federation.call("offer", {**level, **slots, **sides})
            sides = {}
            offered = told[self.names[0]]
            if not offered["shape"][0]:
                break
            won = self.federation.call(
                "judge",
                {
                    **self.keys,
                    "number": int(offered["number"]),
                    "shape": offered["shape"],
                    "parcels": [told[name]["parcel"] for name in self.names],
                },
                parties=[ARBITER],
            )[ARBITER]
            own = {name: {"won": won[name]} for name in self.names}
            replies = self.federation.call("split", per_party=own)
            sides = {"sides": [replies[name]["sides"] for name in self.names]}
        self.federation.call(
            "end_batch", {**level, "fit": self.fit, "model_trees": self.settings.n_trees, **sides}
        )

    def _deal_products(self, of_class: int) -> None:
        """Deal shares of slots times the targets of a class; two rounds, the first once."""
        if not self.slots.masked:
            fetch(self.federation, self.slots, self._arguments)
        target, helper = self.targets.whole[of_class], helpers(self.names)
        seeds = {
            name: self.federation.random_bytes(SEED_BYTES)
            for name in dict.fromkeys(helper.values())
        }
        rho = {name: stream(seed, "rho", target.shape) for name, seed in seeds.items()}
        own: dict[str, dict[str, Any]] = {name: {} for name in self.names}
        made: dict[str, list[Ring]] = {name: [] for name in seeds}
        for name, width in zip(self.names, self.slots.widths, strict=True):
            pad = self.federation.random_bytes(SEED_BYTES)
            own[name] |= {"pad": pad, "masked_target": target + rho[helper[name]]}
            rows = KeyStream(pad, "P", (len(target), width))
            made[helper[name]].append(dealt(self.slots.masked[name], width, target, rows))
        for name, seed in seeds.items():
            own[name] |= {"rho": seed, "dealt": np.concatenate(made[name], axis=1)}
        self._deal = self.federation.random_bytes(16)
        common = {
            "deal": self._deal,
            "names": self.names,
            "widths": self.slots.widths,
            "tags": [self.slots.tags[name] for name in self.names],
        }
        if of_class == self.objective.width - 1:
            self.slots.masked = {}
        self.federation.call("take_shares", common, per_party=own)
        self._dealt_class = of_class
