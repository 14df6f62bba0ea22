"""The study's settings, from ``preset.toml``, and the runs they ask for."""

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

    repeated = ("study",)

    @classmethod
    def load(cls, options: Options) -> Self:
        """Read the preset, small if `options.quick`, with `options.seeds` runs if given."""
        preset = super().load(options)
        for name, known in (("datasets", LOADERS), ("methods", METHODS), ("simsiam", SIMSIAM)):
            if unknown := [each for each in preset["study"][name] if each not in known]:
                raise ConfigError(
                    f"study.{name}: {unknown[0]!r} is unknown; there are {', '.join(known)}"
                )
        return preset

    @property
    def context(self) -> str:
        """What a run depends on beside its settings: the version of the code."""
        return f"false_vfl {self.values['version']}"

    def jobs(self, options: Options | None = None, everything: bool = False) -> list[Job]:
        """Return all runs, or those that `options` choose; those that take long come first."""
        study = self["study"]
        chosen = {name: study[name] for name in ("datasets", "methods", "train", "simsiam")}
        chosen["only-seeds"] = [str(seed) for seed in range(study["runs"])]
        if everything:
            chosen["datasets"] = list(LOADERS)
        if options is not None:
            # Data sets that the preset leaves out can be chosen: a user may have their files.
            known = {**chosen, "datasets": list(LOADERS)}
            chosen = {
                name: options.choice(name, known[name]) if options.chosen.get(name) else names
                for name, names in chosen.items()
            }
        jobs = [
            self._job(dataset, method, train, int(seed), simsiam)
            for dataset in chosen["datasets"]
            for seed in chosen["only-seeds"]
            for train in chosen["train"]
            for method in chosen["methods"]
            for simsiam in (["without"] if method in PROPOSED else chosen["simsiam"])
        ]
        return sorted(jobs, key=self.minutes, reverse=True)

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
