"""The Flower ``ServerApp``: runs the strategy that the run config names."""

import logging
from collections.abc import Mapping
from typing import Any

import pandas as pd
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from apps.demo import demo_labels
from apps.storage import server_folder
from flwr_vertical import make_strategy
from flwr_vertical.channel import ChannelGrid
from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.opening import wait_for_nodes
from flwr_vertical.tables import read_labels
from strategies import register_all

logger = logging.getLogger("flwr_vertical")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy and leave result and report in the server's own folder."""
    _log_to_flower()
    register_all()
    config = context.run_config
    folder = server_folder(context)  # refuses a name that is none before anybody computes
    resume = _flag(config, "resume")
    checkpoint = _flag(config, "checkpoint") or resume
    if checkpoint and not config["run-name"]:
        raise ConfigError(
            "checkpoint=true and resume=true need a run-name: checkpoints are kept and found again "
            "under it, by the server and by every party"
        )
    strategy = make_strategy(str(config["strategy"]), config)
    aggregation = str(config["aggregation"])
    parties = [name.strip() for name in str(config["parties"]).split(",") if name.strip()]
    arbiters = int(aggregation == "ckks" or strategy.needs_arbiter is not None)
    min_nodes = int(config["min-nodes"]) or max(2, len(parties)) + arbiters
    labels = _labels(context)
    logger.info("strategy %s, aggregation %s", strategy.name, aggregation)
    wait_for_nodes(grid, min_nodes, float(config["patience"]))
    with ChannelGrid(
        grid,
        transport=str(config["transport"]),
        bind=str(config["channel-bind"]),
        address=str(config["channel-address"]),
        timeout=float(config["channel-timeout"]),
        keep_state=False,  # the channels stay open until the run is over
    ) as channels:
        result = strategy.start(
            grid=channels,
            labels=labels,
            label_holder=str(config["label-holder"]) or None,
            aggregation=aggregation,
            alignment=str(config["alignment"]),
            align_rows=str(config["align-rows"]),
            normalise_ids=str(config["normalise-ids"]),
            seed=int(config["seed"]),
            fraction_bits=int(config["fraction-bits"]),
            timeout=float(config["timeout"]),
            retries=int(config["retries"]),
            parties=parties or None,
            min_nodes=min_nodes,
            patience=float(config["patience"]),
            checkpoint=folder if checkpoint else None,
            resume=resume,
            save=lambda found: found.save(folder),
        )
    report = result.report(folder)
    logger.info("\n%s\n\n%s", result, result.ledger)
    if result.coefficients is not None:
        with pd.option_context("display.max_rows", 200, "display.width", 120):
            logger.info("\n%s", result.coefficients.round(6).to_string())
    else:
        logger.info("each party's table and report lie on its own disk")
    logger.info("result and report of the server: %s", report)


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config[key]
    if not isinstance(value, bool):  # bool("false") is True
        raise ConfigError(f"{key} must be true or false, got {value!r}")
    return value


def _labels(context: Context) -> "pd.Series[Any] | None":
    path = str(context.run_config["labels"])
    if not path:
        return None
    if path == "demo":
        return demo_labels(str(context.run_config["demo.dataset"]))
    column = str(context.run_config["label-column"]) or None
    return read_labels(path, column=column)


def _log_to_flower() -> None:
    """Send this library's log lines where Flower's own go, so that ``flwr log`` shows them."""
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s :      %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
