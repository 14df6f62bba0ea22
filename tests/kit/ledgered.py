"""Nodes with tables and privacy ledgers on disk, on which one run follows another."""

import contextlib
import copy
import logging

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context

from flwr_vertical import Federation, LocalGrid, RecordingGrid, party_app
from flwr_vertical.alignment.registry import make_aligner
from flwr_vertical.errors import PartyError
from flwr_vertical.privacy_ledger.summary import LedgerSummary

N = 150
IDS = pd.Index([f"c{i:03}" for i in range(N)], name="customer")


def tables(seed=0):
    """Two columns at the bank, one at the court."""
    rng = np.random.default_rng(seed)
    bank = pd.DataFrame(rng.normal(size=(N, 2)), IDS, ["income", "age"])
    return {"bank": bank, "court": pd.DataFrame({"debts": rng.normal(size=N)}, IDS)}


def labels_of(parties, seed=1, unlabelled=0):
    noise = np.random.default_rng(seed).normal(size=N)
    made = 1.0 + parties["bank"]["income"] - parties["court"]["debts"] + noise
    made.iloc[:unlabelled] = np.nan
    return made.rename("y")


class Forgetful:
    """A node each of whose answers is lost with its process: another one answers again."""

    def __init__(self, make):
        self._make = make

    def __call__(self, message, context):
        lost = Context(context.run_id, context.node_id, context.node_config,
                       copy.deepcopy(context.state), context.run_config)  # fmt: skip
        self._make()(message, lost)
        return self._make()(message, context)


class Nodes:
    """The disks of some parties."""

    def __init__(self, folder, parties, storage=None, **keys):
        self.storage = storage
        self.folder, self.configs, self.n_runs = folder, {}, 0
        self.declared = True
        for name in parties:
            out = str(folder / "out" / name)
            data = str(folder / f"{name}.csv")
            self.configs[name] = {"party": name, "data": data, "output": out,
                                  "policy.alignments": "any", **keys}  # fmt: skip
        self.write(parties)

    def write(self, parties):
        for name, table in parties.items():
            table.to_csv(self.folder / f"{name}.csv")

    def state(self, **keys):
        """Change keys of every node config, ``policy_openings=3`` for ``policy.openings``."""
        for config in self.configs.values():
            for key, value in keys.items():
                spelt = key.replace("policy_", "policy.").replace("_", "-")
                config.pop(spelt, None)
                if value is not None:
                    config[spelt] = value

    def know_no_protocol(self):
        """Let what comes after the protocol's own checks be tried: rules on releases hold alone."""
        self.declared = False
        self.state(policy_exchanges="any")

    @contextlib.contextmanager
    def grid(self, strategy, forgetful=False, run_id=None, **config):
        """Begin a run, of another number than all before unless one is given."""
        self.n_runs += 1

        def make():
            protocol = strategy.protocol_of_run() if self.declared else None
            halves = {"arbiter": strategy.arbiter, "protocol": protocol}
            return party_app(strategy.party, **halves, storage=self.storage)

        app = Forgetful(make) if forgetful else make()
        config = {key.replace("_", "-"): value for key, value in config.items()}
        config = {"run-name": f"run {self.n_runs}", "strategy": strategy.name} | config
        with LocalGrid(app, list(self.configs.values()), config) as grid:
            for context in grid.contexts.values():
                context.run_id = run_id or self.n_runs
            recorder = RecordingGrid(grid)
            self.transcript = recorder.transcript
            yield recorder

    def run(self, strategy, labels=None, forgetful=False, alignment="plain", **config):
        with self.grid(strategy, forgetful, **config) as grid:
            return strategy.start(grid=grid, labels=labels, alignment=alignment, retries=0)

    def refused(self, key, strategy, *args, **options):
        """Run and be refused; returns the refusal."""
        logging.disable(logging.CRITICAL)
        try:
            with pytest.raises(PartyError, match=rf"refuses by policy\.{key}: ") as caught:
                self.run(strategy, *args, **options)
        finally:
            logging.disable(logging.NOTSET)
        return str(caught.value)

    def greet(self, grid, alignment="plain"):
        """Greet and align as a server of another mind, which then asks whatever it likes."""
        federation = Federation(grid, aggregation="masked", parties=list(self.configs), retries=0)
        federation.open()
        make_aligner(alignment).align(federation)
        return federation

    def ledger(self, name="bank"):
        return LedgerSummary.of(self.folder / "out" / name / f"{name}.privacy-ledger.sqlite")

    def entries(self, kind, name="bank"):
        return [entry for entry in self.ledger(name).entries if entry["kind"] == kind]
