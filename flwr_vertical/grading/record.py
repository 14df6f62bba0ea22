"""A grade of synthetic tables: rates of attacks and quality, as letters, words and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.grading.proportions import CONFIDENCE, Estimate, Rate, Risk
from flwr_vertical.pages.page import bullet_list, dataframe_html

MARGIN = 0.02
"""Gains above chance up to this count as none."""

_PRIVACY = ((MARGIN, "A"), (0.05, "B"), (0.15, "C"), (np.inf, "D"))
_UTILITY = ((0.9, "A"), (0.8, "B"), (0.7, "C"), (-np.inf, "D"))
_UNCLEAR = 0.15  # a gain that must be excluded before nothing found means something
_INFERENCE = "inference: "


@dataclass(frozen=True)
class Grade:
    """How private synthetic tables are, as far as attacks tell, and how useful."""

    risks: Sequence[Risk]  # One for each attack
    # shapes, trends: Means of column shapes and pair trends, from 0 to 1; NaN without any
    shapes: float
    trends: float
    # n_members, n_others, n_synthetic: Complete rows that were used. Without others, chance is what
    # the rows of other members tell of a person
    n_members: int
    n_others: int
    n_synthetic: int
    parties: Sequence[str]  # Whose columns they are
    # By model, what it scores fitted on ``real`` and on ``synthetic`` rows
    models: Mapping[str, Mapping[str, float]] | None = None
    target: str = ""  # The column that models predict
    skipped: Sequence[str] = ()  # What could not be tried, and why

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
            f"{worst.attack}: {most.value:+.3f}, interval {most.low:+.3f} to {most.high:+.3f}; "
            f"the highest end of an attack's interval is {high:+.3f}. {tried:,} attacks were tried "
            f"on {self.n_members:,} rows; others may find more.",
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
        """Return one row per attack, index ``attack``.

        ``members``, ``chance`` and ``guessing`` are shares of successes, ``gain`` is what members
        risk above chance, ``low`` and ``high`` its interval (see `gain`), ``risk`` the same as a
        share of what could be gained (Giomi et al., eq. 3, at least 0), and ``attacks`` how many
        there were.
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
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain |= {"parties": list(self.parties), "skipped": list(self.skipped)}
        if self.models is not None:
            plain["models"] = {name: dict(scores) for name, scores in self.models.items()}
        letters = {"privacy": self.privacy, "utility": self.utility, "text": self.sentences}
        return letters | {"attacks": attacks} | {k: v for k, v in plain.items() if k != "risks"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Grade":
        """Rebuild a grade from what `to_dict` gave."""
        risks = [
            Risk(attack, Rate(*members), Rate(*chance), guessing and Rate(*guessing))
            for attack, (members, chance, guessing) in data["attacks"].items()
        ]
        names = [name for name in cls.__dataclass_fields__ if name != "risks"]
        return cls(risks, **{name: data[name] for name in names})

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        return bullet_list(self.sentences) + dataframe_html(self.to_frame())
