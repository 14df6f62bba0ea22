"""One round: send a message to each node, collect the replies, try again what may pass."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_vertical.errors import PartyError, StateLostError
from flwr_vertical.grids.poll import pauses
from flwr_vertical.log import logger
from flwr_vertical.protocol.messages import make_message, read_envelope

# Flower's codes for failures of transport, which a second try may cure: message or reply not
# available, node not available, ClientApp crashed. A step that raised is not tried again.
_TRANSIENT = {3, 4, 5, 8}

_MOST_TOLD = 4  # further parties whose errors a message tells


class PartyStateLostError(PartyError):
    """A party is there, but what it remembered of the run ended with its process."""


def exchange(
    grid: Grid,
    nodes: Mapping[str, int],
    requests: Mapping[str, RecordDict],
    *,
    step: str,
    timeout: float,
    retries: int,
    patience: float = 0.0,
    renew: Callable[[], Mapping[str, RecordDict]] | None = None,
    enough: Callable[[Mapping[str, RecordDict]], bool] | None = None,
    limit: float | None = None,
) -> dict[str, RecordDict]:
    """Send one request to each node and return all replies."""
    answered: dict[str, RecordDict] = {}
    causes: dict[str, str] = {}
    pending, back_by = dict(requests), math.inf
    started, tries, seconds = time.monotonic(), 0, timeout
    for again in range(retries + 1):
        if limit is not None:
            left = started + limit - time.monotonic()
            if again and left <= 0:
                break
            seconds = min(timeout, max(left, 0.0))
        tries += 1
        if again:
            who = "; ".join(_some([f"{name}: {causes[name]}" for name in sorted(pending)]))
            logger.warning("step %r: trying again (%d of %d) for %s", step, again, retries, who)
            back_by = min(back_by, time.monotonic() + patience)
            _await_listed(grid, {nodes[name] for name in pending}, back_by)
            if renew is not None:
                pending, answered = dict(renew()), {}
        found, causes = attempt(grid, nodes, pending, step=step, timeout=seconds)
        answered |= found
        pending = {name: pending[name] for name in causes}
        if (enough is not None and enough(answered)) or not pending:
            return answered
    raise lost(causes, step, tries)


def _await_listed(grid: Grid, node_ids: set[int], until: float) -> None:
    """Wait for nodes that Flower struck off its list, as it does after a minute of silence."""
    waits = pauses(1.0)
    while time.monotonic() < until and not node_ids <= set(grid.get_node_ids()):
        time.sleep(next(waits))


def attempt(
    grid: Grid,
    nodes: Mapping[str, int],
    requests: Mapping[str, RecordDict],
    *,
    step: str,
    timeout: float,
    ask_again: float | None = None,
) -> tuple[dict[str, RecordDict], dict[str, str]]:
    """Send one request to each node, once; or again where nothing at all has come back."""
    answered: dict[str, RecordDict] = {}
    causes: dict[str, str] = {}
    silent = list(requests)
    ends = time.monotonic() + timeout
    seconds = timeout if ask_again is None else min(ask_again, timeout)
    while True:
        found, failed = _send(grid, nodes, {n: requests[n] for n in silent}, step, seconds)
        answered |= found
        causes |= failed
        silent = [name for name in silent if name not in found and name not in failed]
        left = ends - time.monotonic()
        if ask_again is None or not silent or left <= 0:
            nothing = f"no answer within {round(timeout, 1):g} s"
            return answered, causes | dict.fromkeys(silent, nothing)
        logger.warning("step %r: no answer from %s yet; asking again", step, silent)
        seconds = min(2 * seconds, left)


def _send(
    grid: Grid, nodes: Mapping[str, int], requests: Mapping[str, RecordDict], step: str, wait: float
) -> tuple[dict[str, RecordDict], dict[str, str]]:
    """Send requests once; return replies, and why there are none where transport says so."""
    messages = [make_message(requests[name], nodes[name]) for name in requests]
    answered: dict[str, RecordDict] = {}
    causes: dict[str, str] = {}
    arrived = list(grid.send_and_receive(messages, timeout=wait))
    # By message: the SuperLink's own errors come from no node.
    names = {m.metadata.message_id: name for m, name in zip(messages, requests, strict=True)}
    replies = [(names.get(reply.metadata.reply_to_message_id, ""), reply) for reply in arrived]
    failed: list[PartyError] = []
    # By name: if several failed, which one is reported must not depend on who was first.
    for name, reply in sorted(replies, key=lambda pair: pair[0]):
        if name not in requests or name in answered:
            continue
        try:
            content, cause = read_reply(reply, name, step)
        except PartyError as error:
            failed.append(error)
            continue
        if content is None:
            causes[name] = cause
        else:
            answered[name] = content
            causes.pop(name, None)
    if failed:
        raise joined(failed)
    return answered, causes


def joined(failed: Sequence[PartyError]) -> PartyError:
    """Return one error for all parties that failed in a round: the first, naming the others."""
    # One that lost its state decides alone, as the others' work will be taken again.
    for error in failed:
        if isinstance(error, PartyStateLostError):
            return error
    first, others = failed[0], failed[1:]
    if not others:
        return first
    told = "\n  ".join(_some([f"party {error.party!r}: {error.cause}" for error in others]))
    return PartyError(first.party, first.step, f"{first.cause}\nIn the same step failed:\n  {told}")


def _some(parties: Sequence[str]) -> list[str]:
    """Return the first of what is said of parties, and how many more there are."""
    more = len(parties) - _MOST_TOLD
    return [*parties[:_MOST_TOLD], f"and {more} more parties"] if more > 0 else list(parties)


def lost(causes: Mapping[str, str], step: str, tries: int, why: str = "") -> PartyError:
    """Return the error that ends a run because of nodes that did not answer."""
    name = min(causes)
    others = _some(sorted(set(causes) - {name}))
    note = f" (the same round failed for {', '.join(others)})" if others else ""
    count = "1 try" if tries == 1 else f"{tries} tries"
    return PartyError(name, step, f"{causes[name]} after {count}{why}{note}")


def read_reply(reply: Message, name: str, step: str) -> tuple[RecordDict | None, str]:
    """Return a reply's content, or None and a cause that may pass; raise what will not pass."""
    if reply.has_error():
        reason = (reply.error.reason or "no reason given").strip().splitlines()[-1]
        cause = f"Flower reports error {reply.error.code}: {reason}"
        if reply.error.code not in _TRANSIENT:
            raise PartyError(name, step, cause)
        return None, cause
    envelope = read_envelope(reply.content)
    if envelope is None:
        raise PartyError(name, step, "its answer is not in this library's form")
    if envelope["status"] == "error":
        if envelope["error"] == StateLostError.__name__:
            raise PartyStateLostError(name, step, str(envelope["message"]))
        who = str(envelope.get("party") or name) if name.startswith("node ") else name
        raise PartyError(who, step, f"{envelope['error']!s}: {envelope['message']!s}")
    return reply.content, ""
