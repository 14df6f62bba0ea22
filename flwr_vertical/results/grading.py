"""A grade of synthetic tables: what attacks on them find, and how like the real ones they are.

Privacy is judged by the attacks of `flwr_vertical.privacy.risks`, utility by `quality_score` and,
if a column is named, by models that predict it. A grade compares with real rows and no budget of
differential privacy covers it, so it is for whoever holds these rows: a party for its own columns,
a user of `simulate` for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.errors import DataError
from flwr_vertical.privacy import risks as rk
from flwr_vertical.privacy.rates import CONFIDENCE, Estimate, Rate, Risk
from flwr_vertical.results.page import bullet_list, dataframe_html
from flwr_vertical.results.quality import downstream_fit, is_synthetic
from flwr_vertical.results.quality_score import quality_score

MARGIN = 0.02
"""Gains above chance up to this count as none."""

_PRIVACY = ((MARGIN, "A"), (0.05, "B"), (0.15, "C"), (np.inf, "D"))
_UTILITY = ((0.9, "A"), (0.8, "B"), (0.7, "C"), (-np.inf, "D"))
_UNCLEAR = 0.15  # a gain that must be excluded before nothing found means something
_FEWEST = 20  # complete rows
_MOST_ROWS = 20_000
_CELLS = 8_000_000  # distances for each column
_PREDICATES = 500  # most of them are found in vain
_MODELS = ("linear", "trees")
_INFERENCE = "inference: "


@dataclass(frozen=True)
class Grade:
    """How private synthetic tables are, as far as attacks tell, and how useful.

    Parameters
    ----------
    risks : sequence of Risk
        One for each attack.
    shapes, trends : float
        Means of column shapes and pair trends, from 0 to 1; NaN without any.
    n_members, n_others, n_synthetic : int
        Complete rows that were used. Without others, chance is what the rows of other members tell
        of a person.
    parties : sequence of str
        Whose columns they are.
    models : dict of str to dict, optional
        By model, what it scores fitted on ``real`` and on ``synthetic`` rows.
    target : str, optional
        The column that models predict.
    skipped : sequence of str, optional
        What could not be tried, and why.
    """

    risks: Sequence[Risk]
    shapes: float
    trends: float
    n_members: int
    n_others: int
    n_synthetic: int
    parties: Sequence[str]
    models: Mapping[str, Mapping[str, float]] | None = None
    target: str = ""
    skipped: Sequence[str] = ()

    @property
    def quality(self) -> float:
        """Mean of shapes and trends, as far as there are both."""
        known = [value for value in (self.shapes, self.trends) if not np.isnan(value)]
        return float(np.mean(known)) if known else float("nan")

    @property
    def privacy(self) -> str:
        """Letter of privacy: A to D, or ? where too few attacks were tried to tell.

        By the largest gain above chance that is shown, that is the largest lower end of an
        interval (see `gain`): A at most 0.02, B at most 0.05, C at most 0.15, else D. Instead of A
        it is ? if the intervals do not exclude a gain of 0.15.
        """
        if not self.risks:
            return "?"
        gains = [self.gain(risk) for risk in self.risks]
        shown = max(gain.low for gain in gains)
        letter = next(letter for limit, letter in _PRIVACY if shown <= limit)
        unclear = max(gain.high for gain in gains) > _UNCLEAR
        return "?" if letter == "A" and unclear else letter

    @property
    def utility(self) -> str:
        """Letter of utility by `quality`: A from 0.9, B from 0.8, C from 0.7, else D."""
        if np.isnan(self.quality):
            return "?"
        return next(letter for limit, letter in _UTILITY if self.quality >= limit)

    @property
    def inferences(self) -> list[Risk]:
        """The attacks that guess a column."""
        return [risk for risk in self.risks if risk.attack.startswith(_INFERENCE)]

    @property
    def mean_inference(self) -> Estimate | None:
        """Mean gain of guessing a column; its interval is as wide as the columns' on average."""
        if not self.inferences:
            return None
        gains = [self.gain(risk) for risk in self.inferences]
        return Estimate(*np.mean(gains, axis=0).tolist())

    def gain(self, risk: Risk) -> Estimate:
        """Return an attack's gain; 95 % intervals hold for all attacks together (Bonferroni).

        They take single attacks for independent. Predicates that single out are not quite: many
        hold for the same people, which alone would make their intervals a quarter too narrow.
        """
        return risk.gain_at(1.0 - (1.0 - CONFIDENCE) / len(self.risks))

    @property
    def sentences(self) -> list[str]:
        """The grade in plain words."""
        return [*self._of_privacy(), *self._of_utility(), *self.skipped]

    def _of_privacy(self) -> list[str]:
        if not self.risks:
            return ["Privacy ?: no attack could be tried."]
        worst = max(self.risks, key=lambda risk: self.gain(risk).low)
        most, high = self.gain(worst), max(self.gain(risk).high for risk in self.risks)
        shown = max(most.low, 0.0)
        said = {
            "A": f"no attack is shown to gain more than {MARGIN:g} above chance",
            "?": "too few rows to tell",
        }.get(self.privacy, f"an attack gains at least {shown:.2f} above chance")
        tried = sum(risk.members.n for risk in self.risks)
        control = (
            f"Chance is what the same attacks find about {self.n_others:,} people whose rows were "
            "not used."
            if self.n_others
            else "Chance is what the rows of all other members tell of a person: the weaker "
            "comparison. Rows of people who are not in the data (`others`) make the stronger one."
        )
        return [
            f"Privacy {self.privacy}: {said} (95 %, all attacks together). Most is shown for "
            f"{worst.attack}: {most.value:+.3f}, interval {most.low:+.3f} to {most.high:+.3f}; no "
            f"interval goes beyond {high:+.3f}. {tried:,} attacks were tried on {self.n_members:,} "
            "rows; others may find more.",
            control,
        ]

    def _of_utility(self) -> list[str]:
        said = [f"column shapes {self.shapes:.3f}"]
        said += [] if np.isnan(self.trends) else [f"pair trends {self.trends:.3f}"]
        text = f"Utility {self.utility}: quality {self.quality:.3f} of 1 ({', '.join(said)})."
        if not self.models:
            return [text]
        scores = [
            f"{found['synthetic']:.3f} ({name}; {found['real']:.3f} on real rows)"
            for name, found in self.models.items()
        ]
        return [
            text,
            f"Models of {self.target!r} fitted on synthetic rows score {', '.join(scores)}.",
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per attack.

        Returns
        -------
        pandas.DataFrame
            Index ``attack``; ``members``, ``chance`` and ``guessing`` are shares of successes,
            ``gain`` is what members risk above chance, ``low`` and ``high`` its interval (see
            `gain`), ``risk`` the same as a share of what could be gained (Giomi et al., eq. 3, at
            least 0), and ``attacks`` how many there were.
        """
        rows = {}
        for risk in self.risks:
            gain = self.gain(risk)
            rows[risk.attack] = {
                "members": risk.members.share,
                "chance": risk.chance.share,
                "guessing": float("nan") if risk.guessing is None else risk.guessing.share,
                "gain": gain.value,
                "low": gain.low,
                "high": gain.high,
                "risk": max(0.0, risk.excess.value),
                "attacks": risk.members.n,
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("attack")

    def to_dict(self) -> dict[str, Any]:
        """Return the grade as plain values."""
        attacks = {
            risk.attack: [
                None if rate is None else [rate.successes, rate.n]
                for rate in (risk.members, risk.chance, risk.guessing)
            ]
            for risk in self.risks
        }
        return {
            "privacy": self.privacy,
            "utility": self.utility,
            "text": self.sentences,
            "attacks": attacks,
            "shapes": self.shapes,
            "trends": self.trends,
            "n_members": self.n_members,
            "n_others": self.n_others,
            "n_synthetic": self.n_synthetic,
            "parties": list(self.parties),
            "models": None
            if self.models is None
            else {name: dict(scores) for name, scores in self.models.items()},
            "target": self.target,
            "skipped": list(self.skipped),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Grade:
        """Rebuild a grade from what `to_dict` gave."""
        found = []
        for attack, rates in data["attacks"].items():
            members, chance, guessing = (None if r is None else Rate(*r) for r in rates)
            assert members is not None
            assert chance is not None
            found.append(Risk(attack, members, chance, guessing))
        names = [name for name in cls.__dataclass_fields__ if name != "risks"]
        return cls(found, **{name: data[name] for name in names})

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        return bullet_list(self.sentences) + dataframe_html(self.to_frame())


def grade(
    originals: Mapping[str, pd.DataFrame],
    tables: Mapping[str, pd.DataFrame],
    others: Mapping[str, pd.DataFrame] | None = None,
    *,
    target: str | tuple[str, str] | None = None,
    n_attacks: int = 1000,
    seed: int = 0,
) -> Grade:
    """Attack synthetic tables with what is known of real people, and compare them with real ones.

    Parameters
    ----------
    originals : mapping of party to pandas.DataFrame
        The real tables, indexed by sample ID. Attacks take the samples that all parties have
        without a missing cell, 20,000 at most.
    tables : mapping of party to pandas.DataFrame
        The synthetic ones; rows belong together by their position.
    others : mapping of party to pandas.DataFrame, optional
        Real tables of people of the same population that the synthetic ones were not made from.
    target : str or tuple (party, column), optional
        A column that models predict, fitted on synthetic and on real rows, and judged on others or
        on every third real row.
    n_attacks : int, default 1000
        Of each kind, at most; fewer on large tables.
    seed : int, default 0
        Of all choices.

    Returns
    -------
    Grade

    Raises
    ------
    DataError
        If no table is synthetic, or there are too few complete rows.
    """
    parties = [
        name
        for name, table in originals.items()
        if name in tables and is_synthetic(table, tables[name])
    ]
    if not parties:
        raise DataError(
            "there is no synthetic table to grade: expected real tables and the synthetic ones of "
            f"the same parties, got {list(originals)} and {list(tables)}"
        )
    names = [(p, c) for p in parties for c in originals[p] if c in tables[p]]
    rng = np.random.default_rng(seed)
    origins = _first_days(originals, names)
    members = _joined("originals", originals, names, origins, rng)
    beside = None if others is None else _joined("others", others, names, origins, rng)
    synthetic = _joined("tables", tables, names, origins, rng, real=False)
    if beside is None and len(synthetic) > len(members):
        # As many rows as the attacker has of other members.
        synthetic = _some(synthetic, len(members), rng)
    risks, skipped = _attacked(members, beside, synthetic, names, n_attacks, seed)
    score = quality_score(*(_with_days(of, parties, origins) for of in (originals, tables)))
    found = Grade(
        risks,
        float(score.shapes.mean()),
        float(score.trends.mean()) if score.trends.notna().any() else float("nan"),
        len(members),
        0 if beside is None else len(beside),
        len(synthetic),
        parties,
        skipped=skipped,
    )
    if target is None:
        return found
    column = _column_of(target, names)
    models = {model: downstream_fit(members, synthetic, column, beside, model) for model in _MODELS}
    return replace(found, models=models, target=column)


def _attacked(
    members: pd.DataFrame,
    others: pd.DataFrame | None,
    synthetic: pd.DataFrame,
    names: Sequence[tuple[str, Any]],
    n_attacks: int,
    seed: int,
) -> tuple[list[Risk], list[str]]:
    """Return what attacks find, and what could not be tried."""
    columns = list(members.columns)
    larger = max(len(synthetic), len(members) if others is None else 0)
    people = min(n_attacks, max(100, _CELLS // larger))
    risks, skipped = [], []
    for k in (1, 3):
        if k > len(columns):
            continue
        try:
            most = min(n_attacks, _PREDICATES)
            risks.append(rk.singling_out(members, others, synthetic, k, most, seed))
        except DataError as error:
            skipped.append(f"Singling out is not tried: {error}.")
    if len(columns) > 1:
        left, right = _parts(columns, names)
        risks.append(
            rk.linkability(members, others, synthetic, left, right, n_attacks=people, seed=seed)
        )
    risks.append(rk.membership(members, others, synthetic, people, seed))
    if len(columns) > 1:
        risks += rk.inferences(members, others, synthetic, n_attacks=people, seed=seed)
    return risks, skipped


def _parts(columns: list[str], names: Sequence[tuple[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the columns of some parties and of the others; of one party, halves of its columns."""
    parties = list(dict.fromkeys(party for party, _ in names))
    if len(parties) == 1:
        return columns[: len(columns) // 2], columns[len(columns) // 2 :]
    first = set(parties[: (len(parties) + 1) // 2])
    at = [party in first for party, _ in names]
    return (
        [column for column, own in zip(columns, at, strict=True) if own],
        [column for column, own in zip(columns, at, strict=True) if not own],
    )


def _joined(
    what: str,
    tables: Mapping[str, pd.DataFrame],
    names: Sequence[tuple[str, Any]],
    origins: Mapping[tuple[str, Any], Any],
    rng: np.random.Generator,
    real: bool = True,
) -> pd.DataFrame:
    """Return complete rows over all parties' columns; a column's name has its party if needed."""
    columns = []
    for party, name in names:
        if party not in tables or name not in tables[party]:
            raise DataError(f"{what} lack the column {name!r} of party {party!r}")
        columns.append(_plain(tables[party][name], origins.get((party, name))))
    if not real:
        columns = [column.reset_index(drop=True) for column in columns]
    joined = pd.concat(columns, axis=1, join="inner", keys=_titles(names)).dropna()
    if len(joined) < _FEWEST:
        raise DataError(
            f"{what}: attacks need {_FEWEST} rows or more that all parties have without a missing "
            f"cell, got {len(joined)}"
        )
    return _some(joined, _MOST_ROWS, rng).reset_index(drop=True)


def _titles(names: Sequence[tuple[str, Any]]) -> list[str]:
    several = len({party for party, _ in names}) > 1
    return [f"{party} · {name}" if several else str(name) for party, name in names]


def _column_of(target: str | tuple[str, str], names: Sequence[tuple[str, Any]]) -> str:
    fitting = [
        title
        for (party, name), title in zip(names, _titles(names), strict=True)
        if target in (name, (party, name))
    ]
    if len(fitting) != 1:
        raise DataError(
            f"target {target!r} must name one column of the synthetic tables, got {len(fitting)} "
            f"of that name; columns are {_titles(names)}"
        )
    return fitting[0]


def _first_days(
    tables: Mapping[str, pd.DataFrame], names: Sequence[tuple[str, Any]]
) -> dict[tuple[str, Any], Any]:
    """Return the first day of each column of dates."""
    return {
        (party, name): tables[party][name].min()
        for party, name in names
        if pd.api.types.is_datetime64_any_dtype(tables[party][name])
    }


def _plain(column: pd.Series, first: Any = None) -> pd.Series:
    """Return a column as plain numbers or levels: dates as days since the first one."""
    if first is not None and pd.api.types.is_datetime64_any_dtype(column):
        return pd.Series((column - first) / pd.Timedelta(days=1))
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return column.astype(object)
    return pd.Series(column.to_numpy(dtype=float, na_value=np.nan), column.index)


def _with_days(
    tables: Mapping[str, pd.DataFrame],
    parties: Sequence[str],
    origins: Mapping[tuple[str, Any], Any],
) -> dict[str, pd.DataFrame]:
    """Return tables in which dates are numbers, as in attacks."""
    found = {party: tables[party].copy(deep=False) for party in parties}
    for (party, name), first in origins.items():
        found[party][name] = _plain(found[party][name], first)
    return found


def _some(rows: pd.DataFrame, most: int, rng: np.random.Generator) -> pd.DataFrame:
    if len(rows) <= most:
        return rows
    return rows.iloc[np.sort(rng.choice(len(rows), most, replace=False))]
