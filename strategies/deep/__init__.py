"""Deep methods: networks that are trained in many rounds, on PyTorch (extra ``torch``).

Classes are imported when they are asked for, so that this package can be imported without PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from flwr_vertical.optional import how_to_install

if TYPE_CHECKING:
    from strategies.deep.false_vfl import FalseVFL, FalseVFLPredict
    from strategies.deep.split import (
        FedHSSL,
        FinalNet,
        LaserVFL,
        PlugVFL,
        SplitPredict,
        VanillaVFL,
    )

__all__ = [
    "FalseVFL",
    "FalseVFLPredict",
    "FedHSSL",
    "FinalNet",
    "LaserVFL",
    "PlugVFL",
    "SplitPredict",
    "VanillaVFL",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    folder = "false_vfl" if name.startswith("FalseVFL") else "split"
    try:
        return getattr(importlib.import_module(f"{__name__}.{folder}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        text = f"{__name__}.{name} {how_to_install(['torch'])}"
        raise ModuleNotFoundError(text, name="torch") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
