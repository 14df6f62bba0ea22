"""Storage of the app: a node's own file, or the demonstration data in a simulation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from flwr.app import Context

from apps.demo import demo_names, demo_tables
from flwr_vertical import make_strategy
from flwr_vertical.errors import ConfigError, VerticalError
from flwr_vertical.protocol.storage import FileStorage, party_folder, run_name
from flwr_vertical.results import Result
from flwr_vertical.tables import Table


class AppStorage(FileStorage):
    """Reads ``data`` from the node config; a simulated node without it uses demonstration data.

    Beside the imputed table a party gets a report of its own, on its own disk: what was missing
    and, where the truth is known, how close the imputed values came.
    """

    def role(self, context: Context) -> str:
        """Role from the node config; where one is needed, the last simulated node is arbiter."""
        if _is_simulated(context) and _n_demo_parties(context) == _partition(context)[0]:
            return "arbiter"
        return super().role(context)

    def party_name(self, context: Context) -> str:
        """Name from the node config, or the demonstration's name for a simulated node."""
        if _is_simulated(context):
            return demo_names(_n_demo_parties(context))[_partition(context)[0]]
        return super().party_name(context)

    def load(self, context: Context) -> Table:
        """Read the node's file or make its share of the demonstration data."""
        if not _is_simulated(context):
            return super().load(context)
        name = self.party_name(context)
        return Table.of(_demo(context)[0][name], party=name)

    def load_truth(self, context: Context) -> pd.DataFrame | None:
        """Return the complete table of a demonstration."""
        if not _is_simulated(context):
            return None
        return _demo(context)[1][self.party_name(context)]

    def data_version(self, context: Context) -> str:
        """Return a digest of the node's file, or what the demonstration's table follows from."""
        if not _is_simulated(context):
            return super().data_version(context)
        keys = ("demo.dataset", "demo.missing-cells", "demo.missing-blocks", "seed")
        parts = [_partition(context), *(context.run_config.get(key) for key in keys)]
        return " ".join(map(str, parts))

    def save(self, context: Context, frame: pd.DataFrame) -> str:
        """Write the table and the party's own report."""
        where = super().save(context, frame)
        name = self.party_name(context)
        truth = self.load_truth(context)
        report = Result(
            strategy=str(context.run_config.get("strategy", "")),
            parties=[name],
            originals={name: self.load(context).frame},
            tables={name: frame},
            truth={} if truth is None else {name: truth},
            notes=["This page was made by the party from its own table and stays with it."],
        )
        report.report(party_folder(context) / run_name(context) / f"{name}.html")
        return where


def _is_simulated(context: Context) -> bool:
    """Whether the node belongs to the Simulation Runtime and has no data of its own."""
    return "data" not in context.node_config and "partition-id" in context.node_config


def _partition(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


def _n_demo_parties(context: Context) -> int:
    """Return how many simulated nodes are parties: all, or all but the arbiter."""
    total = _partition(context)[1]
    reason = _arbiter_for(context.run_config)
    parties = total - 1 if reason else total
    if parties < 1:
        raise ConfigError(
            f"{reason} needs a party and an arbiter: --federation-config 'num-supernodes=3'"
        )
    return parties


def _arbiter_for(config: Mapping[str, Any]) -> str | None:
    """Return what in a run config needs an arbiter, if anything does."""
    if config.get("aggregation") == "ckks":
        return "aggregation 'ckks'"
    try:
        return make_strategy(str(config["strategy"]), config).needs_arbiter
    except (KeyError, VerticalError):  # the server says what is wrong with it
        return None


def _demo(context: Context) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    config: Mapping[str, Any] = context.run_config
    return demo_tables(
        str(config.get("demo.dataset", "breast-cancer")),
        _n_demo_parties(context),
        float(config.get("demo.missing-cells", 0.1)),
        float(config.get("demo.missing-blocks", 0.05)),
        int(config.get("seed", 0)),
    )


def server_folder(context: Context) -> Path:
    """Folder of the server's own results: ``output`` of the run config, or a default."""
    from flwr_vertical.protocol.storage import output_home

    configured = context.run_config.get("output")
    home = Path(str(configured)).expanduser() if configured else output_home() / "server"
    return home / run_name(context)
