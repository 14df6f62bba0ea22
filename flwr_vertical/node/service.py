"""Answering a message: the step is taken once, its sums are protected, the state is kept."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, RecordDict

from flwr_vertical.crypto import generate_keypair, generate_keys
from flwr_vertical.errors import (
    ConfigError,
    LedgerError,
    PolicyError,
    ProtocolError,
    StateLostError,
    VerticalError,
)
from flwr_vertical.node import live_objects
from flwr_vertical.node.checkpoint import Checkpoint, clear_openings, restore
from flwr_vertical.node.config import check_node_config
from flwr_vertical.node.data_fingerprint import DataWatch
from flwr_vertical.node.party import Arbiter, Party
from flwr_vertical.node.policy_check import Admitted, Guard, NodeTypes, check_n_parties
from flwr_vertical.node.rollback import SEQUENCE, remember, take_back
from flwr_vertical.node.snapshot import Snapshots, go_back, tell_snapshot
from flwr_vertical.node.state import State
from flwr_vertical.node.steps import NodeServices, Summands, node_keys_of, unrepeatable_steps
from flwr_vertical.node.storage import Storage
from flwr_vertical.policy.run_request import RunRequest
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.row_identities import OwnRows
from flwr_vertical.privacy_ledger.run_ledger import RunLedger
from flwr_vertical.protocol import pins, private_sum
from flwr_vertical.protocol.codec import decode, encode
from flwr_vertical.protocol.disk import digest
from flwr_vertical.protocol.messages import (
    ARGUMENTS,
    FAREWELL,
    HELLO,
    RESTORE,
    SNAPSHOT,
    SUMS,
    UPDATES,
    VALUES,
    WHO,
    make_error_reply,
    make_reply,
    place_of,
    read_envelope,
    read_scales,
)
from flwr_vertical.tables import Severity, Table, check_table
from flwr_vertical.tables.csv_format import PREFIX
from flwr_vertical.tables.findings import lines_of, warnings_in
from flwr_vertical.version import __version__

logger = logging.getLogger("flwr_vertical")

_RUN = "node.run"
_ADMITTED = "node.admitted"
_LEDGER, _ROWS, _TABLE = "privacy-ledger", "ledger-rows-of-table", "raw-table"
# Keys of the node config by which a table is read, and beginnings of such keys.
_READ_BY = ("data", "table", "query", "id-column")
_HOW = ("kind.", PREFIX)
_TOLD_OF_TABLE = "node.told-of-table"
_SEED, _SECRET = "node.seed", "node.secret"


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
        self._caches: dict[int, tuple[int, dict[str, Any]]] = {}
        self._told: set[tuple[int, str, str]] = set()  # errors whose traceback was logged

    def answer(self, request: RecordDict, context: Context) -> RecordDict:
        """Take the step that a request names; a failure becomes an error reply, never silence."""
        try:
            return self._answer(request, context)
        except StateLostError as error:  # no fault of the code; the server says what follows
            name = self._name(context)
            logger.warning("party %r could not take the step: %s", name, error)
            return make_error_reply(error, name)
        except PolicyError as error:  # as its owner wants it
            logger.warning("%s", error)
            return make_error_reply(error, self._name(context))
        except Exception as error:
            name = self._name(context)
            in_full = getattr(self._storage, "in_memory", False)
            if isinstance(error, VerticalError):  # raised on purpose: it says all that helps
                # Where tables lie in memory, the server's error tells the user the same.
                level = logging.DEBUG if in_full else logging.ERROR
                logger.log(level, "party %r could not take the step: %s", name, error)
            elif not in_full or self._is_new(context, error):
                logger.exception("party %r could not take the step", name)
            return make_error_reply(error, name, in_full=in_full)

    def _is_new(self, context: Context, error: Exception) -> bool:
        """Whether no party that this process serves has failed like this in the run."""
        seen = (context.run_id, type(error).__name__, place_of(error))
        if seen in self._told:
            return False
        self._told.add(seen)
        return True

    def _answer(self, request: RecordDict, context: Context) -> RecordDict:
        started = time.perf_counter()
        envelope = read_envelope(request)
        if envelope is None:
            raise ProtocolError("the message has no flwr-vertical envelope; who sent it?")
        step, sequence = str(envelope["step"]), int(envelope["sequence"])  # type: ignore[arg-type]
        if step == WHO:  # others wait for a node: the server names who is absent
            told = {"party": self._name(context), "role": self._storage.role(context)}
            return make_reply({}, {**told, "version": __version__})
        cache = self._cache(context)
        checkpoint = Checkpoint.of(envelope, context, self._storage)
        # Between two snapshots nothing goes to the disk: who is lost goes back to the last one.
        transient = checkpoint is not None and bool(envelope.get("transient"))
        if checkpoint is not None and step == FAREWELL:
            self._tell("end", context)
            checkpoint.remove()  # the run is finished: its keys need not lie on the disk
            return make_reply({}, {})
        admitted = self._admitted(step, envelope, context, cache)
        if checkpoint is not None:
            if step == HELLO and envelope.get("resume"):
                if transient:
                    last = int(State(context).get(SEQUENCE, -1))
                    reply = tell_snapshot(checkpoint, envelope, context, last)
                else:
                    reply = _resume(checkpoint, context, cache)
                return self._signed(reply, checkpoint, envelope, context)
            if step != HELLO and not transient:
                _catch_up(checkpoint, sequence, context, cache)
            if step == RESTORE and int(State(context).get(SEQUENCE, -1)) < sequence:
                go_back(checkpoint, envelope, context, cache)
        state = State(context)
        if step == HELLO:  # a new session: nothing of an earlier one may leak into it
            cache.clear()
            state.clear()
            cache[_ADMITTED] = admitted
            if checkpoint is not None:
                checkpoint.begin()
                clear_openings(checkpoint.path)
                state[_RUN] = str(context.run_id)
                self._tell("begin", context)
                DataWatch(self._storage, context, state, cache).note()
        kept = None if transient else checkpoint
        asked = digest(step, request) if kept is not None else b""

        first = int(envelope.get("retake", sequence))  # type: ignore[arg-type]
        if first < sequence:  # an answer of the round was lost, and its step is not repeatable
            take_back(context, cache, first, sequence)
            state = State(context)

        if pins.RETURNED[0] in envelope and "node.name" in state:
            token = bytes(envelope["checkpoint"])  # type: ignore[arg-type]
            pins.verify_returned(self._identified(context, state), envelope, token)

        # A step is taken once: a repeated request gets the same reply again, so that a retry
        # neither repeats a change of state nor masks two different arrays with one stream.
        if sequence <= int(state.get(SEQUENCE, -1)):
            if cache.get("reply-sequence") == sequence:
                if cache.get("reply-request", asked) != asked:
                    raise ProtocolError(
                        f"message {sequence} ({step!r}) was answered before, but then it asked for "
                        "something else: the server's journal has lost entries; start the run again"
                    )
                repeated: RecordDict = cache["reply"]
                return repeated
            raise StateLostError(
                f"message {sequence} ({step!r}) was already answered and the reply is gone; "
                "start the run again"
            )

        # Flower sends a reply before it keeps the state: between the two a process may die.
        after = int(envelope.get("after", -1))  # type: ignore[arg-type]
        if int(state.get(SEQUENCE, -1)) < after and "node.name" in state:
            raise StateLostError(
                f"step {step!r} builds on message {after}, which this node answered, but what it "
                "remembered of it is lost: its process ended too early; start the run again"
            )

        if step != HELLO and step in self._unrepeatable(context, admitted.types):
            remember(context, cache, first)

        # What the server hands over is kept even if the step fails: it is not sent again. Keys
        # are kept only if they are their owners' (where identities are pinned).
        updates = decode(request, UPDATES)
        if "node.name" not in state and (step != HELLO or updates):
            raise StateLostError(
                f"step {step!r} came before the greeting, or this node was restarted during the "
                "run and lost its state; start the run again"
            )
        peers = len(updates[private_sum.PEERS]) if private_sum.PEERS in updates else None
        check_n_parties(self._guard.who(context), admitted.policy, envelope, peers)
        check_n_parties(self._guard.who(context), admitted.policy, updates, None)
        if pins.check_updates(updates):
            pins.verify(self._identified(context, state), {**state, **updates})
        state.update(updates)
        state.save()
        files = None if checkpoint is None else Snapshots(checkpoint)
        held = live_objects.live_of(cache)
        load = files.load_live if files is not None else _nowhere
        held.begin(
            str(state.get(live_objects.VERSION, "")), load, f"party {state.get('node.name')!r}"
        )
        if step == HELLO:
            reply = make_reply({}, self._hello(context, state, envelope, admitted, cache))
        elif step == SNAPSHOT:
            reply = make_reply({}, {})
        elif step == RESTORE:
            held.settle()  # a damaged file is found now, not in the middle of the next step
            reply = make_reply({}, self._new_keys(context, state))
        else:
            reply = self._take(step, request, envelope, context, admitted, state, cache)
        version = held.end()
        if version is not None:
            state[live_objects.VERSION] = version
        state[SEQUENCE] = sequence
        state.save()
        envelope_out: Any = read_envelope(reply)
        envelope_out["seconds"] = time.perf_counter() - started
        if files is not None:
            self._write(kept, files, envelope, asked, state, context, reply, cache)
        cache["reply-sequence"], cache["reply"] = sequence, reply
        cache["reply-request"] = asked
        return reply

    def _admitted(
        self, step: str, envelope: Any, context: Context, cache: dict[str, Any]
    ) -> Admitted:
        """Return what the node runs; its policy is asked at the greeting and in each new process.

        The server could say other things later: what is imported here was allowed here.
        """
        known: Admitted | None = cache.get(_ADMITTED)
        if known is not None and step != HELLO and known.run_config == context.run_config:
            return known
        mode, n_parties = str(envelope["mode"]), envelope.get("n-parties")
        if step == HELLO and not envelope.get("resume"):
            # All that a node knows of by itself is its own party.
            n_parties = 1 if n_parties is None else int(n_parties)
        elif step != HELLO:
            mode = str(State(context).get(private_sum.MODE, ""))
        try:
            admitted = self._guard.admit(context, mode, n_parties)
        except PolicyError as error:
            self._note_refusal(error, context)
            raise
        cache[_ADMITTED] = admitted
        return admitted

    def _note_refusal(self, error: PolicyError, context: Context) -> None:
        """Write into the ledger that the policy forbade a run; without one, the log has it."""
        if self._storage.role(context) == "arbiter":
            return
        try:
            ledger = self._ledger(context, State(context), {})
            if ledger is not None:
                ledger.note_refused(*_described(context), error)
        except LedgerError as problem:  # the run is refused all the same
            logger.warning("the refusal is not in the privacy ledger: %s", problem)

    def _write(
        self,
        kept: Checkpoint | None,
        files: Snapshots,
        envelope: Any,
        asked: bytes,
        state: State,
        context: Context,
        reply: RecordDict,
        cache: dict[str, Any],
    ) -> None:
        """Write to disk what outlives the process, and remove what nobody goes back to."""
        sequence, complete = int(envelope["sequence"]), int(envelope.get("snapshot", -1))
        if cache.get("complete-snapshot", -1) < complete:
            files.complete(complete)
            cache["complete-snapshot"] = complete
        if kept is None:
            return
        version = str(state.get(live_objects.VERSION, ""))
        written = bool(version) and files.keep_live(live_objects.live_of(cache), version)
        data = DataWatch(self._storage, context, state, cache).noted
        kept.save(sequence, asked, context.state, reply, data, version)
        if envelope["step"] == SNAPSHOT:
            files.keep(sequence)
        elif written:
            files.sweep()

    def _new_keys(self, context: Context, state: State) -> dict[str, Any]:
        """Replace the key that masks sums: what was sent under the old one may be sent again."""
        told = {"party": str(state["node.name"]), "role": self._storage.role(context)}
        if private_sum.PRIVATE_KEY not in state:
            return told
        private, public = generate_keypair()
        state[private_sum.PRIVATE_KEY] = private
        keys = {"public-key": public}
        return {**told, **keys, **pins.introduce(self._identified(context, state), keys)}

    def _hello(
        self,
        context: Context,
        state: State,
        envelope: Any,
        admitted: Admitted,
        cache: dict[str, Any],
    ) -> dict[str, Any]:
        """Say who is here and make the keys of this run; secrets stay in the node's state."""
        role = self._storage.role(context)
        name = self._storage.party_name(context) if role == "party" else "arbiter"
        mode = str(envelope["mode"])
        state["node.name"], state[private_sum.MODE] = name, mode
        state[_SEED], state[_SECRET] = str(envelope.get("seed", 0)), secrets.token_bytes(32)
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
        types = admitted.types
        who = self._guard.who(context)
        check_node_config(who, context.node_config, node_keys_of(*types.of(role)))
        self._refuse_to_replace(who, context)
        if not str(state.get(_RUN, "")):  # else told before the version of the data was noted
            self._tell("begin", context)
        ledger = self._ledger(context, state, cache) if role == "party" else None
        if ledger is not None:
            ledger.begin(*_described(context))
        once = sorted(self._unrepeatable(context, types))
        told: dict[str, Any] = {"party": name, "role": role, "version": __version__}
        if once:
            told["unrepeatable"] = once
        return {**told, **public_keys, **identity}

    def _refuse_to_replace(self, who: str, context: Context) -> None:
        """Refuse a run that would put its result in the place of an earlier one's."""
        find = getattr(self._storage, "earlier_result", None)
        earlier = None if find is None else find(context)
        if earlier is not None:
            raise ConfigError(
                f"{who} has the result of an earlier run of this name, {earlier}, which this run "
                "would replace: give the run another run-name, or have that party move the file"
            )

    def _tell(self, what: str, context: Context) -> None:
        """Tell the storage that a run begins or ends, if it wants to know."""
        told = getattr(self._storage, what, None)
        if told is not None:
            told(context)

    def _unrepeatable(self, context: Context, types: NodeTypes) -> frozenset[str]:
        return unrepeatable_steps(*types.of(self._storage.role(context)))

    def _name(self, context: Context) -> str:
        """Return who this node is, as far as it knows."""
        try:
            role = self._storage.role(context)
            return "arbiter" if role == "arbiter" else self._storage.party_name(context)
        except Exception:  # the error that is being reported says why
            return str(context.node_config.get("party", f"node {context.node_id}"))

    def _signed(
        self, reply: RecordDict, checkpoint: Checkpoint, envelope: Any, context: Context
    ) -> RecordDict:
        """Sign the answer to a resuming greeting, so that others know by their pins who is back."""
        told = decode(reply, VALUES)
        if told["problem"]:
            return reply
        mode, config = str(envelope["mode"]), context.node_config
        node = pins.NodeIdentity(checkpoint.name, checkpoint.role, mode, context.run_id, config)
        token = bytes.fromhex(checkpoint.token)
        return make_reply({}, {**told, **pins.introduce_again(node, token, int(told["last"]))})

    def _identified(self, context: Context, state: State) -> pins.NodeIdentity:
        return pins.NodeIdentity(
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
        admitted: Admitted,
        state: State,
        cache: dict[str, Any],
    ) -> RecordDict:
        arguments = decode(request, ARGUMENTS)
        encrypted = decode(request, SUMS)
        if encrypted:
            arguments["sums"] = private_sum.open_ciphertexts(encrypted, state, cache)
        sequence = int(envelope["sequence"])
        course = int(envelope.get("course", envelope.get("retake", sequence)))
        node = self._node(context, admitted, state, cache, step, request, sequence, course)
        answer = node.take(step, arguments)
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
            scales=read_scales(request),
            modular=answer.modular,
        )
        reply = make_reply({}, answer.public)
        reply.update(encode(protected, SUMS))
        return reply

    def _node(
        self,
        context: Context,
        admitted: Admitted,
        state: State,
        cache: dict[str, Any],
        step: str,
        request: RecordDict,
        sequence: int,
        course: int,
    ) -> Party | Arbiter:
        types = admitted.types
        watch = DataWatch(self._storage, context, state, cache)
        name = str(state["node.name"])
        services = NodeServices(
            name=name,
            run_config=context.run_config,
            node_config=self._storage.node_config(context),
            state=state,
            cache=cache,
            load_table=lambda: self._table(context, state, cache),
            load_fitted=watch.before(lambda: self._storage.load_fitted(context)),
            load_truth=lambda: self._storage.load_truth(context),
            save_output=lambda frame: self._storage.save(context, frame),
            save_model=lambda data: self._storage.save_model(context, data),
            load_model=lambda run: self._storage.load_model(context, run),
            seed=str(state.get(_SEED, "0")),
            secret=bytes(state.get(_SECRET, b"")),
            sequence=sequence,
            course=course,
            asked=lambda: digest(step, request),
            policy=admitted.policy,
            ledger=self._ledger(context, state, cache),
            in_memory=getattr(self._storage, "in_memory", False),
        )
        if self._storage.role(context) == "arbiter":
            return types.arbiter(services)
        return types.party(services, types.groups)

    def _ledger(self, context: Context, state: State, cache: dict[str, Any]) -> RunLedger | None:
        """Return the node's privacy ledger for this run; opened once a process."""
        if _LEDGER not in cache:
            find = getattr(self._storage, "privacy_ledger", None)
            cache[_LEDGER] = None if find is None else find(context)
        ledger: PrivacyLedger | None = cache[_LEDGER]
        if ledger is None:
            return None

        def find_rows(ledger: PrivacyLedger) -> OwnRows:
            if _ROWS not in cache:

                def load() -> OwnRows:
                    table = self._table(context, state, cache)
                    return ledger.rows(table.ids, table.frame)

                found = DataWatch(self._storage, context, state, cache).checked()
                read = {k: v for k, v in context.node_config.items() if k in _READ_BY}
                how = {k: v for k, v in context.node_config.items() if k.startswith(_HOW)}
                read |= how
                version = f"{found} {sorted(read.items())}" if found else ""
                cache[_ROWS] = ledger.rows_of_version(version, load)
            own: OwnRows = cache[_ROWS]
            return own

        # A run that goes on has another number at Flower than the one in which it greeted.
        return RunLedger(ledger, f"run {state.get(_RUN, context.run_id)}", find_rows)

    def _table(self, context: Context, state: State, cache: dict[str, Any]) -> Table:
        """Return the node's table as it is in its storage; read once a process."""
        if _TABLE not in cache:
            watch = DataWatch(self._storage, context, state, cache)
            cache[_TABLE] = watch.before(lambda: self._storage.load(context))()
            self._tell_of(cache[_TABLE], context, state)
        table: Table = cache[_TABLE]
        return table

    def _tell_of(self, table: Table, context: Context, state: State) -> None:
        """Write into the node's own log, once a run, what its owner had better know of the table.

        New rows of an earlier fit are taken as that fit's were.
        """
        if getattr(self._storage, "in_memory", False) or _TOLD_OF_TABLE in state:
            return
        state[_TOLD_OF_TABLE] = 1
        fitted = bool(context.run_config.get("fitted"))
        stated = {k.removeprefix("kind.") for k in context.node_config if k.startswith("kind.")}
        found = table.reading if fitted else check_table(table, stated=stated)
        who = self._guard.who(context)
        for line in lines_of(warnings_in(found)):
            logger.warning("%s: its table: %s", who, line)
        # Of the check's own notes there may be many, and `flwr-vertical check` shows them.
        for line in lines_of([one for one in table.reading if one.severity is Severity.NOTE]):
            logger.info("%s: its table: %s", who, line)

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
    known = int(State(context).get(SEQUENCE, -1))
    kept = checkpoint.newer_than(min(known, sequence - 1))
    if kept is not None:
        restore(kept, context, cache)


def _described(context: Context) -> tuple[str, str, Mapping[str, Any]]:
    """Return name, strategy and settings of a run, for the ledger."""
    config = context.run_config
    name = str(config.get("run-name") or context.run_id)
    return name, str(config.get("strategy", "")), config


def _nowhere(version: str) -> None:
    """Find live objects on no disk: the run keeps none."""


def _checked(answer: Any, step: str) -> dict[str, Any]:
    if answer is None:
        return {}
    if isinstance(answer, dict):
        return answer
    raise ProtocolError(
        f"step {step!r} returned {type(answer).__name__}; a called step returns a dict of values"
    )
