"""A run that grows trees: keys and bins, masked slots, the loop, and what is kept in the end."""

from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.results import Progress
from flwr_vertical.results.evaluation import evaluate
from strategies.linear.problem import sample_index
from strategies.trees.arbiter import parcel_keys
from strategies.trees.binning import SlotLayout
from strategies.trees.boosting import Boosting
from strategies.trees.contributions import contributions_table, path_contributions
from strategies.trees.grower import Grower
from strategies.trees.masked_store import Slots, fetch
from strategies.trees.model import prediction_table
from strategies.trees.node_sums import Indices
from strategies.trees.rounds import LevelRounds
from strategies.trees.tree import Growth

_SNAPSHOT = 10  # iterations


def labels_of(federation: Federation, min_child: int) -> Array:
    """Return the labels, NaN where unknown, if trees can be grown in this federation."""
    names = list(federation.parties)
    if len(names) < 2:
        raise DataError(
            "vertical trees need two parties or more, since each one's sums are shared with "
            f"another, and {names[0]!r} is alone; use trees of scikit-learn on its table"
        )
    if federation.aggregation == "ckks":
        raise ConfigError(
            "trees add whole numbers modulo 2^64, which 'ckks' sums do not carry; use "
            "aggregation='masked' (the arbiter is asked for all the same)"
        )
    labels = np.asarray(federation.labels, dtype=float)
    known = int((~np.isnan(labels)).sum())
    if 0 < known < 2 * min_child:
        raise DataError(
            f"{known} samples have a label, and min_child={min_child} samples on each side of a "
            "split need twice as many; lower min_child"
        )
    return labels


def grow_model(
    federation: Federation,
    alignment: Alignment,
    result: Result,
    progress: Progress,
    course: Boosting,
    n_bins: int,
    growth: Growth,
    hidden: bool,
    columns: bool,
) -> None:
    """Grow all trees of a course, have the parties keep their splits, and fill in the result."""
    names = list(federation.parties)
    if federation.checkpoint_every is None:
        # The parties' masked rows go into no journal: a run goes back to a snapshot.
        federation.checkpoint_every = _SNAPSHOT
    progress.total = course.n_steps
    n_sides = course.most_trees * growth.max_depth
    slots, arguments, keys = prepare(federation, n_bins, n_sides, hidden, result)
    rounds = LevelRounds(federation, slots, hidden, keys)
    _check_monotone(slots, course)
    grower = Grower(rounds, growth)

    def send() -> None:
        fetch(federation, slots, arguments, rounds.dtype)

    def iterate(i: int) -> bool:
        if not slots.masked:
            with federation.asking_again(asked_at):
                send()
        ended = course.iterate(i, grower, result)
        progress.step(i + 1, course.n_steps)
        return ended

    asked_at = federation.course
    send()
    federation.loop(course.n_steps, iterate, {"trees": course.state, "history": result.history})
    name = federation.random_bytes(16).hex()
    told = federation.call(
        "finish",
        {"model": name, "columns": columns},
        parties=[*names, ARBITER] if hidden else names,
    )
    result.predictor = model = course.model(name, names)
    if not (model.party >= 0).any():
        result.notes.append(
            f"no tree has a split, so all predictions are alike: none lowers the loss with "
            f"{growth.min_child} samples (min_child) and what nodes state as min-rows on each side"
        )
    result.model = by_party = model.importance()
    result.importance = model.importance_by_column(told) if columns else by_party
    leaves = course.leaves(model)
    raw = model.raw(leaves)
    result.metrics |= course.metrics(raw)

    def table_of(rows: Indices) -> pd.DataFrame:
        found = prediction_table(model.loss, raw[:, rows])
        return found.set_axis(sample_index(alignment, result.labels, rows))

    if len(rows := np.flatnonzero(np.isnan(course.labels))):
        result.predictions = table_of(rows)
        parts = path_contributions(model, leaves[:, rows])
        result.contributions = contributions_table(model, parts, result.predictions.index)
    if len(rows := course.held_out):
        found = table_of(rows)
        result.evaluation = evaluate(
            found,
            pd.Series(course.labels[rows], found.index),
            known=pd.Series(np.delete(course.labels, rows)),
            what="held-out samples (validation_share)",
        )


def _check_monotone(slots: Slots, course: Boosting) -> None:
    stating = [name for name in slots.names if slots.monotone[name].any()]
    if stating and course.objective.width > 1:
        raise ConfigError(
            f"parties {stating} state directions of columns (trees.monotone.* in their node "
            "configs), which probabilities of several classes, as they add up to one, cannot all "
            "follow; take the keys out, or fit one class against the rest"
        )


def prepare(
    federation: Federation, n_bins: int, n_sides: int, hidden: bool, result: Result
) -> tuple[Slots, dict[str, dict[str, Any]], dict[str, Any]]:
    """Have columns cut and keys made; return slots, arguments of `send_masked`, and keys."""
    names, pairs = list(federation.parties), PairKeys(federation)
    asked = {"nonce": pairs.nonce, "n_bins": n_bins, "n_sides": n_sides}
    replies = federation.call("prepare", asked, parties=[*names, ARBITER] if hidden else names)
    pairs.collect(replies)
    arguments = GroupKey(federation, pairs).arguments()
    keys: dict[str, Any] = {}
    if hidden:
        keys, box = parcel_keys(names, pairs.nonce, replies)
        for name in names:
            arguments[name]["arbiter"] = box
    layouts = {
        name: SlotLayout(
            tuple(int(n) for n in replies[name]["n_bins"]),
            tuple(bool(n) for n in replies[name]["nominal"]),
        )
        for name in names
    }
    for name, layout in layouts.items():
        few = [n for n in layout.n_bins if n < n_bins]
        if few:
            have = "column has" if len(few) == 1 else "columns have"
            result.notes.append(
                f"party {name!r}: {len(few)} {have} fewer than {n_bins} bins, for few distinct "
                "values or too few rows of them"
            )
    monotone = {name: np.asarray(replies[name]["monotone"], dtype=np.int8) for name in names}
    return Slots(names, layouts, monotone), arguments, keys
