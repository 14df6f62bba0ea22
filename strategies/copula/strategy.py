"""VCDS: synthetic tables by a Gaussian copula on perturbed ranks and noisy margins.

Tang, Feng, Li and Wang, "Data Privatization in Vertical Federated Learning with Client-wise Missing
Problem", Algorithm 1.

===========  ====================================================================================
round        what travels
===========  ====================================================================================
perturb      down: settings; up: a perturbed rank for each sample and column (4 bytes), noisy shares
             of levels, a few counts
synthesise   down: a probability for each synthetic row and column (8 bytes); up: nothing
===========  ====================================================================================

So a run takes two rounds after greeting and alignment, whatever the number of samples, columns or
parties. Nothing is summed, so the mode of the sums does not matter.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.privacy import (
    ColumnSpending,
    PrivacyStatement,
    fresh_keystream,
    noise_is_seeded,
    rank_error,
)
from flwr_vertical.results import Progress
from flwr_vertical.tables import Table, is_numeric
from flwr_vertical.tables.codes import fill_values, fit_levels, from_codes, to_codes
from strategies.copula.latent import (
    Observed,
    check_joint,
    correlate,
    draw_latents,
    latent_matrix,
    probabilities,
)
from strategies.copula.margins import NOISES
from strategies.copula.party import CopulaParty, synthetic_ids
from strategies.copula.ranks import Flip
from strategies.copula.release import (
    BUDGETS,
    Budget,
    Release,
    make_release,
    parse_bounds,
    read_bounds,
    synthetic_codes,
)

Array = npt.NDArray[np.float64]

MISSING = ("pairwise", "complete-case", "impute")
SERVER = "server"


class VCDS(Strategy):
    """Vertical copula-based data sanitisation, for blocks missing completely at random.

    Every party ends with a synthetic table of its own columns, the server with synthetic labels;
    row i belongs together everywhere. Rows are drawn afresh, so none belongs to anybody.

    Parameters
    ----------
    epsilon : float, default 1.0
        Privacy budget; `Result.privacy` says what it means.
    budget : {"per-variable", "total"}, default "per-variable"
        Whether each column has this budget, or all columns of a party together (Theorem 1). The
        numbers printed in the paper need the first.
    rows : int, optional
        Synthetic rows to make (default, or 0: as many as there are aligned samples).
    rank_share : float, default 0.5
        Share of the budget for ranks (the paper's epsilon_1), the rest is for margins (epsilon_2).
    missing : {"pairwise", "complete-case", "impute"}, default "pairwise"
        Use all that each pair of columns has; only samples that all parties have (the paper's CC);
        or fill what is missing with means and most frequent levels first (Impute).
    min_joint : int, default 30
        Least number of rows that two columns must share.
    margin_noise : {"increments", "coefficients"}, default "increments"
        Where margins get their noise: on increments, with sensitivity 2 / n, or on the l + 1
        Bernstein coefficients, with sensitivity (l + 1) / n as in the paper. The guarantee is the
        same.
    bounds : mapping of column name to (low, high), or JSON text, optional
        Public ranges of numeric columns. Where there is none the observed range is used, which no
        guarantee covers; the privacy statement counts these columns.

    Notes
    -----
    Each column, of whatever kind, has one latent normal variable. Levels are taken in the order of
    an ordered Categorical, else sorted; equal values are ranked in random order and the
    correlation is corrected for it (see `bridge`). The labels are a column of the server: they are
    perturbed alike, and `Result.labels` holds synthetic ones.

    Noise comes from the operating system, never from ``seed``: two runs differ. Each run spends
    the budget again.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"income": rng.normal(50, 10, size=500)})
    >>> court = pd.DataFrame({"cases": rng.poisson(1, size=500)})
    >>> result = simulate(VCDS(epsilon=2.0), {"bank": bank, "court": court}, progress=False)
    >>> result.tables["court"].shape
    (500, 1)
    """

    name: ClassVar[str] = "vcds"
    party = CopulaParty
    disclosure = (
        (
            "server",
            "for each sample and column, a perturbed rank: where the value stands, up to noise "
            "that the privacy statement puts in numbers; and so which cells are missing",
        ),
        ("server", "noisy shares of the levels of each column of levels, and how many there are"),
        (
            "server",
            "how many columns a party has, which use their observed range, and how many have a "
            "level that a single sample holds",
        ),
        ("every party", "the latent columns of its own synthetic variables"),
        ("every party", "with missing='complete-case', which samples all parties have"),
        ("nobody", "a value, an exact rank or a margin of another party's numeric column"),
        (
            "a reader of the synthetic tables",
            "what follows from perturbed ranks and noisy margins; and the names of levels and, "
            "without bounds, each numeric column's range",
        ),
    )

    def __init__(
        self,
        epsilon: float = 1.0,
        budget: str = "per-variable",
        rows: int | None = None,
        rank_share: float = 0.5,
        missing: str = "pairwise",
        min_joint: int = 30,
        margin_noise: str = "increments",
        bounds: str | Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        for name, value in (("epsilon", epsilon), ("rank_share", rank_share)):
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                raise ConfigError(f"{name} must be a number, got {value!r}")
        if not epsilon > 0:
            raise ConfigError(f"epsilon must be positive, got {epsilon!r}")
        if not 0 < rank_share < 1:
            raise ConfigError(f"rank_share must be between 0 and 1, got {rank_share!r}")
        for name, text, known in (
            ("budget", budget, BUDGETS),
            ("missing", missing, MISSING),
            ("margin_noise", margin_noise, NOISES),
        ):
            if text not in known:
                raise ConfigError(f"{name} must be one of {list(known)}, got {text!r}")
        for name, count, least in (("rows", rows or 0, 0), ("min_joint", min_joint, 3)):
            whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
            if not whole or count < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, got {count!r}")
        self.epsilon = float(epsilon)
        self.budget = budget
        self.rows = int(rows or 0)
        self.rank_share = float(rank_share)
        self.missing = missing
        self.min_joint = int(min_joint)
        self.margin_noise = margin_noise
        self.bounds = read_bounds(bounds)

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Collect perturbed ranks, draw latents, hand each party its own; two rounds."""
        progress.total = 2
        rows = self._rows(federation, alignment)
        replies = federation.call("perturb", self._arguments(rows))
        progress.step("perturb")
        label = self._label(federation, result, rows)
        observed = _gather(replies, label)
        levels = self._levels(observed, alignment.n_samples, federation.rng, result)
        first = 0 if label is None else 1
        parts = {}
        for name, reply in replies.items():
            after = first + len(reply["flips"])
            parts[name] = {"levels": np.ascontiguousarray(levels[:, first:after])}
            first = after
        federation.call("synthesise", per_party=parts)
        progress.step("synthesise")
        result.labels = None if label is None else label.synthesise(levels[:, 0])
        self._state_privacy(result, replies, label, observed)

    def _rows(self, federation: Federation, alignment: Alignment) -> npt.NDArray[np.int64] | None:
        """Rows that take part, where these are not all."""
        if self.missing != "complete-case":
            return None
        complete = ~np.asarray(alignment.mask).any(axis=1)
        if federation.labels is not None:
            complete &= ~np.isnan(federation.labels)
        if not complete.any():
            raise DataError("no sample is complete; use missing='pairwise'")
        return np.flatnonzero(complete)

    def _arguments(self, rows: npt.NDArray[np.int64] | None) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "budget": self.budget,
            "rank_share": self.rank_share,
            "margin_noise": self.margin_noise,
            "bounds": self.bounds,
            "impute": self.missing == "impute",
            **({} if rows is None else {"rows": rows}),
        }

    def _label(
        self, federation: Federation, result: Result, rows: npt.NDArray[np.int64] | None
    ) -> "_Label | None":
        """Perturb the labels like everybody's columns."""
        if federation.labels is None:
            return None
        name = "label" if result.labels is None else str(result.labels.name or "label")
        values = federation.labels if rows is None else federation.labels[rows]
        key = federation.random_bytes(16)  # a run that is resumed perturbs them in the same way
        return _Label(
            name,
            values,
            None if result.labels is None else result.labels.dtype,
            self.missing == "impute",
            parse_bounds(self.bounds),
            Budget(self.epsilon, self.budget, self.rank_share, self.margin_noise),
            key,
        )

    def _levels(
        self, observed: Observed, n_samples: int, rng: np.random.Generator, result: Result
    ) -> Array:
        """Return the probabilities of all synthetic rows and columns."""
        omega = self._correlation(observed, result)
        return probabilities(draw_latents(omega, self.rows or n_samples, rng))

    def _correlation(self, observed: Observed, result: Result) -> Array:
        correlations = correlate(observed)
        least = check_joint(correlations, observed.owners, self.min_joint)
        omega = latent_matrix(correlations, observed.cuts)
        result.metrics["smallest-joint-rows"] = float(least)
        result.model = omega
        return omega

    def _state_privacy(
        self,
        result: Result,
        replies: Mapping[str, Mapping[str, Any]],
        label: "_Label | None",
        observed: Observed,
    ) -> None:
        """Say what was spent, and what to mind."""
        margins = [*([] if label is None else label.made.epsilon_margins)]
        ranges = [*([] if label is None else label.made.exact_range)]
        warnings = []
        for name, reply in replies.items():
            margins += reply["epsilon_margins"]
            ranges += reply["exact_range"]
            if reply["rare"]:
                warnings.append(
                    f"Party {name!r} has {reply['rare']} columns with a level that a single sample "
                    "holds; that it may occur in the synthetic table tells that somebody holds it. "
                    "Its log names the columns: merge these levels with others."
                )
        if noise_is_seeded() or any(reply["seeded"] for reply in replies.values()):
            warnings.append(
                "The noise was drawn from a known seed: nothing of this run is private."
            )
        columns = []
        for j, (owner, n, flip) in enumerate(
            zip(observed.owners, observed.n.tolist(), observed.flips, strict=True)
        ):
            error = rank_error(flip.noise_variance(n), n)
            columns.append(
                ColumnSpending(owner, n, flip.epsilon, margins[j], 1, error, bool(ranges[j]))
            )
        result.privacy = PrivacyStatement(columns, warnings)
        for party, spent in result.privacy.vdadp.items():
            if isfinite(spent):
                result.ledger.spend(party, spent, "ranks and margins (VDADP, per comparison)")
        result.metrics["rows"] = float(self.rows or len(observed.ranks))
        result.metrics["columns"] = float(len(columns))
        result.notes += result.privacy.sentences


class _Label:
    """The labels as a table of one column, released like any party's.

    Parameters
    ----------
    name : str
        Their name.
    values : numpy.ndarray of shape (n_samples,)
        NaN where a sample has none.
    dtype : Any
        Of the labels as given, if they were.
    impute : bool
        Fill missing ones.
    bounds, budget
        As of parties.
    key : bytes
        Of the noise.
    """

    def __init__(
        self,
        name: str,
        values: Array,
        dtype: Any,
        impute: bool,
        bounds: Mapping[str, tuple[float, float]],
        budget: Budget,
        key: bytes,
    ) -> None:
        self.name = name
        self._dtype = dtype
        self._table = Table.of(pd.DataFrame({name: values}), party=SERVER)
        self._fitted = fit_levels([self._table])
        codes = to_codes(self._table, self._fitted, SERVER)
        if impute:
            codes = np.where(np.isnan(codes), fill_values(codes, self._table.kinds), codes)
        count = 0 if is_numeric(self._table.kinds[name]) else len(self._fitted[name])
        self.made: Release = make_release(
            codes,
            self._table.kinds,
            [count],
            bounds,
            budget,
            fresh_keystream("server", key),
            "the labels",
        )

    def synthesise(self, levels: Array) -> "pd.Series[Any]":
        """Return synthetic labels, Series of shape (n_rows,)."""
        codes = synthetic_codes(self.made.margins, levels[:, None], self._table.kinds)
        index = synthetic_ids(len(levels))
        made = from_codes(codes, self._table, self._fitted, index)[self.name]
        whole = self._dtype is not None and pd.api.types.is_integer_dtype(self._dtype)
        return made.round().astype("int64") if whole else made.astype("float64")


def _gather(replies: Mapping[str, Mapping[str, Any]], label: _Label | None) -> Observed:
    """Put everybody's columns side by side, the labels first."""
    ranks = [] if label is None else [label.made.ranks]
    flips = [] if label is None else list(label.made.flips)
    cuts: list[Array | None] = []
    if label is not None:
        cuts += [m.cuts if m.discrete else None for m in label.made.margins]
    owners = [] if label is None else [SERVER]
    for name, reply in replies.items():
        ranks.append(reply["ranks"])
        flips += [Flip(int(numerator)) for numerator in reply["flips"]]
        start = 0
        for count in reply["n_cuts"]:
            cuts.append(None if count < 0 else reply["cuts"][start : start + count])
            start += max(count, 0)
        owners += [name] * len(reply["flips"])
    return Observed(np.hstack(ranks), flips, cuts, owners)
