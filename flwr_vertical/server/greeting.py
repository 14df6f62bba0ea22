"""Greeting the nodes of a run: who is here, and the keys that they make for it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.grids.proxy import reopen, silent
from flwr_vertical.log import logger
from flwr_vertical.protocol import pins, private_sum
from flwr_vertical.protocol.codec import Payload, decode
from flwr_vertical.protocol.messages import ARBITER, HELLO, VALUES, make_request
from flwr_vertical.server.discovery import Presence

_GONE = (
    "Flower lists it, but it may have died, or be busy with another run: look at its SuperNode and "
    "start it again, or raise 'patience'"
)

Enough = Callable[[Mapping[str, RecordDict]], bool]
Send = Callable[[Mapping[str, RecordDict], Enough, float | None], object]

# Least seconds for the greeting of nodes that have given no sign of life. If no node has, messages
# go Flower's way, six seconds each; otherwise they were waited for before.
_LEAST, _LEAST_BESIDE_OTHERS = 15.0, 1.0


class Greeting:
    """Greets nodes until all that must take part have answered."""

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[str, int],
        expected: Sequence[str] | None,
        arbiter_for: str | None,
        presence: Presence,
        send: Send,
    ) -> None:
        self._presence = presence
        self._grid, self._nodes, self._send = grid, nodes, send
        self._expected, self._arbiter_for = set(expected or ()), arbiter_for

    def greet(self, wanted: int, envelope: Mapping[str, Any]) -> dict[int, Payload]:
        """Greet the nodes; return what each said, by node ID.

        Where the parties are known, nodes that do not answer hold nobody up: a node whose machine
        died stays in Flower's list for a minute. Nodes that have given no sign of life are greeted
        last, and must answer before the patience ends.
        """
        asked = list(self._nodes)
        if self._expected:
            ready = set(reopen(self._grid, [*self._nodes.values()]))
            asked = [name for name, node_id in self._nodes.items() if node_id in ready]
            if len(asked) < wanted:
                asked = list(self._nodes)
        heard: dict[int, Payload] = {}

        def enough(replies: Mapping[str, RecordDict]) -> bool:
            heard.update((self._nodes[n], decode(r, VALUES)) for n, r in replies.items())
            return self._is_enough(heard.values())

        first = self._alive(asked)
        remaining: list[str] = []
        asked = first or asked
        while asked:
            requests = {name: make_request(HELLO, 0, {}, **envelope) for name in asked}
            limit = None if asked == first else self._limit(bool(first))
            try:
                self._send(requests, enough, limit)
                nodes_by_name(heard)
            except PartyError as error:
                nodes_by_name(heard)  # of three that answer two may have one name
                if error.party in self._nodes:  # it has told no name
                    raise self._named(error, heard) from error
                raise
            remaining = [name for name, node_id in self._nodes.items() if node_id not in heard]
            asked = [] if self._is_enough(heard.values()) else remaining
        if remaining:
            logger.warning(
                "%s did not answer the greeting and take no part; all parties of the run are here",
                remaining,
            )
        return heard

    def _alive(self, names: Sequence[str]) -> list[str]:
        """Return those of these nodes that have given a sign of life."""
        mute = set(silent(self._grid, [self._nodes[name] for name in names]))
        return [name for name in names if self._nodes[name] not in mute]

    def _limit(self, others_answered: bool) -> float:
        return max(self._presence.left, _LEAST_BESIDE_OTHERS if others_answered else _LEAST)

    def _named(self, error: PartyError, heard: Mapping[int, Payload]) -> PartyError:
        """Say which party a silent node is: the one that no other is, or of an earlier run."""
        node_id = self._nodes[error.party]
        who, cause = error.party, f"{error.cause}; {_GONE}"
        if known := self._presence.known(node_id):
            who, cause = known, f"{cause} ({error.party} was this party in the last run)"
        if self._expected:
            absent = sorted(self._expected - {str(told["party"]) for told in heard.values()})
            who = absent[0] if len(absent) == 1 else who
            cause = f"{cause}; of the parties, {absent} have not answered"
        return PartyError(who, HELLO, cause)

    def _is_enough(self, greetings: Iterable[Payload]) -> bool:
        """Whether all parties that must take part have answered, and the arbiter if needed."""
        if not self._expected:
            return False
        here = [(greeting["role"], greeting["party"]) for greeting in greetings]
        has_arbiter = self._arbiter_for is None or "arbiter" in [role for role, _ in here]
        return has_arbiter and {n for role, n in here if role == "party"} >= self._expected


def nodes_by_name(greetings: Mapping[int, Payload]) -> dict[str, int]:
    """Return which node has which name, the arbiter as `ARBITER`; refuse two of one name."""
    nodes: dict[str, int] = {}
    for node_id, greeting in sorted(greetings.items()):
        is_arbiter = greeting["role"] == "arbiter"
        name = ARBITER if is_arbiter else greeting["party"]
        if name in nodes:
            raise ConfigError(
                "two nodes have the role 'arbiter'; a run has at most one"
                if is_arbiter
                else f"two nodes call themselves {name!r}; give each SuperNode its own party name "
                "in its node config"
            )
        nodes[name] = node_id
    return nodes


def keys_of_run(
    mode: str,
    parties: Sequence[str],
    greetings: Mapping[str, Payload],
    random: Callable[[int], bytes],
) -> Payload:
    """Return what every party is told of the others' keys, and who made them."""
    if mode == "masked":
        keys: Payload = {
            private_sum.PEERS: list(parties),
            private_sum.PUBLIC_KEYS: [greetings[name]["public-key"] for name in parties],
            private_sum.NONCE: random(32),
        }
    elif mode == "ckks":
        keys = {private_sum.CKKS_PUBLIC: greetings[ARBITER]["ckks-public"]}
    else:
        return {}
    senders = [*parties, *([ARBITER] if mode == "ckks" else [])]
    return keys | pins.hand_on({name: greetings[name] for name in senders})
