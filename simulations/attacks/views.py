"""Views: what one node has seen in a run, and what it holds by right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import (
    ARBITER,
    ARGUMENTS,
    SUMS,
    UPDATES,
    VALUES,
    read_envelope,
)  # fmt: skip
from flwr_vertical.results.model import Model
from simulations.attacks.recording import PRODUCTS, Recording

SERVER, OUTPUTS = "server", "outputs"
GOT, SENT, WORKED, RESULT = "got", "sent", "worked out", "result"


@dataclass(frozen=True)
class Item:
    """One value in a view."""

    at: int  # Number of the round
    step: str  # Step that it belongs to
    way: str  # How the node came to it
    other: str  # The node at the other end; empty where there is none
    name: str  # Its name in the message
    value: Any  # Array, number, text, bytes or list
    # Whether it is a number modulo 2^64, a term of a masked sum or a masked column
    ring: bool = False


@dataclass(frozen=True)
class View:
    """All that a node has."""

    who: str  # "server", "outputs" (what the result holds and no message), the arbiter or a party
    items: list[Item]  # In order of time
    # (n_samples, n_parties): true where a party lacks the sample; parties in the order of their
    # names
    mask: Flags
    parties: list[str]  # Names, sorted
    positions: dict[str, Indices]  # By party, the sample of each of its rows
    # (n_samples,): which samples have a label, as steps tell the parties
    labelled: Flags
    labels: Array | None = None  # (n_samples,): the server's own
    # A party's own columns in the order of samples; NaN where it lacks the row
    own: pd.DataFrame | None = None

    @property
    def n_samples(self) -> int:
        """How many samples there are."""
        return len(self.mask)

    def named(self, name: str, way: str | None = None) -> Iterator[Item]:
        """Iterate over the items of a name."""
        yield from (i for i in self.items if i.name == name and way in (None, i.way))


def views_of(run: Recording) -> dict[str, View]:
    """Return the view of every node of a run, and ``outputs``: the result alone."""
    messages, who = _messages(run)
    positions = _positions(run, messages)
    parties = sorted(positions)
    truth = aligned_truth(run, positions)
    labels = _labels(run, positions)
    mask = _mask(run.result)
    labelled = np.zeros(len(mask), dtype=bool) if labels is None else ~np.isnan(labels)
    common: dict[str, Any] = {
        "mask": mask, "parties": parties, "positions": positions, "labelled": labelled,
    }  # fmt: skip
    outputs = [*_result_items(run.result), *_moments(run)]
    worked = [i for w in run.worked for i in _worked_items(w, "server")]
    own = [item for name in who.values() for item in messages[name]["server"]]
    found = {
        SERVER: View(SERVER, _sorted([*own, *worked, *outputs]), labels=labels, **common),
        OUTPUTS: View(OUTPUTS, outputs, labels=labels, **common),
    }
    for name in parties:
        found[name] = View(name, _sorted(messages[name]["node"]), own=truth[name], **common)
    if ARBITER in messages:
        items = [i for w in run.worked for i in _worked_items(w, "arbiter")]
        found["arbiter"] = View("arbiter", _sorted([*messages[ARBITER]["node"], *items]), **common)
    return found


def aligned_truth(run: Recording, positions: Mapping[str, Indices]) -> dict[str, pd.DataFrame]:
    """Return every party's columns as numbers, in the order of samples, NaN where it has no row."""
    n_samples, found = len(_mask(run.result)), {}
    for name, at in positions.items():
        numbers = as_numbers(pd.DataFrame(run.tables[name]))
        values = np.full((n_samples, numbers.shape[1]), np.nan)
        values[at] = numbers.to_numpy()
        found[name] = pd.DataFrame(values, columns=numbers.columns)
    return found


def as_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return columns of numbers as they are, and an indicator for each level of the others."""
    columns = {}
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            columns[str(name)] = column.astype(float)
            continue
        for level in sorted(map(str, column.dropna().unique())):
            shown = (column.astype(str) == level).astype(float)
            columns[f"{name}={level}"] = shown.where(column.notna())
    return pd.DataFrame(columns)


def _mask(result: Result) -> Flags:
    assert result.mask is not None  # filled by `Strategy.start`
    return np.asarray(result.mask, dtype=bool)


def _messages(run: Recording) -> tuple[dict[str, dict[str, list[Item]]], dict[int, str]]:
    """Return every node's items as the node and as the server see them, and nodes' names."""
    who: dict[int, str] = {}
    for record in run.transcript:
        told = decode(record.content, VALUES)
        if record.direction == "up" and "role" in told and record.node_id not in who:
            name = ARBITER if told["role"] == "arbiter" else str(told["party"])
            who[record.node_id] = name
    found: dict[str, dict[str, list[Item]]] = {
        name: {"node": [], "server": []} for name in who.values()
    }
    asked: dict[int, tuple[str, int]] = {}
    for at, record in enumerate(run.transcript):
        name, down = who[record.node_id], record.direction == "down"
        envelope = read_envelope(record.content)
        if down and envelope is not None:
            asked[record.node_id] = (str(envelope["step"]), at)
        step = asked.get(record.node_id, ("", at))[0]
        for prefix in (ARGUMENTS, UPDATES) if down else (VALUES, SUMS):
            ring = prefix == SUMS and run.mode == "masked"
            for key, value in decode(record.content, prefix).items():
                ring_here = ring or getattr(value, "dtype", None) == np.uint64
                ways = {"node": GOT if down else SENT, "server": SENT if down else GOT}
                for side, way in ways.items():
                    other = SERVER if side == "node" else name
                    found[name][side].append(Item(at, step, way, other, key, value, ring_here))
    return found, who


def _positions(
    run: Recording, messages: Mapping[str, Mapping[str, list[Item]]]
) -> dict[str, Indices]:
    found = {}
    for name in run.tables:
        told = [i.value for i in messages[name]["node"] if i.name == "positions" and i.way == GOT]
        if not told:
            raise ValueError(f"no message told {name!r} which samples its rows are")
        found[name] = np.asarray(told[0], dtype=np.int64)
    return dict(sorted(found.items()))


def _labels(run: Recording, positions: Mapping[str, Indices]) -> Array | None:
    if run.labels is None:
        return None
    labels = np.full(len(_mask(run.result)), np.nan)
    for name, at in positions.items():
        known = run.labels.reindex(run.tables[name].index).to_numpy(dtype=float)
        labels[at] = np.where(np.isnan(known), labels[at], known)
    return labels


def _worked_items(worked: Any, who: str) -> Iterator[Item]:
    if worked.who != who:
        return
    for name, value in worked.values.items():
        ring = getattr(value, "dtype", None) == np.uint64
        yield Item(worked.at, worked.step, WORKED, "", name, value, ring)


def _moments(run: Recording) -> Iterator[Item]:
    for worked in run.worked:
        if worked.step == PRODUCTS:
            yield from _worked_items(worked, "server")


def _result_items(result: Result) -> Iterator[Item]:
    """Numbers in a result: coefficients, predictions, and arrays of the model."""
    last = 10**9
    for stage in getattr(result, "stages", {}).values():
        yield from _result_items(stage)
    for key in ("coefficients", "predictions"):
        frame = getattr(result, key)
        for column in () if frame is None else frame.columns:
            if pd.api.types.is_numeric_dtype(frame[column]):
                values = frame[column].to_numpy(dtype=float)
                yield Item(last, "result", RESULT, "", f"{key}.{column}", values)
    models = result.model.values() if isinstance(result.model, Mapping) else [result.model]
    for model in models:
        if isinstance(model, Model):
            for key, value in vars(model).items():
                if isinstance(value, np.ndarray):
                    yield Item(last, "result", RESULT, "", f"model.{key}", value)


def _sorted(items: list[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item.at)
