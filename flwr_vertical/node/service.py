"""Answering a message: the step is taken once, its sums are protected, the state is kept."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.app import Context, RecordDict

from flwr_vertical.errors import (
    LedgerError,
    PolicyError,
    ProtocolError,
    StateLostError,
    StorageError,
    UnexpectedMessageError,
    VerticalError,
)
from flwr_vertical.log import logger
from flwr_vertical.node import live_objects
from flwr_vertical.node.automaton import REFUSED, Course
from flwr_vertical.node.checkpoint import Checkpoint, clear_openings
from flwr_vertical.node.counting import check_counted
from flwr_vertical.node.introduction import Introduction, described
from flwr_vertical.node.node_data import RUN, NodeData
from flwr_vertical.node.party import Arbiter, Party
from flwr_vertical.node.policy_check import Admitted, Guard, NodeTypes, check_n_parties
from flwr_vertical.node.recovering import Recovery, check_follows, keep_reply, repeated_reply
from flwr_vertical.node.rollback import SEQUENCE, forget, remember, take_back
from flwr_vertical.node.state import State
from flwr_vertical.node.steps import Summands, function_of
from flwr_vertical.node.storage import Storage
from flwr_vertical.policy.run_request import RunRequest
from flwr_vertical.protocol import messages, pins, private_sum
from flwr_vertical.protocol.binding import binding_of, context_of_run
from flwr_vertical.protocol.codec import decode, encoded
from flwr_vertical.protocol.disk import digest
from flwr_vertical.version import __version__

_ADMITTED = "node.admitted"

_MENDABLE = (StateLostError, StorageError, LedgerError, OSError, MemoryError, ImportError)
"""What a node lacks, not what a message asked for: the step may be asked for again."""


@dataclass(frozen=True)
class _Call:
    """A message to a node, and what the node has in this process of the run."""

    step: str
    sequence: int
    request: RecordDict
    envelope: Any
    context: Context
    cache: dict[str, Any]


class StepServer:
    """Answers requests on behalf of the node whose context comes with them."""

    def __init__(
        self,
        types: Callable[[Context], NodeTypes],
        storage: Storage,
        names: Callable[[Context], RunRequest] = lambda _: RunRequest(),
    ) -> None:
        self._types = types
        self._storage = storage
        self._guard = Guard(names, types, storage)
        self._introduction = Introduction(storage)
        self._caches: dict[int, tuple[int, dict[str, Any]]] = {}
        self._told: set[tuple[int, str, str]] = set()  # errors whose traceback was logged

    def answer(self, request: RecordDict, context: Context) -> RecordDict:
        """Take the step that a request names; a failure becomes an error reply, never silence."""
        try:
            return self._answer(request, context)
        except StateLostError as error:  # no fault of the code; the server says what follows
            name = self._name(context)
            logger.warning("party %r could not take the step: %s", name, error)
            return messages.make_error_reply(error, name)
        except PolicyError as error:  # as its owner wants it
            logger.warning("%s", error)
            return messages.make_error_reply(error, self._name(context))
        except Exception as error:
            name = self._name(context)
            in_full = self._storage.in_memory
            if isinstance(error, VerticalError):  # raised on purpose: it says all that helps
                # Where tables lie in memory, the server's error tells the user the same.
                level = logging.DEBUG if in_full else logging.ERROR
                logger.log(level, "party %r could not take the step: %s", name, error)
            elif not in_full or self._is_new(context, error):
                logger.exception("party %r could not take the step", name)
            return messages.make_error_reply(error, name, in_full=in_full)

    def _is_new(self, context: Context, error: Exception) -> bool:
        """Whether no party that this process serves has failed like this in the run."""
        seen = (context.run_id, type(error).__name__, messages.place_of(error))
        if seen in self._told:
            return False
        self._told.add(seen)
        return True

    def _answer(self, request: RecordDict, context: Context) -> RecordDict:
        started = time.perf_counter()
        envelope: Any = messages.read_envelope(request)
        if envelope is None:
            raise ProtocolError("the message has no flwr-vertical envelope; who sent it?")
        step, sequence = str(envelope["step"]), int(envelope["sequence"])
        if step == messages.WHO:  # others wait for a node: the server names who is absent
            told = {"party": self._name(context), "role": self._storage.role(context)}
            return messages.make_reply({**told, "version": __version__})
        cache = self._cache(context)
        call = _Call(step, sequence, request, envelope, context, cache)
        recovery = Recovery(envelope, context, self._storage, cache)
        if step == messages.FAREWELL and recovery.checkpoint is not None:
            self._storage.end(context)
            recovery.checkpoint.remove()  # the run is finished: its keys need not lie on the disk
            return messages.make_reply({})
        admitted = self._admitted(call)
        if step == messages.HELLO and envelope.get("resume") and recovery.checkpoint is not None:
            return recovery.resume()
        recovery.catch_up(step, sequence)
        state = State(context)
        if step == messages.HELLO:
            self._begin(call, admitted, recovery.checkpoint, state)
        asked = recovery.digest_of(step, request)
        first = int(envelope.get("retake", sequence))
        if first < sequence:  # an answer of the round was lost, and its step is not repeatable
            take_back(context, cache, first, sequence)
            state = State(context)
        if pins.RETURNED[0] in envelope and "node.name" in state:
            token = bytes(envelope["checkpoint"])
            pins.verify_returned(self._introduction.identified(context, state), envelope, token)
        if repeated := repeated_reply(step, sequence, asked, state, cache, context.state):
            return repeated
        check_follows(step, int(envelope.get("after", -1)), state)
        course = self._course(call, admitted, state)
        if course is not None:
            self._admit(course, call, admitted)
        if step != messages.HELLO and step in self._introduction.unrepeatable(
            context, admitted.types
        ):
            remember(context, cache, first)
        else:
            forget(cache)
        self._take_updates(call, admitted, state)
        held = live_objects.live_of(cache)
        version = str(state.get(live_objects.VERSION, ""))
        held.begin(version, recovery.load_live, f"party {state.get('node.name')!r}")
        if step == messages.HELLO:
            reply = messages.make_reply(
                self._introduction.hello(context, state, envelope, admitted, cache)
            )
        elif step == messages.SNAPSHOT:
            reply = messages.make_reply({})
        elif step == messages.RESTORE:
            held.settle()  # a damaged file is found now, not in the middle of the next step
            reply = messages.make_reply(self._introduction.new_keys(context, state))
        else:
            try:
                reply = self._take(call, admitted, state, course)
            except Exception as error:
                # Whether a step fails may depend on the table: it tells that once a run.
                if course is not None and not isinstance(error, _MENDABLE):
                    self._end(call, f"it failed: {type(error).__name__}", error)
                raise
            if course is not None:
                course.note_taken(step, request)
        changed = held.end()
        if changed is not None:
            state[live_objects.VERSION] = changed
        state[SEQUENCE] = sequence
        state.save()
        envelope_out: Any = messages.read_envelope(reply)
        envelope_out["seconds"] = time.perf_counter() - started
        recovery.write(asked, state, reply)
        keep_reply(sequence, asked, reply, cache)
        return reply

    def _course(self, call: _Call, admitted: Admitted, state: State) -> Course | None:
        """Return where the node is in its protocol; None without one, or of the core's steps."""
        protocol = admitted.types.protocol
        context = call.context
        if (
            call.step in (messages.HELLO, messages.SNAPSHOT, messages.RESTORE)
            or protocol is None
            or "node.name" not in state
        ):
            return None
        role, who = self._storage.role(context), self._storage.in_words(context)
        return Course(protocol, role, state, call.request, who)

    def _admit(self, course: Course, call: _Call, admitted: Admitted) -> None:
        """Refuse a message that does not belong to the run, which ends it here."""
        kind, groups = admitted.types.of(self._storage.role(call.context))
        try:
            course.admit(call.step, call.request, function_of(kind, call.step, groups))
        except UnexpectedMessageError as error:
            self._end(call, error.why, error)
            raise

    def _end(self, call: _Call, why: str, error: Exception) -> None:
        """Answer no further step of this run, and write into the ledger why."""
        forget(call.cache)
        state = State(call.context)
        state[REFUSED] = 1
        state.save()
        if self._storage.role(call.context) == "arbiter" or isinstance(error, PolicyError):
            return  # what its policy refuses is in the ledger already
        ledger = self._data(call, state).ledger()
        if ledger is not None:
            ledger.note_ended(call.step, why)

    def _begin(
        self, call: _Call, admitted: Admitted, checkpoint: Checkpoint | None, state: State
    ) -> None:
        """Begin a new session: nothing of an earlier one may leak into it."""
        call.cache.clear()
        state.clear()
        call.cache[_ADMITTED] = admitted
        if checkpoint is not None:
            checkpoint.begin()
            clear_openings(checkpoint.path)
            state[RUN] = str(call.context.run_id)
            self._storage.begin(call.context)
            self._data(call, state).note_version()

    def _data(self, call: _Call, state: State) -> NodeData:
        return NodeData(self._storage, call.context, state, call.cache)

    def _take_updates(self, call: _Call, admitted: Admitted, state: State) -> None:
        """Keep what the server hands over, even if the step fails: it is not sent again."""
        # Keys are kept only if they are their owners' (where identities are pinned).
        updates = decode(call.request, messages.UPDATES)
        if "node.name" not in state and (call.step != messages.HELLO or updates):
            raise StateLostError(
                f"step {call.step!r} came before the greeting, or this node was restarted during "
                "the run and lost its state; start the run again"
            )
        peers = len(updates[private_sum.PEERS]) if private_sum.PEERS in updates else None
        who = self._storage.in_words(call.context)
        check_n_parties(who, admitted.policy, call.envelope, peers)
        check_n_parties(who, admitted.policy, updates, None)
        if pins.check_updates(updates):
            pins.verify(self._introduction.identified(call.context, state), {**state, **updates})
        state.update(updates)
        state.save()

    def _admitted(self, call: _Call) -> Admitted:
        """Return what the node runs; its policy is asked at the greeting and in new processes."""
        # The server could say other things later: what is imported here was allowed here.
        step, envelope, context = call.step, call.envelope, call.context
        known: Admitted | None = call.cache.get(_ADMITTED)
        if known is not None and step != messages.HELLO and known.run_config == context.run_config:
            return known
        mode, n_parties = str(envelope["mode"]), envelope.get("n-parties")
        if step == messages.HELLO and not envelope.get("resume"):
            # All that a node knows of by itself is its own party.
            n_parties = 1 if n_parties is None else int(n_parties)
        elif step != messages.HELLO:
            mode = str(State(context).get(private_sum.MODE, ""))
        try:
            admitted = self._guard.admit(context, mode, n_parties)
        except PolicyError as error:
            self._note_refusal(error, context)
            raise
        call.cache[_ADMITTED] = admitted
        return admitted

    def _note_refusal(self, error: PolicyError, context: Context) -> None:
        """Write into the ledger that the policy forbade a run; without one, the log has it."""
        if self._storage.role(context) == "arbiter":
            return
        try:
            ledger = NodeData(self._storage, context, State(context), {}).ledger()
            if ledger is not None:
                ledger.note_refused(*described(context), error)
        except LedgerError as problem:  # the run is refused all the same
            logger.warning("the refusal is not in the privacy ledger: %s", problem)

    def _name(self, context: Context) -> str:
        """Return who this node is, as far as it knows."""
        try:
            role = self._storage.role(context)
            return "arbiter" if role == "arbiter" else self._storage.party_name(context)
        except Exception:  # the error that is being reported says why
            return str(context.node_config.get("party", f"node {context.node_id}"))

    def _take(
        self, call: _Call, admitted: Admitted, state: State, place: Course | None
    ) -> RecordDict:
        step, sequence, request, envelope = call.step, call.sequence, call.request, call.envelope
        arguments = decode(request, messages.ARGUMENTS) if place is None else dict(place.arguments)
        encrypted = decode(request, messages.SUMS)
        if encrypted:
            arguments["sums"] = private_sum.open_ciphertexts(encrypted, state, call.cache)
        course = int(envelope.get("course", envelope.get("retake", sequence)))
        types = admitted.types

        def binding() -> bytes:
            text = "" if types.protocol is None else types.protocol.text
            of_run = context_of_run(text, state)
            return binding_of(step, request, envelope, str(state["node.name"]), of_run)

        services = self._data(call, state).services(
            admitted.policy, sequence, course, lambda: digest(step, request), binding
        )
        is_arbiter = self._storage.role(call.context) == "arbiter"
        node: Party | Arbiter = (
            types.arbiter(services) if is_arbiter else types.party(services, types.groups)
        )
        answer = node.take(step, arguments)
        if isinstance(node, Party):
            check_counted(node, step, answer, None if place is None else place.round)
        mode = str(envelope["mode"])
        if mode == "call":
            return messages.make_reply(_checked(answer, step))
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
            sequence=sequence,
            n_parties=int(envelope["n-parties"]),
            fraction_bits=int(envelope["fraction-bits"]),
            state=state,
            cache=call.cache,
            scales=messages.read_scales(request),
            modular=answer.modular,
            binding=binding,
        )
        reply = messages.make_reply(answer.public)
        reply.update(encoded(protected, messages.SUMS))
        return reply

    def _cache(self, context: Context) -> dict[str, Any]:
        # One run at a time per node: an older run's tables must not fill the memory.
        run_id, cache = self._caches.get(context.node_id, (None, {}))
        if run_id != context.run_id:
            cache = {}
            self._caches[context.node_id] = (context.run_id, cache)
        return cache


def _checked(answer: Any, step: str) -> dict[str, Any]:
    if answer is None:
        return {}
    if isinstance(answer, dict):
        return answer
    raise ProtocolError(
        f"step {step!r} returned {type(answer).__name__}; a called step returns a dict of values"
    )
