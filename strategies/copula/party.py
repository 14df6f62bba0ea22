"""Who holds columns, a party or, of the labels, the server: perturb ranks, keep noisy margins."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import step
from flwr_vertical.arrays import Array, Indices
from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError, PolicyError, ProtocolError
from flwr_vertical.log import logger
from flwr_vertical.policy.record import allows, key_of, text_of
from flwr_vertical.privacy import KEY_BYTES, fresh_keystream, parse_bounds
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Is, Shape, Within
from flwr_vertical.tables import Kind, Table, is_numeric
from flwr_vertical.tables.codes import fit_levels, from_codes, to_codes
from strategies.common.synthesis_columns import (
    LIMIT,
    Columns,
    SynthesisParty,
    beyond,
    other_level,
    parse_resolution,
    read_columns,
    synthetic_ids,
)
from strategies.copula.margins import Margin
from strategies.copula.release import (
    MOST_INDICATORS,
    ReleaseBudget,
    check_columns,
    make_release,
    synthetic_codes,
)
from strategies.copula.tree import narrowest

REARRANGED = "rearranged-rows"
"""The exchange by which nodes agree to synthetic rows that follow real ones."""

SERVER = "server"
_NARROW = 10  # cells that the middle half of a column's values takes at least
_COUNTED = {"per-variable": "a column", "total": "in all"}


class CopulaParty(SynthesisParty):
    """Sends perturbed ranks; turns the latent columns that come back into a synthetic table."""

    @step
    def prepare_release(
        self,
        bounds: Annotated[str, Is("bounds")],
        resolution: Annotated[str, Is("resolution")],
        margin: Annotated[str, Is("margin")],
    ) -> dict[str, int]:
        """Check the columns before anybody spends anything.

        Message: bounds, resolution, margin: settings; returns ``n_stated``, how many columns of
        numbers here the first two name.
        """
        self.state["resolution"] = resolution
        kinds = self._columns.table.kinds
        own = to_codes(self._columns.table, self._levels, self.name)
        check_columns(own, kinds, f"party {self.name!r}")
        ranges = parse_bounds(bounds)
        _check_ranges(self._columns, ranges, margin, f"party {self.name!r}")
        stated = ranges.keys() | parse_resolution(resolution).keys()
        return {"n_stated": sum(is_numeric(kinds[name]) for name in stated & kinds.keys())}

    @step
    def perturb(
        self,
        epsilon: Annotated[float, Is("epsilon")],
        budget: Annotated[str, Is("budget")],
        rank_share: Annotated[float, Is("rank_share")],
        margin_noise: Annotated[str, Is("margin_noise")],
        bounds: Annotated[str, Is("bounds")],
        impute: Annotated[bool, Is("missing == 'impute'")],
        margin: Annotated[str, Is("margin")],
        resolution: Annotated[str, Is("resolution")],
        min_level: Annotated[int, Is("min_level")],
        rearrange: Annotated[bool, Is("follows_rows")],
        nominal: Annotated[str, Is("nominal")],
        rows: Annotated[Indices | None, Shape(None), Within(0, "n_samples - 1"), DISTINCT] = None,
    ) -> dict[str, Any]:
        """Release the ranks of all columns, and make their margins.

        Message: epsilon, budget, rank_share, margin_noise, bounds, margin, resolution, min_level,
        nominal: settings of the strategy; impute: fill what is missing with means and most frequent
        levels of the noisy margins; rows (n_rows,): aligned rows that take part, by default all;
        rearrange: whether synthetic rows will follow the ranks of real ones; returns ``ranks`` of
        shape (n_rows, n_ranks) and ``widths``, how many of them a column has; ``flips``, the
        chances of comparisons to be turned round, times 2^16; ``cuts`` and ``n_cuts``, noisy shares
        of the levels of columns that have levels; ``atoms`` and ``n_atoms``, the same of where
        point masses of numeric columns begin and end; and counts for the statement.
        """
        min_level = max(min_level, self.policy.min_rows or 0) if min_level else 0
        spent = ReleaseBudget(epsilon, budget, rank_share, margin_noise, margin, min_level, nominal)
        self._check_budget(spent)
        if rearrange:
            self._check_rearranged()
        kinds = self._columns.table.kinds
        codes = self._codes
        # Of rows that the server chose, that two have the same value is told by an error, and paid
        # for; that a column of the whole table has no ranks was said before.
        if rows is not None:
            codes = codes[check_rows(rows, len(codes), self.name)]
        # Asked again after it lost its memory, the node makes the same release: the budget is spent
        # once.
        key = self.secret_bytes("ranks", KEY_BYTES)
        self._spend(spent, codes, key, impute, f"{bounds} {resolution}")
        n_levels = [0 if is_numeric(kind) else len(self._levels[n]) for n, kind in kinds.items()]
        made = make_release(
            codes,
            kinds,
            n_levels,
            parse_bounds(bounds),
            self._columns.steps,
            [other_level(self._columns.table, n, self._levels) for n in kinds],
            spent,
            fresh_keystream(f"party {self.name}", key),
            f"party {self.name!r}",
            impute,
        )
        for j in made.rare:
            logger.warning(
                "party %r, column %r: a level is held by a single sample; that it may occur in the "
                "synthetic table tells that somebody holds it: merge it with another",
                self.name,
                self.table.columns[j],
            )
        ordered = [
            name
            for (name, kind), each, width in zip(
                kinds.items(), made.margins, made.widths, strict=True
            )
            if kind is Kind.CATEGORICAL and width == 1 and len(each.values) > MOST_INDICATORS
        ]
        if ordered and nominal == "indicators":
            logger.info(
                "party %r: more than %d levels, taken in sorted order: %s; only dependence that "
                "follows it is kept: put levels together",
                self.name,
                MOST_INDICATORS,
                ordered,
            )
        for j, each in enumerate(made.margins):
            self.state[f"margin.{j}"] = np.vstack([each.values, each.cumulative])
        self.state["discrete"] = np.array([each.discrete for each in made.margins])
        self.state["steps"] = np.array([each.step for each in made.margins])
        return made.reply(self._columns.doubts())

    def _check_budget(self, budget: ReleaseBudget) -> None:
        """Refuse to spend more on a column than this node allows, or twice in a run."""
        if "discrete" in self.state:
            raise ProtocolError(
                f"party {self.name!r} has released its ranks in this run already; a second release "
                "would spend the budget again"
            )
        budget.check(f"party {self.name!r}")
        allowed = self.policy.max_epsilon
        if allowed is not None and budget.epsilon > allowed:
            raise PolicyError(
                f"party {self.name!r}",
                key_of("max_epsilon"),
                f"epsilon {budget.epsilon:g} on a column",
                text_of(allowed),
                "run the method with a smaller epsilon",
            )

    def _spend(
        self, budget: ReleaseBudget, codes: Array, key: bytes, impute: bool, public: str
    ) -> None:
        """Write down what the release costs a record, over all columns; or refuse.

        Whatever changes how the key stream is used makes another release: ranks under other noise.
        """
        compared = np.count_nonzero(~np.isnan(codes) | impute, axis=0)
        release = hashlib.blake2b(key, digest_size=16)
        release.update(repr((budget, impute, public)).encode())
        release.update(np.ascontiguousarray(codes).tobytes())
        self.privacy_ledger.spend_epsilon(
            budget.spent(compared.tolist()),
            release=release.digest(),
            what=f"perturbed ranks and noisy margins of {counted(codes.shape[1], 'column')}; "
            f"{budget.epsilon:g} {_COUNTED[budget.budget]} by the count of its paper (VDADP)",
        )

    @step
    def synthesise(
        self, levels: Annotated[Array, OWN, Shape("rows or n_samples", None), Within(0, 1)]
    ) -> dict[str, Any]:
        """Make the synthetic table of the own columns and write it to the own storage.

        Message: levels (n_rows, n_columns): latent columns through the normal distribution
        function.
        """
        margins = []
        for j, discrete in enumerate(self.state["discrete"]):
            values, cumulative = self.state[f"margin.{j}"]
            step = float(self.state["steps"][j])
            margins.append(Margin(values, cumulative, bool(discrete), step))
        self._save(synthetic_codes(margins, levels, self._columns.table.kinds))
        return {}

    def _check_rearranged(self) -> None:
        """Refuse rows that follow real ones where this node does not agree to them."""
        if not allows(self.policy.exchanges, REARRANGED):
            raise PolicyError(
                f"party {self.name!r}",
                key_of("exchanges"),
                f"exchange {REARRANGED!r}",
                text_of(self.policy.exchanges),
                "run the method with rearrange=False",
            )

    @property
    def _codes(self) -> Array:
        """All aligned rows as numbers, array of shape (n_samples, n_columns), NaN = missing."""
        own = to_codes(self._columns.table, self._levels, self.name)
        return np.asarray(self.to_aligned(own, np.nan))


def check_rows(rows: npt.ArrayLike, n_samples: int, party: str) -> Indices:
    """Return the aligned rows that take part, each once: noise must not be fresh twice."""
    given = np.asarray(rows)
    numbers = given.astype(np.int64)
    if (
        given.ndim != 1
        or not np.array_equal(numbers, given)
        or (np.diff(numbers) <= 0).any()
        or not len(numbers)
        or numbers[0] < 0
        or numbers[-1] >= n_samples
    ):
        raise ProtocolError(
            f"party {party!r}: expected ascending numbers of aligned rows, from 0 to "
            f"{n_samples - 1}, each once, got shape {given.shape}"
        )
    return numbers


def _check_ranges(
    columns: Columns, bounds: Mapping[str, tuple[float, float]], margin: str, who: str
) -> None:
    """Raise if a tree would cut off most values of a column; log where no cell is narrow enough."""
    if margin != "tree":
        return
    free = [n for n, step in columns.steps.items() if not step and n not in bounds]
    if close := columns.too_close(free, narrowest, _NARROW):
        logger.warning(
            "%s: %s: without bounds, cells are 2e-11 of a value wide at least, 2e-12 near 0, and "
            "values lie closer together than a few of them: synthetic values will be on a grid. "
            "State bounds",
            who,
            close,
        )
    if far := beyond(columns, bounds, who):
        raise DataError(
            f"{who}: most values of {far} lie beyond +-{LIMIT:g}, the range of a column without "
            f"bounds, and would count as its ends; state bounds, such as {{{far[0]!r}: (0, 1e12)}},"
            " or take larger units"
        )


class Label:
    """The server's labels, NaN where there is none: a table of one column, released as others."""

    def __init__(
        self,
        name: str,
        values: Array,
        dtype: Any,
        impute: bool,
        bounds: Mapping[str, tuple[float, float]],
        resolution: Mapping[str, float],
        budget: ReleaseBudget,
        key: bytes,
    ) -> None:
        self.name, self._dtype = name, dtype
        table = Table.of(pd.DataFrame({name: values}), party=SERVER)
        columns = read_columns(table, resolution, "the labels")
        _check_ranges(columns, bounds, budget.margin, "the labels")
        self._table = columns.table
        self._fitted = fit_levels([self._table])
        self.made = make_release(
            to_codes(self._table, self._fitted, SERVER),
            self._table.kinds,
            [0 if is_numeric(self._table.kinds[name]) else len(self._fitted[name])],
            bounds,
            columns.steps,
            [None],
            budget,
            fresh_keystream("server", key),
            "the labels",
            impute,
        )
        self.reply = self.made.reply(columns.doubts()) | {"rare": 0}

    def is_stated(self, names: list[str]) -> bool:
        """Whether labels are numbers that are named."""
        return self.name in names and is_numeric(self._table.kinds[self.name])

    def synthesise(
        self, levels: Annotated[Array, OWN, Shape("rows or n_samples", None), Within(0, 1)]
    ) -> "pd.Series[Any]":
        """Return synthetic labels, Series of shape (n_rows,)."""
        codes = synthetic_codes(self.made.margins, levels[:, None], self._table.kinds)
        index = synthetic_ids(len(levels))
        made = from_codes(codes, self._table, self._fitted, index)[self.name]
        whole = self._dtype is not None and pd.api.types.is_integer_dtype(self._dtype)
        return made.round().astype("int64") if whole else made.astype("float64")
