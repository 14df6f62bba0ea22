"""The study of vertical boosting: beside a central booster, and with blocks missing."""

from typing import Any

import pandas as pd

from simulations.data import Sources
from simulations.fedpsg.data import Joint, JointStudy
from simulations.page import Tables, listed
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
    preset_class = Preset
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

    def words(self, found: Tables) -> dict[str, Any]:
        """Return lists of settings."""
        trees, laser = self.preset["pooled"]["trees"], self.preset["laser"]
        lists = {"iterations": trees, "laser_settings": laser}
        return {name: listed(values, "{} {}") for name, values in lists.items()}


def open_study(options: Options) -> Study:
    """Return the study of a user's file where one is named, else this one."""
    return OwnStudy(options) if options.own else TreesStudy(options)
