"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.copula.methods import UNPROTECTED
from simulations.preset import load_preset
from simulations.replications import Job
from simulations.study import Options

REPEATED = ("complete", "missing", "attacks", "sme")


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
        return cls(load_preset(path, options, REPEATED))

    def __getitem__(self, section: str) -> dict[str, Any]:
        """Return one section."""
        return dict(self.values[section])

    @property
    def version(self) -> int:
        """Version of what a replication computes."""
        return int(self.values["version"])

    def jobs(self) -> list[Job]:
        """Return all jobs; parts that take long come first."""
        return [*self._missing(), *self._complete(), *self._sme(), *self._attacks()]

    def _complete(self) -> list[Job]:
        part = self["complete"]
        cases = [(name, 0.0) for name in UNPROTECTED] + [
            (name, epsilon) for name in part["methods"] for epsilon in part["epsilons"]
        ]
        return [
            Job(
                "complete",
                {
                    "model": model,
                    "rows": rows,
                    "epsilon": epsilon,
                    "method": name,
                    "seed": seed,
                    "design": self["design"],
                    "glm": self["glm"],
                },
            )
            for rows in sorted(part["rows"], reverse=True)
            for model in part["models"]
            for name, epsilon in cases
            for seed in range(part["runs"])
        ]

    def _missing(self) -> list[Job]:
        part = self["missing"]
        return [
            Job(
                "missing",
                {
                    "model": model,
                    "mechanism": mechanism,
                    "rows": rows,
                    "method": name,
                    "seed": seed,
                    "share": share,
                    "epsilon": part["epsilon"],
                    "design": self["design"],
                    "glm": self["glm"],
                },
            )
            for rows in sorted(part["rows"], reverse=True)
            for model in part["models"]
            for mechanism, share in part["shares"].items()
            for name in part["methods"]
            for seed in range(part["runs"])
        ]

    def _attacks(self) -> list[Job]:
        part = self["attacks"]
        return [
            Job(
                "attacks",
                {
                    "method": name,
                    "rows": part["rows"],
                    "epsilon": part["epsilon"],
                    "seed": seed,
                    "design": self["design"],
                },
            )
            for name in part["methods"]
            for seed in range(part["runs"])
        ]

    def _sme(self) -> list[Job]:
        part = self["sme"]
        wanted = (
            "parties", "complete_cases", "test", "within", "between", "effect", "risky", "by_label",
        )  # fmt: skip
        generator = {key: part[key] for key in wanted}
        return [
            Job(
                "sme",
                {
                    "method": name,
                    "rows": part["rows"],
                    "epsilon": part["epsilon"],
                    "seed": seed,
                    "sme": generator,
                    "glm": self["glm"],
                },
            )
            for name in part["methods"]
            for seed in range(part["runs"])
        ]
