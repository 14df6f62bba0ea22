"""Vertical federated learning on incomplete data, as a Flower plugin.

`simulate` runs a strategy over tables in this process; `party_app` and `Strategy.start` run the
same strategy as a Flower app. `Strategy`, `Party` and `step` are what a new method is made of.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flwr_vertical.version import __version__ as __version__

if TYPE_CHECKING:
    from flwr_vertical.alignment.base import Alignment
    from flwr_vertical.app import memory_app, party_app
    from flwr_vertical.grids import LocalGrid, RayGrid, RecordingGrid
    from flwr_vertical.incomplete.demo import Demo, load_demo
    from flwr_vertical.node import (
        Arbiter,
        FileStorage,
        MemoryStorage,
        Party,
        StepGroup,
        Summands,
        Uses,
        step,
    )
    from flwr_vertical.registry import (
        available_strategies,
        load_strategy,
        make_strategy,
        register_strategy,
    )
    from flwr_vertical.result import Result
    from flwr_vertical.results import Ledger, Model, Progress
    from flwr_vertical.server import Federation, RunSettings
    from flwr_vertical.settings import setting
    from flwr_vertical.simulation import simulate
    from flwr_vertical.simulation_files import simulate_files
    from flwr_vertical.strategy import Strategy
    from flwr_vertical.tables import Kind, Table
    from flwr_vertical.validation import CrossValidation, cross_validate

__all__ = [
    "Alignment",
    "Arbiter",
    "CrossValidation",
    "Demo",
    "Federation",
    "FileStorage",
    "Kind",
    "Ledger",
    "LocalGrid",
    "MemoryStorage",
    "Model",
    "Party",
    "Progress",
    "RayGrid",
    "RecordingGrid",
    "Result",
    "RunSettings",
    "StepGroup",
    "Strategy",
    "Summands",
    "Table",
    "Uses",
    "available_strategies",
    "cross_validate",
    "load_demo",
    "load_strategy",
    "make_strategy",
    "memory_app",
    "party_app",
    "register_strategy",
    "setting",
    "simulate",
    "simulate_files",
    "step",
]

# By home, public names. They are imported when they are first used: Flower and pandas take a
# second, which a program that needs `flwr_vertical.crypto` or `.errors` alone does not spend.
_NAMES = {
    "alignment.base": ("Alignment",),
    "app": ("memory_app", "party_app"),
    "grids": ("LocalGrid", "RayGrid", "RecordingGrid"),
    "incomplete.demo": ("Demo", "load_demo"),
    "node": (
        "Arbiter", "FileStorage", "MemoryStorage", "Party", "StepGroup", "Summands", "Uses", "step",
    ),
    "registry": (
        "available_strategies", "load_strategy", "make_strategy", "register_strategy",
    ),
    "result": ("Result",),
    "results": ("Ledger", "Model", "Progress"),
    "server": ("Federation", "RunSettings"),
    "settings": ("setting",),
    "simulation": ("simulate",),
    "simulation_files": ("simulate_files",),
    "strategy": ("Strategy",),
    "tables": ("Kind", "Table"),
    "validation": ("CrossValidation", "cross_validate"),
}  # fmt: skip
_HOMES = {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
