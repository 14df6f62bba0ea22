"""The party half of copula synthesis: perturb ranks, keep noisy margins, make the own columns."""

import hashlib
import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Party, step
from flwr_vertical.arrays import Array
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.policy.record import allows, key_of, text_of
from flwr_vertical.privacy import (
    KEY_BYTES,
    count_columns,
    fresh_keystream,
    noise_is_seeded,
    parse_bounds,
)
from flwr_vertical.tables import Kind, is_numeric
from flwr_vertical.tables.codes import Levels, fit_levels, to_codes
from strategies.copula.columns import (
    Columns,
    other_level,
    parse_resolution,
    read_columns,
    with_others,
)
from strategies.copula.margins import Margin
from strategies.copula.release import (
    MIN_LEVEL,
    MOST_INDICATORS,
    NOMINALS,
    Budget,
    check_columns,
    make_release,
    synthetic_codes,
)

logger = logging.getLogger("flwr_vertical")


REARRANGED = "rearranged-rows"
"""The exchange by which nodes agree to synthetic rows that follow real ones."""

_COUNTED = {"per-variable": "a column", "total": "in all"}


class CopulaParty(Party):
    """Sends perturbed ranks; turns the latent columns that come back into a synthetic table."""

    takes_dates = True

    @step
    def perturb(
        self,
        epsilon: float,
        budget: str,
        rank_share: float,
        margin_noise: str,
        bounds: str,
        impute: bool,
        rows: npt.NDArray[np.int64] | None = None,
        margin: str = "tree",
        resolution: str = "",
        min_level: int = MIN_LEVEL,
        rearrange: bool = False,
        nominal: str = NOMINALS[0],
    ) -> dict[str, Any]:
        """Release the ranks of all columns, and make their margins.

        Parameters
        ----------
        epsilon, budget, rank_share, margin_noise, bounds
            Settings of the strategy.
        impute : bool
            Fill what is missing with means and most frequent levels of the noisy margins.
        rows : numpy.ndarray of shape (n_rows,), int64, optional
            Aligned rows that take part; by default all.
        margin, resolution, min_level
            Settings of the strategy.
        rearrange : bool
            Whether synthetic rows will follow the ranks of real ones.
        nominal : str
            Setting of the strategy.

        Returns
        -------
        dict[str, Any]
            ``ranks`` of shape (n_rows, n_ranks) and ``widths``, how many of them a column has;
            ``flips``, the chances of comparisons to be turned round, times 2^16; ``cuts`` and
            ``n_cuts``, noisy shares of the levels of columns that have levels, one column after
            the other; ``atoms`` and ``n_atoms``, the same of where point masses of numeric columns
            begin and end; and counts for the statement.

        Raises
        ------
        PolicyError
            If the node's policy does not allow so large an epsilon, or rows that follow real ones.
        """
        min_level = max(min_level, self.policy.min_rows or 0) if min_level else 0
        spent = Budget(epsilon, budget, rank_share, margin_noise, margin, min_level, nominal)
        self._check_budget(spent)
        if rearrange:
            self._check_rearranged()
        self.state["resolution"] = resolution
        kinds = self._columns.table.kinds
        codes = self._codes
        # A column without ranks is said for nothing where it has none in the whole table. Of rows
        # that the server chose, that two have the same value is told by the error, and paid for.
        own = to_codes(self._columns.table, self._levels, self.name)
        check_columns(own, kinds, f"party {self.name!r}")
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
        return {
            "ranks": made.ranks,
            "widths": made.widths,
            "flips": [flip.numerator for flip in made.flips],
            "epsilon_margins": made.epsilon_margins,
            "cuts": np.concatenate([margin.cuts for margin in made.margins]),
            "n_cuts": [len(m.cuts) if m.discrete else -1 for m in made.margins],
            "atoms": np.concatenate([margin.atoms.reshape(-1) for margin in made.margins]),
            "n_atoms": [len(margin.atoms) for margin in made.margins],
            "exact_range": made.exact_range,
            "rare": len(made.rare),
            "n_bounded": made.n_bounded,
            "n_resolved": len(parse_resolution(resolution).keys() & self._columns.steps.keys()),
            "n_recast": len(self._columns.recast),
            "n_like_ids": len(self._columns.like_ids),
            "name_chance": made.name_chance,
            "least_epsilon": made.least_epsilon,
            "seeded": noise_is_seeded(),
        }

    def _check_budget(self, budget: Budget) -> None:
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

    def _spend(self, budget: Budget, codes: Array, key: bytes, impute: bool, public: str) -> None:
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
            what=f"perturbed ranks and noisy margins of {count_columns(codes.shape[1])}; "
            f"{budget.epsilon:g} {_COUNTED[budget.budget]} by the count of its paper (VDADP)",
        )

    @step
    def synthesise(self, levels: Array) -> dict[str, Any]:
        """Make the synthetic table of the own columns and write it to the own storage.

        Parameters
        ----------
        levels : numpy.ndarray of shape (n_rows, n_columns)
            Probabilities: the latent columns through the normal distribution function.
        """
        margins = []
        for j, discrete in enumerate(self.state["discrete"]):
            values, cumulative = self.state[f"margin.{j}"]
            step = float(self.state["steps"][j])
            margins.append(Margin(values, cumulative, bool(discrete), step))
        table = self._columns.table
        codes = synthetic_codes(margins, levels, table.kinds)
        index = synthetic_ids(len(levels), table.ids.name)
        frame = with_others(codes, table, self._levels, index)
        written = {name: form.written(frame[name]) for name, form in self._columns.dates.items()}
        self.save_output(frame.assign(**written))
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
    def _columns(self) -> Columns:
        if "columns" not in self.cache:
            stated = parse_resolution(str(self.state["resolution"]))
            self.cache["columns"] = read_columns(self.table, stated, f"party {self.name!r}")
        columns: Columns = self.cache["columns"]
        return columns

    @property
    def _levels(self) -> Levels:
        if "levels" not in self.cache:
            self.cache["levels"] = fit_levels([self._columns.table])
        levels: Levels = self.cache["levels"]
        return levels

    @property
    def _codes(self) -> Array:
        """All aligned rows as numbers, array of shape (n_samples, n_columns), NaN = missing."""
        own = to_codes(self._columns.table, self._levels, self.name)
        codes: Array = self.to_aligned(own, np.nan)
        return codes


def check_rows(rows: npt.ArrayLike, n_samples: int, party: str) -> npt.NDArray[np.int64]:
    """Return the aligned rows that take part, if each is there once.

    A row that came twice would be ranked twice, under fresh noise each time.
    """
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


def synthetic_ids(count: int, name: Any = None) -> "pd.Index[Any]":
    """Return IDs that are nobody's, the same at all parties, index of shape (count,)."""
    return pd.Index([f"synthetic-{i}" for i in range(count)], name=name)
