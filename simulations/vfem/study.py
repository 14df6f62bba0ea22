"""The VFEM study: Tang, Wang, Feng and Li, linear regression by vertical federated EM."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.errors import ConfigError
from flwr_vertical.pages.page import format_value
from simulations.data import read_paper
from simulations.page import Tables
from simulations.preset import StudyPreset
from simulations.replications import Store
from simulations.study import Study
from simulations.vfem import figures, sme_figures, sme_tables, tables, targets
from simulations.vfem.apart import apart_table, apart_target
from simulations.vfem.correlated import correlated_table, correlated_target
from simulations.vfem.experiments import replicate
from simulations.vfem.methods import STEADIED
from simulations.vfem.missing import calibrate_shared, expected_share
from simulations.vfem.preset import Preset
from simulations.vfem.sample import by_variable, noise_variance
from simulations.vfem.sme import scales

_BOXES = {
    "prediction error on complete cases": "prediction",
    "coefficient RMSE, standard units": "coefficients",
}


class VFEMStudy(Study):
    """The paper's model on generated data, and the default where parties are correlated."""

    name = "vfem"
    preset_class = Preset
    replicate = staticmethod(replicate)

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
        least = preset["finite"]["target_from"]
        by_part = {
            "apart": {"target_apart": apart_target(apart, preset["apart"]), "apart": apart},
            "correlated": {
                "target_correlated": correlated_target(correlated, preset["correlated"]),
                "correlated": correlated,
            },
            "finite": {
                "target_ahead": targets.ahead(frame, least),
                "target_ahead_prior": targets.ahead(frame, least, STEADIED),
                "finite_coefficients": tables.finite(frame, "coefficients"),
                "finite_prediction": tables.finite(frame, "prediction"),
                "finite_effort": tables.effort(frame),
            },
            "inference": {
                "target_intervals": targets.intervals(frame, preset["inference"]),
                "inference": tables.inference(frame, "inference"),
            },
            "parting": {
                "parting": parting.groupby(level=["rows", "cross", "kind"]).mean(),
                "parting_by_party": parting,
            },
            "sme": {
                "target_cost": targets.cost(summary, sme),
                "sme_summary": summary,
                "sme_table3": sme_tables.like_table3(found, truth, printed),
                "sme_data": sme_tables.data_check(sme, counts),
            },
            "splits": {"figure4_splits": sme_tables.splits(frame)},
            "repeats": {"sme_repeats": sme_tables.repeats(frame)},
        }
        # Coverage of a few replications says nothing, so a part has tables when it is finished.
        begun = {part for part, (run, asked) in self.counts.items() if run < asked}
        return {
            name: pd.DataFrame() if part in begun else table
            for part, own in by_part.items()
            for name, table in own.items()
        }

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

    def words(self, found: Tables) -> dict[str, Any]:
        """Return rates, and two numbers that follow from settings."""
        data = found["sme_data"]
        complete = data.loc[sme_tables.INDEPENDENT, "here"] if len(data) else "–"
        return {
            "inference_rates": ", ".join(f"{r:.0%}" for r in self.preset["inference"]["rates"]),
            "noise_variance": noise_variance(self.preset["design"]),
            "independent": format_value(complete),
        }


def true_values(preset: StudyPreset) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Return the SME-like data's coefficients and scales, index (party, variable)."""
    parties = preset["sme"]["parties"]
    names = {party: list(values["variables"]) for party, values in parties.items()}
    truth = [value for values in parties.values() for value in values["coefficients"]]
    return by_variable(truth, names), by_variable(scales(preset["sme"]), names)


open_study = VFEMStudy
