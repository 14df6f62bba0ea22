"""Vertical federated learning on incomplete data, as a Flower plugin.

`simulate` runs a strategy over tables in this process; `party_app` and `Strategy.start` run the
same strategy as a Flower app. `Strategy`, `Party` and `step` are what a new method is made of.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flwr_vertical.version import __version__ as __version__

if TYPE_CHECKING:  # `as` says that they are public
    from flwr_vertical.alignment.base import Alignment as Alignment
    from flwr_vertical.app import memory_app as memory_app
    from flwr_vertical.app import party_app as party_app
    from flwr_vertical.grids import LocalGrid as LocalGrid
    from flwr_vertical.grids import RayGrid as RayGrid
    from flwr_vertical.grids import RecordingGrid as RecordingGrid
    from flwr_vertical.incomplete.demo import Demo as Demo
    from flwr_vertical.incomplete.demo import load_demo as load_demo
    from flwr_vertical.node import Arbiter as Arbiter
    from flwr_vertical.node import FileStorage as FileStorage
    from flwr_vertical.node import MemoryStorage as MemoryStorage
    from flwr_vertical.node import Party as Party
    from flwr_vertical.node import StepGroup as StepGroup
    from flwr_vertical.node import Summands as Summands
    from flwr_vertical.node import Uses as Uses
    from flwr_vertical.node import step as step
    from flwr_vertical.registry import available_strategies as available_strategies
    from flwr_vertical.registry import load_strategy as load_strategy
    from flwr_vertical.registry import make_strategy as make_strategy
    from flwr_vertical.registry import register_strategy as register_strategy
    from flwr_vertical.result import Result as Result
    from flwr_vertical.results import Ledger as Ledger
    from flwr_vertical.results import Model as Model
    from flwr_vertical.results import Progress as Progress
    from flwr_vertical.server import Federation as Federation
    from flwr_vertical.server import RunSettings as RunSettings
    from flwr_vertical.settings import setting as setting
    from flwr_vertical.simulation import simulate as simulate
    from flwr_vertical.simulation_files import simulate_files as simulate_files
    from flwr_vertical.strategy import Strategy as Strategy
    from flwr_vertical.tables import Kind as Kind
    from flwr_vertical.tables import Table as Table
    from flwr_vertical.validation import CrossValidation as CrossValidation
    from flwr_vertical.validation import cross_validate as cross_validate

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
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
