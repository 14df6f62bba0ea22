"""What lies in the folder of a trial federation: keys, tables, configurations."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flwr_vertical.crypto.identity import (
    generate_identity,
    identity_text,
    load_identity,
    public_identity,
    write_identity,
)
from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete.demo import demo_labels, demo_tables
from flwr_vertical.node.storage import check_name
from flwr_vertical.settings.toml import toml_text, toml_value
from flwr_vertical.whole_files import write_bytes_atomically, write_text_atomically

from .certificates import make_node_key, make_server_certificate

LINK = "deploy"  # name of the SuperLink in the analyst's Flower configuration
ARBITER = "arbiter"
STATE = "federation.json"


@dataclass(frozen=True)
class Plan:
    """Who takes part in a trial federation."""

    # Each party's own file or folder, or an empty text for its share of the demonstration data
    parties: dict[str, str]
    arbiter: bool = False  # Whether there is a node that holds the CKKS key
    # labels, label_column, id_column: The server's label file and its column; the column of IDs
    # of the parties' files
    labels: str = ""
    label_column: str = ""
    id_column: str = ""
    # By node, keys of its config that say what it agrees to beyond the defaults
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise if this cannot be brought up."""
        for name in self.parties:
            check_name(name)
        if ARBITER in self.parties:
            raise ConfigError("no party can be called 'arbiter', the name of another role")
        if not self.parties:
            raise ConfigError("a federation needs a party")
        own = [name for name, path in self.parties.items() if path]
        if own and len(own) < len(self.parties):
            without = sorted(set(self.parties) - set(own))
            raise ConfigError(f"the parties {without} have no file; give each one --data NAME=FILE")
        for path in filter(None, self.parties.values()):
            if not Path(path).exists():
                raise ConfigError(f"there is no file {path}, and no such folder")
        if self.labels and not Path(self.labels).is_file():
            raise ConfigError(f"there is no file {self.labels}")

    @property
    def nodes(self) -> list[str]:
        """Names of all nodes, the arbiter last."""
        return [*self.parties, *([ARBITER] if self.arbiter else [])]

    @property
    def own_data(self) -> bool:
        """Whether the parties bring files of their own."""
        return any(self.parties.values())


@dataclass
class State:
    """What `up` leaves for the other commands, in `STATE`."""

    plan: Plan  # Who takes part
    port: int  # The SuperLink's
    # See ``apps.deploy.processes.Process``
    processes: list[dict[str, Any]] = field(default_factory=list)

    def save(self, home: Path) -> None:
        """Write the state, whole or not at all."""
        write_text_atomically(home / STATE, json.dumps(asdict(self), indent=2) + "\n")


def load_state(home: Path) -> State:
    """Read what `up` left."""
    try:
        found = json.loads((home / STATE).read_text())
        return State(Plan(**found["plan"]), found["port"], found["processes"])
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no federation in {home}; start one by "
            "`python -m apps.deploy.federation up`, or name its folder by --home"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{home / STATE} cannot be read: {error!r}") from error


def prepare(home: Path) -> None:
    """Make the folder, readable by its owner alone, or refuse one that holds something else."""
    if home.is_dir() and any(home.iterdir()) and not (home / STATE).exists():
        raise ConfigError(f"{home} holds something else than a federation; choose another --home")
    try:
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"cannot use the folder {home}: {error.strerror or error}") from error


def write_files(home: Path, plan: Plan, port: int) -> None:
    """Write keys, certificates, tables and configurations; keys that are there are kept."""
    for name in ("server", "analyst", "logs", *(f"nodes/{node}" for node in plan.nodes)):
        (home / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    made = make_server_certificate()
    (home / "ca.crt").write_bytes(made.ca)
    (home / "server" / "server.crt").write_bytes(made.certificate)
    write_bytes_atomically(home / "server" / "server.key", made.key, 0o600)
    (home / "analyst" / "config.toml").write_text(
        f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n'
        f'address = "127.0.0.1:{port}"\nroot-certificates = {toml_value(str(home / "ca.crt"))}\n'
    )
    tables = {} if plan.own_data else _demo_tables(home, plan)
    identities = {}
    for node in plan.nodes:
        folder = home / "nodes" / node
        if not (folder / "supernode").exists():
            private, public = make_node_key()
            (folder / "supernode.pub").write_bytes(public)
            write_bytes_atomically(folder / "supernode", private, 0o600)
        if not (folder / "identity.pem").exists():
            write_identity(folder / "identity.pem", generate_identity())
        identities[node] = identity_text(public_identity(load_identity(folder / "identity.pem")))
    for node in plan.nodes:
        config = node_config(home, plan, node, tables.get(node, ""), identities)
        write_toml(home / "nodes" / node / "node.toml", config)


def node_config(
    home: Path, plan: Plan, node: str, table: str, identities: dict[str, str]
) -> dict[str, Any]:
    """Node config of a SuperNode: its own file, its identity, and everybody else's pinned."""
    folder = home / "nodes" / node
    config: dict[str, Any] = {"party": node}
    if node == ARBITER:
        config["role"] = "arbiter"
    else:
        config["data"] = table or plan.parties[node]
        config["output"] = str(folder / "results")
        if id_column := "id" if table else plan.id_column:
            config["id-column"] = id_column
    config["identity-key"] = str(folder / "identity.pem")
    if node != ARBITER:  # which uses nobody's keys
        config["pin-all"] = True
        config |= {f"pin.{other}": key for other, key in identities.items() if other != node}
    return config | plan.policies.get(node, {})


def _demo_tables(home: Path, plan: Plan) -> dict[str, str]:
    """Split the blood pressure data, a third of the rows removed; returns the files' paths."""
    tables, _ = demo_tables("blood-pressure", len(plan.parties), 0.0, missing_blocks=1 / 3)
    paths = {}
    for party, table in zip(plan.parties, tables.values(), strict=True):
        path = home / "nodes" / party / f"{party}.csv"
        table.to_csv(path)
        paths[party] = str(path)
    if not plan.labels:
        demo_labels("blood-pressure").to_csv(label_file(home))
    return paths


def label_file(home: Path) -> Path:
    """Labels of the demonstration data, on the server."""
    return home / "server" / "labels.csv"


def write_toml(path: Path, values: dict[str, Any]) -> Path:
    """Write flat settings; keys with dots become tables, as Flower reads them."""
    path.write_text(toml_text(values))
    os.chmod(path, 0o600)
    return path
