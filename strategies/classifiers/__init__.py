"""Classifiers over columns of several parties.

`VerticalLR` and `VerticalSVM` are linear. `FinalNet` is a split network and needs PyTorch (extra
``torch``); it is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from strategies.classifiers.lr import VerticalLR
from strategies.classifiers.svm import VerticalSVM

if TYPE_CHECKING:
    from strategies.split import FinalNet

__all__ = ["FinalNet", "VerticalLR", "VerticalSVM"]


def __getattr__(name: str) -> Any:
    if name != "FinalNet":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from strategies import deep

    return deep.FinalNet


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
