"""The VFEM study: Tang, Wang, Feng and Li, linear regression by vertical federated EM."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.errors import ConfigError
from simulations.data import read_paper
from simulations.page import Part, Tables
from simulations.replications import Job, Store
from simulations.study import Study
from simulations.vfem import figures, page, sme_figures, sme_tables, tables, targets
from simulations.vfem.apart import apart_table, apart_target
from simulations.vfem.correlated import correlated_table, correlated_target
from simulations.vfem.experiments import replicate
from simulations.vfem.methods import STEADIED
from simulations.vfem.missing import calibrate_shared, expected_share
from simulations.vfem.preset import Preset
from simulations.vfem.sample import by_variable
from simulations.vfem.sme import scales

OF_PART = {
    "apart": ("target_apart", "apart"),
    "correlated": ("target_correlated", "correlated"),
    "finite": (
        "target_ahead", "target_ahead_prior", "finite_coefficients", "finite_prediction",
        "finite_effort",
    ),
    "inference": ("target_intervals", "inference"),
    "parting": ("parting", "parting_by_party"),
    "sme": ("target_cost", "sme_summary", "sme_table3", "sme_data"),
    "splits": ("figure4_splits",),
    "repeats": ("sme_repeats",),
}  # fmt: skip
_BOXES = {
    "prediction error on complete cases": "prediction",
    "coefficient RMSE, standard units": "coefficients",
}


class VFEMStudy(Study):
    """The paper's model on generated data, and the default where parties are correlated."""

    name = "vfem"
    title = "VFEM on generated data"
    question = (
        "Tang, Wang, Feng and Li, profit prediction of small and medium-sized enterprises by "
        "vertical federated EM (VFEM): where whole blocks of columns are missing, how near do "
        "coefficients and predictions come to the truth, beside regressions on one party's "
        "columns (Single), on complete cases (CC) and on mean-imputed tables (Impute)? Do the "
        "intervals cover?"
    )
    writes = "docs/vfem-study.md"
    goals: ClassVar[Mapping[str, str]] = {
        "target_apart": "Where parties share few rows or none, the 95 % intervals that VFEM gives "
        "cover, and its RMSE is at most a little above that of complete cases by the same rules "
        "on rows.",
        "target_correlated": "Where columns of parties are correlated, 95 % intervals of the "
        "default, covariance='full', cover, and its RMSE is below that of CC and Impute.",
        "target_ahead": "With half of the blocks missing or more, VFEM's coefficient RMSE and "
        "prediction error are below those of Single, CC and Impute, by maximum likelihood (means "
        "over the runs that both could fit; a method that could fit none is beaten).",
        "target_intervals": "95 % intervals cover, and standard errors are those of the "
        "estimates, for every party's coefficients.",
        "target_cost": "On data of the paper's size the fit is fast and small, in a process of "
        "its own, and nearer to the truth than CC and Impute.",
    }
    keeps = True
    preset_class = Preset
    preset: Preset
    replicate = staticmethod(replicate)

    def chosen(self) -> list[Job]:
        """Return the replications that the options choose."""
        return self.preset.chosen(self.options)

    def compute(self, store: Store) -> None:
        """Run first, alone, what is timed: nothing else runs meanwhile."""
        self.run_jobs([job for job in self.chosen() if job.part == "sme"], store, workers=0)
        super().compute(store)

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return the tables of all parts."""
        if lacking := {job.part for job in self.jobs()} - set(frame["part"]):
            raise ConfigError(
                f"there are no runs of {', '.join(sorted(lacking))} yet, and the page needs some "
                "of every part; run them, too: leave out --only-seeds or --fresh"
            )
        preset, papers = self.preset, [read_paper("vfem", name) for name in ("table2", "table3")]
        sme = preset["sme"]
        truth, _ = true_values(preset)
        printed = sme_tables.paper_cells(*papers)
        found = sme_tables.estimates(frame)
        summary = sme_tables.summary(frame, papers)
        cells = frame[(frame["part"] == "sme") & (frame["metric"] == "complete cases")]
        rates = [float(party["missing"]) for party in sme["parties"].values()]
        counts = {
            "rows": sme["rows"],
            "complete cases": int(cells["value"].iloc[0]),
            "independent": round(expected_share(rates, 0.0) * sme["rows"], 1),
            "shared": calibrate_shared(rates, sme["complete_cases"] / sme["rows"]),
        }
        parting = tables.inference(frame, "parting")
        correlated = correlated_table(frame)
        apart = apart_table(frame)
        every = {
            "target_apart": apart_target(apart, preset["apart"]),
            "apart": apart,
            "target_correlated": correlated_target(correlated, preset["correlated"]),
            "correlated": correlated,
            "target_ahead": targets.ahead(frame, preset["finite"]["target_from"]),
            "target_ahead_prior": targets.ahead(frame, preset["finite"]["target_from"], STEADIED),
            "finite_coefficients": tables.finite(frame, "coefficients"),
            "finite_prediction": tables.finite(frame, "prediction"),
            "finite_effort": tables.effort(frame),
            "target_intervals": targets.intervals(frame, preset["inference"]),
            "inference": tables.inference(frame, "inference"),
            "parting": parting.groupby(level=["rows", "cross", "kind"]).mean(),
            "parting_by_party": parting,
            "target_cost": targets.cost(summary, sme),
            "sme_summary": summary,
            "sme_table3": sme_tables.like_table3(found, truth, printed),
            "sme_data": sme_tables.data_check(sme, counts),
            "figure4_splits": sme_tables.splits(frame),
            "sme_repeats": sme_tables.repeats(frame),
        }
        # Coverage of a few replications says nothing, so a part has tables when it is finished.
        begun = {part for part, (run, asked) in self.counts.items() if run < asked}
        left_out = {name for part in begun for name in OF_PART[part]}
        return {n: pd.DataFrame() if n in left_out else table for n, table in every.items()}

    def figures(self, frame: pd.DataFrame, found: Tables) -> dict[str, Figure]:
        """Return a figure for each part that has one."""
        preset, drawn = self.preset, {}
        truth, scale = true_values(preset)
        goals = preset["inference"]
        if len(found["finite_coefficients"]):
            tables = {text: found[f"finite_{name}"] for name, text in targets.MEASURES.items()}
            drawn["finite"] = figures.rates_figure(tables)
        if len(found["inference"]):
            drawn["coverage"] = figures.coverage_figure(
                found["inference"], goals["coverage"], goals["se_within"]
            )
        if len(found["parting"]):
            drawn["parting"] = figures.parting_figure(found["parting"])
        if len(found["sme_table3"]):
            estimates = sme_tables.estimates(frame)
            drawn["sme_forest"] = sme_figures.forest_figure(estimates, truth, scale)
        if len(found["figure4_splits"]):
            drawn["figure4_boxes"] = sme_figures.boxes_figure(
                {title: sme_tables.runs(frame, "splits", name) for title, name in _BOXES.items()}
            )
        return drawn

    def notes(self) -> list[str]:
        """Return what a reader must know."""
        return [
            "The replications behind this page are in [records/vfem.jsonl](records/vfem.jsonl), so "
            "`--report` makes it anew without running any. A part has tables when all of its "
            "replications are there: coverage by a few of them says nothing.",
            "The paper's numbers are in brackets or in columns of their own.",
        ]

    def parts(self, found: Tables) -> Sequence[Part]:
        """Return the sections of the page."""
        return page.parts(found, self.preset)


def true_values(preset: Preset) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Return the SME-like data's coefficients and scales, index (party, variable)."""
    parties = preset["sme"]["parties"]
    names = {party: list(values["variables"]) for party, values in parties.items()}
    truth = [value for values in parties.values() for value in values["coefficients"]]
    return by_variable(truth, names), by_variable(scales(preset["sme"]), names)


open_study = VFEMStudy
