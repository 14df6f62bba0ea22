"""The copula study: Tang, Feng, Li and Wang, synthetic tables (VCDS) and sparse GLMs."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from simulations.copula import figures, tables, targets
from simulations.copula.criteria import MEASURES
from simulations.copula.experiments import replicate
from simulations.copula.preset import Preset
from simulations.data import read_paper
from simulations.page import Tables, listed
from simulations.study import Study

PAPERS = {"complete": (1, 2, 3), "missing": (4, 5, 6, 7), "sme": (9,)}


class CopulaStudy(Study):
    """Sparse regressions on generated data and on synthetic tables of them."""

    name = "copula"
    preset_class = Preset
    replicate = staticmethod(replicate)

    def prepare(self) -> None:
        """Read the paper's tables."""
        papers = {
            part: pd.concat([read_paper("copula", f"table{number}") for number in numbers])
            for part, numbers in PAPERS.items()
        }
        self._papers = {part: paper.rename(columns={"n": "rows"}) for part, paper in papers.items()}
        self._papers["complete"] = self._papers["complete"].astype({"epsilon": float})

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return Tables 1 to 7 and 9, and what they are compared with."""
        preset, paper, gaps = self.preset, self._papers["complete"], self._papers["missing"]
        complete = tables.means(frame, "complete", tables.COMPLETE)
        missing = tables.means(frame, "missing", tables.MISSING)
        spread = tables.spread_over_epsilon(complete, preset["complete"]["epsilons"])
        attacks = tables.attacks(frame)
        found = {
            "target_unprotected": targets.unprotected(complete, paper, preset["complete"]),
            "target_synthetic": targets.synthetic(complete, paper, preset["complete"]),
            "target_ranking": targets.ranking(missing, gaps, preset["missing"]),
            "target_attacks": targets.attacked(attacks, preset["attacks"]),
            "effort": tables.effort(complete),
            "table9": tables.sme(frame, self._papers["sme"]),
            "attacks": attacks,
            "paper_implies": tables.what_the_paper_implies(paper, preset["design"]),
            "complete_means": complete,
            "missing_means": missing,
        }
        for number, measure in enumerate(MEASURES, start=1):
            found[f"table{number}"] = tables.beside(spread, paper, measure, tables.COMPLETE)
            found[f"tables4to7_{measure}"] = tables.by_mechanism(
                tables.beside(missing, gaps, measure, tables.MISSING)
            )
        return found

    def figures(self, frame: pd.DataFrame, found: Tables) -> dict[str, Figure]:
        """Return a figure for each part, the paper's numbers dashed."""
        papers, drawn = self._papers, {}
        if len(found["complete_means"]):
            ours = found["complete_means"]
            drawn["complete"] = figures.complete_figure(ours, papers["complete"])
        if len(found["missing_means"]):
            drawn["missing"] = figures.missing_figure(found["missing_means"], papers["missing"])
        if len(found["table9"]):
            drawn["sme"] = figures.sme_figure(found["table9"])
        return drawn

    def words(self, found: Tables) -> dict[str, Any]:
        """Return the smallest epsilon, and shares of complete rows."""
        return {
            "least_epsilon": min(self.preset["complete"]["epsilons"]),
            "shares": listed(self.preset["missing"]["shares"], "{} {:.2%}"),
        }


open_study = CopulaStudy
