"""What VCDS, EVCDS and IEVCDS share: settings, both rounds, and the privacy statement."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import ceil, floor, isfinite, log10
from types import MappingProxyType
from typing import Any

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array, Integers
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.privacy import (
    ColumnSpending,
    PrivacyStatement,
    noise_is_seeded,
    parse_bounds,
    rank_error,
    read_bounds,
)
from flwr_vertical.protocol.declaration import EPSILON, FACTS, Protocol, Round
from strategies.common.synthesis_columns import parse_resolution, read_resolution
from strategies.copula.correlation import Observed, RankCorrelations, check_joint, correlate
from strategies.copula.margins import NOISES
from strategies.copula.party import SERVER, CopulaParty, Label
from strategies.copula.ranks import Flip
from strategies.copula.release import (
    BUDGETS,
    MARGINS,
    MIN_LEVEL,
    MOST_INDICATORS,
    NOMINALS,
    ReleaseBudget,
)

MISSING = ("pairwise", "complete-case", "impute")


class CopulaSynthesis(Strategy):
    """Synthetic tables from perturbed ranks and noisy margins; see `VCDS` for the settings."""

    epsilon: float = setting(1.0, "Privacy budget; `Result.privacy` says what it means.", above=0)
    budget: str = setting(
        "per-variable",
        "Whether each column has this budget, or all columns of a party together (Theorem 1). The "
        "numbers printed in the paper need the first.",
        choices=BUDGETS,
    )
    rows: int | None = setting(
        0,
        "Synthetic rows to make (0: as many as there are aligned samples).",
        at_least=0,
        parse=lambda rows: 0 if rows is None else rows,
    )
    rank_share: float = setting(
        0.25,
        "Share of the budget for ranks (the paper's epsilon_1), the rest is for margins "
        "(epsilon_2). Ranks need less: a rank is made of many comparisons. The tables printed in "
        "the paper halve the budget.",
        above=0,
        below=1,
    )
    missing: str = setting(
        "pairwise",
        "Use all that each pair of columns has; only samples that all parties have (the paper's "
        "CC); or fill what is missing first (Impute), with means and most frequent levels of the "
        "noisy margins.",
        choices=MISSING,
    )
    min_joint: int = setting(30, "Least number of rows that two columns must share.", at_least=3)
    margin: str = setting(
        "tree",
        "How margins of numbers are estimated: by a tree of noisy counts, which fits columns of "
        "any scale, finds point masses and needs no range; or by the paper's Bernstein "
        "polynomials over the range.",
        choices=MARGINS,
    )
    resolution: str | Mapping[str, float] | None = setting(
        "",
        "Public resolutions of numeric columns, of which all values are multiples: a mapping of "
        "column name to step, or the same as JSON text, such as 0.01 for amounts in cents. Whole "
        "numbers need none.",
        parse=read_resolution,
    )
    min_level: int = setting(
        MIN_LEVEL,
        "Levels with a noisy count below this become 'other' (of ordered ones and numbers, their "
        "neighbour), and below a node's `policy.min-rows`, where that is stated. 0: the names of "
        "all levels are public.",
        at_least=0,
    )
    nominal: str = setting(
        NOMINALS[0],
        "How columns of levels without an order are ranked: each level against all others, which "
        "keeps dependence of any form and lets the server tell the levels apart; or all in sorted "
        f"order, which keeps what is monotone in it. So are columns of more than {MOST_INDICATORS} "
        "levels, rare ones put together.",
        choices=NOMINALS,
    )
    margin_noise: str = setting(
        "increments",
        "Where Bernstein margins get their noise: on increments, with sensitivity 2 / n, or on "
        "the l + 1 coefficients, with sensitivity (l + 1) / n as in the paper. The guarantee is "
        "the same.",
        choices=NOISES,
    )
    bounds: str | Mapping[str, Sequence[float]] | None = setting(
        "",
        "Public ranges of numeric columns: a mapping of column name to (low, high), or the same "
        "as JSON text. A tree needs none: without, it covers -1e8 to 1e8. Bernstein margins take "
        "the observed range then, which no guarantee covers; the privacy statement counts these "
        "columns.",
        parse=read_bounds,
    )

    party = CopulaParty
    protocol = Protocol(
        Round("prepare_release", "how many columns settings name", tells=FACTS),
        Round("perturb", "perturbed ranks of all columns, noisy shares", tells=EPSILON),
        Round("synthesise"),
    )
    uses_labels = True
    demo = MappingProxyType(
        {
            "labels": "demo",
            "demo.dataset": "diabetes",
            "demo.missing-cells": 0.0,
            "demo.missing-blocks": 0.1,
        }
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Collect perturbed ranks, draw latents, hand each party its own; three rounds."""
        progress.total = 2
        rows = self._rows(federation, alignment)
        label = self._label(federation, result, rows)
        self._check_before(federation, alignment, rows, label)
        replies = federation.call("perturb", self._arguments(rows))
        progress.step("perturb")
        told = [*([] if label is None else [(SERVER, label.reply)]), *replies.items()]
        observed = _gather(told)
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
        self._state_privacy(result, told, label, observed)

    def protocol_of_run(self) -> Protocol | None:
        """See `Strategy.protocol_of_run`; nodes also know whether rows follow real ones."""
        declared = super().protocol_of_run()
        if declared is None:
            return None
        return declared.given({**declared.settings, "follows_rows": self._follows_rows})

    def _rows(self, federation: Federation, alignment: Alignment) -> Integers | None:
        """Rows that take part, where these are not all."""
        if self.missing != "complete-case":
            return None
        complete = ~np.asarray(alignment.mask).any(axis=1)
        if federation.labels is not None:
            complete &= ~np.isnan(federation.labels)
        if not complete.any():
            raise DataError("no sample is complete; use missing='pairwise'")
        return np.flatnonzero(complete)

    def _arguments(self, rows: Integers | None) -> dict[str, Any]:
        return {
            **self._budget,
            "bounds": self.bounds,
            "resolution": self.resolution,
            "impute": self.missing == "impute",
            "rearrange": self._follows_rows,
            **({} if rows is None else {"rows": rows}),
        }

    @property
    def _budget(self) -> dict[str, Any]:
        """The fields of `ReleaseBudget`."""
        return {field.name: getattr(self, field.name) for field in fields(ReleaseBudget)}

    def _label(self, federation: Federation, result: Result, rows: Integers | None) -> Label | None:
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
            parse_bounds(read_bounds(self.bounds)),
            parse_resolution(read_resolution(self.resolution)),
            ReleaseBudget(**self._budget),
            key,
        )

    @abstractmethod
    def _levels(
        self, observed: Observed, rows: int, rng: np.random.Generator, result: Result
    ) -> Array:
        """Return the probabilities of all synthetic rows and columns, array of shape (rows, p)."""

    def _check_before(
        self,
        federation: Federation,
        alignment: Alignment,
        rows: Integers | None,
        label: Label | None,
    ) -> None:
        """Refuse what is known to fail before anything is spent."""
        owners, held = list(alignment.parties), ~np.asarray(alignment.mask)
        if label is not None:
            owners, held = [*owners, SERVER], np.column_stack([held, ~np.isnan(federation.labels)])
        held = (held if rows is None else held[rows]) | (self.missing == "impute")
        check_joint(held.T.astype(np.int64) @ held, owners, self.min_joint)
        public = {n: getattr(self, n) for n in ("bounds", "resolution", "margin")}
        found = sum(r["n_stated"] for r in federation.call("prepare_release", public).values())
        bounds, resolution = read_bounds(self.bounds), read_resolution(self.resolution)
        names = sorted(parse_bounds(bounds).keys() | parse_resolution(resolution).keys())
        found += label is not None and label.is_stated(names)
        if found < len(names):
            raise ConfigError(
                f"the parties have {found} of the {len(names)} columns of numbers that bounds and "
                f"resolution name: {names}; check names and kinds. Nothing was spent"
            )

    def _correlate(self, observed: Observed, result: Result) -> RankCorrelations:
        correlations = correlate(observed)
        owners = [observed.owners[column] for column in observed.of_rank]
        least = check_joint(correlations.n_joint, owners, self.min_joint)
        result.metrics["smallest_joint_rows"] = float(least)
        return correlations

    @property
    def _warnings(self) -> list[str]:
        """What of the settings weakens the guarantee."""
        return []

    @property
    def _follows_rows(self) -> bool:
        """Whether synthetic rows follow the ranks of real ones."""
        return False

    def _state_privacy(
        self,
        result: Result,
        told: Sequence[tuple[str, Mapping[str, Any]]],
        label: Label | None,
        observed: Observed,
    ) -> None:
        """Say what was spent, and what to mind."""
        replies = [reply for _, reply in told]
        margins = [epsilon for reply in replies for epsilon in reply["epsilon_margins"]]
        ranges = [exact for reply in replies for exact in reply["exact_range"]]
        warnings = self._warnings
        chances = [] if label is None else [label.made.name_chance]
        for name, reply in told:
            if reply["rare"]:
                warnings.append(
                    f"Party {name!r} has a level that a single sample holds in "
                    f"{counted(reply['rare'], 'column')}; that it may occur in the synthetic table "
                    "tells that somebody holds it. Its log names the columns: merge these levels."
                )
            if reply["name_chance"] > 0:
                chances.append(float(reply["name_chance"]))
        if nominal := [j for j, width in enumerate(observed.widths) if width > 1]:
            least = min(observed.level_errors(j) for j in nominal)
            warnings.append(
                f"Each level of {counted(len(nominal), 'column')} without an order has ranks of "
                "its own: the server can tell which level a sample has, with errors in at most "
                f"{_rounded_up(100 * max(least, 1e-4)):g} % of the samples (the column told best). "
                "nominal='order' tells less."
            )
        if chances and max(chances) < 1:
            warnings.append(
                "The name of a level that a single sample holds is told with a chance of "
                f"{max(chances):.2g}; else it is part of 'other', or of its neighbour."
            )
        if noise_is_seeded() or any(reply["seeded"] for reply in replies):
            warnings.append(
                "The noise was drawn from a known seed: nothing of this run is private."
            )
        columns = []
        n_ranked, noise = observed.n, observed.noise
        for j, (owner, flip, place) in enumerate(
            zip(observed.owners, observed.flips, observed.places, strict=True)
        ):
            n = int(n_ranked[place.start])
            error = rank_error(float(noise[place].min()), n)
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
        result.notes += self._doubts(replies)

    def _doubts(self, replies: Sequence[Mapping[str, Any]]) -> list[str]:
        """Say what a user should look at; the nodes' logs name the columns."""

        def total(key: str) -> int:
            return sum(int(reply[key]) for reply in replies)

        found = []
        if recast := total("n_recast"):
            found.append(
                f"{counted(recast, 'column')} of numbers with few values were taken for levels; "
                "the nodes' logs name them. State their kinds if that is wrong."
            )
        if like_ids := total("n_like_ids"):
            found.append(
                f"{counted(like_ids, 'column')} may be identifiers (every value once, and in a "
                "row); the nodes' logs name them. Leave them out."
            )
        if least := max(reply["least_epsilon"] for reply in replies):
            found.append(
                f"Some margins are for the most part noise: epsilon {self.epsilon:g} is too small "
                f"for their rows. {_rounded_up(least):g} would do, or more rows."
            )
        return found


def _rounded_up(value: float) -> float:
    """Return a number of two digits that is no smaller."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return ceil(value / unit - 1e-9) * unit


def _gather(told: Sequence[tuple[str, Mapping[str, Any]]]) -> Observed:
    """Put everybody's columns side by side, the labels first."""
    cuts: list[Array | None] = []
    for _, reply in told:
        start = first = 0
        for count, masses in zip(reply["n_cuts"], reply["n_atoms"], strict=True):
            atoms = np.asarray(reply["atoms"])[first : first + 2 * masses].reshape(-1, 2)
            first += 2 * masses
            if count < 0:
                cuts.append(atoms if masses else None)
            else:
                cuts.append(reply["cuts"][start : start + count])
            start += max(count, 0)
    return Observed(
        np.hstack([reply["ranks"] for _, reply in told]),
        [Flip(int(numerator)) for _, reply in told for numerator in reply["flips"]],
        cuts,
        [name for name, reply in told for _ in reply["flips"]],
        [width for _, reply in told for width in reply["widths"]],
    )
