"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from simulations.copula.methods import SYNTHESES, UNPROTECTED
from simulations.preset import StudyPreset
from simulations.replications import Job, grid


class Preset(StudyPreset):
    """The settings of one run of the study."""

    def jobs(self) -> list[Job]:
        """Return all jobs, seed by seed: a study that is stopped has whole seeds."""
        found = [*self._missing(), *self._complete(), *self._sme(), *self._attacks()]
        found = [Job(job.part, {**job.settings, **self._versions(job)}) for job in found]
        return sorted(found, key=lambda job: job.settings["seed"])

    def _versions(self, job: Job) -> dict[str, int]:
        """Return the versions of the code that a job depends on, beside the study's."""
        names = []
        if "EVCDS" in (method := job.settings["method"]):
            names.append("evcds_version")
            if job.part in ("missing", "sme") and method in SYNTHESES:
                names.append("maps_version")
        return {name: self.values[name] for name in names}

    def _complete(self) -> list[Job]:
        part = self["complete"]
        methods = [(name, 0.0) for name in UNPROTECTED]
        methods += [(name, epsilon) for name in part["methods"] for epsilon in part["epsilons"]]
        axes = {
            "rows": sorted(part["rows"], reverse=True),
            "model": part["models"],
            ("method", "epsilon"): methods,
            "seed": range(part["runs"]),
        }
        return grid("complete", axes, design=self["design"], glm=self["glm"])

    def _missing(self) -> list[Job]:
        part = self["missing"]
        axes = {
            "rows": sorted(part["rows"], reverse=True),
            "model": part["models"],
            ("mechanism", "share"): part["shares"].items(),
            "method": part["methods"],
            "seed": range(part["runs"]),
        }
        fixed = {"epsilon": part["epsilon"], "design": self["design"], "glm": self["glm"]}
        return grid("missing", axes, **fixed)

    def _attacks(self) -> list[Job]:
        part = self["attacks"]
        axes = {"method": part["methods"], "seed": range(part["runs"])}
        fixed = {"rows": part["rows"], "epsilon": part["epsilon"], "design": self["design"]}
        return grid("attacks", axes, **fixed)

    def _sme(self) -> list[Job]:
        part = self["sme"]
        wanted = (
            "parties", "complete_cases", "test", "within", "between", "effect", "risky", "by_label",
        )  # fmt: skip
        generator = {key: part[key] for key in wanted}
        axes = {"method": part["methods"], "seed": range(part["runs"])}
        fixed = {"rows": part["rows"], "epsilon": part["epsilon"]}
        return grid("sme", axes, sme=generator, glm=self["glm"], **fixed)
