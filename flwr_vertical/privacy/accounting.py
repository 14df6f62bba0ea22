"""What releases of perturbed ranks and noisy margins spend, in numbers and in plain words.

Tang, Feng, Li and Wang count privacy by comparison: Definition 1 (vertical distributed attribute
differential privacy, VDADP), Theorem 4 and Corollaries 3 and 4. One value of a column takes part in
n - 1 comparisons, though, and changing it may change all of them; basic composition over these is
the second line of every statement made here, and the one to compare with other systems.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import inf, sqrt
from typing import Any, ClassVar

import pandas as pd

from flwr_vertical.counted import counted

UNGRADED = (
    "What attacks on the synthetic tables find is not said here: it takes real rows, so each party "
    "has the grade of its own columns on its own page, and who has all tables calls `Result.grade`."
)
"""Said of a release that is not graded where the statement is read."""


@dataclass(frozen=True)
class ColumnSpending:
    """What the releases about one column spend."""

    party: str  # Who holds it
    n: int  # How many rows were compared
    epsilon_comparison: float  # Of one pairwise comparison, each time the ranks are released
    epsilon_margin: float  # Of the margin
    releases: int = 1  # How often the ranks were released (T in Corollary 4)
    quantile_error: float = 0.0  # Standard deviation of a debiased rank, as a share of n
    # Whether smallest and largest value were used as they are, outside of any guarantee
    exact_range: bool = False

    @property
    def vdadp(self) -> float:
        """Epsilon as the paper counts it: releases x comparison + margin."""
        return self.releases * self.epsilon_comparison + self.epsilon_margin

    @property
    def record(self) -> float:
        """Epsilon of replacing one value, by basic composition over its n - 1 comparisons."""
        return self.releases * max(self.n - 1, 0) * self.epsilon_comparison + self.epsilon_margin


@dataclass(frozen=True)
class PrivacyStatement:
    """What a run spent, by party and in all."""

    # One for each column of each party; the labels count as a column of the server
    columns: Sequence[ColumnSpending]
    warnings: Sequence[str] = ()  # What weakens the guarantee
    # What attacks on the synthetic tables find, where somebody had real rows to try them
    graded: Sequence[str] = ()

    caption: ClassVar[str] = (
        "Epsilon by comparison (VDADP), of one record by basic composition, and the standard "
        "deviation of the ranks that were released, as a share of the rows."
    )

    @property
    def vdadp(self) -> dict[str, float]:
        """Epsilon of each party by VDADP (Theorem 4): its columns' added up."""
        return self._by_party("vdadp")

    @property
    def record(self) -> dict[str, float]:
        """Epsilon of one record of each party by basic composition over its comparisons."""
        return self._by_party("record")

    def _by_party(self, name: str) -> dict[str, float]:
        total: dict[str, float] = {}
        for column in self.columns:
            total[column.party] = total.get(column.party, 0.0) + getattr(column, name)
        return total

    def to_frame(self) -> pd.DataFrame:
        """Return one row per party, and one of all.

        Columns ``columns``, ``epsilon`` (VDADP), ``epsilon_record`` (basic composition),
        ``quantile_error`` (the smallest standard deviation of a released rank, as a share of the
        rows).
        """
        rows = {
            party: {
                "columns": len(own),
                "epsilon": self.vdadp[party],
                "epsilon_record": self.record[party],
                "quantile_error": min(column.quantile_error for column in own),
            }
            for party, own in self._own().items()
        }
        rows["all"] = {
            "columns": len(self.columns),
            "epsilon": sum(self.vdadp.values()),
            "epsilon_record": sum(self.record.values()),
            "quantile_error": min((c.quantile_error for c in self.columns), default=0.0),
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("party")

    def _own(self) -> dict[str, list[ColumnSpending]]:
        own: dict[str, list[ColumnSpending]] = {}
        for column in self.columns:
            own.setdefault(column.party, []).append(column)
        return own

    @property
    def sentences(self) -> list[str]:
        """The statement in plain words."""
        if not self.columns:
            return []
        said = [
            "By the paper's count (VDADP: one comparison of one column, plus the margin) the "
            "parties spend epsilon "
            + ", ".join(f"{_number(value)} ({party})" for party, value in self.vdadp.items())
            + f"; {_number(sum(self.vdadp.values()))} in all.",
            "A record takes part in a comparison with every other record. Basic composition over "
            "these gives the epsilon of replacing one party's part of one record: "
            + ", ".join(f"{_number(value)} ({party})" for party, value in self.record.items())
            + ". By this count, which is the usual one, "
            + (
                "the release protects records."
                if max(self.record.values()) <= 10
                else "what goes to the server is not differentially private for whole records in "
                "any useful sense."
            ),
        ]
        share = 1.96 * 100 * min(column.quantile_error for column in self.columns)
        practice = (
            "In practice: the server can tell where each value stands in its column to within "
            f"±{share:.2g} % of the rows (95 %, the column told best)"
        )
        said.append(practice + ("; so it knows, roughly, who is alike." if share < 20 else "."))
        if ranged := sum(column.exact_range for column in self.columns):
            said.append(
                f"The observed range of {counted(ranged, 'column')} was used as it is and shows "
                "in the "
                "synthetic tables: no guarantee covers it. State bounds for these columns."
            )
        return [*said, *self.warnings, *(self.graded or [UNGRADED])]

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values."""
        return {
            "columns": [asdict(column) for column in self.columns],
            "warnings": list(self.warnings),
            "graded": list(self.graded),
            "text": self.sentences,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PrivacyStatement":
        """Rebuild a statement from what `to_dict` gave."""
        known = {field.name for field in fields(ColumnSpending)}
        columns = [
            ColumnSpending(**{key: value for key, value in row.items() if key in known})
            for row in data["columns"]
        ]
        return cls(columns, list(data["warnings"]), list(data.get("graded", [])))


def split_budget(
    epsilon: float, budget: str, n_columns: int, rank_share: float = 0.25
) -> tuple[float, float]:
    """Split a budget into that of one column's comparisons (`rank_share`) and that of its margin.

    ``per-variable`` gives all to every column, ``total`` to all columns of a party together. The
    second is Theorem 1's split ``epsilon_1 K / (p + 1)``, which assumes equal numbers of columns:
    with `n_columns` of its own each party divides by that number. The paper's experiments divide
    evenly.
    """
    each = epsilon if budget == "per-variable" else epsilon / n_columns
    return each * rank_share, each * (1 - rank_share)


def rank_error(noise_variance: float, n: int) -> float:
    """Return the standard deviation of a debiased rank as a share of n."""
    return sqrt(noise_variance) / n if n else inf


def _number(value: float) -> str:
    return "infinite" if value == inf else f"{value:,.4g}"
