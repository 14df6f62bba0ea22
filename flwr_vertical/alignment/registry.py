"""Find alignment protocols by name: built in, registered in this process, or ``module:Class``."""

import importlib
from collections.abc import Callable, Sequence

from flwr_vertical.alignment.base import Aligner
from flwr_vertical.alignment.blind_rsa import BlindRsaAligner
from flwr_vertical.alignment.kkrt import KkrtAligner
from flwr_vertical.alignment.plain import PlainAligner
from flwr_vertical.alignment.private_id import PrivateIdAligner
from flwr_vertical.alignment.steps import AlignmentSteps
from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.declaration import FACTS, ONE, Either, Protocol, Round

_BUILT_IN: tuple[type[Aligner], ...] = (
    PlainAligner,
    PrivateIdAligner,
    KkrtAligner,
    BlindRsaAligner,
)
_ALIGNERS: dict[str, Callable[..., Aligner]] = {
    "plain": PlainAligner,
    "private-id": PrivateIdAligner,
    "kkrt": KkrtAligner,
    "blind-rsa": BlindRsaAligner,
}


def register_aligner(name: str, aligner: type[Aligner]) -> None:
    """Make an aligner available by name to `simulate` and the run config."""
    _ALIGNERS[name] = aligner


def load_aligner(name: str) -> Callable[..., Aligner]:
    """Return the class of an aligner by name or ``"module:Class"``; `ConfigError` if it is none."""
    if name in _ALIGNERS:
        return _ALIGNERS[name]
    if ":" not in name:
        raise ConfigError(
            f"unknown alignment {name!r}; expected one of {sorted(_ALIGNERS)} or 'module:Class'"
        )
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"alignment {name!r} cannot be loaded ({error})") from error
    if not (isinstance(found, type) and issubclass(found, Aligner)):
        raise ConfigError(f"alignment {name!r} is not a subclass of Aligner")
    return found


def make_aligner(
    alignment: "str | Aligner", rows: str = "union", normalise: Sequence[str] | str = ()
) -> Aligner:
    """Return the aligner of that name, or raise `ConfigError` listing the valid ones."""
    if isinstance(alignment, Aligner):
        return alignment
    return load_aligner(alignment)(rows=rows, normalise=normalise)


def aligner_class(alignment: "str | Aligner") -> type[Aligner]:
    """Return the class of an aligner, or of that name."""
    if isinstance(alignment, Aligner):
        return type(alignment)
    return load_aligner(alignment)  # type: ignore[return-value]


def alignment_name(aligner: type[Aligner]) -> str:
    """Return what a policy calls an alignment: its protocol's name, or ``module:Class``."""
    known = next((name for name, found in _ALIGNERS.items() if found is aligner), "")
    return known or f"{aligner.__module__}:{aligner.__qualname__}"


_LABELS = Round("labels", "the label column, by consent of its holder", tells=FACTS, ask=ONE)


def whole_protocol(
    groups: Sequence[type[AlignmentSteps]], strategy: Protocol | None
) -> Protocol | None:
    """Return what a run exchanges, alignment first; None if a part of it is not declared."""
    declared = [group.protocol for group in groups]
    if strategy is None or None in declared:
        return None
    keys = tuple(key for one in declared if one is not None for key in one.hands_over)
    known = tuple(one for one in declared if one is not None)
    before = Protocol(Either(*known), _LABELS, hands_over=keys)
    return before.then(strategy)


def alignment_steps(alignment: "str | type[Aligner] | None") -> tuple[type[AlignmentSteps], ...]:
    """Return the step groups that a party offers, of all built-in protocols if none is known."""
    if alignment is None:
        return tuple(aligner.steps for aligner in _BUILT_IN)
    aligner = load_aligner(alignment) if isinstance(alignment, str) else alignment
    steps: type[AlignmentSteps] = aligner.steps  # type: ignore[union-attr]
    return (steps,)
