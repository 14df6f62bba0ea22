"""The Flower ``ServerApp``: runs the strategy that the run config names."""

import logging
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from flwr_vertical import Result, RunSettings, Strategy, make_strategy
from flwr_vertical.channel import ChannelGrid
from flwr_vertical.channel.address import advertised, split_address
from flwr_vertical.errors import ConfigError, VerticalError
from flwr_vertical.incomplete.demo import demo_labels
from flwr_vertical.log import logger
from flwr_vertical.policy.requirements import asked_by, needed_by_node
from flwr_vertical.server.discovery import Presence
from flwr_vertical.server.journal import FILE_NAME as JOURNAL
from flwr_vertical.settings.secrets import refuse_secrets
from flwr_vertical.tables import label_numbers, read_labels
from strategies import register_all

from .live.status import LiveStatus
from .lock import RunFolder, taken
from .settings import AppSettings, DemoSettings
from .storage import (
    LABEL_SECRET,
    NODE_NAMES,
    check_free,
    earlier_folder,
    is_done,
    save_result,
    server_folder,
)

_LEAST_DIALLING = 5.0  # seconds for nodes that connected when the patience was nearly over

app = ServerApp()


_PATIENCE = 60.0
"""Seconds that a run which is resumed waits for the process of the one that was stopped."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy and leave result and report in the server's own folder."""
    _log_to_flower()
    folder = _folder(context)
    patience = _PATIENCE if _goes_on(context.run_config, folder) else 0.0
    with taken(folder, context.run_id, patience) as own:
        _run(grid, context, own)


def _run(grid: Grid, context: Context, own: RunFolder) -> None:
    folder = own.path
    job = _job(context, folder)
    strategy, app_settings, truth = job.strategy, job.app, job.truth
    if job.is_finished:
        logger.info("the run %r is finished already; nothing is computed: %s", folder.name, folder)
        return
    names = folder.parent / NODE_NAMES
    presence = Presence(job.run.patience, job.run.parties, job.arbiter_for, names)
    run = replace(job.run, ready_by=presence.until, node_names=names)

    def save(found: Result) -> None:
        if truth is not None:
            found.compare(truth)
        found.needed_keys = _needed_keys(found, strategy, run, app_settings, bool(job.arbiter_for))
        own.check_unchanged()
        save_result(found, folder)

    logger.info("strategy %s, aggregation %s", strategy.name, run.aggregation)
    live = LiveStatus(folder.name, strategy.name, run.aggregation, presence)
    with ExitStack() as open_until_the_end:
        if app_settings.live_page:
            from .live.server import serving

            open_until_the_end.enter_context(serving(live, folder))
        presence.wait(grid, run.min_nodes or 1)
        channels = ChannelGrid(
            grid,
            transport=app_settings.transport,
            bind=app_settings.channel_bind,
            address=app_settings.channel_address,
            # A node that never answers is found when the patience ends, not after both.
            timeout=min(app_settings.channel_timeout, max(presence.left, _LEAST_DIALLING)),
            enough=run.min_nodes if run.parties else None,
            names=presence.names_of_silent,
            keep_state=False,  # the channels stay open until the run is over
        )
        result = strategy.start(
            grid=open_until_the_end.enter_context(channels),
            labels=job.labels,
            label_holder=app_settings.label_holder or None,
            beside=job.beside,
            run=run,
            save=save,
            watch=live.watch,
        )
    logger.info("\n%s\n\n%s", result, result.ledger)
    if result.coefficients is not None:
        with pd.option_context("display.max_rows", 200, "display.width", 120):
            logger.info("\n%s", result.coefficients.round(6).to_string())
    elif result.predictions is None:
        logger.info("each party's table and report lie on its own disk")
    if result.predictions is not None:
        n = len(result.predictions)
        logger.info("predictions of %d samples: %s", n, folder / "predictions.parquet")
    if result.evaluation is not None:
        table = result.evaluation.table().round(4).to_string()
        logger.info("%d %s\n%s", len(result.evaluation), result.evaluation.what, table)
    logger.info("result and report of the server: %s", folder / "report.html")


@dataclass(frozen=True)
class _Job:
    """What the server knows of a run before it meets a node; `labels` and `truth` are read."""

    is_finished: bool
    strategy: Strategy
    app: AppSettings
    run: RunSettings
    arbiter_for: str | None
    labels: "pd.Series[Any] | None"
    truth: "pd.Series[Any] | None"
    beside: "dict[str, pd.Series[Any]]"


def _folder(context: Context) -> Path:
    """Return the server's folder of a run; refuses secrets and a name that is none."""
    register_all()
    refuse_secrets(context.run_config)  # first of all: other messages may show a value
    return server_folder(context)


def _goes_on(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether a run goes on with one that broke off; a pipeline does when it is started again."""
    is_pipeline = config.get("strategy") == "pipeline" and bool(config.get("checkpoint"))
    return bool(config.get("resume")) or (is_pipeline and (folder / JOURNAL).exists())


def _job(context: Context, folder: Path) -> _Job:
    """Check everything of a run that needs no node: settings, packages, names, files."""
    config = context.run_config
    app_settings = AppSettings.from_config(config)
    resume, files = _goes_on(config, folder), None
    if not resume:  # first, as a strategy may take a second to import
        check_free(folder)
        files = _label_files(app_settings, config)
    strategy = make_strategy(app_settings.strategy, config)
    if (earlier := earlier_folder(context)) is not None:
        strategy = strategy.building_on(earlier)
    strategy.check_requirements()
    is_finished = resume and is_done(folder, strategy)
    run = RunSettings.from_config(config)
    arbiter_for = "aggregation 'ckks'" if run.aggregation == "ckks" else strategy.needs_arbiter
    run = replace(
        run,
        min_nodes=run.min_nodes or max(2, len(run.parties or ())) + int(arbiter_for is not None),
        checkpoint=folder if app_settings.checkpoint or resume else None,
        resume=resume,
        label_secret=folder.parent / LABEL_SECRET,
    )
    labels = truth = None
    beside: dict[str, Any] = {}
    if not is_finished:
        labels, truth, beside = files or _label_files(app_settings, config)
        strategy.plan(run, labels, app_settings.label_holder or None, beside)
        if app_settings.transport != "messages":
            _check_listening(app_settings.channel_bind, app_settings.channel_address)
    return _Job(is_finished, strategy, app_settings, run, arbiter_for, labels, truth, beside)


def _check_listening(bind: str, address: str) -> None:
    """Raise if the server cannot listen for channels, which it does once nodes are there."""
    host, port = split_address(bind, "channel-bind")
    advertised(host, port, address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen at channel-bind = {bind!r} ({error.strerror}); set another one in the "
            "run config, or port 0 for any free one"
        ) from error


def check_here(config: Mapping[str, Any]) -> int:
    """Check a run whose server will be on this machine as the server does, before it starts."""
    context = Context(0, 0, {}, RecordDict(), dict(config))
    job = _job(context, _folder(context))
    return job.run.min_nodes or 1


def _needed_keys(
    result: Result, strategy: Strategy, run: RunSettings, app: AppSettings, arbiter: bool
) -> dict[str, dict[str, Any]]:
    """Return what nodes have to state for this run; those of a demonstration state nothing."""
    request = replace(
        asked_by(strategy, app.strategy),
        aggregation=run.aggregation,
        alignment=str(run.alignment or strategy.default_alignment),
    )
    labels = {app.label_holder: app.label_column} if app.label_holder else {}
    return needed_by_node(request, result.parties, labels=labels, arbiter=arbiter)


def _label_files(
    settings: AppSettings, config: Mapping[str, Any]
) -> "tuple[pd.Series[Any] | None, pd.Series[Any] | None, dict[str, pd.Series[Any]]]":
    """Return labels, test labels, and the numbers beside them, from files of the server."""
    columns = {"weights": settings.weights_column, "offset": settings.offset_column}
    return (
        _labels(settings.labels, settings, config),
        _labels(settings.test_labels, settings, config, whole=True),
        {
            name: read_labels(settings.labels, column=column)
            for name, column in columns.items()
            if column
        },
    )


def _labels(
    source: str, settings: AppSettings, config: Mapping[str, Any], whole: bool = False
) -> "pd.Series[Any] | None":
    if not source:
        return None
    if source == "demo":
        demo = DemoSettings.from_config(config, "demo.")
        removed = 0.0 if whole else demo.missing_labels
        return demo_labels(demo.dataset, removed, seed=int(config.get("seed", 0)))
    labels = read_labels(source, column=settings.label_column or None)
    return label_numbers(labels, settings.positive_label, f"the labels in {source}")


def _log_to_flower() -> None:
    """Send this library's log lines where Flower's own go, so that ``flwr log`` shows them."""
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s :      %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    flower = logging.getLogger("flwr")
    if _without_traceback not in flower.filters:
        flower.addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Log an error that this library raised on purpose as one line: it says what to do."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, VerticalError):
        record.msg, record.args = "%s", (" ".join(str(error).split()),)
        record.exc_info = record.exc_text = None
    return True
