"""``flwr-vertical cross-validate``: how well a strategy predicts labels that it was not given."""

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete.demo import demo_labels, demo_names, demo_tables
from flwr_vertical.node.config_files import ARBITER, context_of, read_node_configs
from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.node.storage import output_home
from flwr_vertical.pages.page import Item, Section, bullet_list, human_bytes, render_page
from flwr_vertical.registry import make_strategy
from flwr_vertical.server import RunSettings
from flwr_vertical.settings.toml import read_items
from flwr_vertical.simulation_files import load_tables, own_keys
from flwr_vertical.tables import Table, label_numbers, read_labels
from flwr_vertical.validation import CrossValidation, cross_validate
from flwr_vertical.whole_files import make_folder, write_text_atomically

from ..settings import AppSettings, DemoSettings, app_config
from .output import add_json, print_json
from .run import add_settings
from .run_config import checked_config

_OF_RUN = ("aggregation", "align_rows", "normalise_ids", "fraction_bits")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "cross-validate",
        help="say how well a strategy predicts labels that it was not given, and compare settings",
        description="Withholds the labels of one fold after another, runs the strategy with the "
        "others, and scores its predictions, all on this machine: over the tables that node "
        "configs name, or demonstration data. Prints scores and writes a page. Policies of node "
        "configs hold over all folds together.",
        epilog="example: flwr-vertical cross-validate -c apps/svm.toml --folds 3 "
        "--grid 'svm.l2=[0.5,500.0]'",
    )
    add_settings(parser)
    parser.add_argument(
        "--nodes",
        metavar="FOLDER",
        help="node configs, NAME.toml or NAME/node.toml, which name tables of your own; with "
        "'labels', or 'label-holder' and 'label-column', in the run config",
    )
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=[VALUES]",
        help="settings to choose among, as a list: 'gbdt.max-depth=[3,5]'; several for all "
        "combinations",
    )
    parser.add_argument(
        "--score", metavar="NAME", help="by which settings are chosen: auc, accuracy, rmse, ..."
    )
    parser.add_argument(
        "--output",
        metavar="HTML",
        help="page to write (default: in ~/flwr-vertical/cross-validation)",
    )
    add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Validate, print the scores and write the page."""
    given = read_items(options.run_config)
    if "strategy" not in given:
        raise ConfigError("name the strategy: --run-config 'strategy=\"svm\"', or a preset")
    defaults = app_config()
    found = checked_config(defaults, given)
    strategy = make_strategy(str(found["strategy"]), {**defaults, **found})
    config = {**defaults, **({} if options.nodes else dict(strategy.demo)), **found}
    if options.nodes:
        tables, labels, more = _own_data(Path(options.nodes), config, bool(strategy.needs_arbiter))
    else:
        tables, labels, more = _demo_data(config)
    settings = RunSettings.from_config(config)
    more |= {key: getattr(settings, key) for key in _OF_RUN}
    if settings.alignment is not None:
        more["alignment"] = settings.alignment
    path = _page_path(strategy.name, options.output)
    make_folder(path.parent)  # no fold runs for a page that cannot be written
    done = cross_validate(
        strategy,
        tables,
        labels,
        options.folds,
        seed=settings.seed,
        grid=_grid(strategy.name, options.grid),
        score_by=options.score,
        progress=sys.stderr.isatty(),
        **more,
    )
    page = _write(done, path, list(tables))
    if options.json:
        print_json(
            {
                "strategy": done.strategy.name,
                "settings": done.strategy.settings(),
                "score": done.score,
                "scores": done.scores.to_dict("index"),
                "folds": done.folds,
                "candidates": done.candidates,
                "notes": done.notes,
                "report": page,
            }
        )
        return 0
    print(done)
    print(f"\n{done.folds.round(4).to_string()}")
    if done.candidates is not None:
        print(f"\n{done.candidates.round(4).to_string(index=False)}")
    print(f"\nreport: {page}")
    return 0


def _grid(strategy: str, items: list[str]) -> dict[str, list[Any]] | None:
    """Return lists of values by the names of settings in Python."""
    found = {}
    for key, values in read_items(items).items():
        table, _, name = key.partition(".")
        if table != strategy or not isinstance(values, list):
            raise ConfigError(
                f"--grid {key}={values!r}: expected a setting of {strategy!r} and a list, such as "
                f"'{strategy}.NAME=[1,2]'"
            )
        found[name.replace("-", "_")] = values
    return found or None


Data = tuple[Mapping[str, pd.DataFrame | Table], "pd.Series[Any]", dict[str, Any]]


def _demo_data(config: Mapping[str, Any]) -> Data:
    """Return the tables and labels of the demonstration that a simulation would have."""
    demo = DemoSettings.from_config(config, "demo.")
    seed = int(config["seed"])
    names = RunSettings.from_config(config).parties or tuple(demo_names(2))
    tables = demo_tables(demo.dataset, len(names), demo.missing_cells, demo.missing_blocks, seed)[0]
    labels = demo_labels(demo.dataset, demo.missing_labels, seed=seed)
    return dict(zip(names, tables.values(), strict=True)), labels, {}


def _own_data(folder: Path, config: Mapping[str, Any], needs_arbiter: bool) -> Data:
    """Return the tables of node configs, the labels, and what the node configs state besides."""
    app = AppSettings.from_config(config)
    configs = read_node_configs(folder.expanduser())
    parties = {name: own for name, own in configs.items() if name != ARBITER}
    tables = load_tables(parties)
    if app.label_holder:
        if app.label_holder not in tables or app.label_column not in tables[app.label_holder].frame:
            raise ConfigError(
                f"label-holder = {app.label_holder!r} and label-column = {app.label_column!r}: "
                f"expected one of {list(tables)}, and a column of its table"
            )
        table = tables[app.label_holder]
        labels = table.frame[app.label_column]
        tables[app.label_holder] = Table.of(
            table.frame.drop(columns=app.label_column),
            {name: kind for name, kind in table.kinds.items() if name != app.label_column},
            party=app.label_holder,
        )
    elif app.labels and app.labels != "demo":
        labels = read_labels(app.labels, column=app.label_column or None)
    else:
        raise ConfigError(
            "which labels? State labels='FILE', or label-holder and label-column, in --run-config"
        )
    labels = label_numbers(labels, app.positive_label, "the labels")
    taking_part = configs if needs_arbiter or config["aggregation"] == "ckks" else parties
    storage = FileStorage()
    policies = {name: storage.policy(context_of(own)) for name, own in taking_part.items()}
    return tables, labels, {"policy": policies, "node_config": own_keys(parties)}


def _page_path(strategy: str, output: str | None) -> Path:
    name = f"{strategy}-{datetime.now(UTC):%Y%m%d-%H%M%S}.html"
    path = Path(output) if output else output_home() / "cross-validation" / name
    return path.expanduser().absolute()


def _write(done: CrossValidation, path: Path, parties: list[str]) -> Path:
    """Write the page; returns where."""
    scores: list[Item] = [done.scores.rename_axis("score")]
    sections = [Section("Scores of withheld labels", scores, "Mean and deviation over the folds.")]
    if done.candidates is not None:
        caption = (
            f"Best first, by {done.score}. The best one's score is optimistic: choose on some "
            "samples, and test on others."
        )
        varied = [name for name in done.candidates if name not in done.scores.index]
        sections.append(Section("Settings compared", done.candidates.set_index(varied), caption))
    sections += [
        Section("Folds", done.folds, "Each is a run of its own."),
        Section("Notes", bullet_list(done.notes)),
    ]
    facts = {
        "parties": ", ".join(parties),
        "folds": str(len(done.folds)),
        "rounds": f"{int(done.folds['rounds'].sum()):,}",
        "traffic": human_bytes(int(done.folds["bytes"].sum())),
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}",
    }
    page = render_page(
        f"Cross-validation of {done.strategy.name}", sections, facts=facts, made=repr(done.strategy)
    )
    write_text_atomically(path, page, mode=0o600)
    return path
