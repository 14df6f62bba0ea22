"""Nothing leaves a party without the entry in its ledger that the protocol says."""

from typing import Any

import numpy as np

from flwr_vertical.errors import ProtocolError
from flwr_vertical.node.party import Party
from flwr_vertical.node.steps import Summands
from flwr_vertical.privacy_ledger.entries import digest_of
from flwr_vertical.protocol.declaration import FACTS, NOTHING, Round

# In the state, under a prefix that the server may not write to: kinds of entries of this run.
_NOTED = "protocol.noted"


def check_counted(party: Party, step: str, answer: object, expected: Round | None) -> None:
    """Refuse an answer that the ledger does not count; count by size what no protocol declares."""
    noted = set(party.state.get(_NOTED, [])) | party.kinds_noted
    if expected is None:
        _count_by_size(party, step, answer)
        return
    counted = set(expected.kinds) - {FACTS, NOTHING}
    if beyond := sorted(party.kinds_noted - counted):
        raise ProtocolError(
            f"step {step!r} of party {party.name!r} made entries {beyond} in the privacy ledger, "
            f"and its protocol says that it tells {list(expected.kinds)}: correct its Round"
        )
    free = {FACTS, NOTHING} & set(expected.kinds)
    if counted and not free and not counted & noted and _size(answer):
        raise ProtocolError(
            f"step {step!r} of party {party.name!r} tells {sorted(counted)} by its protocol, and "
            "made no entry in the privacy ledger, so nothing leaves"
        )
    if party.kinds_noted:
        party.state[_NOTED] = sorted(noted)


def _count_by_size(party: Party, step: str, answer: object) -> None:
    size = _size(answer) if party.remembers else 0
    if not size or party.kinds_noted or not len(party.own_ids):
        return
    rows = np.ones(len(party.own_ids), dtype=bool)
    party.open_bits(
        rows,
        8.0 * size / len(rows),
        content=digest_of(step, b"".join(map(_as_bytes, _parts_of(answer)))),
        agreed=True,
        what=f"step {step!r} of a strategy that declares no protocol: {size:,} bytes",
    )


def _size(answer: object) -> int:
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in _parts_of(answer))


def _as_bytes(part: np.ndarray[Any, Any] | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.tobytes()


def _parts_of(answer: object) -> list[np.ndarray[Any, Any] | bytes]:
    """Return all arrays and numbers in an answer, then its bytes."""
    if isinstance(answer, Summands):
        values = [*answer.values.values(), *answer.public.values()]
    else:
        values = list(answer.values()) if isinstance(answer, dict) else []
    arrays = [np.asarray(value) for value in values if not isinstance(value, str | bytes)]
    return [
        *(array for array in arrays if array.dtype.kind in "biuf"),
        *(value for value in values if isinstance(value, bytes)),
    ]
