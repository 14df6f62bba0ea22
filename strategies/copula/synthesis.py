"""What VCDS, EVCDS and IEVCDS share: settings, both rounds, and the privacy statement."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.privacy import (
    ColumnSpending,
    PrivacyStatement,
    count_columns,
    noise_is_seeded,
    rank_error,
)
from flwr_vertical.results import Progress
from strategies.copula.correlation import RankCorrelations
from strategies.copula.label import SERVER, Label
from strategies.copula.latent import Observed, check_joint, correlate
from strategies.copula.margins import NOISES
from strategies.copula.party import CopulaParty
from strategies.copula.ranks import Flip
from strategies.copula.release import BUDGETS, Budget, parse_bounds, read_bounds

Array = npt.NDArray[np.float64]

MISSING = ("pairwise", "complete-case", "impute")


class CopulaSynthesis(Strategy):
    """Synthetic tables from perturbed ranks and noisy margins; see `VCDS` for the settings."""

    party = CopulaParty

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
        # A study may have made its data from the same seed; then the very same numbers would come.
        rng = federation.rng.spawn(1)[0]
        levels = self._levels(observed, self.rows or alignment.n_samples, rng, result)
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
    ) -> "Label | None":
        """Perturb the labels like everybody's columns."""
        if federation.labels is None:
            return None
        name = "label" if result.labels is None else str(result.labels.name or "label")
        values = federation.labels if rows is None else federation.labels[rows]
        key = federation.random_bytes(16)  # a run that is resumed perturbs them in the same way
        return Label(
            name,
            values,
            None if result.labels is None else result.labels.dtype,
            self.missing == "impute",
            parse_bounds(self.bounds),
            Budget(self.epsilon, self.budget, self.rank_share, self.margin_noise),
            key,
        )

    @abstractmethod
    def _levels(
        self, observed: Observed, rows: int, rng: np.random.Generator, result: Result
    ) -> Array:
        """Return the probabilities of all synthetic rows and columns, array of shape (rows, p)."""

    def _correlate(self, observed: Observed, result: Result) -> RankCorrelations:
        correlations = correlate(observed)
        least = check_joint(correlations, observed.owners, self.min_joint)
        result.metrics["smallest-joint-rows"] = float(least)
        return correlations

    @property
    def _warnings(self) -> list[str]:
        """What of the settings weakens the guarantee."""
        return []

    def _state_privacy(
        self,
        result: Result,
        replies: Mapping[str, Mapping[str, Any]],
        label: "Label | None",
        observed: Observed,
    ) -> None:
        """Say what was spent, and what to mind."""
        margins = [*([] if label is None else label.made.epsilon_margins)]
        ranges = [*([] if label is None else label.made.exact_range)]
        warnings = self._warnings
        for name, reply in replies.items():
            margins += reply["epsilon_margins"]
            ranges += reply["exact_range"]
            if reply["rare"]:
                warnings.append(
                    f"Party {name!r} has a level that a single sample holds in "
                    f"{count_columns(reply['rare'])}; that it may occur in the synthetic table "
                    "tells that somebody holds it. Its log names the columns: merge these levels."
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
        bounded = sum(int(reply["n_bounded"]) for reply in replies.values())
        bounded += 0 if label is None else label.made.n_bounded
        stated = len(parse_bounds(self.bounds))
        if bounded < stated:
            result.notes.append(
                f"{stated - bounded} of the bounds name no numeric column; mistyped?"
            )


def _gather(replies: Mapping[str, Mapping[str, Any]], label: Label | None) -> Observed:
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
