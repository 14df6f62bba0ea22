"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from collections.abc import Mapping
from typing import Any, ClassVar

from simulations.fedpsg.generation import NETWORKS
from simulations.preset import Options, StudyPreset
from simulations.replications import Job

GENERATING = ("methods_compared", "imputers", "cnum")
"""Parts whose replications generate rows and compare them with the true ones."""

PARTS = (*GENERATING, "downstream", "aligned", "default")

_QUICK_ORDER = {
    "floor": 0, "truth": 0, "nothing": 0, "copula": 1, "normal": 1, "fedpsg": 2, "local": 3,
    "joint": 4,
}  # fmt: skip


class Preset(StudyPreset):
    """The settings of one run of the study."""

    repeated = PARTS
    choices: ClassVar[Mapping[str, str]] = {
        "datasets": "dataset", "ratios": "ratio", "methods": "method", "only-seeds": "seed",
    }  # fmt: skip

    @property
    def datasets(self) -> list[str]:
        """Names of all data sets that are used."""
        names = {name for part in PARTS if part != "aligned" for name in self[part]["datasets"]}
        return sorted(names | {self["aligned"]["dataset"]})

    def jobs(self) -> list[Job]:
        """Return the jobs of all parts, each once, in the order in which they are run."""
        found = [job for part in PARTS for job in self.of_part(part)]
        once = {job.key(""): job for job in found}
        return sorted(once.values(), key=self._effort)

    def chosen(self, options: Options) -> list[Job]:
        """Return the jobs that the command line chooses, of those that `jobs` returns."""
        jobs = super().chosen(options)
        if not options.chosen.get("parts"):
            return jobs
        parts = options.choice("parts", PARTS)  # some have replications in common
        allowed = {job.key("") for part in parts for job in self.of_part(part)}
        return [job for job in jobs if job.key("") in allowed]

    def of_part(self, part: str) -> list[Job]:
        """Return the jobs of one part; parts that generate rows have some in common."""
        if part in GENERATING:
            return self.generating(part)
        others = {
            "downstream": self._downstream,
            "aligned": self._aligned,
            "default": self._default,
        }
        return others[part]()

    def _effort(self, job: Job) -> tuple[int, int, float]:
        how = job.settings["how"]
        trained = how.get("imputer") in NETWORKS
        # A study that is stopped has seed by seed, and what is quick first.
        middle = abs(job.settings.get("ratio", 0.5) - 0.5)
        return job.settings["seed"], _QUICK_ORDER[how["kind"]] + 2 * trained, middle

    def _job(self, part: str, name: str, dataset: str, cnum: int, **more: Any) -> Job:
        how = dict(self["methods"][name])
        cnum = int(how.pop("cnum", cnum)) if how["kind"] == "fedpsg" else 0
        settings = {"dataset": dataset, "method": name, "cnum": cnum, "how": how, **more}
        trains = how["kind"] in ("local", "joint") or how.get("imputer") in NETWORKS
        return Job(part, {**settings, "networks": self["networks"] if trains else {}})

    def generating(self, part: str) -> list[Job]:
        """Return the jobs of one of the parts `GENERATING`; parts may have some in common."""
        section = self[part]
        return [
            self._job(
                "rows", name, dataset, cnum, ratio=ratio, seed=seed,
                rows=section["rows"].get(dataset, 0),
            )
            for dataset in section["datasets"]
            for ratio in section["ratios"]
            for seed in range(section["runs"])
            for name in (*section["floors"], *section["methods"])
            for cnum in self._cnums(part, name, dataset)
        ]  # fmt: skip

    def _cnums(self, part: str, name: str, dataset: str) -> list[int]:
        section = self[part]
        if self["methods"][name]["kind"] != "fedpsg":
            return [0]
        if part == "cnum":
            return list(range(1, int(section["largest"][dataset]) + 1))
        if part == "imputers":
            return list(section["cnums"]) if name in section["at_every_cnum"] else [5]
        return [int(section["cnum"])]

    def _downstream(self) -> list[Job]:
        section = self["downstream"]
        return [
            self._job(
                "downstream", name, dataset, section["cnum"], ratio=ratio, seed=seed,
                rows=section["rows"].get(dataset, 0), test=section["test"],
            )
            for dataset in section["datasets"]
            for ratio in section["ratios"]
            for name in section["methods"]
            for seed in range(section["runs"])
        ]  # fmt: skip

    def _aligned(self) -> list[Job]:
        section = self["aligned"]
        return [
            self._job(
                "aligned", name, section["dataset"], section["cnum"], aligned=aligned, seed=seed,
                test_rows=section["test_rows"],
            )
            for aligned in section["aligned"]
            for name in section["methods"]
            for seed in range(section["runs"])
        ]  # fmt: skip

    def _default(self) -> list[Job]:
        section = self["default"]
        return [
            self._job(
                "default", name, dataset, section["cnum"], ratio=ratio, mechanism=mechanism,
                seed=seed, rows=section["rows"].get(dataset, 0), test=section["test"],
            )
            for dataset in section["datasets"]
            for mechanism in section["mechanisms"]
            for ratio in section["ratios"]
            for name in (*section["floors"], *section["methods"])
            for seed in range(section["runs"])
        ]  # fmt: skip
