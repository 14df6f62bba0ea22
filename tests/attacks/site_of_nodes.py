"""Real nodes in one process: own files, own ledgers; run config and messages are the attacker's.

The nodes are served by the app's own ClientApp and `FileStorage`, so a run is what it would be on
Flower but for the network. Where a test says so, the nodes pin each other's identities and share
a secret against guessing.
"""

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apps.cli.run_config import app_defaults
from apps.client_app import app as client_app
from flwr_vertical import Federation, LocalGrid, RecordingGrid
from flwr_vertical.errors import PartyError
from flwr_vertical.privacy_ledger.summary import LedgerSummary
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import HELLO, VALUES, make_message, make_request, read_envelope
from tests.kit.identities import identities, pins

ROOT = Path(__file__).parents[2]
PARTIES = ("bank", "court")
LEAVES = ("rows", "bits", "predictions", "epsilon", "ids")
"""Kinds of entries that say that something left, or was done for others."""


def make_tables(n, seed=0):
    """Two columns at each of two parties, all rows at both; IDs of nine digits."""
    rng = np.random.default_rng(seed)
    ids = pd.Index([f"{i:09d}" for i in rng.choice(9 * 10**8, n, replace=False)], name="id")
    return {
        "bank": pd.DataFrame(
            {"income": rng.normal(4000, 900, n).round(2), "age": rng.normal(45, 12, n).round(1)},
            ids,
        ),
        "court": pd.DataFrame(
            {"debt": rng.gamma(2, 500, n).round(2), "fines": rng.normal(300, 80, n).round(2)}, ids
        ),
    }


class Site:
    """The nodes of a federation, with a disk each."""

    def __init__(self, folder, tables, pinned=False, app=client_app, **policies):
        self.folder, self.tables, self.app = folder, tables, app
        people = identities(folder, tables)
        (folder / "id-secret").write_bytes(os.urandom(32))
        self.nodes = []
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv")
            node = {"party": name, "data": str(folder / f"{name}.csv")}
            node["output"] = str(folder / f"{name}-out")
            if pinned:
                node |= {"identity-key": people[name][0], "pin-all": True, **pins(people)}
                node["id-secret"] = str(folder / "id-secret")
            self.nodes.append(node | policies.get("all", {}) | policies.get(name, {}))

    @contextmanager
    def served(self, run_id=1, without=(), **run_config):
        """Serve the nodes in a run of the attacker's; yields a grid that keeps the transcript."""
        config = app_defaults(ROOT) | {"run-name": f"run-{run_id}", "strategy": "complete-case"}
        config |= {key.replace("_", "-"): value for key, value in run_config.items()}
        for key in without:
            del config[key]
        with LocalGrid(self.app, self.nodes, config) as grid:
            for context in grid.contexts.values():
                context.run_id = run_id
            yield RecordingGrid(grid)

    @contextmanager
    def attacked(self, run_id=1, aggregation="masked", without=(), **run_config):
        """Yield a federation that has not greeted yet."""
        with self.served(run_id, without, **run_config) as grid:
            yield self.federation(grid, aggregation=aggregation)

    def federation(self, grid, **options):
        """Return the server's side of a run, before its greeting."""
        options = {"patience": 0.05, "timeout": 60.0, "retries": 0} | options
        return Federation(grid, parties=list(self.tables), **options)

    def run(self, strategy, labels=None, run_id=1, label_holder=None, transcript=None, **options):
        """Run a strategy as an honest server would; what a run config says of it is in options.

        Messages are appended to `transcript` as they travel.
        """
        known = {"alignment", "aggregation"}
        config = {key: value for key, value in options.items() if key not in known}
        config["settings"] = json.dumps(strategy.settings())
        settings = {key: options[key] for key in known & set(options)}
        if label_holder:
            config["label-holder"] = label_holder
        with self.served(run_id, strategy=strategy.name, **config, **settings) as grid:
            if transcript is not None:
                grid.transcript = transcript
            return strategy.start(
                grid=grid, labels=labels, label_holder=label_holder, parties=list(self.tables),
                retries=0, timeout=60.0, patience=0.05,
                label_secret=self.folder / "server" / "label-secret",
                **({"alignment": "private-id"} | settings),
            )  # fmt: skip

    def ledger(self, party):
        """Return a node's ledger; None if it has none yet."""
        path = self.folder / f"{party}-out" / f"{party}.privacy-ledger.sqlite"
        return LedgerSummary.of(path) if path.is_file() else None

    def kinds(self, party, refused=False, run=None):
        """Kinds of a node's entries, in order; of one run by its name, or of all."""
        found = self.ledger(party)
        if found is None:
            return []
        names = {r["id"]: r["name"] for r in found.runs}
        entries = [e for e in found.entries if run in (None, names[e["run"]])]
        return [e["kind"] for e in entries if refused or e["kind"] != "refused"]

    def left(self):
        """Entries of all nodes that say that something left."""
        return {p: [k for k in self.kinds(p) if k in LEAVES] for p in self.tables}


NOTHING = {name: [] for name in PARTIES}


def ask(grid, step, sequence, mode="call", party=0, updates=None, more=None, **arguments):
    """Send a message of the attacker's own to a node; return what it answered."""
    envelope = {"mode": mode, **(more or {})}
    content = make_request(step, sequence, arguments, updates, **envelope)
    message = make_message(content, list(grid.get_node_ids())[party])
    (reply,) = grid.send_and_receive([message], timeout=60.0)
    return dict(read_envelope(reply.content)), decode(reply.content, VALUES)


def steps_answered(grid):
    """Steps that were answered without an error, but for the greeting."""
    steps, answered = [], []
    for record in grid.transcript:
        envelope = read_envelope(record.content) or {}
        if record.direction == "down":
            steps.append((record.node_id, str(envelope["step"])))
        elif envelope.get("status") == "ok":
            answered.append(next(s for node, s in reversed(steps) if node == record.node_id))
    return [step for step in answered if step != HELLO]


@contextmanager
def refused(key, party=None):
    """Expect a refusal that names the key, what was asked and what is allowed."""
    who = party or r"\w+"
    pattern = rf"party '{who}'.* refuses by {re.escape(key)}: asked: .+; allowed: ."
    with pytest.raises(PartyError, match=pattern) as caught:
        yield caught
