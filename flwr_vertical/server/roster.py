"""Who takes part, by what the greetings of nodes say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.codec import Payload
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.version import __version__


@dataclass(frozen=True)
class Roster:
    """The nodes of a run."""

    # Names of the parties, sorted: results must not depend on who connects first
    parties: list[str]
    nodes: dict[str, int]  # Node ID by name; the arbiter under `ARBITER`

    @property
    def has_arbiter(self) -> bool:
        """Whether one of the nodes is the arbiter."""
        return ARBITER in self.nodes


def make_roster(
    greetings: Mapping[int, Payload], expected: Sequence[str] | None, arbiter_for: str | None
) -> Roster:
    """Make the roster from the nodes' greetings."""
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
