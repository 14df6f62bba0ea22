"""The study's settings, from ``preset.toml``, and the runs they ask for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from flwr_vertical.errors import ConfigError
from simulations.false_vfl.methods import METHODS, PROPOSED, section
from simulations.false_vfl.runs import LOADERS
from simulations.preset import Options, StudyPreset
from simulations.replications import Job

PART = "accuracy"
SIMSIAM = ("without", "with")


class Preset(StudyPreset):
    """The settings of one call of the study."""

    @classmethod
    def load(cls, study: str, options: Options) -> Self:
        """Read the preset; ConfigError where it has names that are unknown."""
        preset = super().load(study, options)
        for name, known in (("datasets", LOADERS), ("methods", METHODS), ("simsiam", SIMSIAM)):
            if unknown := [each for each in preset["study"][name] if each not in known]:
                raise ConfigError(
                    f"study.{name}: {unknown[0]!r} is unknown; there are {', '.join(known)}"
                )
        return preset

    def jobs(self) -> list[Job]:
        """Return all runs, those that take long first.

        Also on data sets that the preset leaves out: a user may have their files.
        """
        study = self["study"]
        jobs = [
            self._job(dataset, method, train, seed, simsiam)
            for dataset in LOADERS
            for seed in range(study["runs"])
            for train in study["train"]
            for method in study["methods"]
            for simsiam in (["without"] if method in PROPOSED else study["simsiam"])
        ]
        return sorted(jobs, key=self.minutes, reverse=True)

    def chosen(self, jobs: Sequence[Job], options: Options) -> list[Job]:
        """Return the runs that `options` choose, by default on the preset's data sets."""
        forms = options.choice("simsiam", self["study"]["simsiam"])
        datasets = options.choice("datasets", list(LOADERS))
        if not options.chosen.get("datasets"):
            datasets = self["study"]["datasets"]
        others = {**options.chosen, "datasets": tuple(datasets), "simsiam": ()}
        return [
            job
            for job in super().chosen(jobs, replace(options, chosen=others))
            if job.settings["method"] in PROPOSED or job.settings["simsiam"] in forms
        ]

    def minutes(self, job: Job) -> int:
        """Return how many minutes of one core a run takes, roughly."""
        known = self["minutes"][job.settings["dataset"]]
        return int(known.get(section(job.settings["method"]), known["others"]))

    def _job(self, dataset: str, method: str, train: str, seed: int, simsiam: str) -> Job:
        own = self[dataset]
        fit = dict(own[section(method)])
        if simsiam == "without":
            fit.pop("simsiam", None)
        what = {"dataset": dataset, "method": method, "train": train, "simsiam": simsiam}
        fixed = {"tests": self["study"]["tests"], "data": own["data"], "fit": fit}
        return Job(PART, {**what, "seed": seed, **fixed})
