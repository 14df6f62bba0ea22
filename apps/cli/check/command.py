"""Carry out ``flwr-vertical check``."""

import argparse
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.config import HOLD_OUT, check_node_config
from flwr_vertical.node.config_files import read_node_configs
from flwr_vertical.registry import available_strategies
from flwr_vertical.settings import nearest
from flwr_vertical.settings.toml import read_items
from flwr_vertical.sources.address import is_database
from flwr_vertical.tables import Severity, label_numbers, read_labels

from ..output import print_json
from .mend import Mending
from .page import plain_lines, show_page
from .tables import Checks, check_nodes, configs_of, kinds_in
from .trial import Trial, run_options, try_strategy

ALL = "all"


def run(options: argparse.Namespace) -> int:
    """Carry out ``flwr-vertical check``; returns the exit code."""
    with _status() as status:

        def step(text: str) -> None:
            if status is not None:
                status.update(text)

        configs = _configs(options)
        written: list[str] = []
        mending = Mending(configs, options.label_column) if options.fix else None
        if mending is None:
            checks = check_nodes(configs, step)
        else:
            checks = mending.run(lambda mended: check_nodes(mended, step))
            configs = mending.configs
        frames, labels = _frames_and_labels(checks, options)
        if mending is not None:
            written = mending.write(Path(options.fix))
        if options.strategy:
            checks.trials = _trials(checks, options, configs, frames, labels, step)
    if options.json:
        print_json(checks.to_dict())
        return _exit_code(checks, options)
    if written:
        print("\n".join([*written, "", "read so, the tables have left what no key mends:"]))
    if sys.stdout.isatty():
        from rich.console import Console

        show_page(checks, Console(highlight=False))
    else:
        print("\n".join(plain_lines(checks)))
    return _exit_code(checks, options)


def _exit_code(checks: Checks, options: argparse.Namespace) -> int:
    bad = checks.count(Severity.ERROR) + options.strict * checks.count(Severity.WARNING)
    return 1 if bad else 0


def _configs(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the node configs of the tables that are to be checked, by party."""
    config = read_items(options.node_config)
    if options.id_column:
        config["id-column"] = options.id_column
    if options.nodes:
        if options.path or config:
            raise ConfigError("--nodes names tables and how they are read; give nothing besides")
        found = read_node_configs(Path(options.nodes))
        return {name: own for name, own in found.items() if "data" in own}
    check_node_config("--node-config", config)
    source = options.path or config.get("data")
    if not source:
        raise ConfigError(
            "nothing to check: name a table or a folder, or state data='...' in --node-config"
        )
    # A folder that a node names as its data is one table, of Parquet files.
    if is_database(source) or (not options.path and Path(str(source)).is_dir()):
        name = str(config.get("party", "the table"))
        return {name: {**config, "data": str(source)}}
    labels_file = [Path(options.labels)] if options.labels else []
    return configs_of(Path(str(source)), config, labels_file)


Frames = dict[str, pd.DataFrame]


def _frames_and_labels(
    checks: Checks, options: argparse.Namespace
) -> "tuple[Frames, pd.Series[Any] | None]":
    """Return the tables that can be used, without the labels, and the labels if they are named."""
    frames = {t.party: t.frame for t in checks.tables if t.frame is not None and t.usable}
    labels = None
    if options.labels:
        labels = read_labels(options.labels, column=options.label_column)
    elif options.label_column and len(frames) == len(checks.tables):
        frames, labels = _without_labels(frames, options.label_column)
    return frames, labels


def _trials(
    checks: Checks,
    options: argparse.Namespace,
    configs: Mapping[str, Any],
    frames: Frames,
    labels: "pd.Series[Any] | None",
    step: Any,
) -> list[Trial]:
    """Try the strategies on the tables that can be used."""
    settings = read_items(options.settings)
    names = list(dict.fromkeys(options.strategy))
    named = ALL not in names
    if not named:
        names = list(available_strategies())
    run = run_options(settings, names)
    if len(frames) < len(checks.tables):
        return [Trial(name, refusal="correct the errors of the tables first", named=named)
                for name in names]  # fmt: skip
    if labels is not None:
        labels = label_numbers(labels, options.positive_label, "the labels")
    own = {
        party: {k: v for k, v in kinds_in(configs[party]).items() if k in frame.columns}
        for party, frame in frames.items()
    }
    held_out = {party: float(configs[party].get(HOLD_OUT, 0.0)) for party in frames}
    trials = []
    for name in names:
        step(f"trying {name} (at most {options.limit:g} s on all samples)")
        how = {"kinds": own, "run": run, "held_out": held_out, "limit": options.limit}
        trials.append(try_strategy(name, settings, frames, labels, **how, named=named))
    return trials


def _without_labels(
    frames: Mapping[str, pd.DataFrame], column: str
) -> "tuple[dict[str, pd.DataFrame], pd.Series[Any]]":
    """Take the column of labels out of the one table that has it."""
    holders = [name for name, frame in frames.items() if column in frame.columns]
    if len(holders) != 1:
        known = {name: [*frame.columns] for name, frame in frames.items()}
        hint = (
            "" if holders else nearest(column, [own for names in known.values() for own in names])
        )
        raise ConfigError(
            f"--label-column {column!r} is in {len(holders)} tables{hint}, expected one; the "
            f"columns are {known}; give a file of labels by --labels otherwise"
        )
    frame = frames[holders[0]]
    rest = dict(frames) | {holders[0]: frame.drop(columns=column)}
    return {name: left for name, left in rest.items() if left.shape[1]}, frame[column]


def _status() -> AbstractContextManager[Any]:
    """Return a line on a terminal that says what is going on; elsewhere nothing."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("reading")
