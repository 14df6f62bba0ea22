"""What parties of regressions share: rows that take part, standardised, checked."""

from dataclasses import replace
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict, Unpack

import numpy as np

from flwr_vertical import Party, StepGroup, Summands, step
from flwr_vertical.arrays import Array, Bytes, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.node.kept import kept
from flwr_vertical.products.columns import HeldColumns, ScaledRows, squares_of
from flwr_vertical.protocol.arguments import Shape, Within
from flwr_vertical.scratch import take
from strategies.linear.design import Design, make_design
from strategies.linear.formula import formulas_of
from strategies.linear.formula_design import made_columns, make_formula_design
from strategies.linear.told_columns import COLUMNS, beside_earlier, earlier_formulas, words_of
from strategies.linear.told_columns import FORMULA as OF_FORMULA

# Under a prefix that the server may not write to.
PUBLIC_RANGE = "node.regression.range"
FORMULA = "node.regression.formula"


class RowSettings(TypedDict):
    """What `RegressionRows.prepare_rows` is told beside the labels."""

    standardize: bool
    intercept: bool
    n_unheld: NotRequired[Annotated[int, Within(0, 2**40)]]


Labelled: TypeAlias = Annotated[Bytes, Shape("n_samples"), Within(0, 1)]
"""1 where a sample has a label."""


class RegressionRows(StepGroup):
    """A party's columns as a regression needs them; the labels are the server's.

    After `prepare_rows`, `x` has the own rows of labelled samples, `rows` their numbers among them.
    """

    party: Party

    def __init__(self, party: Party, penalized: bool = False) -> None:
        super().__init__(party)
        self._penalized = penalized

    def prepare_rows(
        self, standardize: bool, intercept: bool, labelled: Bytes | None = None, n_unheld: int = 0
    ) -> Summands:
        """Turn the own table into a matrix, check it, and say what the server must know of it."""
        self.state["standardize"], self.state["intercept"] = standardize, intercept
        self.state["n_unheld"] = n_unheld
        if labelled is not None:
            self.state["labelled"] = labelled
        if not self._penalized:
            self._check_rows()
        dependent = self._dependent_in_table()
        collinear = [
            name for name, found in zip(self.design.columns, dependent, strict=True) if found
        ]
        return Summands(
            {},
            public={
                "columns": self.design.columns,
                "n_observed": len(self.rows),
                "dropped": self.design.dropped,
                "selective": self.design.selective,
                "collinear": collinear,
                "left_out": self.design.left_out,
            },
        )

    def _check_rows(self) -> None:
        held, needed = len(self.rows), len(self.design.columns) + 2
        if held < needed:
            raise DataError(
                f"party {self.name!r} holds {held} rows of labelled samples, but its "
                f"{len(self.design.columns)} columns need at least {needed}; leave out columns or "
                "the party, or align more samples"
            )

    @kept("design")
    def design(self) -> Design:
        """The own table as a matrix, aligned; made once per process."""
        return self._made(self.party.positions)

    @kept("table-rows")
    def table_rows(self) -> Array:
        """All rows of the own table without a missing cell, whether they take part or not.

        What the server is told of columns before any sum is counted follows from these. The server
        chooses the rows that take part: a column that is constant in some of them, or their mean,
        would tell who has which value, a few rows at a time.
        """
        if (self.party.positions >= 0).all():  # no need to have the matrix twice
            return self.design.x
        return self._made(np.arange(self.party.table.n_samples)).x

    def beside_earlier(self, held: HeldColumns) -> HeldColumns:
        """Return columns that are told of beside those that earlier runs told of."""
        if held.noise is not None:
            return held
        words = words_of(COLUMNS, self.party.table.columns)
        if (formula := self._formula) is not None:
            words = words_of(OF_FORMULA, formula)
        found = beside_earlier(self.party, held, words)
        # Once it is written down, formulas of runs that began meanwhile come before it or see it.
        return found if formula is None else replace(found, at_least=self._at_least(formula, held))

    @property
    def _formula(self) -> str | None:
        return formulas_of(str(self.state.get(FORMULA, ""))).get(self.name)

    def _made(self, positions: Indices) -> Design:
        """Return the own table as a matrix: the columns, or what a formula makes of them."""
        table, smallest = self.party.table, self.party.policy.min_rows
        if (formula := self._formula) is None:
            return make_design(table, positions, self.name, smallest)
        design = make_formula_design(table, positions, self.name, formula, smallest)
        return replace(design, at_least=self._at_least(formula, design))

    def _at_least(self, formula: str, made: Design | HeldColumns) -> int:
        """Return the fewest rows of a set, with the columns of earlier formulas."""
        table, smallest = self.party.table, self.party.policy.min_rows
        if not (earlier := earlier_formulas(self.party, formula)):
            return made.at_least
        every = made_columns(table, self.name, formula, smallest, earlier)
        return max(made.at_least, every.at_least)

    def _dependent_in_table(self) -> Flags:
        """Return which columns are constant, or follow from others, in the whole table."""
        rows = self.table_rows
        if self._penalized or not len(rows):
            return np.zeros(len(self.design.columns), dtype=bool)
        mean = rows.mean(axis=0)
        spread = spread_around(rows, mean)
        varies = spread > 1e-12 * np.maximum(rows.max(axis=0), -rows.min(axis=0))
        center = mean if self.state["intercept"] else np.zeros_like(mean)
        x = ScaledRows(rows, center, np.where(varies, spread, 1.0))
        return constant_or_collinear(x, bool(self.state["intercept"]))

    @property
    def intercept(self) -> bool:
        """Whether the model has one."""
        return bool(self.state["intercept"])

    @property
    def _labelled(self) -> Flags:
        """Which aligned samples have a label, shape (n_samples,)."""
        if "labelled" in self.state:
            return np.asarray(self.state["labelled"], dtype=bool)
        return np.ones(self.party.n_samples, dtype=bool)

    @property
    def n_labelled(self) -> int:
        """Number of labelled samples, whether anybody holds them or not (those come last)."""
        return int(self._labelled.sum()) + int(self.state["n_unheld"])

    @kept("fit-rows")
    def rows(self) -> Indices:
        """Numbers, among the labelled samples, of the rows held; shape (n_observed,)."""
        number = np.cumsum(self._labelled) - 1
        own = self.design.rows
        return number[own[self._labelled[own]]]

    @property
    def own_rows(self) -> Indices:
        """Which of the party's own rows those are; shape (n_observed,)."""
        own = self.design.rows
        return np.asarray(self.party.rows_of(own[self._labelled[own]])[1])

    @property
    def raw(self) -> Array:
        """Rows held of labelled samples in their own units, shape (n_observed, n_columns)."""
        own = self.design
        chosen = self._labelled[own.rows]
        return own.x if chosen.all() else take(own.x, np.flatnonzero(chosen))

    @property
    def raw_unlabelled(self) -> tuple[Array, Indices, int]:
        """Rows held of unlabelled samples, their numbers among these, and how many there are."""
        free = ~self._labelled
        number = np.cumsum(free) - 1
        own = self.design
        held = free[own.rows]
        return own.x[held], number[own.rows[held]], int(free.sum())

    @property
    def public_range(self) -> tuple[Array, Array] | None:
        """Lowest and highest value of each column as everybody knows them, if the fit has these."""
        if PUBLIC_RANGE not in self.state:
            return None
        low, high = np.asarray(self.state[PUBLIC_RANGE])
        return low, high

    @property
    def aligned_unlabelled(self) -> Indices:
        """Aligned numbers of the rows held of unlabelled samples, as in `raw_unlabelled`."""
        own = self.design.rows
        return np.asarray(own[~self._labelled[own]])

    @property
    def center(self) -> Array:
        """What is subtracted from each column, shape (n_columns,)."""
        return self._scaling[0]

    @property
    def scale(self) -> Array:
        """What each column is divided by, shape (n_columns,)."""
        return self._scaling[1]

    @kept("scaling")
    def _scaling(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each column over the rows held of labelled samples."""
        raw = self.raw
        center, scale = np.zeros(raw.shape[1]), np.ones(raw.shape[1])
        if self.state["standardize"] and len(raw):
            spread = raw.std(axis=0)
            # Rounding leaves a constant column with a tiny spread.
            varies = spread > 1e-12 * np.abs(raw).max(axis=0)
            scale = np.where(varies, spread, 1.0)
            if self.state["intercept"]:
                center = raw.mean(axis=0)
        return center, scale


class RegressionData(RegressionRows):
    """The same where no other step prepares them."""

    @step
    def prepare(
        self, labelled: Labelled | None = None, **settings: Unpack[RowSettings]
    ) -> Summands:
        """Turn the own table into a matrix, check it, and say what the server must know of it.

        Message: standardize: divide each column by its standard deviation (and centre it if there
        is an intercept); intercept: whether the model has one; labelled (n_samples,): 1 where a
        sample has a label; None if all have; n_unheld: how many further labels there are, of
        samples that no party holds; returns nothing to be summed; publicly the names of the
        ``columns``, ``n_observed`` rows of labelled samples, the aligned numbers of ``dropped``
        rows, whether these differ from the others (``selective``), and the names of ``collinear``
        columns, of the whole table, and of columns ``left_out`` (`Design`).
        """
        return self.prepare_rows(labelled=labelled, **settings)


def spread_around(rows: Array, mean: Array) -> Array:
    """Return the columns' standard deviations, (n_columns,), without a copy of the columns."""
    return np.asarray(
        np.sqrt(squares_of(ScaledRows(rows, mean, np.ones_like(mean))) / max(len(rows), 1))
    )


def constant_or_collinear(x: Array | ScaledRows, intercept: bool = True) -> Flags:
    """Tell which columns, (n_columns,), follow from 1 and the columns before them."""
    found = np.zeros(x.shape[1], dtype=bool)
    if _clearly_independent(x, intercept):
        return found
    x = x[:]
    basis = np.full((len(x), 1), 1.0 / np.sqrt(max(len(x), 1))) if intercept else x[:, :0]
    for j in range(x.shape[1]):
        rest: Any = x[:, j]
        length = float(rest @ rest)
        for _ in range(2):  # twice, for rounding
            rest = rest - basis @ (basis.T @ rest)
        left = float(rest @ rest)
        if left <= 1e-9 * length or len(x) <= basis.shape[1]:
            found[j] = True
        else:
            basis = np.column_stack([basis, rest / np.sqrt(left)])
    return found


def _clearly_independent(x: Array | ScaledRows, intercept: bool) -> bool:
    """Tell by the columns' products alone, which is fast, where these leave no doubt."""
    sums, gram = np.zeros(x.shape[1]), np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK]
        sums += block.sum(axis=0)
        gram += block.T @ block
    length = np.sqrt(np.diag(gram))
    if len(x) <= x.shape[1] + 1 or not ((length > 0.0) & np.isfinite(length)).all():
        return False
    gram = gram / length / length[:, None]
    if intercept:
        sums = sums / length
        gram = gram - np.outer(sums, sums) / len(x)
    return bool(np.linalg.eigvalsh(gram)[0] > _CLEAR)


_CLEAR = 1e-6  # products lose half of the digits
_BLOCK = 65_536  # rows
