"""The server's view of the parties: a strategy is a straight-line program over a `Federation`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.protocol import pins, private_sum
from flwr_vertical.protocol.app import FAREWELL, HELLO
from flwr_vertical.protocol.books import Books
from flwr_vertical.protocol.codec import Payload, decode, encode
from flwr_vertical.protocol.journal import Entry, Journal
from flwr_vertical.protocol.messages import SUMS, VALUES, make_request
from flwr_vertical.protocol.opening import ARBITER, call_the_roll, wait_for_nodes
from flwr_vertical.protocol.party import Arbiter, Host
from flwr_vertical.protocol.recovery import exchange_patiently, find_all, say_farewell
from flwr_vertical.protocol.rounds import exchange


@dataclass(frozen=True)
class Total:
    """What `Federation.sum` returns.

    Parameters
    ----------
    values : dict[str, Any]
        The sums over parties by name, or what the ``release`` step made of them.
    public : dict[str, dict[str, Any]]
        By party, the values that the step declared public.
    """

    values: dict[str, Any]
    public: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


class Federation:
    """Parties reached over a Flower grid.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        How messages travel; any of this library's or Flower's own.
    aggregation : {"masked", "plain", "ckks"}, default "masked"
        Mode of the private sum.
    arbiter : type[Arbiter], default Arbiter
        The arbiter half of the strategy; its release steps run on the server itself unless the
        mode is ``ckks``.
    fraction_bits : int, default 32
        Fixed-point resolution of ``masked`` sums is ``2**-fraction_bits``.
    timeout : float, default 3600
        Seconds to wait for the replies of one round.
    retries : int, default 2
        How often a message is sent again after a failure of transport.
    parties : Sequence[str], optional
        Names of the parties that must take part; by default whoever is connected.
    min_nodes : int, optional
        Wait until so many nodes are connected (default: as many as ``parties``, and the arbiter
        in ``ckks`` mode; without ``parties`` the first node is enough, so state one of the two).
    patience : float, default 60
        Seconds to wait for nodes to connect, or with a journal to come back.
    needs_arbiter : str, optional
        What of the strategy needs an arbiter, if anything does, whatever the mode.
    journal : Journal, optional
        Keeps what the parties answer; they keep checkpoints then. The rounds in a journal that
        is resumed are answered from it.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        aggregation: str = "masked",
        arbiter: type[Arbiter] = Arbiter,
        fraction_bits: int = 32,
        timeout: float = 3600.0,
        retries: int = 2,
        parties: Sequence[str] | None = None,
        min_nodes: int | None = None,
        patience: float = 60.0,
        needs_arbiter: str | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.grid = grid
        self.aggregation = private_sum.check_mode(aggregation)
        private_sum.limit(self.aggregation, 1, fraction_bits)  # raises if there is no such number
        self.fraction_bits = fraction_bits
        self.timeout = timeout
        self.retries = retries
        self.patience = patience
        self._books = Books(journal)
        self.ledger = self._books.ledger
        self.parties: list[str] = []
        self.labels: Any = None
        self.rng = np.random.default_rng()
        self._expected = list(parties) if parties is not None else None
        self._arbiter_for = "aggregation 'ckks'" if aggregation == "ckks" else needs_arbiter
        self._min_nodes = min_nodes
        self._nodes: dict[str, int] = {}
        self._arbiter_here = arbiter(
            Host("server", {}, {}, {}, {}, _no_table, _no_table, _no_table, _no_output)  # type: ignore[arg-type]
        )
        self._updates: dict[str, Payload] = {}
        self._journal = journal
        # In every message, so that nodes know whose checkpoint they keep.
        self._mark: dict[str, Any] = {} if journal is None else {"checkpoint": journal.token}

    # -- opening ---------------------------------------------------------------------------

    def open(self) -> None:
        """Greet every node: learn names and roles, exchange public keys. One round.

        Raises
        ------
        ConfigError
            If a name occurs twice, an expected party is absent, or ``ckks`` has no arbiter.
        """
        if self._journal is not None and self._journal.opening is not None:
            self._reopen(self._journal, self._journal.opening)
            return
        wanted = self._min_nodes or 1
        if self._expected and not self._min_nodes:
            wanted = len(self._expected) + (self._arbiter_for is not None)
        node_ids = wait_for_nodes(self.grid, wanted, self.patience)
        self._nodes = {f"node {node_id}": node_id for node_id in node_ids}
        requests = {
            name: make_request(HELLO, 0, {}, mode=self.aggregation, **self._mark)
            for name in self._nodes
        }
        replies = self._round(HELLO, requests, mode="call")
        greetings = {self._nodes[name]: decode(reply, VALUES) for name, reply in replies.items()}
        roster = call_the_roll(greetings, self._expected, self._arbiter_for)
        self.parties, self._nodes = roster.parties, roster.nodes
        by_name = {name: greetings[node_id] for name, node_id in self._nodes.items()}
        self._books.open(by_name)
        self._hand_out_keys(by_name)

    def _hand_out_keys(self, greetings: Mapping[str, Payload]) -> None:
        updates: Payload = {}
        if self.aggregation == "masked":
            updates = {
                private_sum.PEERS: self.parties,
                private_sum.PUBLIC_KEYS: [greetings[name]["public-key"] for name in self.parties],
                private_sum.NONCE: self.random_bytes(32),
            }
        elif self.aggregation == "ckks":
            self._ckks_public = greetings[ARBITER]["ckks-public"]
            updates = {private_sum.CKKS_PUBLIC: self._ckks_public}
        if updates:  # with the keys, who made them
            senders = [*self.parties, *([ARBITER] if self.aggregation == "ckks" else [])]
            updates |= pins.hand_on({name: greetings[name] for name in senders})
        for name in self.parties:
            self.update(name, updates)

    def _reopen(self, journal: Journal, opening: Entry) -> None:
        """Find the nodes of a run that broke off, and take up its course from the beginning."""
        names = list(opening.public)
        self.parties = sorted(set(names) - {ARBITER})
        self._nodes = dict.fromkeys(names, -1)
        if not journal.done:  # else no message is left to be sent
            greeting = self._greeting()
            found = find_all(self.grid, journal, names, greeting, self.patience)
            self._nodes = {name: found[name].node_id for name in names}
            self._books.note_greeted(journal.last["rows"][-1][0] + 1, greeting, found)
        self._books.take_up(opening)
        self._hand_out_keys(opening.public)

    def _greeting(self) -> RecordDict:
        """Compose the greeting of a node that shall go on from its checkpoint."""
        return make_request(HELLO, 0, {}, mode=self.aggregation, resume=True, **self._mark)

    def close(self) -> None:
        """End a run with a journal: every node removes its checkpoint; one message to each.

        A node that does not hear of it keeps its checkpoint; the run is none the worse.
        """
        if self._journal is None:
            return
        nodes = self._nodes
        if self._journal.done:  # resumed after its end, so nobody has been greeted
            nodes = {f"node {node_id}": node_id for node_id in self.grid.get_node_ids()}
        self._journal.mark_done()
        request = make_request(FAREWELL, self._books.sequence + 1, {}, mode="call", **self._mark)
        say_farewell(self.grid, nodes, request, min(self.timeout, self.patience))

    # -- rounds ----------------------------------------------------------------------------

    def random_bytes(self, count: int) -> bytes:
        """Return bytes of the system's generator: for nonces, keys and orders of the server.

        A run that is resumed gets those it had, so that it takes the same course.
        """
        return self._books.random_bytes(count)

    def update(self, party: str, values: Mapping[str, Any]) -> None:
        """Put values into a party's state; they ride with the next message to it."""
        self._updates.setdefault(party, {}).update(values)

    def call(
        self,
        step: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        per_party: Mapping[str, Mapping[str, Any]] | None = None,
        parties: Sequence[str] | None = None,
    ) -> dict[str, Payload]:
        """Have parties take a step; one round.

        Parameters
        ----------
        step : str
            Name of the step.
        arguments : Mapping[str, Any], optional
            Sent to every party.
        per_party : Mapping[str, Mapping[str, Any]], optional
            Further arguments for single parties.
        parties : Sequence[str], optional
            Who is called (default: all).

        Returns
        -------
        dict[str, dict[str, Any]]
            Each party's answer.

        Raises
        ------
        PartyError
            If a party fails or does not answer; nothing is replaced by zero.
        """
        requests = self._requests(step, arguments, per_party, parties, mode="call")

        def live() -> tuple[Payload, dict[str, Payload]]:
            replies = self._round(step, requests, mode="call")
            return {}, {name: decode(reply, VALUES) for name, reply in replies.items()}

        return self._books.once(step, requests, live)[1]

    def sum(
        self,
        step: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        per_party: Mapping[str, Mapping[str, Any]] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        release: str | None = None,
        release_arguments: Mapping[str, Any] | None = None,
    ) -> Total:
        """Have all parties take a step and learn the sum of what they return; one round.

        Parameters
        ----------
        step, arguments, per_party
            As in `call`; the step returns `Summands`.
        shapes : Mapping[str, tuple[int, ...]], optional
            Expected shape of each summand.
        release : str, optional
            A step of the strategy's arbiter half; what it returns replaces the sums. In ``ckks``
            mode the arbiter takes it (one more round), else the server.
        release_arguments : Mapping[str, Any], optional
            Its arguments.

        Returns
        -------
        Total
            Sums (or what was released) and public values.
        """
        mode = self.aggregation
        requests = self._requests(
            step,
            arguments,
            per_party,
            None,
            mode=mode,
            **{"n-parties": len(self.parties), "fraction-bits": self.fraction_bits},
        )

        def live() -> tuple[Payload, dict[str, Payload]]:
            replies = self._round(step, requests, mode=mode)
            terms = {name: decode(replies[name], SUMS) for name in self.parties}
            private_sum.check_terms(step, terms, shapes)
            public = {name: decode(replies[name], VALUES) for name in self.parties}
            del replies
            key = self._ckks_public if mode == "ckks" else None
            totals = private_sum.combine(list(terms.values()), mode, self.fraction_bits, key)
            del terms
            more = dict(release_arguments or {})
            if mode == "ckks" and totals:
                return self._open(totals, release or "reveal", more), public
            if release is not None:
                totals = self._arbiter_here.take(release, {"sums": totals, **more})
            return totals, public

        return Total(*self._books.once(step, requests, live))

    @property
    def summand_limit(self) -> float:
        """Largest absolute value a party may send into a sum; infinite in ``plain`` mode."""
        return private_sum.limit(self.aggregation, len(self.parties), self.fraction_bits)

    def _open(self, totals: Payload, release: str, arguments: Mapping[str, Any]) -> Payload:
        """Send summed ciphertexts to the arbiter; what its release step returns comes back."""
        request = self._requests(release, arguments, None, [ARBITER], mode="call")
        request[ARBITER].update(encode(totals, SUMS))
        return decode(self._round(release, request, mode="open")[ARBITER], VALUES)

    def _requests(
        self,
        step: str,
        arguments: Mapping[str, Any] | None,
        per_party: Mapping[str, Mapping[str, Any]] | None,
        parties: Sequence[str] | None,
        **envelope: Any,
    ) -> dict[str, RecordDict]:
        self._books.sequence += 1
        requests = {}
        for name in self.parties if parties is None else parties:
            if name not in self._nodes:
                raise ConfigError(f"no party {name!r} in this run; its parties are {self.parties}")
            own = dict(arguments or {}) | dict((per_party or {}).get(name, {}))
            requests[name] = make_request(
                step,
                self._books.sequence,
                own,
                self._updates.pop(name, None),
                after=self._books.answered[name],
                **self._mark,
                **envelope,
            )
        return requests

    def _round(
        self,
        step: str,
        requests: Mapping[str, RecordDict],
        *,
        mode: str,
    ) -> dict[str, RecordDict]:
        """Send one message to each node and collect the replies, or raise `PartyError`."""
        number = self.ledger.next_round()
        started = time.perf_counter()
        how: dict[str, Any] = {"step": step, "timeout": self.timeout, "retries": self.retries}
        if self._journal is None or step == HELLO:
            answered = exchange(self.grid, self._nodes, requests, **how)
        else:
            greeting, how["patience"] = self._greeting(), self.patience
            answered, back = exchange_patiently(self.grid, self._nodes, requests, greeting, **how)
            self._books.note_greeted(number, greeting, back)
        # Replies come in any order; what is computed from them must not depend on it.
        answered = {name: answered[name] for name in requests}
        self._books.answered |= dict.fromkeys(requests, self._books.sequence)
        seconds = time.perf_counter() - started
        self._books.note_round(number, step, mode, requests, answered, seconds)
        return answered


def _no_table() -> Any:
    raise ProtocolError("the server holds no table; a release step works on the sums alone")


def _no_output(_: Any) -> str:
    raise ProtocolError("the server writes no party's output")
