"""A run that grows trees: keys and bins, masked slots, the loop, and what is kept in the end."""

from typing import Any

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.protocol.messages import ARBITER
from strategies.trees.arbiter import parcel_keys
from strategies.trees.binning import SlotLayout
from strategies.trees.masked_store import Slots


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


def no_split(min_child: int) -> str:
    """Say why no tree has a split."""
    return (
        f"no tree has a split, so all predictions are alike: none lowers the loss with {min_child} "
        "samples (min_child) and what nodes state as min-rows on each side"
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
            tuple(bool(n) for n in replies[name]["complete"]),
        )
        for name in names
    }
    for name, layout in layouts.items():
        few = [n for n in layout.n_bins if n < n_bins]
        if few:
            have = "column has" if len(few) == 1 else "columns have"
            result.notes.append(
                f"party {name!r}: {len(few)} {have} fewer than {n_bins} bins: there are "
                "fewer distinct values, or too few rows have some of them"
            )
    monotone = {name: np.asarray(replies[name]["monotone"], dtype=np.int8) for name in names}
    return Slots(names, layouts, monotone), arguments, keys
