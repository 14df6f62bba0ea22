"""The audits: many runs of every mechanism with noise, and a lower bound of its epsilon."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pandas as pd

from flwr_vertical.errors import ConfigError
from simulations.audits import counts, releases, sums, tables
from simulations.audits.mechanism import Mechanism, audit
from simulations.page import FAIL, PASS, Part, Tables
from simulations.preset import StudyPreset
from simulations.replications import Job, Metrics
from simulations.study import Study

REFUTED = "refuted"


class Preset(StudyPreset):
    """The settings of one run of the audits."""

    repeated = ()

    def jobs(self) -> list[Job]:
        """Return a job for each mechanism."""
        return [Job("audit", {"mechanism": name, **self["audit"]}) for name in all_by_name()]


@functools.cache
def all_by_name() -> dict[str, Mechanism]:
    """Return every mechanism there is by name; made once a process."""
    parts = counts, releases, sums, tables
    return {mechanism.name: mechanism for part in parts for mechanism in part.mechanisms()}


class AuditsStudy(Study):
    """Lower bounds of epsilon."""

    name = "audits"
    title = "Audits of epsilon"
    question = (
        "Is the epsilon that each mechanism states true? Each runs many times on two tables that "
        "differ in one row, chosen so that the outcomes differ as much as they can. The first "
        "half of the runs chooses an outcome, the second half counts it "
        "(`flwr_vertical.grading.audit.audit_epsilon`): a lower bound of epsilon, which would "
        "show an error if it were above what is stated."
    )
    writes = "docs/audits.md"
    goals: ClassVar[Mapping[str, str]] = {
        "audits": "No bound is above the stated epsilon; where outcomes that attain epsilon are "
        "not rare, it is above half of it, so that the audit would see an error."
    }
    preset_class = Preset
    preset: Preset

    def prepare(self) -> None:
        """Refuse what audits do not have."""
        if self.options.seeds is not None:
            raise ConfigError("audits have no replications; say --set audit.runs=N for more runs")

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

    def notes(self) -> list[str]:
        """Return what a reader must know."""
        part = self.preset["audit"]
        return [
            f"Each bound holds at a confidence of {100 * part['confidence']:g} %. Where many "
            "numbers share the budget, no single outcome shows it: there the bound is far below "
            "and shows little. `tests/privacy/test_privacy_audits.py` replays releases on "
            "neighbouring tables with the same outcome, which gives their loss exactly: it comes "
            "near what the ledger counts, and never exceeds it.",
            "Delta is large here, so that outcomes which attain epsilon are frequent enough to "
            "count.",
            "VFL-ADMM-DP (`glm-admm` with `epsilon`) is a baseline of a paper, not a protection: a "
            "fit lies in the span of the party's columns, and so does its noise. Who knows as "
            "many rows as there are columns solves for the noisy coefficients, and every other "
            "row's fit then tells of its columns. Use `glm` with `epsilon`.",
            f"Noise comes from the seed {part['seed']}, so that the command repeats the numbers.",
        ]

    def parts(self, found: Tables) -> Sequence[Part]:
        """Return both tables."""
        return [
            Part("What is told with noise", tables={"audits": ""}),
            Part("What is told with noise, but promises nothing", tables={REFUTED: ""}),
        ]


def _verdict(mechanism: Mechanism, found: float) -> str:
    if not mechanism.holds:
        return REFUTED if found > mechanism.epsilon else "not found out"
    if found > mechanism.epsilon:
        return f"{FAIL}: more is spent than stated"
    if not mechanism.tight:
        return PASS
    return f"{PASS}, above half" if found > mechanism.epsilon / 2 else f"{FAIL}: not above half"


open_study = AuditsStudy
