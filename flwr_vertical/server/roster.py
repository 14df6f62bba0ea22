"""Who takes part: waiting for nodes, and what their greetings say."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.serverapp import Grid

from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.codec import Payload
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.version import __version__

logger = logging.getLogger("flwr_vertical")

_TOLD_EVERY = 10.0


@dataclass(frozen=True)
class Roster:
    """The nodes of a run.

    Parameters
    ----------
    parties : list[str]
        Names of the parties, sorted: results must not depend on who connects first.
    nodes : dict[str, int]
        Node ID by name; the arbiter under `ARBITER`.
    """

    parties: list[str]
    nodes: dict[str, int]

    @property
    def has_arbiter(self) -> bool:
        """Whether one of the nodes is the arbiter."""
        return ARBITER in self.nodes


def wait_for_nodes(
    grid: Grid, wanted: int, patience: float, arbiter_for: str | None = None
) -> list[int]:
    """Wait until so many nodes are connected and return their IDs.

    Parameters
    ----------
    grid : Grid
    wanted : int
        How many.
    patience : float
        Seconds.
    arbiter_for : str, optional
        What needs an arbiter among them, if anything does.

    Raises
    ------
    ConfigError
        If they are not there after ``patience`` seconds; says how to start more.
    """
    started = time.monotonic()
    deadline, told = started + patience, started
    one = f"; one of them is the arbiter, which {arbiter_for} needs" if arbiter_for else ""
    while True:
        node_ids = list(grid.get_node_ids())
        if len(node_ids) >= wanted:
            return node_ids
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{len(node_ids)} of {wanted} nodes are connected after {patience:.0f} s; "
                "start the missing SuperNodes, or in a simulation set "
                f"--federation-config 'num-supernodes={wanted}'{one}"
            )
        if time.monotonic() - told > _TOLD_EVERY:
            told = time.monotonic()
            logger.info(
                "waiting for nodes: %d of %d are connected after %.0f s, the run gives up after "
                "%.0f s%s",
                len(node_ids),
                wanted,
                told - started,
                patience,
                one,
            )
        time.sleep(min(1.0, patience / 10))


def make_roster(
    greetings: Mapping[int, Payload], expected: Sequence[str] | None, arbiter_for: str | None
) -> Roster:
    """Make the roster from the nodes' greetings.

    Parameters
    ----------
    greetings : Mapping[int, dict[str, Any]]
        What each node said, by node ID: ``party``, ``role`` and ``version``.
    expected : Sequence[str] or None
        Parties that must be there.
    arbiter_for : str, optional
        What needs an arbiter, if anything does.

    Raises
    ------
    ConfigError
        If a name occurs twice, an expected party is absent, there are two arbiters, or none
        where one is needed, or a node has another version of this package.
    """
    check_versions(greetings)
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
    roster = Roster(sorted(set(nodes) - {ARBITER}), nodes)
    absent = sorted(set(expected or ()) - set(roster.parties))
    if absent:
        raise ConfigError(f"expected parties {absent} are absent; here are {roster.parties}")
    if not roster.parties:
        raise ConfigError("no party is connected: every node has the role 'arbiter'")
    if arbiter_for and not roster.has_arbiter:
        raise ConfigError(
            f"{arbiter_for} needs an arbiter: start one more SuperNode with "
            "--node-config \"role='arbiter'\""
        )
    return roster


def check_versions(greetings: Mapping[int, Payload]) -> None:
    """Refuse nodes that have another version of this package than the server.

    Raises
    ------
    ConfigError
        Says who has which.
    """
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
