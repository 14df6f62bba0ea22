"""The server half of moments: from labels and parties to sums by pattern, and nothing else.

Columns are sent once, under the group's key stream. Then the server sends the group of each row,
and labels under a mask, whose seed goes to a helper. It gets a private sum of small matrices, each
party's own moments, and two shares of its products with the labels.

A last step of the strategy erases the group seed (`GroupKeySteps.erase_group_seed`). With
aggregation ``"ckks"``, and of one party alone, the same sums come from ciphertexts, in more rounds
(`products.ciphertext`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_vertical import Alignment, Federation, Result
from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.errors import DataError
from flwr_vertical.log import logger
from flwr_vertical.products import (
    EncryptedProducts,
    GroupKey,
    Moments,
    PairKeys,
    PrivateProducts,
    products_of,
)
from flwr_vertical.products.arithmetic import Layout
from flwr_vertical.products.labels import Commitment
from flwr_vertical.products.noise import room_for
from flwr_vertical.products.row_groups import RowGroups
from strategies.linear.moments.dp_opening import (
    LABEL,
    FitBudget,
    GroupNoise,
    LabelMoments,
    group_noise,
    label_sums,
    with_server_noise,
)
from strategies.linear.moments.groups import MinimumRows, by_pattern, costs, rows_by_pattern
from strategies.linear.moments.identifiable import gives_label
from strategies.linear.moments.patterns import Pattern, Patterns
from strategies.linear.problem import Problem, open_problem

Grouping = Callable[[Flags, Integers, MinimumRows], RowGroups]
Completing = Callable[[Federation, PairKeys, Problem, RowGroups, Result], GroupKey]
"""Has rows completed, and returns the key that the completed columns take."""

_TWO_LIMBS = 4e7


def limbs_for(n_rows: int, n_columns: int) -> int:
    """Return how many limbs: two take four times the work, and matter where rows are few."""
    return 2 if n_rows * n_columns**2 < _TWO_LIMBS else 1


@dataclass(frozen=True)
class Offered:
    """Columns as the parties offered them, for more products of them."""

    moments: Moments  # By group, with the labels of the problem
    # center, unit: (n_columns,): A party's column is ``center + unit * z`` with ``z`` the offered
    # one
    center: Array
    unit: Array


@dataclass(frozen=True, kw_only=True)
class FitColumns:
    """What the server knows of a regression's columns, and labels of its own.

    A party's column is ``center + unit * z`` with ``z`` the column of the fit; a label is
    ``problem.y_center + problem.y_scale * z``.
    """

    problem: Problem  # Labels, masks and columns
    # Which columns rows hold; columns of all parties in the order of their names, the label last
    patterns: Patterns
    center: Array  # (n_columns,): of the parties' columns
    unit: Array  # (n_columns,): of the parties' columns
    parties: dict[str, slice] = field(default_factory=dict)  # By party, where its columns stand

    @property
    def n_columns(self) -> int:
        """Columns of all parties."""
        return len(self.center)

    @property
    def widths(self) -> list[int]:
        """How many columns each party has."""
        return [own.stop - own.start for own in self.parties.values()]

    @property
    def owner(self) -> Integers:
        """Number of the party of each column, (n_columns,)."""
        return np.repeat(np.arange(len(self.parties)), self.widths)

    @property
    def held(self) -> list[Pattern]:
        """The patterns in which some party has a column."""
        return [p for p in self.patterns.patterns if len(p.observed) > 1]

    @property
    def n_used(self) -> float:
        """Rows of which some column is used."""
        return sum(p.n_rows for p in self.held)

    def names(self, numbers: Any) -> list[str]:
        """Name columns by party and variable, for notes."""
        every = [f"{p}.{name}" for p in self.parties for name in self.problem.columns[p]]
        return [every[j] for j in numbers]


@dataclass(frozen=True, kw_only=True)
class OpenedMoments(FitColumns):
    """Sums over the rows of each group; labels of rows in no group are a pattern of their own."""

    groups: RowGroups  # Of the labelled samples
    products: PrivateProducts | EncryptedProducts  # What opened them, for more products
    offered: Offered  # The columns of `products`
    allowed: Callable[[int], int]  # Vectors that every party multiplies so many rows with
    # With a budget: what is on the moments of each of `held`; last, what is on those of labels in
    # no group, whether there are any or not
    noise: list[GroupNoise] | None = None


@dataclass(frozen=True)
class Prepared:
    """What parties said of their columns, before any sum over rows."""

    federation: Federation
    result: Result
    problem: Problem
    pairs: PairKeys
    budget: FitBudget | None = None

    @property
    def told(self) -> dict[str, Any]:
        """What each party said."""
        return dict(self.problem.total.public)

    @property
    def widths(self) -> dict[str, int]:
        """How many columns each party has."""
        return {name: len(self.problem.columns[name]) for name in self.federation.parties}

    @property
    def minima(self) -> dict[str, int]:
        """The fewest rows that may be told of, of parties whose node config states them."""
        stated = {name: self.told[name].get("min_rows") for name in self.widths}
        return {name: int(value) for name, value in stated.items() if value is not None}

    @property
    def parties(self) -> dict[str, slice]:
        """Columns of each party."""
        return Layout(self.widths).slices

    def of_columns(self, name: str) -> Array:
        """Return ``center`` or ``unit`` of all columns."""
        return np.concatenate([np.asarray(self.told[party][name]) for party in self.widths])

    @property
    def minimum(self) -> MinimumRows:
        """The fewest rows of a group of rows."""
        minima = self.minima
        vectors = [self.told[name].get("vectors") for name in self.widths]
        allowed = min((int(one) for one in vectors if one is not None), default=None)
        made = [int(self.told[name].get("at_least", 0)) for name in self.widths]
        stated = max([*minima.values(), *filter(None, made)], default=None)
        return MinimumRows(stated, len(minima) < len(self.widths), allowed, None in vectors)

    def groups(self, grouping: Grouping) -> RowGroups:
        """Group the labelled samples."""
        return grouping(self.problem.mask, np.array(list(self.widths.values())), self.minimum)


def open_moments(
    federation: Federation,
    alignment: Alignment,
    result: Result,
    *,
    intercept: bool,
    grouping: Grouping = by_pattern,
    completing: Completing | None = None,
    vectors: Callable[[Problem, RowGroups], Array] | None = None,
    commitment: Commitment | None = None,
    **reading: Any,
) -> OpenedMoments:
    """Open the moments of all parties' columns and the labels; four rounds, completing seven.

    `vectors`: what columns are multiplied with in place of the labels, (n_labelled, n_vectors);
    `commitment`: to these, if `completing` multiplies with them, too; `reading`: see `prepare`.
    """
    prepared = prepare(federation, alignment, result, intercept=intercept, **reading)
    return open_prepared(prepared, intercept, grouping, completing, vectors, commitment)


def prepare(
    federation: Federation,
    alignment: Alignment,
    result: Result,
    *,
    columns_of: str = "",
    budget: FitBudget | None = None,
    formula: str = "",
    **reading: Any,
) -> Prepared:
    """Have the parties prepare their columns; one round. `reading`: see `open_problem`."""
    pairs = PairKeys(federation)
    extra: dict[str, Any] = {"nonce": pairs.nonce}
    if columns_of:
        extra["columns_of"] = columns_of
    if formula:
        extra["formula"] = formula
    label_range = None
    if budget is not None:
        extra |= budget.arguments
        label_range = budget.label_range(LABEL if result.labels is None else result.labels.name)
    problem = open_problem(
        federation,
        alignment,
        result,
        standardize=True,
        extra=extra,
        step="prepare_moments",
        label_range=label_range,
        **reading,
    )
    pairs.collect(problem.total.public)
    return Prepared(federation, result, problem, pairs, budget)


def open_prepared(
    prepared: Prepared,
    intercept: bool,
    grouping: Grouping = by_pattern,
    completing: Completing | None = None,
    vectors: Callable[[Problem, RowGroups], Array] | None = None,
    commitment: Commitment | None = None,
) -> OpenedMoments:
    """Open the moments by group of rows; three rounds, completing six."""
    federation, result, problem = prepared.federation, prepared.result, prepared.problem
    budget, widths = prepared.budget, prepared.widths
    groups = _group(prepared, grouping)
    n_columns = sum(widths.values())
    y = problem.y[:, None] if vectors is None else vectors(problem, groups)
    group_key = GroupKey(federation, prepared.pairs)
    if budget is None:
        limbs = limbs_for(len(problem.y), n_columns)
        if completing is not None:
            group_key = completing(federation, prepared.pairs, problem, groups, result)
        products = products_of(federation, group_key, limbs)
    else:
        levels = budget.rule.levels(list(widths.values()), ~groups.mask, 1)
        room = room_for(levels, len(problem.y))
        products = products_of(federation, group_key, 1, room, 1.0, noisy=True)
    if commitment is not None:
        products.commitment = commitment
    products.send(y)
    moments = products.moments(groups.group, len(groups.mask), y, groups.mask)
    if budget is not None and isinstance(products, EncryptedProducts):
        moments = with_server_noise(federation, budget, moments, groups, list(widths.values()))
    if isinstance(products, EncryptedProducts):
        products.close()  # keys of an arbiter; a group seed the strategy's last step erases
    labels = None
    if budget is not None:
        labels = label_sums(federation, budget, moments, groups, problem.y, list(widths.values()))
    rough = _patterns(moments, groups, problem.y, labels)
    mean, spread = _standard(rough)
    if budget is not None:
        # Noise is to stay the same for all columns, and those of a fit without an intercept as
        # they are.
        mean, spread = mean * intercept, np.ones_like(spread)
    center, unit = prepared.of_columns("center"), prepared.of_columns("unit")
    opened = OpenedMoments(
        problem=problem,
        patterns=rough.standardised(np.append(mean, 0.0), np.append(spread, 1.0)),
        groups=groups,
        center=center + unit * mean,
        unit=unit * spread,
        products=products,
        offered=Offered(moments, center, unit),
        allowed=prepared.minimum.vectors_for,
        parties=prepared.parties,
        noise=group_noise(moments, labels, mean, spread),
    )
    _note_withheld(result, opened, moments, list(widths.values()))
    if vectors is None and budget is None and len(found := gives_label(opened.patterns)):
        result.notes.append(told_by(opened.names(found)))
    if not opened.held:
        raise DataError(
            "the parties tell nothing of any column: each has too few rows, or columns of few "
            "different values, some of them too rare; align more samples, or have every party "
            "lower 'min-rows' in its node config (simulate(min_rows=...))"
        )
    return opened


def in_no_group(columns: list[str]) -> str:
    """Say that columns are not in the fit."""
    text = f"columns {columns} are in no group of rows large enough to be told of"
    return f"{text}; they are left out and have no coefficient"


def told_by(columns: list[str]) -> str:
    """Say that columns tell the labels without noise."""
    return f"columns {columns} tell the labels exactly: leave out what is made of them"


def _group(prepared: Prepared, grouping: Grouping) -> RowGroups:
    """Group rows, and note what that cost."""
    try:
        groups, result = prepared.groups(grouping), prepared.result
    except DataError as error:
        raise DataError(f"{error}{prepared.problem.on_dropped}") from error
    result.metrics["rows_merged"] = float(groups.n_merged)
    result.metrics["rows_left_out"] = float(groups.n_left_out)
    counted = groups.mask[groups.group] | (groups.group < 0)[:, None]
    result.frames["rows_by_pattern"] = rows_by_pattern(
        prepared.problem.mask, counted, list(prepared.widths)
    )
    if grouping is by_pattern:
        needed = prepared.minimum.of(min(prepared.widths.values()))
        result.notes += costs(prepared.problem.mask, groups, needed, len(prepared.widths))
    return groups


def _patterns(
    moments: Moments, groups: RowGroups, y: Array, labels: list[LabelMoments] | None
) -> Patterns:
    """Put the opened sums and those of the labels together."""
    n_columns = moments.sums.shape[1]
    found = []
    alone = np.ones(len(y), dtype=bool)
    for g, withheld in enumerate(moments.withheld):
        rows = groups.group == g
        columns = np.flatnonzero(~withheld)
        if not len(columns):
            continue
        alone &= ~rows
        own = y[rows]
        observed = np.append(columns, n_columns)
        sums = np.append(moments.sums[g][columns], own.sum())
        with_label, square = moments.with_vectors[g][columns, 0], float(own @ own)
        if labels is not None:
            with_label, square = labels[g].with_columns[columns], labels[g].square
            sums[-1] = labels[g].total
        inner = moments.products[g][np.ix_(columns, columns)]
        products = np.block([[inner, with_label[:, None]], [with_label, square]])
        found.append(Pattern(observed, float(len(own)), sums, products))
    rest = y[alone]
    if len(rest):
        total, of_rest = float(rest.sum()), float(rest @ rest)
        if labels is not None:
            total, of_rest = labels[-1].total, labels[-1].square
        label = np.array([n_columns])
        found.append(Pattern(label, float(len(rest)), np.array([total]), np.array([[of_rest]])))
    return Patterns(n_columns + 1, found)


def _standard(rough: Patterns) -> tuple[Array, Array]:
    """Return mean and standard deviation of each column over all rows that were told of."""
    mean, covariance = rough.available()
    square = np.maximum(np.diag(covariance), 0.0)
    varies = square > 1e-20 * (square + mean**2)
    return mean[:-1], np.where(varies, np.sqrt(square), 1.0)[:-1]


def _note_withheld(
    result: Result, opened: OpenedMoments, moments: Moments, widths: list[int]
) -> None:
    """Name columns that parties told nothing of where they have the rows."""
    absent = np.repeat(opened.groups.mask, widths, axis=1)
    withheld = np.asarray(moments.withheld) & ~absent
    somewhere = withheld.any(axis=0)
    nowhere = somewhere & (withheld | absent).all(axis=0)
    if absent.all(axis=0).any():
        result.notes.append(in_no_group(opened.names(np.flatnonzero(absent.all(axis=0)))))
    if nowhere.any():
        names = opened.names(np.flatnonzero(nowhere))
        note = (
            f"columns {names} ({len(names)} of {absent.shape[1]}) take no part and have no "
            "coefficient: each has a value that is too rare to be told of among rows that the same "
            "parties hold, or comes down to few of these (by values far out, or as almost another "
            "column). A fit of the rows that all parties hold, more samples, or a lower "
            "'min-rows' at the nodes keeps more of them"
        )
        logger.warning(note)
        result.notes.append(note)
    for j in np.flatnonzero(somewhere & ~nowhere):
        few, every = int(withheld[:, j].sum()), int((~absent[:, j]).sum())
        result.notes.append(
            f"column {opened.names([j])[0]!r} has a value that is too rare to be told of, or comes "
            f"down to few rows, in {few} of {every} groups of rows; it counts as missing there"
        )
    result.metrics["columns_withheld"] += float(somewhere.sum())
