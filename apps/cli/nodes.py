"""``flwr-vertical run --nodes FOLDER``: a simulation whose nodes have configs and own files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.config_files import ARBITER, context_of, read_node_configs
from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.policy.requirements import asked_by, for_arbiter
from flwr_vertical.policy.run_request import RunRequest, refusals
from flwr_vertical.registry import make_strategy
from flwr_vertical.server import RunSettings
from flwr_vertical.settings.toml import read_items
from flwr_vertical.sources.address import is_database
from flwr_vertical.tables import Table, label_numbers

from .run_config import checked_here


def checked_simulation(
    nodes: str | None,
    defaults: Mapping[str, Any],
    settings: Mapping[str, Any],
    federation: Mapping[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    """Check a simulation as its server, and its nodes if they have configs, would a minute later.

    Returns the settings of the run, as Flower takes them, and what is to be added to
    ``--federation-config``.
    """
    if nodes is None:
        return checked_here(defaults, settings, federation)
    found, count = checked_here(defaults, with_nodes(Path(nodes), defaults, settings), {})
    (needed,) = read_items(count).values()
    _check_policies({**defaults, **found}, needed)
    return found, count


def with_nodes(
    folder: Path, defaults: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a run with those that name its nodes; reads what they would read.

    Raises
    ------
    ConfigError, DataError
        If a node config or a file cannot be used, or the run asks for parties that are not there.
    """
    if "nodes" not in defaults:
        raise ConfigError(
            "this app knows no node configs in simulations: its pyproject.toml has no key 'nodes' "
            "below [tool.flwr.app.config]; write it anew by this version's 'flwr-vertical new'"
        )
    folder = folder.expanduser().absolute()
    configs = read_node_configs(folder)
    there = [name for name in configs if name != ARBITER]
    # An app names parties in its defaults, for demonstration data.
    parties = RunSettings.from_config({"parties": settings.get("parties", "")}).parties or there
    if lacking := [name for name in parties if name not in there]:
        raise ConfigError(f"parties names {lacking}, and the nodes in {folder} are {there}")
    found = dict(settings) | {
        "parties": ",".join(parties), "nodes": str(folder), "nodes-start": str(Path.cwd()),
    }  # fmt: skip
    run_config = {**defaults, **found}
    for key in ("labels", "test-labels"):
        if run_config[key] == "demo":
            raise ConfigError(
                f"{key}='demo' are the labels of demonstration data, and --nodes names tables of "
                f"your own: state {key} (a file, or '' for none), or label-holder and label-column"
            )
    tables = {}
    for name in parties:
        context, storage = context_of(configs[name], run_config), FileStorage()
        if not is_database(str(configs[name].get("data", ""))):  # read once, by the run
            tables[name] = storage.load(context)
    _check_labels(run_config, tables, parties)
    return found


def _check_policies(config: Mapping[str, Any], needed: int) -> None:
    """Raise unless the nodes of a run, with the arbiter if it needs one, agree to it."""
    configs = read_node_configs(Path(config["nodes"]))
    asked = asked_by(make_strategy(str(config["strategy"]), config), str(config["strategy"]))
    taking_part = [*config["parties"].split(","), ARBITER][:needed]
    for name in taking_part:
        policy = FileStorage().policy(context_of(configs[name]))
        request = RunRequest.of(config, name, exchanges=asked.exchanges, epsilon=asked.epsilon)
        request = replace(request, stages=asked.stages)
        if found := refusals(policy, for_arbiter(request) if name == ARBITER else request):
            lines = "; ".join(one.line for one in found)
            raise ConfigError(
                f"the policy of {name!r} forbids this run. Its owner would have to put into its "
                f"node config (or its policy file, without 'policy.'): {lines}"
            )


def _check_labels(
    config: Mapping[str, Any], tables: Mapping[str, Table], parties: Sequence[str]
) -> None:
    """Raise if the party that is to hold the labels has none, or none that can be used."""
    holder, column = str(config["label-holder"]), str(config["label-column"])
    if not holder:
        return
    if holder not in parties:
        raise ConfigError(f"label-holder = {holder!r} is no party; the parties are {[*parties]}")
    if holder in tables:
        frame = tables[holder].frame
        if column not in frame.columns:
            raise ConfigError(
                f"label-column = {column!r} is not in the table of {holder!r}, which has "
                f"{list(frame.columns)}"
            )
        who = f"the labels in column {column!r} of {holder!r}"
        label_numbers(frame[column], str(config["positive-label"]), who)
