"""The federation as one stage of a pipeline sees it."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr_vertical.protocol.codec import Payload
from flwr_vertical.protocol.declaration import Either, If, Part, Protocol, Repeat, Round, Sequence
from flwr_vertical.server.federation import Federation, Total


def in_stage(stage: str, name: str) -> str:
    """Return the name of a step, or of a key of the state, within a stage."""
    return f"{stage}.{name}"


def protocol_of(stage: str, protocol: Protocol) -> Protocol:
    """Return a protocol whose steps and keys belong to a stage."""

    def named(part: Part) -> Any:
        if isinstance(part, Round):
            return Round(
                in_stage(stage, part.step),
                part.up,
                part.tells,
                part.ask,
                tuple(in_stage(stage, key) for key in part.writes),
                in_stage(stage, part.release),
                part.again,
            )
        if isinstance(part, Either):
            return Either(*map(named, part.choices))
        if isinstance(part, If):
            otherwise = tuple(map(named, part.otherwise))
            return If(part.condition, *map(named, part.parts), otherwise=otherwise)
        parts = tuple(map(named, part.parts))
        if isinstance(part, Repeat):
            return Repeat(*parts, at_most=part.at_most)
        if isinstance(part, Protocol):
            return Protocol(*parts, settings=part.settings)
        return Sequence(parts)

    keys = tuple(in_stage(stage, key) for key in protocol.hands_over)
    return Protocol(*map(named, protocol.parts), hands_over=keys, settings=protocol.settings)


class StageFederation(Federation):
    """An open federation whose steps and keys of the parties' states are those of one stage.

    All else, what changes included, is that of the federation of the run.
    """

    def __init__(self, whole: Federation, stage: str, predicts: bool = True) -> None:
        vars(self).update(_whole=whole, _stage=stage, predicts=predicts)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_whole"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_whole"], name, value)

    def call(self, step: str, *arguments: Any, **options: Any) -> dict[str, Payload]:
        """See `Federation.call`."""
        return super().call(in_stage(self._stage, step), *arguments, **options)

    def sum(self, step: str, *arguments: Any, release: str | None = None, **options: Any) -> Total:
        """See `Federation.sum`."""
        if release is not None or self.aggregation == "ckks":
            release = in_stage(self._stage, release or "reveal")
        step = in_stage(self._stage, step)
        return super().sum(step, *arguments, release=release, **options)

    def keep(self, name: str, make: Callable[[], Payload]) -> Payload:
        """See `Federation.keep`."""
        return super().keep(in_stage(self._stage, name), make)

    def next_step(self) -> str | None:
        """See `Federation.next_step`."""
        found = super().next_step()
        return None if found is None else found.removeprefix(in_stage(self._stage, ""))

    def update(self, party: str, values: Mapping[str, Any]) -> None:
        """See `Federation.update`."""
        super().update(party, {in_stage(self._stage, key): v for key, v in values.items()})
