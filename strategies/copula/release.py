"""What a holder of columns releases: perturbed ranks, and noisy margins that it keeps itself.

Parties and, for the labels, the server do the same. Numbers are ranked in their own order, ordinal
levels in the order of their level numbers. Each level of a nominal column is ranked against all
others (`indicator_ranks`). A column of more than 12 levels is ranked in their sorted order, which
says nothing about the data, so only what is monotone in it survives.

Cells that are missing are filled from the noisy margin, so that filling them spends nothing. The
mean of the values themselves moves with each of them, and every filled cell with it: replacing one
value would turn the comparisons of all filled cells round and move all of them from one count to
another, far more than is paid for. So the margin is made of the observed values; what fills the
cells, and the share that it has, follow from the margin and from which cells are missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Integers32
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.privacy import ColumnSpending, Keystream, noise_is_seeded, split_budget
from flwr_vertical.tables import Kind, is_numeric
from strategies.common.synthesis_columns import LIMIT
from strategies.copula.margins import (
    NOISES,
    Domain,
    Margin,
    continuous_margin,
    discrete_margin,
    level_margin,
)
from strategies.copula.ranks import Flip, column_ranks
from strategies.copula.tree import tree_margin

# Of a tree without a range the noise puts a few values far out: no mean without the ends.
_MIDDLE = 0.05 + 0.9 * (np.arange(1000) + 0.5) / 1000


def fill_in(margins: list[Margin], values: Array, kinds: Mapping[str, Kind]) -> Array:
    """Fill missing cells, and put them into the margins.

    Shapes: values (n_samples, n_columns): values, or their places among the levels of the margin;
    NaN = missing; returns (n_samples, n_columns).
    """
    whole = values.copy()
    for j, kind in enumerate(kinds.values()):
        missing, margin = np.isnan(values[:, j]), margins[j]
        if not missing.any():
            continue
        value = likely_value(margin, kind)
        whole[missing, j] = value
        filled = value if is_numeric(kind) else float(margin.values[int(value)])
        margins[j] = with_filled(margin, filled, float(missing.mean()))
    return whole


def likely_value(margin: Margin, kind: Kind) -> float:
    """Return what fills a cell: the mean of the middle nine tenths, or the place of a level."""
    if not is_numeric(kind):
        return float(np.diff(margin.cumulative, prepend=0.0).argmax())
    mean = float(margin.quantile(_MIDDLE).mean())
    if margin.step:
        return float(np.rint(mean / margin.step) * margin.step)
    return float(np.rint(mean)) if kind is Kind.COUNT or margin.discrete else mean


def with_filled(margin: Margin, value: float, share: float) -> Margin:
    """Return a margin of which a share of all cells has one value more."""
    rest = 1.0 - share
    if margin.discrete:
        cumulative = rest * margin.cumulative + share * (margin.values >= value)
        cumulative[-1] = 1.0
        return replace(margin, cumulative=cumulative)
    first = int(np.searchsorted(margin.values, value, "left"))
    after = int(np.searchsorted(margin.values, value, "right"))
    if first == after:
        low = high = float(np.interp(value, margin.values, margin.cumulative))
    else:  # the margin has the value already, as a point mass or as the end of a cell
        low, high = float(margin.cumulative[first]), float(margin.cumulative[after - 1])
    ends = np.array([rest * low, rest * high + share])
    atoms = [
        rest * atom + share * (atom >= high if atom[0] < atom[1] else atom > high)
        for atom in margin.atoms
        if not (low <= atom[0] and atom[1] <= high)  # it is part of the new one
    ]
    return replace(
        margin,
        values=np.concatenate([margin.values[:first], [value, value], margin.values[after:]]),
        cumulative=np.concatenate(
            [rest * margin.cumulative[:first], ends, rest * margin.cumulative[after:] + share]
        ),
        atoms=np.array(sorted([*map(tuple, atoms), tuple(ends)])),
    )


BUDGETS = ("per-variable", "total")
MARGINS = ("tree", "bernstein")
NOMINALS = ("indicators", "order")
MOST_INDICATORS = 12  # levels of a nominal column that have ranks of their own
MIN_LEVEL = 10
USABLE = 200.0  # rows times epsilon of a margin: below, it is for the most part noise
MOST_LEVELS = 64  # a count column with a wider range is treated as continuous, and rounded


@dataclass(frozen=True)
class ReleaseBudget:
    """How much a holder may spend, and how."""

    epsilon: float  # The whole budget of a column ("per-variable") or of a party ("total")
    budget: str = "per-variable"  # Which of the two
    rank_share: float = 0.25  # Share of the ranks; the margin has the rest
    margin_noise: str = "increments"  # See `margins`; of "bernstein"
    margin: str = "tree"  # How numeric columns' margins are estimated: see `tree` and `margins`
    # Levels with a smaller noisy count are put together; 0 if the names of levels are public
    min_level: int = MIN_LEVEL
    # Whether each of up to 12 levels of a nominal column has ranks, or all levels have one order
    nominal: str = NOMINALS[0]

    def check(self, who: str) -> None:
        """Raise if it is no budget; parties get it from the server."""
        for name, value, choices in (
            ("budget", self.budget, BUDGETS),
            ("margin_noise", self.margin_noise, NOISES),
            ("margin", self.margin, MARGINS),
            ("nominal", self.nominal, NOMINALS),
        ):
            if value not in choices:
                raise ConfigError(f"{who}: {name} must be one of {list(choices)}, got {value!r}")
        if not 0 < self.epsilon < inf:
            raise ConfigError(f"{who}: epsilon must be above 0 and finite, got {self.epsilon!r}")
        if not 0 < self.rank_share < 1:
            raise ConfigError(
                f"{who}: rank_share must be between 0 and 1, got {self.rank_share!r}: ranks and "
                "margin share what a column may spend"
            )
        if isinstance(self.min_level, bool) or self.min_level < 0:
            raise ConfigError(f"{who}: min_level must be at least 0, got {self.min_level!r}")

    def spent(self, observed: Sequence[int]) -> float:
        """Return the epsilon of replacing a record, by basic composition: ranks and margin."""
        ranks, margin = split_budget(self.epsilon, self.budget, len(observed), self.rank_share)
        each = Flip.of(ranks).epsilon
        return float(sum(ColumnSpending("", int(n), each, margin).record for n in observed))


@dataclass
class Release:
    """What one holder made of its columns."""

    # (n_samples, n_ranks): perturbed ranks among the observed values of the column, 0 where it
    # has none; of a nominal column, those of the indicators of its levels
    ranks: Integers32
    # Chance of each column's comparisons to be turned round (`Flip.of_indicators` of those of
    # indicators)
    flips: list[Flip] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)  # How many ranks each column has
    # Noisy margins. They stay with the holder, but for cuts of columns of levels.
    margins: list[Margin] = field(default_factory=list)
    epsilon_margins: list[float] = field(default_factory=list)  # What each margin spent
    # Of each column, whether its observed range was used
    exact_range: list[bool] = field(default_factory=list)
    # Columns with a level that a single sample holds
    rare: list[int] = field(default_factory=list)
    name_chance: float = 0.0  # Largest chance of a level that a single sample holds to be named
    # That of a column with which all margins would be more than noise; 0 where they are
    least_epsilon: float = 0.0

    def reply(self, doubts: Mapping[str, int]) -> dict[str, Any]:
        """Return what the server is told; cuts and atoms of all columns follow each other."""
        return {
            "ranks": self.ranks,
            "widths": self.widths,
            "flips": [flip.numerator for flip in self.flips],
            "epsilon_margins": self.epsilon_margins,
            "cuts": np.concatenate([margin.cuts for margin in self.margins]),
            "n_cuts": [len(m.cuts) if m.discrete else -1 for m in self.margins],
            "atoms": np.concatenate([margin.atoms.reshape(-1) for margin in self.margins]),
            "n_atoms": [len(margin.atoms) for margin in self.margins],
            "exact_range": self.exact_range,
            "rare": len(self.rare),
            **doubts,
            "name_chance": self.name_chance,
            "least_epsilon": self.least_epsilon,
            "seeded": noise_is_seeded(),
        }


def make_release(
    codes: Array,
    kinds: Mapping[str, Kind],
    n_levels: Sequence[int],
    bounds: Mapping[str, tuple[float, float]],
    steps: Mapping[str, float],
    others: Sequence[int | None],
    budget: ReleaseBudget,
    stream: Keystream,
    who: str,
    fill: bool = False,
) -> Release:
    """Perturb ranks and margins of all columns.

    Shapes: codes (n_samples, n_columns): values of numeric columns, level numbers of others; NaN =
    missing; others (int or None): of each column, the number of the level that stands for rare
    ones; None where they are put with the next lower one.
    """
    check_columns(codes, kinds, who)
    n_columns = codes.shape[1]
    epsilon_ranks, epsilon_margin = split_budget(
        budget.epsilon, budget.budget, n_columns, budget.rank_share
    )
    flip = Flip.of(epsilon_ranks)
    made = Release(np.zeros(codes.shape, dtype=np.int32))
    placed = np.full(codes.shape, np.nan)
    for j, (name, kind) in enumerate(kinds.items()):
        seen = ~np.isnan(codes[:, j])
        values = codes[seen, j]
        made.flips.append(flip)
        made.epsilon_margins.append(epsilon_margin)
        if len(values) * epsilon_margin < USABLE:
            least = budget.epsilon * USABLE / (len(values) * epsilon_margin)
            made.least_epsilon = max(made.least_epsilon, least)
        if n_levels[j]:
            levels = level_margin(
                values,
                n_levels[j],
                epsilon_margin,
                stream,
                least=0 if kind is Kind.BINARY else budget.min_level,
                other=others[j],
            )
            made.margins.append(levels.margin)
            made.exact_range.append(False)
            if kind is not Kind.BINARY:
                made.name_chance = max(made.name_chance, levels.chance)
                if not budget.min_level and (np.bincount(values.astype(np.int64)) == 1).any():
                    made.rare.append(j)
            # Levels that are one now are ranked as one, as the margin's correction expects.
            values = levels.place[values.astype(np.int64)]
            placed[seen, j] = values
            continue
        placed[seen, j] = values
        if budget.margin == "tree":
            low, high = bounds.get(name, (-LIMIT, LIMIT))
            domain = Domain(
                max(low, 0.0) if kind is Kind.COUNT else low, high, steps.get(name, 0.0)
            )
            made.margins.append(tree_margin(values, domain, epsilon_margin, stream))
            made.exact_range.append(False)
            continue
        low, high = bounds.get(name, (float(values.min()), float(values.max())))
        first, count = int(np.floor(low)), int(np.ceil(high)) - int(np.floor(low)) + 1
        made.exact_range.append(name not in bounds)
        if kind is Kind.COUNT and count <= MOST_LEVELS:
            margin = discrete_margin(values, first, count, epsilon_margin, stream)
        else:
            if kind is Kind.COUNT:  # rounding gives the ends as much room as the rest
                low, high = low - 0.5, high + 0.5
            margin = continuous_margin(
                values, low, high, epsilon_margin, stream, noise=budget.margin_noise
            )
        made.margins.append(margin)
    if fill:
        placed = fill_in(made.margins, placed, kinds)
    own = [
        _ranks(placed[:, j], made.margins[j], kind, flip, budget.nominal, stream)
        for j, kind in enumerate(kinds.values())
    ]
    made.widths = [ranks.shape[1] for ranks in own]
    made.ranks = np.hstack(own)
    return made


def _ranks(
    values: Array, margin: Margin, kind: Kind, flip: Flip, nominal: str, stream: Keystream
) -> Integers32:
    """Perturb the ranks of a column, or of each level; array of shape (n_samples, width)."""
    seen = ~np.isnan(values)
    n_kept = len(margin.values)
    by_level = nominal == "indicators" and kind is Kind.CATEGORICAL
    width = n_kept if by_level and 3 <= n_kept <= MOST_INDICATORS else 1
    ranks = np.zeros((len(values), width), dtype=np.int32)
    ranks[seen] = column_ranks(values[seen], width, flip, stream)
    return ranks


def check_columns(codes: Array, kinds: Mapping[str, Kind], who: str) -> None:
    """Raise if a column has no ranks."""
    for j, name in enumerate(kinds):
        values = codes[~np.isnan(codes[:, j]), j]
        if len(values) < 2 or values.min() == values.max():
            raise DataError(
                f"{who}, column {name!r} is constant or all but empty in the rows that take part: "
                "it has no ranks; leave it out"
            )


def synthetic_codes(margins: Sequence[Margin], levels: Array, kinds: Mapping[str, Kind]) -> Array:
    """Turn probabilities, (n_rows, n_columns), into values or level numbers."""
    codes = np.empty(levels.shape)
    for j, (margin, kind) in enumerate(zip(margins, kinds.values(), strict=True)):
        codes[:, j] = margin.quantile(levels[:, j])
        if kind is Kind.COUNT and not margin.discrete and not margin.step:
            whole = np.ceil(margin.values[0]), np.floor(margin.values[-1])
            codes[:, j] = np.clip(np.rint(codes[:, j]), *whole)
    return codes
