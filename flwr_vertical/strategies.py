"""The installed strategies by class: ``from flwr_vertical.strategies import FKNN``.

Classes are looked up in the registry and imported when they are asked for, so that the core knows
no strategy, and one that cannot be imported does not keep the others from being used.
"""

from typing import Any

from flwr_vertical.registry import available_strategies, load_strategy
from flwr_vertical.settings import nearest


def __getattr__(name: str) -> Any:
    found = _by_class()
    if name in found:
        return load_strategy(found[name])
    if name.startswith("__"):  # Python's own questions
        raise AttributeError(name)
    # `GLM` is near to `VerticalGLM`, and `fknn` to `FKNN`.
    ends = [own for own in found if own.casefold().endswith(name.casefold())]
    hint = f" (did you mean {min(ends, key=len)!r}?)" if ends else ""
    raise AttributeError(
        f"no strategy class {name!r} is installed{hint or nearest(name, found)}; there are "
        f"{sorted(found)}"
    )


def __dir__() -> list[str]:
    return sorted(_by_class())


def _by_class() -> dict[str, str]:
    """Return the name of each strategy by the name of its class."""
    return {target.partition(":")[2]: name for name, target in available_strategies().items()}
