"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from typing import Any

from simulations.preset import StudyPreset
from simulations.replications import Job

PARTS = ("table3", "table4", "stability", "rows", "settings", "lossless", "regression")
SCOPES = ("A", "A and B")


class Preset(StudyPreset):
    """The settings of one run of the study."""

    repeated = PARTS

    @property
    def method(self) -> dict[str, Any]:
        """Arguments of `FKNN`."""
        return dict(self.values["method"])

    def rates(self, part: str) -> list[float]:
        """Missing rates of a part."""
        return [float(rate) for rate in self.values[part]["rates"]]

    def runs(self, part: str) -> int:
        """Replications of a part at each rate."""
        return int(self.values[part]["runs"])

    def jobs(self) -> list[Job]:
        """Return the replications of all parts."""
        jobs = []
        for part in PARTS:
            extra: dict[str, Any] = {"fknn": self.method}
            if part in ("table4", "stability", "rows"):
                extra["local"] = self.values["local"]
            if part == "regression":
                extra["train_share"] = self.values["regression"]["train_share"]
            for rate in self.rates(part):
                for seed in range(self.runs(part)):
                    for scope in SCOPES if part == "regression" else ("A",):
                        settings = {"rate": rate, "seed": seed, "scope": scope, **extra}
                        jobs.append(Job(part, settings))
        return jobs
