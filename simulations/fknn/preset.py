"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from typing import Any

from simulations.preset import StudyPreset
from simulations.replications import Job, grid

PARTS = ("table3", "table4", "stability", "rows", "settings", "lossless", "regression")
SCOPES = ("A", "A and B")


class Preset(StudyPreset):
    """The settings of one run of the study."""

    def jobs(self) -> list[Job]:
        """Return the replications of all parts."""
        return [job for part in PARTS for job in self._part(part)]

    def _part(self, name: str) -> list[Job]:
        part, regression = self[name], name == "regression"
        fixed: dict[str, Any] = {"fknn": self["method"]}
        if name in ("table4", "stability", "rows"):
            fixed["local"] = self["local"]
        if regression:
            fixed["train_share"] = part["train_share"]
        scopes = SCOPES if regression else SCOPES[:1]
        axes = {"rate": map(float, part["rates"]), "seed": range(part["runs"]), "scope": scopes}
        return grid(name, axes, **fixed)
