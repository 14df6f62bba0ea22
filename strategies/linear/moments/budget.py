"""What a differentially private fit may spend, and the public ranges that its noise is measured by.

The server half reads the label's range, a party half those of its columns. Ranges, column names,
numbers of rows, and who holds which row are public; values are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import parse_bounds
from flwr_vertical.products.noise import PrivateRows

LABEL = "label"


@dataclass(frozen=True)
class Budget:
    """Settings of a differentially private fit.

    Parameters
    ----------
    epsilon, delta : float
        Of all that a run opens, for the values of one row over all parties.
    row_norm : float
        Largest root mean square of a party's values of a row, in half ranges.
    bounds : str
        Public ranges, JSON.
    """

    epsilon: float
    delta: float
    row_norm: float
    bounds: str

    @property
    def rule(self) -> PrivateRows:
        """The noise that it takes."""
        return PrivateRows(self.epsilon, self.delta, self.row_norm)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the parties are told."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "row_norm": self.row_norm,
            "bounds": self.bounds,
        }

    def label_range(self, name: object) -> tuple[float, float]:
        """Return the range of the labels.

        Raises
        ------
        ConfigError
            If the settings state none.
        """
        stated = parse_bounds(self.bounds)
        for key in (str(name), LABEL):
            if key in stated:
                return stated[key]
        raise ConfigError(
            f"epsilon needs public bounds of the label, and bounds has none named {str(name)!r} or "
            f"{LABEL!r}; add bounds={{{LABEL!r}: [low, high]}}, from general knowledge and not "
            "from these data"
        )


def check_budget(
    epsilon: float | None, encoding: str, idle: dict[str, bool], by: str = "epsilon"
) -> None:
    """Refuse settings that do not go together.

    Parameters
    ----------
    epsilon : float, optional
    encoding : str
        What becomes of columns of levels.
    idle : dict[str, bool]
        Settings that only go with epsilon, and whether they are given.
    by : str
        The setting that asks for privacy, for errors.

    Raises
    ------
    ConfigError
        Says which.
    """
    given = [name for name, stated in idle.items() if stated]
    if epsilon is None and given:
        raise ConfigError(f"{', '.join(given)}: only with {by}; state both, or neither")
    if epsilon is not None and encoding != "none":
        raise ConfigError(
            f"encoding={encoding!r} makes columns of the levels that are in a table, and with "
            f"{by} nothing may depend on these; encode levels beforehand, by a list that is public"
        )


def column_ranges(bounds: str, columns: Sequence[str], party: str) -> tuple[Array, Array]:
    """Return lowest and highest values of a party's columns."""
    stated = parse_bounds(bounds)
    missing = [name for name in columns if name not in stated]
    if missing:
        raise ConfigError(
            f"party {party!r}: epsilon needs public bounds of each column, and {missing} have "
            f"none; add bounds={{{missing[0]!r}: [low, high]}}, from general knowledge and not "
            "from these data"
        )
    found = np.array([stated[name] for name in columns], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def middle_and_half(low: Array, high: Array, intercept: bool) -> tuple[Array, Array]:
    """Return centre and unit of columns in which they go from -1 to 1.

    Without an intercept the centre is 0, since the fit is to columns as they are.
    """
    center = (low + high) / 2.0 if intercept else np.zeros_like(low)
    return center, np.maximum(high - center, center - low)


def brought_in(raw: Array, low: Array, high: Array, row_norm: float, intercept: bool) -> Array:
    """Return columns in half ranges, none beyond its range and no row beyond the norm.

    Shapes: raw (n_rows, n_columns); low, high (n_columns,).
    """
    center, unit = middle_and_half(low, high, intercept)
    inside = (np.clip(raw, low, high) - center) / unit
    size = np.sqrt(np.mean(inside**2, axis=1, keepdims=True))
    return np.asarray(inside * np.minimum(1.0, row_norm / np.maximum(size, 1e-300)))
