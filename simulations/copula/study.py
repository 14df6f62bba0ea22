"""The copula study: Tang, Feng, Li and Wang, synthetic tables (VCDS) and sparse GLMs."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure

from simulations.copula import figures, tables, targets
from simulations.copula.criteria import MEASURES
from simulations.copula.experiments import replicate
from simulations.copula.preset import Preset
from simulations.data import read_paper
from simulations.page import Part, Tables
from simulations.study import Study

PAPERS = {"complete": (1, 2, 3), "missing": (4, 5, 6, 7), "sme": (9,)}


class CopulaStudy(Study):
    """Sparse regressions on generated data and on synthetic tables of them."""

    name = "copula"
    title = "Synthetic tables by copulas, sparse GLMs by ADMM"
    question = (
        "Tang, Feng, Li and Wang, data privatization in vertical federated learning with "
        "client-wise missing problem (VCDS, EVCDS, IEVCDS, VFL-GLM-VS): how well do sparse "
        "regressions select and estimate on the data themselves, and on synthetic tables made of "
        "them, complete and with blocks missing? And what does an attacker learn from such a table?"
    )
    goals: ClassVar[Mapping[str, str]] = {
        "target_unprotected": "VFL-GLM-VS on the data themselves, with enough rows: RMSE, G-means "
        "and FDR no worse than the paper's (in brackets) by more than two standard errors of our "
        "mean; its tolerances within 200 rounds for the whole path.",
        "target_synthetic": "Synthetic tables of complete data: RMSE and G-means near the paper's "
        "(limits in brackets).",
        "target_ranking": "MAR complex: IEVCDS at least as good in G-means as EVCDS, and EVCDS as "
        "the baselines; both near the paper's (limits in brackets).",
        "target_attacks": "Attacks gain few points over chance where rows are drawn afresh "
        "(limits in brackets).",
    }
    preset_class = Preset
    preset: Preset
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
        papers = self._papers
        return {
            "complete": figures.complete_figure(found["complete_means"], papers["complete"]),
            "missing": figures.missing_figure(found["missing_means"], papers["missing"]),
            "sme": figures.sme_figure(found["table9"]),
        }

    def parts(self, found: Tables) -> Sequence[Part]:
        """Return the sections of the page."""
        complete, missing, design = (self.preset[n] for n in ("complete", "missing", "design"))
        sme, attacks = self.preset["sme"], self.preset["attacks"]
        shares = ", ".join(f"{name} {share:.2%}" for name, share in missing["shares"].items())
        return [
            Part(
                "Complete data (Tables 1 to 3)",
                f"Means of {complete['runs']} runs, the paper's of 100 in brackets; the figure "
                f"has epsilon {min(complete['epsilons']):g}.",
                items=[
                    "Original-C fits one table, Original-VFL the same tables over five parties by "
                    "masked sums; Vertigan is the paper's alone. VFL-ADMM-DP here is after Hu et "
                    "al. (2020); the paper does not print its noise.",
                    "EVCDS is as printed: synthetic rows follow the ranks of real ones. With "
                    "fresh rows, the library's default, none belongs to anybody. Budgets are per "
                    "variable: with the budget split over variables the correlation matrix is "
                    "noise.",
                    f"The paper does not say how many columns are of each kind ({design['kinds']} "
                    "here), nor the multinomial's weights; columns are shuffled until the mean "
                    f"predictor is within {design['level']:g} of 0, since uneven labels would "
                    "make even the fit on the true support less exact than the paper's.",
                    "The paper prints BIC as mean loss + df log(N), which would select nothing; "
                    "here it is minus twice the log likelihood + df log(N).",
                    "The paper's G-means and RMSE cannot belong to the same fits: a missed column "
                    "has an error of 1/3, and the printed misses alone make a larger RMSE than "
                    "the printed one (last table). So a larger RMSE with a better selection is no "
                    "contradiction. “True support” is maximum likelihood on the columns that have "
                    "an effect: an estimate without bias can hardly be better, and for few rows "
                    "of the logistic model the paper's is.",
                    "Logistic, 1,000 rows: synthetic tables select as the paper's do, and their "
                    "RMSE is larger. It is what the missed columns make, by their whole effect, "
                    "together with the error of “True support”, since SCAD does not shrink what it "
                    "selects. No synthetic table can have less of either.",
                ],
                tables={
                    "table1": "Table 1: RMSE (the paper's in brackets)",
                    "table2": "Table 2: G-means",
                    "table3": "Table 3: FDR",
                    "effort": "Rounds of the federated fits: one path",
                    "paper_implies": "What the paper's selection says of its errors",
                },
                figures=["complete"],
            ),
            Part(
                "Missing blocks (Tables 4 to 7)",
                f"Means of {missing['runs']} runs, the paper's of 100 in brackets; epsilon "
                f"{missing['epsilon']:g}.",
                items=[
                    "The paper states missing probabilities of 0.95, 0.90, 0.85, 0.80 and 0.75, "
                    "which would leave 0.02 % of rows complete, and prints these shares of "
                    f"complete rows: {shares}. The printed shares are kept (they are 0.95⁵, 0.85⁵ "
                    "and 0.75⁵ to within half a point): under MCAR every party misses the same "
                    "share; under MAR the constant of the log-odds is set for each data set. "
                    "Which parties may miss is drawn with probability 1/2, at least one.",
                    "CC makes as many synthetic rows as there are complete ones; the others as "
                    "many as there are samples.",
                    "Linear model, under MAR: EVCDS and IEVCDS find nearly all columns that have "
                    "an effect, and take more others with them than the paper's: RMSE is smaller, "
                    "FDR larger, and G-means, which weighs both shares alike, smaller. BIC counts "
                    "synthetic rows as if each were a sample, but correlations of two parties come "
                    "from the rows that both have, and are noisy: some noise is selected. EVCDS "
                    "has more "
                    "of it than IEVCDS, since its correlations are those of the rows that are "
                    "seen, and what decides which rows these are biases them.",
                ],
                tables={
                    "tables4to7_g_means": "G-means",
                    "tables4to7_rmse": "RMSE",
                    "tables4to7_fdr": "FDR",
                },
                figures=["missing"],
            ),
            Part(
                "Data like the paper's firms (Table 9)",
                f"{sme['rows']:,} generated firms, means of {sme['runs']} data sets; NS: how many "
                "variables are selected.",
                items=[
                    "The paper's data are not public. Institutions, numbers of variables, missing "
                    f"rates, the {sme['complete_cases']} complete firms and the {sme['test']} of "
                    "them that are predicted are the paper's; correlations, effects and the share "
                    "of risky firms are ours, so the paper's numbers are of other data.",
                    "Blocks are missing by a factor that the label drives in part. A firm counts "
                    "as predicted risky from the share of risky firms in the (synthetic) training "
                    "labels on.",
                ],
                tables={"table9": ""},
                figures=["sme"],
            ),
            Part(
                "Attacks: percentage points above chance",
                f"{attacks['rows']:,} members and as many others of the same population, epsilon "
                f"{attacks['epsilon']:g}, {attacks['runs']} runs. Membership: whose nearest "
                "synthetic row is nearer than the median. Attribute: a continuous column from the "
                "nearest synthetic row, against the same guess about others. EVCDS as printed "
                "follows real rows.",
                tables={"attacks": ""},
            ),
        ]


open_study = CopulaStudy
