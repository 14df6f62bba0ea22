"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.preset import load_preset
from simulations.replications import Job
from simulations.study import Options

PARTS = ("table3", "table4", "stability", "rows", "settings", "lossless", "regression")
SCOPES = ("A", "A and B")


@dataclass(frozen=True)
class Preset:
    """The settings of one run of the study.

    Parameters
    ----------
    values : dict
        As in ``preset.toml``, without ``quick``.
    """

    values: dict[str, Any]

    @classmethod
    def load(cls, options: Options) -> "Preset":
        """Read the preset, small if `options.quick`, with `options.seeds` runs if given."""
        path = Path(__file__).with_name("preset.toml")
        return cls(load_preset(path, options, PARTS))

    @property
    def version(self) -> int:
        """Version of what a replication computes."""
        return int(self.values["version"])

    @property
    def method(self) -> dict[str, Any]:
        """Arguments of `FKNN`."""
        return dict(self.values["method"])

    @property
    def target(self) -> float:
        """Largest ratio of our RMSE to the paper's in Table 4."""
        return float(self.values["table4"]["target"])

    @property
    def alpha(self) -> float:
        """Significance level of the paired t-tests."""
        return float(self.values["lossless"]["alpha"])

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
