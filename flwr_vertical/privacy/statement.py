"""The statement of a fit to noisy sums: what it promises, to whom, and what it does not cover."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, ClassVar, Self, TypeAlias

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy.accounting import PrivacyStatement


@dataclass(frozen=True, kw_only=True)
class NoiseStatement(ABC):
    """What differential privacy all that a run told has, by noise: one release."""

    # epsilon, delta: Of all that the run told, for the values of one row over all parties, and of
    # its label if there are labels
    epsilon: float
    delta: float
    n_rows: int  # Aligned rows, or those of the fit
    parties: Sequence[str]  # Whose columns were counted
    warnings: Sequence[str] = ()  # What weakens the promise, or the estimates

    kind: ClassVar[str]
    labels: ClassVar[tuple[str, ...]] = ()  # Who has labels that the promise is of, too

    @property
    @abstractmethod
    def sentences(self) -> list[str]:
        """The statement in plain words."""

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per party: what the run spent of its rows."""
        spent = {"epsilon": self.epsilon, "delta": self.delta}
        rows = dict.fromkeys((*self.parties, *self.labels), spent)
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("party")

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values."""
        plain = {**asdict(self), "parties": list(self.parties), "warnings": list(self.warnings)}
        return {"kind": self.kind, **plain, "text": self.sentences}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a statement from what `to_dict` gave."""
        return cls(**{one.name: data[one.name] for one in fields(cls) if one.name in data})


@dataclass(frozen=True, kw_only=True)
class MomentStatement(NoiseStatement):
    """What differential privacy a fit to noisy sums has."""

    row_norm: float  # Largest root mean square of a party's values of a row, in half ranges
    # Largest standard deviation of the noise on a sum of products, in half ranges squared
    noise: float
    ridge: float  # What the coefficients were shrunk by, in the same units

    kind = "moments"
    labels = ("server (labels)",)
    caption: ClassVar[str] = (
        "Epsilon and delta of one row's values, over all parties and its label: one release, which "
        "is spent once and not by each party anew."
    )

    @property
    def sentences(self) -> list[str]:
        """The statement in plain words."""
        said = [
            f"Epsilon {self.epsilon:g}, delta {self.delta:g}: replacing the values of one row, at "
            "all parties and of its label, changes the chance of anything that the server, a "
            "party alone or a reader of the result can see by a factor of at most exp(epsilon), "
            "but for a probability of delta. It holds for all sums of the run together.",
            "It rests on the bounds that were stated: values beyond them counted as the bound"
            + (
                f", and a party's values of a row above {self.row_norm:g} half ranges (root mean "
                "square) were shrunk to that."
                if self.row_norm < 1.0
                else "."
            ),
            "It does not cover which rows there are, who holds which, and which have a label or a "
            "missing cell; a server and a party that put together what they have; and a server "
            "that takes other numbers than its labels, against which its commitment stands.",
            f"Noise: a standard deviation of {self.noise:.4g} on a sum of products over "
            f"{self.n_rows:,} rows, each value being at most 1.",
        ]
        if self.ridge > 0.0:
            said.append(
                f"The noise is so large that a ridge of {self.ridge:.4g} was added to the columns' "
                "squares (AdaSSP): estimates are drawn to 0, which standard errors do not show."
            )
        return [*said, *self.warnings]


@dataclass(frozen=True, kw_only=True)
class TableStatement(NoiseStatement):
    """What differential privacy synthetic tables from noisy counts have."""

    noise: float  # Standard deviation of an owner's noise on a count of the chosen tables

    kind = "tables"
    caption: ClassVar[str] = (
        "Epsilon and delta of a person, one row's values over all parties: one release, which is "
        "spent once and not by each party anew."
    )

    @property
    def sentences(self) -> list[str]:
        """The statement in plain words."""
        return [
            f"Epsilon {self.epsilon:g}, delta {self.delta:g}: replacing the values of one row, at "
            "all parties, changes the chance of anything that the server, a party alone or a "
            "reader of the synthetic tables can see by a factor of at most exp(epsilon), but for "
            "a probability of delta. It holds for all that the run told together.",
            "It does not cover which rows there are, and who holds which; nor a server and a "
            "party that put together what they have.",
            f"Noise: a standard deviation of {self.noise:.4g}, from each owner, on each count of "
            f"the chosen tables over {self.n_rows:,} rows.",
            *self.warnings,
        ]


Statement: TypeAlias = PrivacyStatement | MomentStatement | TableStatement


def statement_from(data: dict[str, Any]) -> Statement:
    """Rebuild the statement, of whichever kind, that a result was saved with."""
    kinds = {kind.kind: kind for kind in (MomentStatement, TableStatement)}
    return kinds.get(data.get("kind", ""), PrivacyStatement).from_dict(data)


def read_bounds(bounds: str | Mapping[str, Sequence[float]] | None) -> str:
    """Return bounds (low, high) by column, the label's as "label", as checked JSON text."""
    if not bounds:
        return ""
    try:
        given = json.loads(bounds) if isinstance(bounds, str) else dict(bounds)
        read = {str(name): [float(low), float(high)] for name, (low, high) in given.items()}
    except (TypeError, ValueError, AttributeError):
        read = {"": [0.0, 0.0]}
    for low, high in read.values():
        if not (isfinite(low) and isfinite(high) and low < high):
            raise ConfigError(
                'bounds must give each column a low and a higher high, such as {"age": [0, 120]}, '
                f"got {bounds!r}"
            )
    return json.dumps(read)


def parse_bounds(text: str) -> dict[str, tuple[float, float]]:
    """Return the bounds in the text that `read_bounds` made."""
    return {name: (low, high) for name, (low, high) in json.loads(text or "{}").items()}
