"""The app that `benchmarks/rounds.py` runs: parties that return what they get."""

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

Figures = dict[str, dict[str, float]]


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


def median_ms(federation: Federation, size: int, rounds: int) -> float:
    """Return the median milliseconds of a round of so many values."""
    base = np.arange(float(size))
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        replies = federation.call("numbers", {"base": base})
        seconds.append(time.perf_counter() - started)
        assert all(np.array_equal(reply["base"], base) for reply in replies.values())
    return 1e3 * statistics.median(seconds)


def measure(grid: Grid, config: dict[str, Any]) -> Figures:
    """Time opening, rounds and closing of channels, then rounds by messages."""
    times: dict[str, float] = {}
    found = {"channels": times}
    started = time.perf_counter()
    channels = ChannelGrid(grid, transport=str(config["transport"]), timeout=240.0)
    with channels:
        times["s to open"] = time.perf_counter() - started
        federation = Federation(channels, aggregation="plain", min_nodes=int(config["parties"]))
        federation.open()
        for size in map(int, str(config["sizes"]).split(",")):
            milliseconds = median_ms(federation, size, int(config["rounds"]))
            found[f"{size:,} values"] = {"ms a round": milliseconds}
        started = time.perf_counter()
    times["s to close"] = time.perf_counter() - started
    if plain := int(config["plain-rounds"]):
        for size in map(int, str(config["plain-sizes"]).split(",")):
            found[f"{size:,} values"]["ms by messages"] = median_ms(federation, size, plain)
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
