"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.preset import load_preset
from simulations.replications import Job
from simulations.study import Options
from simulations.trees.methods import METHODS

PARTS = ("pooled", "blocks")

_CHOICES = {"datasets": "dataset", "shares": "share", "methods": "method", "only-seeds": "seed"}


@dataclass(frozen=True)
class Preset:
    """The settings of one run of the study."""

    values: dict[str, Any]  # As in ``preset.toml``, without ``quick``

    @classmethod
    def load(cls, options: Options) -> "Preset":
        """Read the preset, small if `options.quick`, with `options.seeds` runs if given."""
        path = Path(__file__).with_name("preset.toml")
        values = load_preset(path, options, ["blocks"])
        if options.seeds is not None:
            values["pooled"]["runs"] = dict.fromkeys(values["pooled"]["runs"], options.seeds)
        return cls(values)

    def __getitem__(self, section: str) -> dict[str, Any]:
        """Return one section."""
        return dict(self.values[section])

    @property
    def version(self) -> int:
        """Version of what a replication computes."""
        return int(self.values["version"])

    def jobs(self) -> list[Job]:
        """Return the jobs of both parts, seed by seed: a study that is stopped has whole seeds."""
        return sorted(self._pooled() + self._blocks(), key=lambda job: job.settings["seed"])

    def chosen(self, options: Options) -> list[Job]:
        """Return the jobs that the command line chooses, of those that `jobs` returns."""
        parts = options.choice("parts", PARTS)
        every = jobs = self.jobs()
        for option, setting in _CHOICES.items():
            known = list(dict.fromkeys(str(job.settings[setting]) for job in every))
            names = options.choice(option, known)
            jobs = [job for job in jobs if str(job.settings[setting]) in names]
        return [job for job in jobs if job.part in parts]

    def _pooled(self) -> list[Job]:
        section = self["pooled"]
        jobs = []
        for dataset in section["datasets"]:
            for share in section["missing"]:
                for seed in range(section["runs"][dataset]):
                    modes = (
                        ("open", "hidden") if seed < section["hidden_runs"][dataset] else ("open",)
                    )
                    jobs += [
                        self._job("pooled", dataset, share, mode, seed, section["trees"][dataset])
                        for mode in modes
                    ]
        return jobs

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
