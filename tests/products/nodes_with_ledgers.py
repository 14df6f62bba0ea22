"""Nodes with files and privacy ledgers of their own, for runs that follow each other."""

import numpy as np
import pandas as pd

from flwr_vertical import FileStorage, LocalGrid, party_app
from flwr_vertical.privacy_ledger.summary import LedgerSummary
from strategies.least_squares import CompleteCase


class Nodes:
    """Two organisations that keep their files and ledgers; each run has processes of its own."""

    def __init__(self, folder, tables, **config):
        self.folder, self.tables, self.config = folder, tables, config
        self.n_runs = 0
        folder.mkdir(exist_ok=True)
        self.write()

    @classmethod
    def of(cls, folder, n=60, seed=0, **config):
        """Numbers at both, of the same people."""
        rng = np.random.default_rng(seed)
        ids = pd.Index([f"c{i:03}" for i in range(n)], name="id")
        tables = {
            "bank": pd.DataFrame({"income": rng.normal(size=n), "age": rng.normal(size=n)}, ids),
            "court": pd.DataFrame({"debt": rng.normal(size=n)}, ids),
        }
        return cls(folder, tables, **config)

    @property
    def ids(self):
        return self.tables["bank"].index

    def write(self):
        for name, table in self.tables.items():
            table.to_csv(self.folder / f"{name}.csv")

    def labels(self, rows=None, seed=0):
        """Labels of some rows, those of a seed; the others have none."""
        values = np.random.default_rng(100 + seed).normal(size=len(self.ids))
        found = pd.Series(values, self.ids)
        return found if rows is None else found.iloc[sorted(rows)]

    def configs(self):
        return [
            {
                "party": name, "data": str(self.folder / f"{name}.csv"),
                "output": str(self.folder / f"{name}-out"),
                **{key.replace("__", ".").replace("_", "-"): v for key, v in self.config.items()},
            }
            for name in self.tables
        ]  # fmt: skip

    def app(self, strategy):
        protocol = strategy.protocol_of_run()
        halves = {"arbiter": strategy.arbiter, "protocol": protocol}
        return party_app(strategy.party, **halves, storage=FileStorage())

    def run(
        self,
        labels,
        strategy=None,
        name=None,
        wrap=lambda grid: grid,
        config=None,
        run_id=None,
        **start,
    ):
        """One run, over real messages, in processes that know nothing of the last one."""
        self.n_runs += 1
        strategy = strategy or CompleteCase()
        settings = {"run-name": name or f"run-{self.n_runs}", **(config or {})}
        with LocalGrid(self.app(strategy), self.configs(), settings) as grid:
            for context in grid.contexts.values():
                context.run_id = run_id or self.n_runs
            return strategy.start(
                grid=grid, labels=labels, parties=list(self.tables), progress=False,
                retries=0, **{"label_secret": self.folder / "server" / "label-secret", **start},
            )  # fmt: skip

    def path(self, party="bank"):
        return self.folder / f"{party}-out" / f"{party}.privacy-ledger.sqlite"

    def rows_told(self, party="bank"):
        """Entries on sums over rows."""
        return [entry for entry in self.summary(party).entries if entry["kind"] == "rows"]

    def summary(self, party="bank"):
        return LedgerSummary.of(self.path(party))
