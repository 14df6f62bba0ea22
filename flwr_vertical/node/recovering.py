"""Going on after a loss: a node's checkpoint and snapshots, as messages ask for them."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from flwr.app import Context, RecordDict

from flwr_vertical.errors import ProtocolError, StateLostError, VerticalError
from flwr_vertical.log import logger
from flwr_vertical.node import live_objects
from flwr_vertical.node.checkpoint import Checkpoint, restore
from flwr_vertical.node.node_data import NodeData
from flwr_vertical.node.rollback import SEQUENCE
from flwr_vertical.node.snapshot import Snapshots, go_back, tell_snapshot
from flwr_vertical.node.state import State
from flwr_vertical.node.storage import Storage
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.codec import decode, entries, filled, payload_bytes
from flwr_vertical.protocol.disk import digest
from flwr_vertical.protocol.messages import HELLO, RESTORE, SNAPSHOT, VALUES, make_reply

_REPLY = "flwr-vertical.reply-"  # number and name of a record follow
# A larger reply is kept by the process alone: Flower moves a node's state to each new process and
# back, as one piece of at most 2 GiB.
_MOST_BYTES = 64 << 20


def repeated_reply(
    step: str,
    sequence: int,
    asked: bytes,
    state: Mapping[str, Any],
    cache: MutableMapping[str, Any],
    records: RecordDict,
) -> RecordDict | None:
    """Return the reply that a message got before; None if it is new."""
    # `asked` is a digest of what it asks for, where the run keeps checkpoints.
    if sequence > int(state.get(SEQUENCE, -1)):
        # The server has the last reply. While the step computes, a large one must not take memory.
        cache.pop("reply-sequence", None)
        cache.pop("reply", None)
        held = entries(records)
        for name in [name for name in held if name.startswith(_REPLY)]:
            del held[name]
        return None
    if cache.get("reply-sequence") != sequence:
        prefix = f"{_REPLY}{sequence}:"
        if kept := {n.removeprefix(prefix): r for n, r in records.items() if n.startswith(prefix)}:
            return RecordDict(kept)
        raise StateLostError(
            f"message {sequence} ({step!r}) was already answered and the reply is gone; "
            "start the run again"
        )
    if cache.get("reply-request", asked) != asked:
        raise ProtocolError(
            f"message {sequence} ({step!r}) was answered before, but then it asked for "
            "something else: the server's journal has lost entries; start the run again"
        )
    reply: RecordDict = cache["reply"]
    return reply


def check_follows(step: str, after: int, state: Mapping[str, Any]) -> None:
    """Refuse a step that builds on an answer which this node does not remember."""
    # Flower sends a reply before it keeps the state: between the two a process may die.
    if int(state.get(SEQUENCE, -1)) < after and "node.name" in state:
        raise StateLostError(
            f"step {step!r} builds on message {after}, which this node answered, but what it "
            "remembered of it is lost: its process ended too early; start the run again"
        )


def keep_reply(
    sequence: int, asked: bytes, reply: RecordDict, cache: MutableMapping[str, Any]
) -> None:
    """Keep the reply of a message while the process lives."""
    cache["reply-sequence"], cache["reply"] = sequence, reply
    cache["reply-request"] = asked


class Recovery:
    """What outlives the process: the node's checkpoint of a run, if the run keeps one."""

    def __init__(
        self, envelope: Any, context: Context, storage: Storage, cache: dict[str, Any]
    ) -> None:
        self._envelope, self._context = envelope, context
        self._storage, self._cache = storage, cache
        self.checkpoint = Checkpoint.of(envelope, context, storage)
        # Between two snapshots nothing goes to the disk: who is lost goes back to the last one.
        self._transient = self.checkpoint is not None and bool(envelope.get("transient"))
        self._kept = None if self._transient else self.checkpoint
        self._files = None if self.checkpoint is None else Snapshots(self.checkpoint)

    def digest_of(self, step: str, request: RecordDict) -> bytes:
        """Return a digest of what a message asks for, if its reply goes to the disk."""
        return b"" if self._kept is None else digest(step, request)

    @property
    def load_live(self) -> Callable[[str], dict[str, Any] | None]:
        """What reads live objects of a version from the disk."""
        return (lambda version: None) if self._files is None else self._files.load_live

    def resume(self) -> RecordDict:
        """Answer a resuming greeting: how far the node's checkpoint goes."""
        assert self.checkpoint is not None
        if self._transient:
            last = int(State(self._context).get(SEQUENCE, -1))
            reply = tell_snapshot(self.checkpoint, self._envelope, self._context, last)
        else:
            reply = _resume(self.checkpoint, self._context, self._cache)
        return self._signed(reply, self.checkpoint)

    def catch_up(self, step: str, sequence: int) -> None:
        """Go on from the checkpoint where this process, or Flower's state, lags behind it."""
        if self.checkpoint is None or step == HELLO:
            return
        if not self._transient and self._cache.get("reply-sequence") != sequence:
            known = int(State(self._context).get(SEQUENCE, -1))
            found = self.checkpoint.newer_than(min(known, sequence - 1))
            if found is not None:
                restore(found, self._context, self._cache)
        if step == RESTORE and int(State(self._context).get(SEQUENCE, -1)) < sequence:
            go_back(self.checkpoint, self._envelope, self._context, self._cache)

    def write(self, asked: bytes, state: State, reply: RecordDict) -> None:
        """Keep what outlives the process, in the state or on disk; remove what nobody needs."""
        envelope, cache, files, kept = self._envelope, self._cache, self._files, self._kept
        sequence, complete = int(envelope["sequence"]), int(envelope.get("snapshot", -1))
        if kept is None and payload_bytes(reply) <= _MOST_BYTES:
            # A busy SuperLink may count a node as lost and drop its reply, and by Flower's messages
            # each step has a process of its own: the state is what the next one knows.
            kept_reply = {f"{_REPLY}{sequence}:{n}": r for n, r in entries(reply).items()}
            filled(self._context.state, kept_reply)
        if files is None:
            return
        if cache.get("complete-snapshot", -1) < complete:
            files.complete(complete)
            cache["complete-snapshot"] = complete
        if kept is None:
            return
        version = str(state.get(live_objects.VERSION, ""))
        written = bool(version) and files.keep_live(live_objects.live_of(cache), version)
        data = NodeData(self._storage, self._context, state, cache).version
        kept.save(sequence, asked, self._context.state, reply, data, version)
        if envelope["step"] == SNAPSHOT:
            files.keep(sequence)
        elif written:
            files.sweep()

    def _signed(self, reply: RecordDict, checkpoint: Checkpoint) -> RecordDict:
        """Sign the answer to a resuming greeting, so that others know by their pins who is back."""
        told = decode(reply, VALUES)
        if told["problem"]:
            return reply
        mode, config = str(self._envelope["mode"]), self._context.node_config
        node = pins.NodeIdentity(
            checkpoint.name, checkpoint.role, mode, self._context.run_id, config
        )
        token = bytes.fromhex(checkpoint.token)
        return make_reply({**told, **pins.introduce_again(node, token, int(told["last"]))})


def _resume(checkpoint: Checkpoint, context: Context, cache: dict[str, Any]) -> RecordDict:
    """Go back to the checkpoint and say how far it goes, or what is wrong with it."""
    told: dict[str, Any] = {"party": checkpoint.name, "role": checkpoint.role}
    try:
        kept = checkpoint.resume()
    except VerticalError as error:
        logger.error("cannot resume: %s", error)
        return make_reply({**told, "last": -1, "problem": str(error)})
    restore(kept, context, cache)
    return make_reply({**told, "last": kept.sequence, "problem": ""})
