"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from simulations.copula.methods import UNPROTECTED
from simulations.preset import StudyPreset
from simulations.replications import Job

REPEATED = ("complete", "missing", "attacks", "sme")


class Preset(StudyPreset):
    """The settings of one run of the study."""

    repeated = REPEATED

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
