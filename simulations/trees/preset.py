"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from simulations.preset import StudyPreset
from simulations.replications import Job
from simulations.trees.methods import METHODS
from simulations.trees.own import installed


class Preset(StudyPreset):
    """The settings of one run of the study."""

    def jobs(self) -> list[Job]:
        """Return the jobs of all parts, seed by seed: a study that is stopped has whole seeds."""
        found = self._pooled() + self._blocks() + self._defaults()
        return sorted(found, key=lambda job: job.settings["seed"])

    def _defaults(self) -> list[Job]:
        section = self["defaults"]
        common = {"share": 0.0, "test": section["test"]}
        return [
            Job("defaults", {"dataset": name, "method": method, "seed": seed, **common})
            for name, runs in section["runs"].items()
            for seed in range(runs)
            for method in installed()
        ]

    def _pooled(self) -> list[Job]:
        section = self["pooled"]
        return [
            self._job("pooled", dataset, share, mode, seed, section["trees"][dataset])
            for dataset in section["datasets"]
            for share in section["missing"]
            for mode, runs in (("open", "runs"), ("hidden", "hidden_runs"))
            for seed in range(section[runs][dataset])
        ]

    def _blocks(self) -> list[Job]:
        section = self["blocks"]
        return [
            self._job("blocks", "Bank", share, method, seed, section["trees"])
            for share in section["shares"]
            for seed in range(section["runs"])
            for method in METHODS
        ]

    def _job(
        self, part: str, dataset: str, share: float, method: str, seed: int, trees: int
    ) -> Job:
        rows = self[part]["rows"]
        settings = {
            "dataset": dataset,
            "share": share,
            "method": method,
            "seed": seed,
            "rows": rows[dataset] if isinstance(rows, dict) else rows,
            "test": self[part]["test"],
            "booster": {**self["booster"], "n_trees": trees},
        }
        if method == "LASER-VFL":
            settings["laser"] = self["laser"]
        return Job(part, settings)
