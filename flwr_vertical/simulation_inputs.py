"""What `simulate` makes of its arguments: tables with kinds, policies, what cannot be used."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.config import NODE_KEYS
from flwr_vertical.node.storage import check_name, fitted_kinds
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.record import PREFIX, Policy
from flwr_vertical.result import Result
from flwr_vertical.single_parties import NOBODY
from flwr_vertical.tables import DataWarning, Table, check_table, label_index
from flwr_vertical.tables.findings import lines_of, warnings_in
from flwr_vertical.tables.id_checks import check_pairs_of
from flwr_vertical.tables.ids import in_normal_form, with_joined_ids

_COMPARED_IDS = 100_000

Stated = Policy | Mapping[str, Any]
"""A policy, or its keys as in a node config, with or without the prefix."""


def policies_by_node(given: Stated, nodes: Sequence[str]) -> dict[str, Policy]:
    """Return the policy of each node."""
    if isinstance(given, Policy):
        return dict.fromkeys(nodes, given)
    if not isinstance(given, Mapping):
        raise ConfigError(
            "policy must be a Policy, its keys as a dict such as {'min-rows': 200}, or a dict of "
            f"node to one of these, got {type(given).__name__}"
        )
    by_node = [isinstance(value, Policy | Mapping) for value in given.values()]
    if not any(by_node):
        return {name: _one(f"party {name!r}", given) for name in nodes}
    unknown = sorted(set(map(str, given)) - set(nodes))
    if unknown or not all(by_node):
        wrong = unknown or sorted(k for k, is_one in zip(given, by_node, strict=True) if not is_one)
        raise ConfigError(
            f"policy names {wrong}, which are no nodes with a policy; the nodes are {list(nodes)}"
        )
    return {name: _one(f"party {name!r}", given.get(name, {})) for name in nodes}


def _one(who: str, stated: Stated) -> Policy:
    if isinstance(stated, Policy):
        return stated
    keys = {PREFIX + str(key).removeprefix(PREFIX): value for key, value in stated.items()}
    return read_policy(who, keys)


def check_node_config(
    node_config: Mapping[str, Mapping[str, Any]], tables: Mapping[str, Table]
) -> None:
    """Refuse keys of a node config that are no strategy's, or of parties that are not there."""
    if unknown := sorted(set(node_config) - set(tables)):
        raise ConfigError(
            f"node_config names unknown parties {unknown}; the parties are {list(tables)}"
        )
    for name, keys in node_config.items():
        own = [key for key in keys if any(known.covers(key) for known in NODE_KEYS)]
        if own:
            raise ConfigError(
                f"node_config of {name!r} has {own[0]!r}, which is not read by a strategy; in "
                "simulate, tables, kinds, min_rows and policy are arguments of their own"
            )


def check_test_labels(
    labels: "pd.Series[Any] | None", test_labels: "pd.Series[Any] | None"
) -> None:
    """Refuse, before anything runs, labels that nothing can be compared with."""
    if test_labels is None:
        return
    known = label_index(test_labels, "test_labels")
    if labels is None or not len(labels):
        return
    trained_on = known.isin(with_joined_ids(labels[labels.notna()]).index)
    if trained_on.all():
        raise ConfigError(
            f"all {len(known):,} samples of test_labels have a label in labels, so none of them is "
            "predicted; set theirs to NaN in labels"
        )


def policies_of(
    given: Policy | Mapping[str, Any] | None, min_rows: int | None, nodes: Sequence[str]
) -> dict[str, Policy]:
    """Return what is stated for each node."""
    policies = policies_by_node(Policy() if given is None else given, nodes)
    if min_rows is None:
        return policies
    if twice := sorted(name for name, found in policies.items() if found.min_rows is not None):
        raise ConfigError(
            f"min_rows and the policy of {twice} set the same; state it in the policy alone"
        )
    return {name: replace(found, min_rows=min_rows) for name, found in policies.items()}


def tables_of(
    parties: Mapping[str, pd.DataFrame | Table],
    kinds: Mapping[str, Mapping[str, Any]],
    earlier: Mapping[str, Table],
    new_rows: bool,
) -> dict[str, Table]:
    """Return the parties' tables, of the kinds that are stated, or as an earlier run had them."""
    if not isinstance(parties, Mapping) or not parties:
        raise ConfigError(
            "parties must be a dict of party name to DataFrame with at least one entry, "
            f"got {type(parties).__name__}"
        )
    unknown = sorted(set(kinds) - set(parties))
    if unknown:
        raise ConfigError(f"kinds name unknown parties {unknown}; the parties are {list(parties)}")
    tables = {}
    for name, data in parties.items():
        tables[check_name(name)] = Table.of(
            data, kinds.get(name), name, like=earlier.get(name), new_rows=new_rows
        )
    return tables


def warn_of(
    tables: Mapping[str, Table],
    kinds: Mapping[str, Mapping[str, Any]],
    normalise: Sequence[str],
    labels: "pd.Series[Any] | None" = None,
) -> list[str]:
    """Warn of tables that probably do not hold what the caller thinks; returns notes of it."""
    notes, ids = [], {}
    for name, table in tables.items():
        if name.startswith(NOBODY):
            continue
        # IDs that the run makes equal need no advice.
        compared = replace(table, frame=in_normal_form(table.frame, normalise, name))
        ids[name] = compared.frame.index
        found = warnings_in(check_table(compared, stated=kinds.get(name, {})))
        for line in lines_of(found):
            warnings.warn(f"party {name!r}: {line}", DataWarning, stacklevel=3)
        notes += [f"party {name!r}: {line}" for line in lines_of(found, values=False)]
    if labels is not None:
        ids["labels"] = in_normal_form(labels.to_frame(), normalise, "labels").index
    # Of more, comparing takes longer than many a run; `flwr-vertical check` does it all the same.
    few = max(map(len, ids.values()), default=0) <= _COMPARED_IDS
    apart = [one.text() for one in check_pairs_of(ids) if one.code == "id-forms"] if few else []
    for line in apart:
        warnings.warn(line, DataWarning, stacklevel=3)
    return notes + apart


def fitted_tables(
    fitted: Result | Mapping[str, pd.DataFrame] | None, kinds: Mapping[str, Mapping[str, Any]]
) -> dict[str, Table]:
    """Return the tables that an earlier run left."""
    if fitted is None:
        return {}
    frames = fitted.tables if isinstance(fitted, Result) else fitted
    return {
        name: Table.of(frame, kinds=fitted_kinds(kinds.get(name, {})), party=name)
        for name, frame in frames.items()
    }
