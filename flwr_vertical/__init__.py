"""Vertical federated learning on incomplete data, as a Flower plugin.

`simulate` runs a strategy over tables in this process; `party_app` and `Strategy.start` run the
same strategy as a Flower app. `Strategy`, `Party` and `step` are what a new method is made of.
"""

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
from flwr_vertical.results import Ledger, Model
from flwr_vertical.server import Federation, RunSettings
from flwr_vertical.settings import setting
from flwr_vertical.simulation import simulate
from flwr_vertical.simulation_files import simulate_files
from flwr_vertical.strategy import Strategy
from flwr_vertical.tables import Kind, Table
from flwr_vertical.validation import CrossValidation, cross_validate
from flwr_vertical.version import __version__ as __version__

__all__ = [
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
