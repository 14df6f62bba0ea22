"""The study of vertical boosting: beside a central booster, and with blocks missing."""

from collections.abc import Mapping
from typing import ClassVar

import pandas as pd

from simulations.data import Sources
from simulations.fedpsg.data import Joint, JointStudy
from simulations.preset import Options
from simulations.study import Study
from simulations.trees import tables
from simulations.trees.data import load
from simulations.trees.experiments import replicate
from simulations.trees.own import OwnStudy
from simulations.trees.preset import Preset


class TreesStudy(JointStudy):
    """Bank Marketing, German Credit, Letter Recognition and the motor data."""

    name = "trees"
    title = "Vertical boosting beside a central booster, and with blocks missing"
    question = (
        "Does gradient boosting over two parties lose anything against scikit-learn's booster on "
        "the pooled table, in the same bins? And where one party lacks 20, 50 or 80 % of the "
        "samples of Bank Marketing: how do trees by pattern compare with two models, zeros, "
        "donors, each party alone and LASER-VFL?"
    )
    writes = "docs/trees-study.md"
    goals: ClassVar[Mapping[str, str]] = {
        "pooled": "Federated trees predict as well as the central booster, within 0.001; those of "
        "hidden histograms as those of open ones.",
        "defaults": "At default settings AUC is within 0.002 of tuned LightGBM's, which has "
        "the pooled table.",
        "margins": "With blocks missing, trees by pattern have a larger AUC than every other way.",
    }
    headings: ClassVar[Mapping[str, str]] = {
        "pooled": "Against scikit-learn on the pooled table, in the same bins",
        "defaults": "At default settings, beside LightGBM and scikit-learn on the pooled table",
        "margins": "Bank, missing blocks: AUC of trees by pattern less that of others",
        "blocks": "Bank, missing blocks: AUC of all samples without a label",
        "both": "The same, samples that both parties hold",
        "a_only": "The same, samples that party a alone holds",
        "seconds": "Processor seconds of a federated fit, in one process",
    }
    keeps = True
    preset_class = Preset
    preset: Preset
    replicate = staticmethod(replicate)

    def prepare(self) -> dict[str, Joint]:
        """Load the data sets."""
        sources = Sources.find(self.options.data)
        names = dict.fromkeys(job.settings["dataset"] for job in self.preset.jobs())
        return {name: load(name, sources) for name in names}

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return both comparisons, and what fits cost."""
        return {
            "pooled": tables.pooled(frame, self.preset["targets"]["within"]),
            "defaults": tables.defaults(frame, self.preset["targets"]["tuned"]),
            "margins": tables.margins(frame),
            "blocks": tables.blocks(frame),
            "both": tables.blocks(frame, "AUC, both parties"),
            "a_only": tables.blocks(frame, "AUC, party a only"),
            "seconds": tables.seconds(frame),
        }

    def notes(self) -> list[str]:
        """Return what a reader must know."""
        booster, pooled, blocks = (self.preset[name] for name in ("booster", "pooled", "blocks"))
        trees = ", ".join(f"{name} {count}" for name, count in pooled["trees"].items())
        return [
            f"Depth {booster['max_depth']}, {booster['n_bins']} bins, at least "
            f"{booster['min_child']} samples in a leaf, rate {booster['learning_rate']:g}, no "
            f"early stopping. Iterations: {trees}; with missing blocks {blocks['trees']}.",
            "Two parties hold the columns; levels are integer codes in the order of their names. "
            f"A share of {pooled['test']:g} of the samples ({blocks['test']:g} with missing "
            "blocks) has no label and is judged; seeds draw these samples and what is missing.",
            "RMSE is in units of the labels' standard deviation. Differences are paired by seed. "
            "Trees of small tables differ by ties: scikit-learn compares gains in float32 sums "
            "and takes the first of equal ones by another rule, so single splits differ, and with "
            "300 or fewer samples to judge the figures with them. The federated trees are those "
            "of a central booster with the same tie rule "
            "(tests/strategies/test_trees_oracle.py).",
            "Histograms are open in most runs, which are cheaper; hidden ones grow the same trees "
            "but for gains closer than rounding.",
            "'one model of all samples': scikit-learn on both parties' columns, NaN where b lacks "
            "them, which is what the federated booster grows by default. 'trees by pattern': "
            "patterns=3. 'two models': scikit-learn on the samples that both hold, and on party "
            "a's columns for the others. 'intersection only' predicts these others with b's "
            "columns missing. 'zeros' and 'donors' complete b's table first; 'donors' has the "
            "mean of the five nearest samples by a's columns, which is what FKNN imputes here (a "
            "test compares the two). 'party b alone' gives samples that b lacks the same score.",
            "Trees by pattern were chosen on Bank with other draws (seeds 10 and 11) of what is "
            "missing and what is judged than those of this page, beside shared trees, boosting in "
            "stages (a's columns first), and a's trees that both ensembles build on.",
            "At default settings: early stopping by held-out samples, depth 4, levels in the order "
            "of their mean gradient. 'LightGBM, tuned' has the best of 12 settings by a fifth of "
            "the samples and is then fitted to all.",
            "LASER-VFL: "
            + ", ".join(f"{name} {value}" for name, value in self.preset["laser"].items())
            + ", numbers standardised, no pretraining.",
            f"Processor seconds of the kept records: {self.preset['kept']['machine']}. On an idle "
            "machine they are fewer.",
            "What has no row, or 'not run', was not run: the command without --report runs it, "
            "and goes on from what is there.",
        ]


def open_study(options: Options) -> Study:
    """Return the study of a user's file where one is named, else this one."""
    return OwnStudy(options) if options.own else TreesStudy(options)
