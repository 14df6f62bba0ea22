"""The app that `benchmarks/channels.py` runs: parties that return what they get."""

import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_vertical import Federation, FileStorage, Party, party_app, step
from flwr_vertical.channel import ChannelGrid
from flwr_vertical.server.discovery import Presence

server = ServerApp()


class Echo(Party):
    """Has nothing to compute."""

    @step
    def numbers(self, base: Any) -> dict[str, Any]:
        """Return what it got."""
        return {"base": base}


class NoTable(FileStorage):
    """Nodes that have nothing, and nothing to keep a ledger of."""

    def privacy_ledger(self, context: Context) -> None:
        """Return None."""


client = party_app(Echo, storage=NoTable())


def time_rounds(federation: Federation, sizes: list[int], rounds: int) -> dict[str, float]:
    """Median milliseconds of a round by number of values."""
    found = {}
    for size in sizes:
        base = np.arange(float(size))
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            replies = federation.call("numbers", {"base": base})
            seconds.append(time.perf_counter() - started)
            assert all(np.array_equal(reply["base"], base) for reply in replies.values())
        found[str(size)] = 1e3 * statistics.median(seconds)
    return found


def measure(grid: Grid, config: dict[str, Any]) -> dict[str, Any]:
    """Time opening, rounds and closing of channels, then rounds by messages."""
    n, found = int(config["parties"]), {}
    started = time.perf_counter()
    channels = ChannelGrid(grid, transport=str(config["transport"]), timeout=240.0)
    with channels:
        found["opening"] = time.perf_counter() - started
        federation = Federation(channels, aggregation="plain", min_nodes=n)
        federation.open()
        sizes = [int(size) for size in str(config["sizes"]).split(",")]
        found["channels"] = time_rounds(federation, sizes, int(config["rounds"]))
        started = time.perf_counter()
    found["closing"] = time.perf_counter() - started
    if plain := int(config["plain-rounds"]):
        sizes = [int(size) for size in str(config["plain-sizes"]).split(",")]
        found["messages"] = time_rounds(federation, sizes, plain)
    return found


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Measure and write what was found."""
    logging.getLogger("flwr_vertical").addHandler(logging.StreamHandler())
    config = dict(context.run_config)
    Presence(240.0).wait(grid, int(config["parties"]))
    path = Path(str(config["results"]))
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(measure(grid, config)))
    temporary.rename(path)
