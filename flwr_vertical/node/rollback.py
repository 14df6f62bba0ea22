"""Going back to the state before a step that is not repeatable, so that it can be taken again.

Only for runs without checkpoints: with them, an answer that was lost is found on disk.
"""

from typing import Any

from flwr.app import Context

from flwr_vertical.errors import ProtocolError
from flwr_vertical.node.state import State
from flwr_vertical.protocol import private_sum

SEQUENCE = "protocol.last-sequence"
_BEFORE = "state-before"
# In the cache, and of no step.
_TABLES = (
    "raw-table",
    "table",
    "fitted",
    "data-checked",
    "privacy-ledger",
    "ledger-rows-of-table",
    "ledger-rows",
)


def remember(context: Context, cache: dict[str, Any], first: int) -> None:
    """Remember the state before a step, while the process lives."""
    # `State.save` replaces the records of a context, and changes none.
    cache[_BEFORE] = first, dict(context.state)


def forget(cache: dict[str, Any]) -> None:
    """Go back no more: another step follows, or the run has ended here.

    Else a server could repeat what its protocol has once, and go on after it was refused.
    """
    cache.pop(_BEFORE, None)


def take_back(context: Context, cache: dict[str, Any], first: int, sequence: int) -> None:
    """Go back to the state before a message, where it was answered, to take its step again."""
    known = int(State(context).get(SEQUENCE, -1))
    if known >= sequence:  # taken already; the kept reply, or an error, follows
        return
    if known >= first:
        number, before = cache.get(_BEFORE, (None, None))
        if number != first:
            raise ProtocolError(
                f"message {first} was answered, and the state before it is gone with the process "
                "that remembered it, or another message followed; start the run again"
            )
        context.state.clear()
        context.state.update(before)
        kept = {key: cache[key] for key in _TABLES if key in cache}
        cache.clear()
        cache.update(kept)
    state = State(context)
    if "node.name" in state:
        # Numbers up to this one may have masked something; none of them is used again.
        state[SEQUENCE] = state[private_sum.MASK_SEQUENCE] = sequence - 1
        state.save()
