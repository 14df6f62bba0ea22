"""What is public of a numeric column: its range, stated or as wide as any, and its resolution."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array

LIMIT = 1e8
"""Where no range is stated, values beyond this count as this."""


@dataclass(frozen=True)
class Domain:
    """What is public of a numeric column."""

    low: float = -LIMIT  # Range; values beyond it count as its ends
    high: float = LIMIT  # Range; values beyond it count as its ends
    step: float = 0.0  # Resolution, of which all values are multiples; 0 for none

    def snap(self, values: npt.ArrayLike) -> Array:
        """Return values on the grid and within the range, array of their shape."""
        clipped = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        return round_to(clipped, self.step)

    def edges(self, points: npt.ArrayLike) -> Array:
        """Return ends of cells, moved to halfway between two values; an array of their shape."""
        points = np.clip(np.asarray(points, dtype=np.float64), self.low, self.high)
        if not self.step:
            return points
        return (np.ceil(points / self.step - 1e-9) - 0.5) * self.step


def round_to(values: Array, step: float) -> Array:
    """Return the nearest multiples of a resolution (0: the values), array of their shape."""
    if not step:
        return values
    # 3 x 0.1 is not 0.3; a division by the inverse is, where that is a whole number
    inverse = round(1 / step)
    if inverse > 1 and abs(inverse * step - 1) < 1e-9:
        return np.rint(values * inverse) / inverse + 0.0
    return np.rint(values / step) * step + 0.0
