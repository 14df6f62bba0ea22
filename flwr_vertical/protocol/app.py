"""`party_app`: a Flower ``ClientApp`` that serves the steps of a party."""

import logging
import time
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_vertical.channel.app import ChannelClientApp
from flwr_vertical.crypto import generate_keypair, generate_keys
from flwr_vertical.errors import ProtocolError, VerticalError
from flwr_vertical.protocol import pins, private_sum
from flwr_vertical.protocol.checkpoint import Checkpoint, restore
from flwr_vertical.protocol.codec import decode, encode
from flwr_vertical.protocol.disk import digest
from flwr_vertical.protocol.messages import (
    ARGUMENTS,
    SUMS,
    UPDATES,
    make_error_reply,
    make_reply,
    read_envelope,
)
from flwr_vertical.protocol.party import Arbiter, Host, Party, Summands
from flwr_vertical.protocol.state import State
from flwr_vertical.protocol.storage import FileStorage, Storage
from flwr_vertical.version import __version__

logger = logging.getLogger("flwr_vertical")

HELLO = "hello"
FAREWELL = "farewell"
_SEQUENCE = "protocol.last-sequence"
_RUN = "node.run"

PartyTypes = tuple[type[Party], type[Arbiter]]


def party_app(
    party: type[Party] | Callable[[Context], PartyTypes],
    *,
    arbiter: type[Arbiter] = Arbiter,
    storage: Storage | None = None,
) -> ClientApp:
    """Make a Flower ``ClientApp`` of a party.

    Parameters
    ----------
    party : type[Party] or Callable[[Context], tuple[type[Party], type[Arbiter]]]
        The party half of a strategy, or a function that picks both halves by the run config.
    arbiter : type[Arbiter]
        What a node with ``role = "arbiter"`` in its node config runs.
    storage : Storage, optional
        Where tables are read from and written to; by default files named in the node config.

    Returns
    -------
    flwr.clientapp.ClientApp
        Answers messages of the type ``query.step``, from Flower or over a live channel.

    Examples
    --------
    >>> from flwr_vertical import Party, party_app, step
    >>> class Counter(Party):
    ...     @step
    ...     def count(self) -> dict[str, int]:
    ...         return {"rows": self.table.n_samples}
    >>> app = party_app(Counter)
    """
    app = ChannelClientApp()
    server = StepServer(party, arbiter, storage or FileStorage())

    @app.query("step")
    def serve(message: Message, context: Context) -> Message:
        return Message(server.answer(message.content, context), reply_to=message)

    return app


class StepServer:
    """Answers requests on behalf of the node whose context comes with them."""

    def __init__(
        self,
        party: type[Party] | Callable[[Context], PartyTypes],
        arbiter: type[Arbiter],
        storage: Storage,
    ) -> None:
        self._party = party
        self._arbiter = arbiter
        self._storage = storage
        self._caches: dict[int, tuple[int, dict[str, Any]]] = {}

    def answer(self, request: RecordDict, context: Context) -> RecordDict:
        """Take the step that a request names; a failure becomes an error reply, never silence."""
        name = str(context.node_config.get("party", f"node {context.node_id}"))
        try:
            return self._answer(request, context)
        except Exception as error:
            logger.exception("party %r could not take the step", name)
            return make_error_reply(error)

    def _answer(self, request: RecordDict, context: Context) -> RecordDict:
        started = time.perf_counter()
        envelope = read_envelope(request)
        if envelope is None:
            raise ProtocolError("the message has no flwr-vertical envelope; who sent it?")
        step, sequence = str(envelope["step"]), int(envelope["sequence"])  # type: ignore[arg-type]
        cache = self._cache(context)
        checkpoint = Checkpoint.of(envelope, context, self._storage)
        if checkpoint is not None:
            if step == FAREWELL:  # the run is finished: its keys need not lie on the disk
                checkpoint.remove()
                return make_reply({}, {})
            if step == HELLO and envelope.get("resume"):
                return _resume(checkpoint, context, cache)
            if step != HELLO:
                _catch_up(checkpoint, sequence, context, cache)
        state = State(context)
        if step == HELLO:  # a new session: nothing of an earlier one may leak into it
            cache.clear()
            state.clear()
            if checkpoint is not None:
                checkpoint.begin()
                state[_RUN] = str(context.run_id)
        asked = digest(step, request) if checkpoint is not None else b""

        # A step is taken once: a repeated request gets the same reply again, so that a retry
        # neither repeats a change of state nor masks two different arrays with one stream.
        if sequence <= int(state.get(_SEQUENCE, -1)):
            if cache.get("reply-sequence") == sequence:
                if cache.get("reply-request", asked) != asked:
                    raise ProtocolError(
                        f"message {sequence} ({step!r}) was answered before, but then it asked for "
                        "something else: the server's journal has lost entries; start the run again"
                    )
                repeated: RecordDict = cache["reply"]
                return repeated
            raise ProtocolError(
                f"message {sequence} ({step!r}) was already answered and the reply is gone; "
                "start the run again"
            )

        # Flower sends a reply before it keeps the state: between the two a process may die.
        after = int(envelope.get("after", -1))  # type: ignore[arg-type]
        if int(state.get(_SEQUENCE, -1)) < after and "node.name" in state:
            raise ProtocolError(
                f"step {step!r} builds on message {after}, which this node answered, but what it "
                "remembered of it is lost: its process ended too early; start the run again"
            )

        # What the server hands over is kept even if the step fails: it is not sent again. Keys
        # are kept only if they are their owners' (where identities are pinned).
        updates = decode(request, UPDATES)
        if "node.name" not in state and (step != HELLO or updates):
            raise ProtocolError(
                f"step {step!r} came before the greeting, or this node was restarted during the "
                "run and lost its state; start the run again"
            )
        if pins.check_updates(updates):
            pins.verify(self._identified(context, state), {**state, **updates})
        state.update(updates)
        state.save()
        if step == HELLO:
            reply = make_reply({}, self._hello(context, state, envelope))
        else:
            reply = self._take(step, request, envelope, context, state, cache)
        state[_SEQUENCE] = sequence
        state.save()
        envelope_out: Any = read_envelope(reply)
        envelope_out["seconds"] = time.perf_counter() - started
        if checkpoint is not None:
            checkpoint.save(sequence, asked, context.state, reply)
        cache["reply-sequence"], cache["reply"] = sequence, reply
        cache["reply-request"] = asked
        return reply

    def _hello(self, context: Context, state: State, envelope: Any) -> dict[str, Any]:
        """Say who is here and make the keys of this run; secrets stay in the node's state."""
        role = self._storage.role(context)
        name = self._storage.party_name(context) if role == "party" else "arbiter"
        mode = str(envelope["mode"])
        state["node.name"], state[private_sum.MODE] = name, mode
        public_keys: dict[str, bytes] = {}
        if role == "arbiter" and mode == "ckks":
            keys = generate_keys()
            state[private_sum.CKKS_SECRET] = keys.secret
            public_keys["ckks-public"] = keys.public
        elif role == "party" and mode == "masked":
            private, public = generate_keypair()
            state[private_sum.PRIVATE_KEY] = private
            public_keys["public-key"] = public
        identity = pins.introduce(self._identified(context, state), public_keys)
        return {"party": name, "role": role, "version": __version__, **public_keys, **identity}

    def _identified(self, context: Context, state: State) -> pins.Node:
        return pins.Node(
            name=str(state["node.name"]),
            role=self._storage.role(context),
            mode=str(state[private_sum.MODE]),
            # Greetings are signed for the run of Flower that began; one that goes on has another.
            run_id=int(state.get(_RUN, context.run_id)),
            config=context.node_config,
        )

    def _take(
        self,
        step: str,
        request: RecordDict,
        envelope: Any,
        context: Context,
        state: State,
        cache: dict[str, Any],
    ) -> RecordDict:
        arguments = decode(request, ARGUMENTS)
        encrypted = decode(request, SUMS)
        if encrypted:
            arguments["sums"] = private_sum.open_ciphertexts(encrypted, state, cache)
        answer = self._node(context, state, cache).take(step, arguments)
        mode = str(envelope["mode"])
        if mode == "call":
            return make_reply({}, _checked(answer, step))
        if not isinstance(answer, Summands):
            raise ProtocolError(
                f"step {step!r} was called for a private sum but returned "
                f"{type(answer).__name__}; return Summands(values, public)"
            )
        if mode != state[private_sum.MODE]:
            raise ProtocolError(
                f"step {step!r} was called for a {mode!r} sum, but the sums of this run are "
                f"{state[private_sum.MODE]!r}; who sent this?"
            )
        protected = private_sum.protect(
            answer.values,
            mode=mode,
            party=str(state["node.name"]),
            sequence=int(envelope["sequence"]),
            n_parties=int(envelope["n-parties"]),
            fraction_bits=int(envelope["fraction-bits"]),
            state=state,
            cache=cache,
        )
        reply = make_reply({}, answer.public)
        reply.update(encode(protected, SUMS))
        return reply

    def _node(self, context: Context, state: State, cache: dict[str, Any]) -> Party | Arbiter:
        party, arbiter = self._types(context)
        host = Host(
            name=str(state["node.name"]),
            run_config=context.run_config,
            node_config=context.node_config,
            state=state,
            cache=cache,
            load_table=lambda: self._storage.load(context),
            load_fitted=lambda: self._storage.load_fitted(context),
            load_truth=lambda: self._storage.load_truth(context),
            save_output=lambda frame: self._storage.save(context, frame),
        )
        return arbiter(host) if self._storage.role(context) == "arbiter" else party(host)

    def _types(self, context: Context) -> PartyTypes:
        if isinstance(self._party, type):
            return self._party, self._arbiter
        return self._party(context)

    def _cache(self, context: Context) -> dict[str, Any]:
        # One run at a time per node: an older run's tables must not fill the memory.
        run_id, cache = self._caches.get(context.node_id, (None, {}))
        if run_id != context.run_id:
            cache = {}
            self._caches[context.node_id] = (context.run_id, cache)
        return cache


def _resume(checkpoint: Checkpoint, context: Context, cache: dict[str, Any]) -> RecordDict:
    """Go back to the checkpoint and say how far it goes, or what is wrong with it."""
    told: dict[str, Any] = {"party": checkpoint.name, "role": checkpoint.role}
    try:
        kept = checkpoint.resume()
    except VerticalError as error:
        logger.error("cannot resume: %s", error)
        return make_reply({}, {**told, "last": -1, "problem": str(error)})
    restore(kept, context, cache)
    return make_reply({}, {**told, "last": kept.sequence, "problem": ""})


def _catch_up(
    checkpoint: Checkpoint, sequence: int, context: Context, cache: dict[str, Any]
) -> None:
    """Go on from the checkpoint where this process, or Flower's state, lags behind it."""
    if cache.get("reply-sequence") == sequence:
        return
    known = int(State(context).get(_SEQUENCE, -1))
    kept = checkpoint.newer_than(min(known, sequence - 1))
    if kept is not None:
        restore(kept, context, cache)


def _checked(answer: Any, step: str) -> dict[str, Any]:
    if answer is None:
        return {}
    if isinstance(answer, dict):
        return answer
    raise ProtocolError(
        f"step {step!r} returned {type(answer).__name__}; a called step returns a dict of values"
    )
