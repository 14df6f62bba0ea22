"""`simulate_files`: run a strategy over tables in files, as the node configs of nodes name them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.config import HOLD_OUT, NODE_KEYS
from flwr_vertical.node.config_files import ARBITER, context_of, read_node_configs
from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.result import Result
from flwr_vertical.simulation import simulate
from flwr_vertical.strategy import Strategy
from flwr_vertical.tables import Table, read_labels

NodeFiles = Mapping[str, Mapping[str, Any] | str | os.PathLike[str]]


def simulate_files(
    strategy: Strategy,
    nodes: str | os.PathLike[str] | NodeFiles,
    labels: "pd.Series[Any] | str | os.PathLike[str] | None" = None,
    *,
    label_holder: str = "",
    label_column: str = "",
    positive_label: str | int = "",
    **options: Any,
) -> Result:
    """Run a strategy in this process over the files of nodes, read as the nodes read them.

    Tables, kinds, marks of missing cells, forms of IDs, policies and keys of strategies are those
    of the node configs. Nothing is written: tables are in the result, and ledgers end with the run
    unless `ledgers` names a folder for them.

    Parameters
    ----------
    strategy : Strategy
        The method and its settings.
    nodes : path-like, or mapping of str to mapping or path-like
        A folder with ``NAME.toml`` or ``NAME/node.toml`` for each node; or the keys of the node
        config, or its file, by party. Relative paths are taken from the current folder, as on a
        node from the one in which its SuperNode starts.
    labels : pandas.Series or path-like, optional
        Labels that the server holds, by sample ID, or their file.
    label_holder : str, optional
        The party that holds the labels instead, in its `label_column`.
    label_column : str, optional
        That column, or the one of a file of the server.
    positive_label : str, optional
        Of labels of two classes the one that counts as 1, such as ``"yes"``.
    **options
        As of `simulate`; ``policy``, ``kinds``, ``node_config`` and ``min_rows`` are stated in the
        node configs, and so is ``hold_out`` by ``hold-out``.

    Returns
    -------
    Result
        As of `simulate`.

    Raises
    ------
    ConfigError, DataError
        If a node config, a file or a setting cannot be used.
    PartyError
        If a party fails during the run, or its policy forbids it.

    Examples
    --------
    >>> from flwr_vertical.strategies import FKNN
    >>> simulate_files(FKNN(), "nodes")  # doctest: +SKIP
    """
    configs = read_node_configs(
        {k: v if isinstance(v, Mapping) else Path(v) for k, v in nodes.items()}
        if isinstance(nodes, Mapping)
        else Path(nodes).expanduser()
    )
    stated = {"policy", "kinds", "node_config", "min_rows", "hold_out"} & options.keys()
    if stated:
        raise ConfigError(f"{sorted(stated)} are stated in the node configs, not in simulate_files")
    parties = {name: config for name, config in configs.items() if name != ARBITER}
    shares = {float(config.get(HOLD_OUT, 0.0)) for config in parties.values()}
    if len(shares) > 1:
        raise ConfigError(
            f"simulate_files: the node configs have hold-out = {sorted(shares)}; in one process "
            "all parties hold out the same share"
        )
    needs_arbiter = options.get("aggregation") == "ckks" or bool(strategy.needs_arbiter)
    taking_part = configs if needs_arbiter else parties
    tables, storage = load_tables(parties), FileStorage()
    if isinstance(labels, str | os.PathLike):
        if label_holder:
            raise ConfigError(f"labels are in {labels} or at {label_holder!r}; state one of both")
        labels, label_column = read_labels(labels, column=label_column or None), ""
    return simulate(
        strategy,
        tables,
        labels,
        node_config=own_keys(parties),
        policy={name: storage.policy(context_of(config)) for name, config in taking_part.items()},
        hold_out=shares.pop() if shares and strategy.party.imputing() else 0.0,
        label_holder=label_holder,
        label_column=label_column,
        positive_label=positive_label,
        **options,
    )


def load_tables(parties: Mapping[str, Mapping[str, Any]]) -> dict[str, Table]:
    """Return the parties' tables by name, as nodes with these node configs read them."""
    storage = FileStorage()
    return {name: storage.load(context_of(config)) for name, config in parties.items()}


def own_keys(parties: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what strategies read of node configs: keys that are not of every node."""
    own = {
        name: {k: v for k, v in config.items() if not any(key.covers(k) for key in NODE_KEYS)}
        for name, config in parties.items()
    }
    return {name: keys for name, keys in own.items() if keys}
