"""Nodes that come back: found by name, whatever node ID they have now, and asked again.

Only for runs with checkpoints: a node that comes back goes on from its own.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.grids.poll import pauses
from flwr_vertical.grids.proxy import reopen
from flwr_vertical.log import logger
from flwr_vertical.protocol.codec import Payload, decode, payload_bytes
from flwr_vertical.protocol.messages import ARBITER, VALUES, make_message
from flwr_vertical.server.journal import Journal
from flwr_vertical.server.rounds import attempt, lost, read_reply

RESUME = "resume"  # in the ledger
_AGAIN = 1.0  # seconds until a node that could not be reached is greeted again


@dataclass(frozen=True)
class ReturnedNode:
    """A node that answered a resuming greeting."""

    node_id: int  # Its node ID now
    last: int  # Number of the last message that it answered
    bytes_up: int  # Size of its answer
    seconds: float  # How long it took
    identity: bytes = b""  # Of the answer; empty where the node has no identity key
    signature: bytes = b""  # Of the answer; empty where the node has no identity key


def greet(
    grid: Grid,
    wanted: Collection[str],
    greeting: RecordDict,
    patience: float,
    *,
    busy: Collection[int] = (),
) -> tuple[dict[str, ReturnedNode], list[str]]:
    """Greet nodes as they connect until all that are wanted have answered, or time is over."""
    started = time.monotonic()
    waits = pauses(min(1.0, patience / 50))
    found: dict[str, ReturnedNode] = {}
    troubles: dict[int, str] = {}
    asked: dict[str, int] = {}
    due: dict[int, float] = {}
    while True:
        now = time.monotonic()
        nodes = [n for n in grid.get_node_ids() if n not in busy and due.get(n, 0.0) <= now]
        nodes = reopen(grid, nodes)  # a new process must open a channel of its own first
        if nodes:
            numbers = grid.push_messages([make_message(greeting, n) for n in nodes])
            asked |= {m: n for m, n in zip(numbers, nodes, strict=False) if m}
            due |= dict.fromkeys(nodes, math.inf)
        for reply in list(grid.pull_messages(list(asked))) if asked else []:
            node_id = asked.pop(reply.metadata.reply_to_message_id, None)
            if node_id is None:
                continue
            told = _read(reply, node_id, wanted)
            if isinstance(told, str):
                troubles[node_id] = told
                if reply.has_error():  # of transport, which may pass
                    due[node_id] = time.monotonic() + _AGAIN
                continue
            name = ARBITER if told["role"] == "arbiter" else str(told["party"])
            if name in wanted and name not in found:
                if told["problem"]:
                    raise PartyError(name, RESUME, str(told["problem"]))
                seconds = time.monotonic() - started
                size = payload_bytes(reply.content)
                signed = told.get("identity", b""), told.get("signature", b"")
                found[name] = ReturnedNode(node_id, int(told["last"]), size, seconds, *signed)
        if found.keys() >= set(wanted) or time.monotonic() - started > patience:
            return found, [troubles[node_id] for node_id in sorted(troubles)]
        time.sleep(next(waits))


def _read(reply: Message, node_id: int, wanted: Collection[str]) -> Payload | str:
    try:
        content, cause = read_reply(reply, f"node {node_id}", RESUME)
    except PartyError as error:
        name = ARBITER if error.party == "arbiter" and ARBITER in wanted else error.party
        if name in wanted:  # it is here, and refuses: by its policy, say
            raise PartyError(name, RESUME, error.cause) from error
        return str(error)
    if content is None:
        return f"node {node_id}: {cause}"
    told = decode(content, VALUES)
    return told if {"party", "role", "last", "problem"} <= set(told) else f"node {node_id}: no name"


def exchange_patiently(
    grid: Grid,
    nodes: dict[str, int],
    requests: Mapping[str, RecordDict],
    greeting: RecordDict,
    *,
    step: str,
    timeout: float,
    retries: int,
    patience: float,
    replies_kept: bool,
) -> tuple[dict[str, RecordDict], dict[str, ReturnedNode]]:
    """As `rounds.exchange`, but nodes that are lost may come back under other node IDs."""
    answered: dict[str, RecordDict] = {}
    back: dict[str, ReturnedNode] = {}
    pending = dict(requests)
    allowed = max(1, retries)
    for tries in range(1, allowed + 2):
        again = max(patience, _AGAIN) if replies_kept else None
        found, causes = attempt(grid, nodes, pending, step=step, timeout=timeout, ask_again=again)
        answered |= found
        if not causes:
            break
        if tries > allowed:
            raise lost(causes, step, tries)
        who = "; ".join(f"{name}: {causes[name]}" for name in sorted(causes))
        logger.warning("step %r: lost %s; waiting up to %g s for a return", step, who, patience)
        busy = {node_id for name, node_id in nodes.items() if name not in causes}
        returned, troubles = greet(grid, causes, greeting, patience, busy=busy)
        gone = {name: cause for name, cause in causes.items() if name not in returned}
        if gone:
            told = f" ({'; '.join(troubles)})" if troubles else ""
            raise lost(gone, step, tries, f", and it did not come back in {patience:g} s{told}")
        nodes |= {name: greeted.node_id for name, greeted in returned.items()}
        back |= returned
        logger.info("step %r: %s came back", step, sorted(returned))
        pending = {name: pending[name] for name in causes}
    return answered, back


def find_all(
    grid: Grid, journal: Journal, names: Sequence[str], greeting: RecordDict, patience: float
) -> dict[str, ReturnedNode]:
    """Find all nodes of a run that broke off, each where the journal ends."""
    # Where it ends with a snapshot they need only have that one.
    found, troubles = greet(grid, names, greeting, patience)
    if absent := sorted(set(names) - set(found)):
        told = f"; {'; '.join(troubles)}" if troubles else ""
        raise ConfigError(
            f"{absent} took part in the run that is resumed, but did not answer within "
            f"{patience:g} s; start their SuperNodes, or raise 'patience'{told}"
        )
    last = int(journal.last["sequence"])
    if journal.snapshot is None:
        check_numbers(found, journal.last["answered"], last, str(journal.path))
    logger.info("going on with the run that broke off at message %d (%s)", last, journal.path)
    return found


def say_farewell(grid: Grid, nodes: Mapping[str, int], request: RecordDict, timeout: float) -> None:
    """Tell all nodes to remove their checkpoints; who does not hear it is named in the log."""
    # The run is over: whatever goes wrong here does not spoil its result.
    requests = dict.fromkeys(nodes, request)
    if not requests:
        return
    try:
        _, deaf = attempt(grid, nodes, requests, step="farewell", timeout=timeout)
    except PartyError as error:
        deaf = {error.party: error.cause}
    for name, cause in sorted(deaf.items()):
        logger.warning(
            "the run is over, but %r was not told to remove its checkpoint (%s); its people "
            "can remove the folder .checkpoint of this run",
            name,
            cause,
        )


def check_numbers(
    found: Mapping[str, ReturnedNode], answered: Mapping[str, int], sequence: int, where: str
) -> None:
    """Check that every node is where the journal ends, or one message further."""
    for name, node in sorted(found.items()):
        # A sum in ckks mode is two messages, the second to the arbiter.
        ahead = range(sequence + 1, sequence + (3 if name == ARBITER else 2))
        if node.last != answered[name] and node.last not in ahead:
            older = "its checkpoint" if node.last < answered[name] else where
            raise PartyError(
                name,
                RESUME,
                f"its checkpoint is at message {node.last}, but the journal of the server at "
                f"{answered[name]}: {older} is an older one; put back the newest",
            )
