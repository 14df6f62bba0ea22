"""The node's side of a pipeline: it takes each stage's steps as the stage's own party would.

A stage has its own part of the node's state and of its process's memory, its own secret and its own
table: that of the node, or the one that an earlier stage completed, without the columns that a
stage left out. What it tells goes into one ledger, with what the other stages tell.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.node.config import NodeKey
from flwr_vertical.node.party import NAMES, ORDER, Arbiter, Party
from flwr_vertical.node.steps import (
    Node,
    NodeServices,
    function_of,
    node_keys_of,
    step,
    steps_of,
    unrepeatable_steps,
)
from flwr_vertical.node.storage import fitted_kinds
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.row_identities import SECRET_LENGTH, OwnRows
from flwr_vertical.privacy_ledger.run_ledger import RunLedger
from flwr_vertical.protocol import private_sum
from flwr_vertical.protocol.arguments import takes_as
from flwr_vertical.protocol.pins import HANDED_ON
from flwr_vertical.results.model import Model
from flwr_vertical.tables import Table
from strategies.linear.prediction.party_model import LinearPart
from strategies.pipeline.federation import in_stage
from strategies.pipeline.stages import IMPUTE, PREDICT, SELECT

# Under a prefix that the server may not write to.
_KEPT = "node.pipeline."
_STAGE, _MODEL = _KEPT + "stage", _KEPT + "model"
_MADE, _LEFT_OUT = _KEPT + "made", _KEPT + "left-out"  # what stages so far leave to the next
_READ, _WITHOUT = _KEPT + "read", _KEPT + "without"  # what the stage under way found

_SHARED = HANDED_ON | {
    "positions", "n_samples", "ids", ORDER, "node.name", "node.live-objects",
    private_sum.MODE, private_sum.PRIVATE_KEY, private_sum.CKKS_SECRET,
}  # fmt: skip
"""Of the run, so that all stages read it: who is here, which rows are aligned, live objects."""


class StagePart(MutableMapping[str, Any]):
    """A stage's part of a mapping; what is shared can be read in it."""

    def __init__(self, whole: MutableMapping[str, Any], stage: str) -> None:
        self._whole, self._before = whole, in_stage(stage, "")

    def __getitem__(self, key: str) -> Any:
        own = self._before + key
        return self._whole[key if key in _SHARED and own not in self._whole else own]

    def __setitem__(self, key: str, value: Any) -> None:
        self._whole[self._before + key] = value

    def __delitem__(self, key: str) -> None:
        del self._whole[self._before + key]

    def __iter__(self) -> Iterator[str]:
        own = [key for key in self._whole if key.startswith(self._before)]
        found = [key.removeprefix(self._before) for key in own]
        return iter([*found, *(k for k in _SHARED if k in self._whole and k not in found)])

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True)
class StageHalf:
    """What a node runs of a stage."""

    name: str
    role: str
    kind: type[Any]  # `Party`, or `Arbiter`


class StagesNode(Node):
    """Takes the steps of several nodes, each under the name of its stage."""

    halves: ClassVar[Mapping[str, StageHalf]] = {}

    def take(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Take a step of a stage, or one of this node's own."""
        stage, dot, own = name.partition(".")
        if not dot or stage not in self.halves:
            return super().take(name, arguments)
        return self._enter(self.halves[stage]).take(own, arguments)

    def _enter(self, half: StageHalf) -> Any:
        """Return the node of a stage; what only an earlier stage needed is gone."""
        before = self.state.get(_STAGE)
        if before != half.name:
            self._leave(before)
            self.state[_STAGE] = half.name
        return half.kind(self._services(half))

    def _leave(self, before: str | None) -> None:
        for part in (self.state, self.cache):
            for key in [key for key in part if before and key.startswith(in_stage(before, ""))]:
                del part[key]
        for name in [*self.live] if before else []:
            self.live.drop(name)

    def _services(self, half: StageHalf) -> NodeServices:
        services, cache = self.services, StagePart(self.cache, half.name)
        secret = services.secret
        if secret:  # what two stages derive from it must not be the same
            secret = hashlib.blake2b(half.name.encode(), key=secret, digest_size=32).digest()
        return replace(
            services,
            state=StagePart(self.state, half.name),
            cache=cache,  # type: ignore[arg-type]  # used as a mapping alone
            secret=secret,
            seed=f"{services.seed} {half.name}",
        )


class PipelineArbiter(StagesNode, Arbiter):
    """Opens sums as the arbiter of the stage would."""


class PipelineParty(StagesNode, Party):
    """Takes part in each stage as the stage's party would."""

    _inner: Party | None = None

    @classmethod
    def imputing(cls) -> frozenset[str]:
        """Return the stages whose strategy completes the own table."""
        return frozenset(name for name, half in cls.halves.items() if half.kind.imputing())

    @property
    def kinds_noted(self) -> set[str]:
        """Kinds of entries that the ledger got in this message."""
        return super().kinds_noted | (set() if self._inner is None else self._inner.kinds_noted)

    def _leave(self, before: str | None) -> None:
        super()._leave(before)
        self.state[_READ] = self.state.get(_MADE, "")
        self.state[_WITHOUT] = list(self.state.get(_LEFT_OUT, []))

    def _enter(self, half: StageHalf) -> Party:
        inner: Party = super()._enter(half)
        whole = self.privacy_ledger

        def rows(ledger: PrivacyLedger) -> OwnRows:
            return self._rows(half.role, inner.cache, whole.rows)

        inner._ledger = RunLedger(whole.ledger, whole.token, rows)
        self._inner = inner
        return inner

    def _services(self, half: StageHalf) -> NodeServices:
        found, services = super()._services(half), self.services
        last = [one.name for one in self.halves.values() if one.kind is half.kind][-1]

        def save_output(frame: pd.DataFrame, beside: str = "") -> str:
            if not beside:
                services.save_output(frame, half.name, half.name)
                self.state[_MADE] = half.name
            elif beside != NAMES and half.name != last:  # which writes the same beside the table
                beside = f"{half.name}.{beside}"
            return services.save_output(frame, beside, half.name)

        def save_model(data: bytes) -> str:
            if half.role == SELECT:
                left_out = [*self.state[_WITHOUT], *_without_effect(data, half.name)]
                self.state[_LEFT_OUT] = left_out
            elif half.role != IMPUTE:
                self.state[_MODEL] = data
            # New rows are predicted with the last fit, whichever stages come after it.
            return services.save_model(bytes(self.state.get(_MODEL, data)))

        def load_model(run: str) -> bytes | None:
            kept = self.state.get(_MODEL) if half.role == PREDICT else None
            return None if kept is None else bytes(kept)

        return replace(
            found,
            load_table=lambda: self._table(half.role, found.cache),
            load_fitted=lambda: None,
            save_output=save_output,
            save_model=save_model,
            load_model=load_model,
        )

    def _rows_left(self, role: str, cache: MutableMapping[str, Any]) -> Table:
        """Return the node's own rows, with all columns, as the stages so far have left them."""
        if "pipeline.rows-left" not in cache:
            whole = self.services.load_table()
            hidden = self.services.hide(whole) if role == IMPUTE else whole
            if made := str(self.state[_READ]):
                frame = self._completed(made).reindex(whole.ids)
                kinds = {name: kind for name, kind in whole.kinds.items() if name in frame}
                for name in kinds if hidden is not whole else ():
                    out = whole.frame[name].notna() & hidden.frame[name].isna()
                    if out.any():
                        frame[name] = frame[name].astype(object).mask(out)
                found = Table.of(frame, fitted_kinds(kinds), self.name)
            else:
                found = hidden
            cache["pipeline.rows-left"] = found
        table: Table = cache["pipeline.rows-left"]
        return table

    def _table(self, role: str, cache: MutableMapping[str, Any]) -> Table:
        """Return what the stages so far have left, without the columns that they left out."""
        if "pipeline.table" not in cache:
            found = self._rows_left(role, cache)
            kept = [name for name in found.columns if name not in self.state[_WITHOUT]]
            kinds = {name: found.kinds[name] for name in kept}
            cache["pipeline.table"] = replace(found, frame=found.frame[kept], kinds=kinds)
        table: Table = cache["pipeline.table"]
        return table

    def _completed(self, made: str) -> pd.DataFrame:
        frame, ids = self.services.load_output(made), self.services.load_table().ids
        if not ids.isin(frame.index).all():
            raise DataError(
                f"party {self.name!r}: stage {made!r} left a table without some of its rows, so no "
                "later stage can go on with it; make that stage the last one"
            )
        return frame

    def _rows(self, role: str, cache: MutableMapping[str, Any], own: OwnRows) -> OwnRows:
        """Return the own rows; those with completed cells, or hidden ones, count as changed."""
        if "pipeline.rows" not in cache:
            before, contents = self.services.load_table(), own.contents
            if contents is None:  # in memory, where no row changes within a run but by stages
                contents = _contents(before.frame, before.ids)
            after = self._rows_left(role, cache).frame
            if after is not before.frame:
                columns = [name for name in before.frame if name in after]
                changed = before.frame[columns].isna() != after[columns].isna()
                rows_changed = changed.to_numpy().any(axis=1)
                contents = np.where(rows_changed, _contents(after, before.ids), contents)
            cache["pipeline.rows"] = replace(own, contents=contents)
        rows: OwnRows = cache["pipeline.rows"]
        return rows


def _contents(frame: pd.DataFrame, ids: "pd.Index[Any]") -> Any:
    return OwnRows.of(ids, "0" * SECRET_LENGTH, frame).contents


def _without_effect(data: bytes, stage: str) -> list[str]:
    """Return the own columns whose coefficients are zero where every party has the row."""
    part = Model.from_bytes(data, f"what stage {stage!r} left")
    if not isinstance(part, LinearPart):
        raise ConfigError(f"stage {stage!r} selects by coefficients, and its strategy has none")
    if part.formula:
        raise ConfigError(f"stage {stage!r} selects columns, and its formula makes others of them")
    largest = int(part.present.sum(axis=1).argmax())
    own = slice(largest * part.n_outputs, (largest + 1) * part.n_outputs)
    used = (np.asarray(part.coefficients)[own] != 0).any(axis=0)
    kept = {source for source, is_used in zip(part.sources, used, strict=True) if is_used}
    kept = kept or {*part.sources[:1]}  # methods need a column of every party
    return sorted(set(part.sources) - kept)


def party_of(halves: Mapping[str, StageHalf]) -> type[PipelineParty]:
    """Return the party half of a pipeline."""
    keys = {key.name: key for half in halves.values() for key in node_keys_of(half.kind)}
    found: type[PipelineParty] = _with_steps(PipelineParty, halves, tuple(keys.values()))
    return found


def arbiter_of(halves: Mapping[str, StageHalf]) -> type[PipelineArbiter]:
    """Return the arbiter half of a pipeline."""
    found: type[PipelineArbiter] = _with_steps(PipelineArbiter, halves, ())
    return found


def _with_steps(
    kind: type[StagesNode], halves: Mapping[str, StageHalf], keys: tuple[NodeKey, ...]
) -> Any:
    """Return a class that offers the steps of all stages, each with its own signature."""
    members: dict[str, Any] = {"halves": halves, "node_keys": keys}
    of_the_run = steps_of(Party) if issubclass(kind, Party) else set()
    for half in halves.values():
        once = unrepeatable_steps(half.kind)
        for name in steps_of(half.kind) - of_the_run:
            function = function_of(half.kind, name)
            assert function is not None
            members[in_stage(half.name, name)] = _declared(function, name not in once)
    return type(kind.__name__, (kind,), members)


def _declared(function: Callable[..., Any], repeatable: bool) -> Callable[..., Any]:
    """Return a step with the signature of another, which `StagesNode.take` takes."""

    @step(repeatable=repeatable)
    @takes_as(getattr(function, "takes_as", function))
    def taken(self: StagesNode, **arguments: Any) -> Any:
        raise AssertionError("`StagesNode.take` takes every message of a stage")

    return taken
