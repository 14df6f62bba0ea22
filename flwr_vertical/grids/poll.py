"""How long to wait between looks at something that others do."""

from collections.abc import Iterator

_FIRST = 0.01


def pauses(longest: float, first: float = _FIRST) -> Iterator[float]:
    """Yield seconds between looks: short at first, for what is there already, then longer ones."""
    pause = min(first, longest)
    while True:
        yield pause
        pause = min(1.5 * pause, longest)
