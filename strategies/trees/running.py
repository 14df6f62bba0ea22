"""A run that grows trees: keys and bins, masked slots, the loop, and what is kept in the end."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.results import Progress
from strategies.regression.problem import sample_index
from strategies.trees.binning import Layout
from strategies.trees.course import Course
from strategies.trees.growing import Grower
from strategies.trees.masked import fetch
from strategies.trees.model import prediction_table
from strategies.trees.rounds import LevelRounds
from strategies.trees.slots import Slots
from strategies.trees.tree import Growth

Array = npt.NDArray[np.float64]

_SNAPSHOT = 10  # iterations


def labels_of(federation: Federation, min_child: int) -> Array:
    """Return the labels, NaN where unknown, if trees can be grown in this federation.

    Raises
    ------
    ConfigError, DataError
        Say what is missing.
    """
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
    course: Course,
    n_bins: int,
    growth: Growth,
    hidden: bool,
) -> None:
    """Grow all trees of a course, have the parties keep their splits, and fill in the result.

    Parameters
    ----------
    federation, alignment, result, progress
        As given to `Strategy.run`.
    course : Course
        What trees are grown for.
    n_bins : int
        Bins of a column at most.
    growth : Growth
    hidden : bool
        Whether an arbiter compares gains; else the parties open histograms.
    """
    names = list(federation.parties)
    if federation.checkpoint_every is None:
        # The parties' masked rows go into no journal: a run goes back to a snapshot.
        federation.checkpoint_every = _SNAPSHOT
    progress.total = course.n_steps
    slots, arguments, keys = prepare(federation, n_bins, hidden, result)
    rounds = LevelRounds(federation, slots, hidden, keys)
    grower = Grower(rounds, growth)

    def send() -> None:
        fetch(federation, slots, arguments, rounds.dtype)

    def iterate(i: int) -> bool:
        if not slots.masked:
            send()
        ended = course.iterate(i, grower, result)
        progress.step(i + 1, course.n_steps)
        return ended

    send()
    federation.loop(course.n_steps, iterate, {"trees": course.state, "history": result.history})
    name = federation.random_bytes(16).hex()
    federation.call("finish", {"model": name}, parties=[*names, ARBITER] if hidden else names)
    result.predictor = model = course.model(name, names)
    result.model = model.importance()
    raw = course.raw(model)
    result.metrics |= course.metrics(raw)
    rows = np.flatnonzero(np.isnan(course.labels))
    if len(rows):
        found = prediction_table(model.loss, raw[:, rows])
        result.predictions = found.set_axis(sample_index(alignment, result.labels, rows))


def prepare(
    federation: Federation, n_bins: int, hidden: bool, result: Result
) -> tuple[Slots, dict[str, dict[str, Any]], dict[str, Any]]:
    """Have columns cut and keys made; return slots, arguments of `send_masked`, and keys."""
    names, pairs = list(federation.parties), PairKeys(federation)
    asked = {"nonce": pairs.nonce, "n_bins": n_bins}
    told = federation.call("prepare", asked, parties=[*names, ARBITER] if hidden else names)
    pairs.collect(told)
    layouts = {
        name: Layout(
            tuple(int(n) for n in told[name]["n_bins"]),
            tuple(bool(n) for n in told[name]["nominal"]),
        )
        for name in names
    }
    for name in names:
        few = [n for n in layouts[name].n_bins if n < n_bins]
        if few:
            result.notes.append(
                f"party {name!r}: {len(few)} columns have fewer than {n_bins} bins, as "
                "they have no more distinct values"
            )
    arguments = GroupKey(federation, pairs).arguments()
    keys: dict[str, Any] = {}
    if hidden:
        own = told[ARBITER]
        box = [own["public"], own.get("identity", b""), own.get("signature", b"")]
        for name in names:
            arguments[name]["arbiter"] = box
        keys = {
            "nonce": pairs.nonce,
            "names": names,
            "publics": [told[n]["parcel_public"] for n in names],
            "identities": [told[n].get("parcel_identity", b"") for n in names],
            "signatures": [told[n].get("parcel_signature", b"") for n in names],
        }
    return Slots(names, layouts), arguments, keys
