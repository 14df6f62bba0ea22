"""The party half of copula synthesis: perturb ranks, keep noisy margins, make the own columns."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Party, step
from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.privacy import KEY_BYTES, fresh_keystream, noise_is_seeded, parse_bounds
from flwr_vertical.tables import is_numeric
from flwr_vertical.tables.codes import Levels, fill_values, fit_levels, from_codes, to_codes
from strategies.synthesis.copula.margins import Margin
from strategies.synthesis.copula.release import Budget, make_release, synthetic_codes

logger = logging.getLogger("flwr_vertical")

Array = npt.NDArray[np.float64]


class CopulaParty(Party):
    """Sends perturbed ranks; turns the latent columns that come back into a synthetic table."""

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
    ) -> dict[str, Any]:
        """Release the ranks of all columns, and make their margins.

        Parameters
        ----------
        epsilon, budget, rank_share, margin_noise, bounds
            Settings of the strategy.
        impute : bool
            Fill what is missing with means and most frequent levels first.
        rows : numpy.ndarray of shape (n_rows,), int64, optional
            Aligned rows that take part; by default all.

        Returns
        -------
        dict[str, Any]
            ``ranks`` of shape (n_rows, n_columns); ``flips``, the chances of comparisons to be
            turned round, times 2^16; ``cuts`` and ``n_cuts``, noisy shares of the levels of
            columns that have levels, one column after the other; and counts for the statement.
        """
        self._check_budget(epsilon)
        codes = self._codes
        if impute:
            codes = np.where(np.isnan(codes), fill_values(codes, self.table.kinds), codes)
        if rows is not None:
            codes = codes[rows]
        kinds = self.table.kinds
        n_levels = [0 if is_numeric(kind) else len(self._levels[n]) for n, kind in kinds.items()]
        made = make_release(
            codes,
            kinds,
            n_levels,
            parse_bounds(bounds),
            Budget(epsilon, budget, rank_share, margin_noise),
            # Asked again after it lost its memory, the node makes the same release: the budget is
            # spent once.
            fresh_keystream(f"party {self.name}", self.secret_bytes("ranks", KEY_BYTES)),
            f"party {self.name!r}",
        )
        for j in made.rare:
            logger.warning(
                "party %r, column %r: a level is held by a single sample; that it may occur in the "
                "synthetic table tells that somebody holds it: merge it with another",
                self.name,
                self.table.columns[j],
            )
        for j, margin in enumerate(made.margins):
            self.state[f"margin.{j}"] = np.vstack([margin.values, margin.cumulative])
        self.state["discrete"] = np.array([margin.discrete for margin in made.margins])
        return {
            "ranks": made.ranks,
            "flips": [flip.numerator for flip in made.flips],
            "epsilon_margins": made.epsilon_margins,
            "cuts": np.concatenate([margin.cuts for margin in made.margins]),
            "n_cuts": [len(m.cuts) if m.discrete else -1 for m in made.margins],
            "exact_range": made.exact_range,
            "rare": len(made.rare),
            "n_bounded": made.n_bounded,
            "seeded": noise_is_seeded(),
        }

    def _check_budget(self, epsilon: float) -> None:
        """Refuse to spend more than this node allows, or twice in a run."""
        if "discrete" in self.state:
            raise ProtocolError(
                f"party {self.name!r} has released its ranks in this run already; a second release "
                "would spend the budget again"
            )
        allowed = self.services.node_config.get("max-epsilon")
        if allowed is not None and epsilon > float(allowed):
            raise ConfigError(
                f"party {self.name!r} allows epsilon up to {allowed} (max-epsilon in its node "
                f"config), and {epsilon} was asked for"
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
            margins.append(Margin(values, cumulative, bool(discrete)))
        codes = synthetic_codes(margins, levels, self.table.kinds)
        index = synthetic_ids(len(levels), self.table.ids.name)
        self.save_output(from_codes(codes, self.table, self._levels, index))
        return {}

    @property
    def _levels(self) -> Levels:
        if "levels" not in self.cache:
            self.cache["levels"] = fit_levels([self.table])
        levels: Levels = self.cache["levels"]
        return levels

    @property
    def _codes(self) -> Array:
        """All aligned rows as numbers, array of shape (n_samples, n_columns), NaN = missing."""
        own = to_codes(self.table, self._levels, self.name)
        codes: Array = self.to_aligned(own, np.nan)
        return codes


def synthetic_ids(count: int, name: Any = None) -> "pd.Index[Any]":
    """Return IDs that are nobody's, the same at all parties, index of shape (count,)."""
    return pd.Index([f"synthetic-{i}" for i in range(count)], name=name)
