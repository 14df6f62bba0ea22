"""The audits: many runs of every mechanism with noise, and a lower bound of its epsilon."""

import functools
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError
from simulations.audits import counts, releases, sums, tables
from simulations.audits.mechanism import Mechanism, audit
from simulations.page import FAIL, PASS, Tables
from simulations.replications import Job, Metrics
from simulations.study import Study

REFUTED = "refuted"


@functools.cache
def all_by_name() -> dict[str, Mechanism]:
    """Return every mechanism there is by name; made once a process."""
    parts = counts, releases, sums, tables
    return {mechanism.name: mechanism for part in parts for mechanism in part.mechanisms()}


class AuditsStudy(Study):
    """Lower bounds of epsilon."""

    name = "audits"

    def prepare(self) -> None:
        """Refuse what audits do not have."""
        if self.options.seeds is not None:
            raise ConfigError("audits have no replications; say --set audit.runs=N for more runs")

    def jobs(self) -> list[Job]:
        """Return a job for each mechanism."""
        return [Job("audit", {"mechanism": name, **self.preset["audit"]}) for name in all_by_name()]

    @staticmethod
    def replicate(job: Job, shared: None) -> Metrics:
        """Audit one mechanism."""
        own = job.settings
        made = audit(all_by_name()[own["mechanism"]], own["runs"], own["seed"], own["confidence"])
        return {"epsilon": made.epsilon, "runs": float(made.n_runs)}

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return one row for each mechanism, in the table that it belongs to."""
        wide = frame.pivot_table("value", "mechanism", "metric", sort=False)
        rows: dict[str, dict[str, dict[str, Any]]] = {"audits": {}, REFUTED: {}}
        for name, mechanism in all_by_name().items():
            if name not in wide.index:
                continue
            told = wide.loc[name].to_dict()
            found = float(told["epsilon"])
            rows["audits" if mechanism.holds else REFUTED][name] = {
                "tables differ in": mechanism.differ,
                "epsilon stated": round(mechanism.epsilon, 3),
                "delta": mechanism.delta,
                "epsilon at least": round(found, 3),
                "runs": int(told["runs"]),
                "as stated": _verdict(mechanism, found),
            }
        return {
            name: pd.DataFrame.from_dict(own, orient="index").rename_axis("what is told")
            for name, own in rows.items()
        }

    def words(self, found: Tables) -> dict[str, Any]:
        """Return the confidence in percent."""
        return {"percent": 100 * self.preset["audit"]["confidence"]}


def _verdict(mechanism: Mechanism, found: float) -> str:
    if not mechanism.holds:
        return REFUTED if found > mechanism.epsilon else "not found out"
    if found > mechanism.epsilon:
        return f"{FAIL}: more is spent than stated"
    if not mechanism.tight:
        return PASS
    return f"{PASS}, above half" if found > mechanism.epsilon / 2 else f"{FAIL}: not above half"


open_study = AuditsStudy
