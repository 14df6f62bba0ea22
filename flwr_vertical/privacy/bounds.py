"""Public ranges of columns: what noise is measured by where the data themselves must not tell."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite

from flwr_vertical.errors import ConfigError


def read_bounds(bounds: "str | Mapping[str, Sequence[float]] | None") -> str:
    """Return bounds of columns as JSON text, checked.

    Parameters
    ----------
    bounds : mapping of column name to (low, high), or JSON text of one, optional
        The label's are named by the labels' name, or "label".
    """
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
