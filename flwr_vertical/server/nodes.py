"""The nodes of a run: greeted, found again, asked in rounds and dismissed."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from flwr_vertical.errors import ConfigError
from flwr_vertical.grids.proxy import silent
from flwr_vertical.node.party import Arbiter
from flwr_vertical.protocol import messages, private_sum
from flwr_vertical.protocol.codec import Payload, decode
from flwr_vertical.protocol.pins import RETURNED
from flwr_vertical.server.discovery import Presence
from flwr_vertical.server.greeting import Greeting, keys_of_run, nodes_by_name
from flwr_vertical.server.journal import Journal, JournalEntry
from flwr_vertical.server.label_memory import LabelMemory
from flwr_vertical.server.recovery import ReturnedNode, exchange_patiently, find_all, say_farewell
from flwr_vertical.server.rounds import PartyStateLostError, exchange
from flwr_vertical.server.run_record import RunRecord
from flwr_vertical.server.settings import RunOptions, RunSettings
from flwr_vertical.version import __version__


def make_roster(
    greetings: Mapping[int, Payload], expected: Sequence[str] | None, arbiter_for: str | None
) -> dict[str, int]:
    """Return the node ID of each node by its name, the arbiter's under `ARBITER`."""
    check_versions(greetings)
    nodes = nodes_by_name(greetings)
    parties = _parties_of(nodes)
    absent = sorted(set(expected or ()) - set(parties))
    if absent:
        raise ConfigError(f"expected parties {absent} are absent; here are {parties}")
    if not parties:
        raise ConfigError("no party is connected: every node has the role 'arbiter'")
    if arbiter_for and messages.ARBITER not in nodes:
        raise ConfigError(
            f"{arbiter_for} needs an arbiter: start one more SuperNode with "
            "--node-config \"role='arbiter'\""
        )
    return nodes


def _parties_of(names: Iterable[str]) -> list[str]:
    """Return the names of the parties, sorted: results must not depend on who connects first."""
    return sorted(set(names) - {messages.ARBITER})


def check_versions(greetings: Mapping[int, Payload]) -> None:
    """Refuse nodes that have another version of this package than the server."""
    other = {
        str(greeting["party"]): str(greeting.get("version", "an older one"))
        for _, greeting in sorted(greetings.items())
        if greeting.get("version") != __version__
    }
    if other:
        told = ", ".join(f"{name!r} has {version[:40]}" for name, version in sorted(other.items()))
        raise ConfigError(
            f"the server has flwr-vertical {__version__}, but {told}; install the same version "
            "everywhere"
        )


# More messages than a loop sends between two snapshots: those that the server sent before it was
# killed, and that neither its journal nor the disk of a node may know of.
_UNKNOWN = 2**24


_TAKING_BACK = 20.0  # seconds to wait for nodes that shall forget a run that did not begin


class Nodes:
    """Who takes part in a run, and what every message to them says; base of `Federation`."""

    def __init__(
        self,
        grid: Grid,
        run: RunSettings | None = None,
        *,
        arbiter: type[Arbiter] = Arbiter,
        needs_arbiter: str | None = None,
        journal: Journal | None = None,
        protocol: str = "",
        **options: Unpack[RunOptions],
    ) -> None:
        self._protocol = protocol
        run = RunSettings.of(run, options)
        if run.checkpoint_every is not None and journal is None:
            raise ConfigError("checkpoint_every needs checkpoint: the folder of the run's journal")
        self.checkpoint_every = run.checkpoint_every
        self.grid = grid
        self.aggregation = run.aggregation
        self.fraction_bits = run.fraction_bits
        self.timeout = run.timeout
        self.retries = run.retries
        self.patience = run.patience
        self._record = RunRecord(journal)
        self.ledger = self._record.ledger
        self.parties: list[str] = []
        # Told of each round as it begins: its number, the step and who is asked.
        self.on_round: Callable[[int, str, Sequence[str]], None] | None = None
        self.labels: Any = None
        self.beside: dict[str, Any] = {}
        self.label_memory = LabelMemory(run.label_secret)
        self.rng = np.random.default_rng()
        self._expected = None if run.parties is None else list(run.parties)
        ckks = run.aggregation == "ckks"
        self._arbiter_for = "aggregation 'ckks'" if ckks else needs_arbiter
        self._min_nodes = run.min_nodes
        self._ready_by, self._node_names = run.ready_by, run.node_names
        self._nodes: dict[str, int] = {}
        self._release = arbiter()  # takes release steps here, without a node
        self._updates: dict[str, Payload] = {}
        self._journal = journal
        # In every message, so that nodes know whose checkpoint they keep.
        self._mark: dict[str, Any] = {} if journal is None else {"checkpoint": journal.token}
        # The last complete snapshot of a loop, and whether rounds now rely on it alone.
        self.snapshot: int | None = None
        self.between_snapshots = False
        self._furthest = 0  # a message number that no earlier life of this run came to
        self._seed = str(run.seed)  # as text: it may be larger than Flower's integers
        self._unrepeatable: dict[str, set[str]] = {}
        self._identified = False  # whether a node presented an identity at the opening
        self._returned: dict[str, ReturnedNode] = {}  # by name, as each came back last

    def open(self) -> None:
        """Greet every node: learn names and roles, exchange public keys. One round."""
        if self._journal is not None and self._journal.opening is not None:
            self._reopen(self._journal, self._journal.opening)
            return
        wanted = self._min_nodes or 1
        if self._expected and not self._min_nodes:
            wanted = len(self._expected) + (self._arbiter_for is not None)
        presence = Presence(
            self.patience, self._expected, self._arbiter_for, self._node_names, self._ready_by
        )
        node_ids = presence.wait(self.grid, wanted)
        self._nodes = {f"node {node_id}": node_id for node_id in node_ids}
        try:
            greeting = Greeting(
                self.grid,
                self._nodes,
                self._expected,
                self._arbiter_for,
                presence,
                lambda requests, enough, limit: self._round(
                    messages.HELLO, requests, mode="call", enough=enough, limit=limit
                ),
            )
            told = {"n-parties": self._n_greeted(node_ids)}
            envelope = {"mode": self.aggregation, "seed": self._seed, **told, **self._mark}
            if self._protocol:
                envelope |= {"protocol": self._protocol, "server-version": __version__}
            greetings = greeting.greet(wanted, envelope)
            nodes = make_roster(greetings, self._expected, self._arbiter_for)
        except Exception:
            self._take_back()
            raise
        self.parties, self._nodes = _parties_of(nodes), nodes
        presence.remember(nodes)
        by_name = {name: greetings[node_id] for name, node_id in self._nodes.items()}
        self._note_unrepeatable(by_name)
        self._record.open(by_name)
        self._hand_out_keys(by_name)

    def _n_greeted(self, node_ids: Sequence[int]) -> int:
        """Return how many parties there will be, as far as that is known before they greet."""
        if self._expected:
            return len(self._expected)
        return max(1, len(node_ids) - (self._arbiter_for is not None))

    def _take_back(self) -> None:
        """Have nodes remove what they keep of a run that did not begin: its private keys."""
        if self._journal is not None:
            request = messages.make_request(messages.FAREWELL, 1, {}, mode="call", **self._mark)
            seconds = min(self.timeout, self.patience, _TAKING_BACK)
            mute = set(silent(self.grid, list(self._nodes.values())))
            there = {name: n for name, n in self._nodes.items() if n not in mute}
            say_farewell(self.grid, there or self._nodes, request, seconds)

    def _hand_out_keys(self, greetings: Mapping[str, Payload]) -> None:
        keys = keys_of_run(self.aggregation, self.parties, greetings, self.random_bytes)
        self._ckks_public = keys.get(private_sum.CKKS_PUBLIC)
        for name in self.parties:
            self.update(name, {**keys, "n-parties": len(self.parties)})

    def _reopen(self, journal: Journal, opening: JournalEntry) -> None:
        """Find the nodes of a run that broke off, and take up its course from the beginning."""
        names = list(opening.public)
        self.parties = _parties_of(names)
        self._nodes = dict.fromkeys(names, -1)
        if not journal.done:  # else no message is left to be sent
            self.snapshot = journal.snapshot
            self.between_snapshots = journal.snapshot is not None
            greeting = self._greeting()
            found = find_all(self.grid, journal, names, greeting, self.patience)
            self._nodes = {name: found[name].node_id for name in names}
            if self.between_snapshots:
                self._furthest = max(node.last for node in found.values()) + _UNKNOWN
            self._record.note_greeted(journal.last_round + 1, greeting, found)
            self._returned |= found
        self._note_unrepeatable(opening.public)
        self._record.take_up(opening)
        self._hand_out_keys(opening.public)

    def _note_unrepeatable(self, greetings: Mapping[str, Payload]) -> None:
        """Note which steps each node declares as not repeatable, and whether it has an identity."""
        self._identified = any("identity" in greeting for greeting in greetings.values())
        self._unrepeatable = {
            name: set(greeting.get("unrepeatable", ())) for name, greeting in greetings.items()
        }

    def _greeting(self) -> RecordDict:
        """Compose the greeting of a node that shall go on from its checkpoint."""
        marks = self._marks()
        return messages.make_request(
            messages.HELLO, 0, {}, mode=self.aggregation, resume=True, **marks
        )

    def _marks(self) -> dict[str, Any]:
        """Say in a message which run it belongs to, which snapshot is complete, who came back."""
        marks = dict(self._mark)
        if self.snapshot is not None:
            transient = {"transient": True} if self.between_snapshots else {}
            marks |= {"snapshot": self.snapshot, **transient}
        back = self._returned.items()
        if self._identified and back:
            rows = [(name, node.last, node.identity, node.signature) for name, node in back]
            columns = zip(*rows, strict=True)
            marks |= {key: list(of) for key, of in zip(RETURNED, columns, strict=True)}
        return marks

    def close(self) -> None:
        """End a run with a journal: every node removes its checkpoint; one message to each."""
        # A node that does not hear of it keeps its checkpoint; the run does not suffer.
        if self._journal is None:
            return
        nodes = self._nodes
        if self._journal.done:  # resumed after its end, so nobody has been greeted
            nodes = {f"node {node_id}": node_id for node_id in self.grid.get_node_ids()}
        self._journal.mark_done()
        request = messages.make_request(
            messages.FAREWELL, self._record.sequence + 1, {}, mode="call", **self._mark
        )
        say_farewell(self.grid, nodes, request, min(self.timeout, self.patience))

    def random_bytes(self, count: int) -> bytes:
        """Return bytes of the system's generator: for nonces, keys and orders of the server."""
        # A run that is resumed gets those it had, so that it takes the same course.
        return self._record.random_bytes(count)

    def update(self, party: str, values: Mapping[str, Any]) -> None:
        """Put values into a party's state; they ride with the next message to it."""
        self._updates.setdefault(party, {}).update(values)

    def tell_all(self, step: str, **envelope: Any) -> dict[str, Payload]:
        """Send every node a message of the protocol's own; it is no part of a strategy's course."""
        self._record.sequence += 1
        number, answered = self._record.sequence, self._record.answered
        marks = {key: value for key, value in self._marks().items() if key != "transient"}
        requests = {
            name: messages.make_request(
                step,
                number,
                {},
                self._updates.pop(name, None),
                mode="call",
                **{"after": answered[name], **marks, **envelope},
            )
            for name in self._nodes
        }
        replies, _ = self._round(step, requests, mode="call")
        return {name: decode(reply, messages.VALUES) for name, reply in replies.items()}

    def restore_all(self, number: int) -> None:
        """Have every node go back to a snapshot; masked sums get new keys, as at the greeting."""
        # Message numbers go on above all that were ever sent: what pads by them stays secret.
        self.stand_at(number)
        self._record.sequence = max(self._record.sequence, self._furthest)
        greetings = self.tell_all(messages.RESTORE, after=number, snapshot=number)
        if self.aggregation == "masked":
            self._hand_out_keys(greetings)

    def stand_at(self, number: int) -> None:
        """Stand where a snapshot was complete: nodes had got all that waited to ride along."""
        self.snapshot = number
        self._updates.clear()

    def _round(
        self,
        step: str,
        requests: Mapping[str, RecordDict],
        *,
        mode: str,
        enough: Callable[[Mapping[str, RecordDict]], bool] | None = None,
        limit: float | None = None,
    ) -> tuple[dict[str, RecordDict], dict[str, Payload]]:
        """Send one message to each node; return the replies and, of a sum, its terms by party."""
        number = self.ledger.next_round()
        if self.on_round is not None:
            self.on_round(number, step, list(requests))
        started = time.perf_counter()
        how: dict[str, Any] = {"step": step, "timeout": self.timeout, "retries": self.retries}
        if self._journal is None or step == messages.HELLO:
            first = self._record.sequence

            def renew() -> dict[str, RecordDict]:
                self._record.sequence += 1
                number = self._record.sequence
                return {name: messages.renumber(r, number, first) for name, r in requests.items()}

            once = any(step in self._unrepeatable.get(name, ()) for name in requests)
            how |= {"renew": renew if once else None, "enough": enough, "limit": limit}
            how["patience"] = 0.0 if step == messages.HELLO else self.patience
            answered = exchange(self.grid, self._nodes, requests, **how)
        else:
            greeting, how["patience"] = self._greeting(), self.patience
            # Between snapshots a reply is kept in a process alone, which may serve one message.
            how["replies_kept"] = not self.between_snapshots
            try:
                answered, back = exchange_patiently(
                    self.grid, self._nodes, requests, greeting, **how
                )
            except PartyStateLostError:  # the round is taken again, and was sent all the same
                nothing = dict.fromkeys(requests, RecordDict())
                seconds = time.perf_counter() - started
                self._record.note_round(number, step, mode, requests, nothing, seconds, {})
                raise
            self._record.note_greeted(number, greeting, back)
            self._returned |= back
        # Replies come in any order; what is computed from them must not depend on it.
        answered = {name: answered[name] for name in requests if name in answered}
        self._record.answered |= dict.fromkeys(requests, self._record.sequence)
        seconds = time.perf_counter() - started
        terms: dict[str, Payload] = {}
        if mode in private_sum.MODES:
            terms = {name: decode(reply, messages.SUMS) for name, reply in answered.items()}
        self._record.note_round(number, step, mode, requests, answered, seconds, terms)
        return answered, terms
