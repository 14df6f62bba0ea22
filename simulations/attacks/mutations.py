"""What a server could send in place of a message: other steps, arguments, numbers, rosters."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from flwr_vertical.protocol.binding import ASKED, DIGESTS, NAMES, own_digest
from flwr_vertical.protocol.codec import decode, encode
from flwr_vertical.protocol.messages import ARGUMENTS, ENVELOPE, UPDATES, read_envelope

STEP, STATE, ARGUMENT, VALUE = "another step", "a key of the state", "an argument", "a value"
EARLIER, NUMBER, ALONE = "an earlier message", "an old number", "told to one party alone"
KINDS = (STEP, STATE, ARGUMENT, VALUE, EARLIER, NUMBER, ALONE)
"""What is changed; `VALUE` is one within the type of its argument."""

_N_EARLIER = 3
"""Messages of each node that are sent again: its last ones, of different steps."""


def others(
    request: RecordDict, state: Mapping[str, Any], steps: list[str]
) -> Iterator[tuple[str, str, RecordDict]]:
    """Compose what a server could send in place of a message."""
    envelope: Any = read_envelope(request)
    for step in steps:
        if step != envelope["step"]:
            yield STEP, step, _with(request, step=step)
    for key, value in state.items():
        handed = encode({key: _other_value(value)}, UPDATES)
        yield STATE, key, RecordDict({**request, **_joined(request, handed, UPDATES)})
    arguments = decode(request, ARGUMENTS)
    yield ARGUMENT, "one more", _asking(request, {**arguments, "one more": 1})
    for name, value in arguments.items():
        rest = {key: other for key, other in arguments.items() if key != name}
        yield ARGUMENT, f"{name} missing", _asking(request, rest)
        for what, other in _of_other_types(value):
            yield ARGUMENT, f"{name} {what}", _asking(request, {**arguments, name: other})
        for what, other in _of_same_type(value):
            yield VALUE, f"{name} {what}", _asking(request, {**arguments, name: other})


def again(
    request: RecordDict, past: list[tuple[RecordDict, RecordDict]]
) -> Iterator[tuple[str, str, RecordDict]]:
    """Compose earlier messages as if they were new, and the new one as if it were an earlier."""
    envelope: Any = read_envelope(request)
    last: dict[str, RecordDict] = {}
    for old, _ in reversed(past):
        if len(last) < _N_EARLIER:
            of_old: Any = read_envelope(old)
            last.setdefault(of_old["step"], old)
    for step, old in last.items():
        of_old = read_envelope(old)
        numbers = {key: envelope[key] for key in ("sequence", "after") if key in envelope}
        yield EARLIER, step, _with(old, **numbers)
        yield NUMBER, f"of {step}", _with(request, sequence=of_old["sequence"])


def alone(request: RecordDict, party: str) -> Iterator[tuple[str, str, RecordDict]]:
    """Compose what one party may be told otherwise than all others."""
    envelope: Any = read_envelope(request)
    for other in {"call", "plain", "masked", "ckks"} - {envelope["mode"]}:
        yield ALONE, f"mode {other}", _with(request, mode=other)
    for name, change in (("n-parties", -1), ("n-parties", 1), ("fraction-bits", 7)):
        if name in envelope:
            yield ALONE, f"{name} {change:+}", _with(request, **{name: envelope[name] + change})
    told, digests = list(envelope.get(ASKED, [])), list(envelope.get(DIGESTS, []))
    if party not in told or len(told) != len(digests):
        return
    if len(told) > 1:
        fewer = [i for i, name in enumerate(told) if name == party or i != told.index(party) - 1]
        lists = {ASKED: [told[i] for i in fewer], DIGESTS: [digests[i] for i in fewer]}
        yield ALONE, "others asked", _with(request, **lists)
    own = list(envelope.get(NAMES, []))
    arguments = decode(request, ARGUMENTS)
    for name, value in arguments.items():
        for what, other in _of_same_type(value):
            changed, names = _asking(request, {**arguments, name: other}), sorted({*own, name})
            fitting = own_digest(envelope["step"], changed, names)
            every = [
                fitting if one == party else old for one, old in zip(told, digests, strict=True)
            ]
            lists = {NAMES: names, DIGESTS: every}
            yield ALONE, f"{name} {what}, digest fits", _with(changed, **lists)


def _of_other_types(value: Any) -> Iterator[tuple[str, Any]]:
    """Change a value to something that is no such argument at all."""
    yield "as text", 7 if isinstance(value, str) else "text"
    yield "as an array", np.array([object]).astype(str)
    if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        yield "not finite", value * np.nan


def _of_same_type(value: Any) -> Iterator[tuple[str, Any]]:
    """Change a value within its type."""
    if isinstance(value, bool):
        yield "turned", not value
    elif isinstance(value, int):
        for other in (-1, 0, 1, 2**40):
            yield f"{other}", other
    elif isinstance(value, float):
        yield "huge", 1e300
        yield "negative", -1.0
    elif isinstance(value, bytes) and value:
        yield "one bit", bytes([value[0] ^ 1]) + value[1:]
    elif isinstance(value, list) and value:
        yield "shorter", value[:-1]
        yield "repeated", [value[0]] * len(value)
    elif isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "iuf":
        yield "shorter", value[:-1]
        yield "negative", np.zeros_like(value) - value.dtype.type(1)
        yield (
            "large",
            np.full_like(value, np.iinfo(value.dtype).max if value.dtype.kind != "f" else 1e30),
        )
        if len(value) > 1:
            one = np.full_like(value, value.flat[0])
            one[0] = value[-1]
            yield "one row apart", one


def _other_value(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iufb":
        return np.roll(value, 1) if value.dtype.kind == "b" else value + value.dtype.type(1)
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, bytes):
        return value + b"1"
    return f"{value}1" if isinstance(value, str) else "other"


def _with(request: RecordDict, **changed: Any) -> RecordDict:
    envelope: Any = read_envelope(request)
    return RecordDict({**request, ENVELOPE: ConfigRecord({**envelope, **changed})})


def _asking(request: RecordDict, arguments: Mapping[str, Any]) -> RecordDict:
    return RecordDict({**request, **encode(arguments, ARGUMENTS)})


def _joined(request: RecordDict, more: RecordDict, prefix: str) -> RecordDict:
    """Return the records of a prefix with more in them."""
    joined = {**decode(request, prefix), **decode(more, prefix)}
    return encode(joined, prefix)
