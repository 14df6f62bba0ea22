"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from collections.abc import Sequence
from dataclasses import replace

from simulations.fedpsg.generation import NETWORKS
from simulations.preset import Options, StudyPreset
from simulations.replications import Job, grid

GENERATING = ("methods_compared", "imputers", "cnum")
"""Parts whose replications generate rows and compare them with the true ones."""

PARTS = (*GENERATING, "downstream", "aligned", "default")

_QUICK_ORDER = {
    "floor": 0, "truth": 0, "nothing": 0, "copula": 1, "normal": 1, "fedpsg": 2, "local": 3,
    "joint": 4,
}  # fmt: skip


class Preset(StudyPreset):
    """The settings of one run of the study."""

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

    def chosen(self, jobs: Sequence[Job], options: Options) -> list[Job]:
        """Return the jobs that the command line chooses; parts have some in common."""
        parts = options.choice("parts", PARTS)
        of_parts = {_key(job) for part in parts for job in self.of_part(part)}
        others = replace(options, chosen={**options.chosen, "parts": ()})
        return [job for job in super().chosen(jobs, others) if _key(job) in of_parts]

    def of_part(self, part: str) -> list[Job]:
        """Return the jobs of one part; parts that generate rows have some in common."""
        section = self[part]
        several = {"mechanism": "mechanisms", "ratio": "ratios", "aligned": "aligned"}
        axes = {
            "dataset": section.get("datasets") or [section["dataset"]],
            **{name: section[of] for name, of in several.items() if of in section},
            "seed": range(section["runs"]),
            "method": [*section.get("floors", ()), *section["methods"]],
        }
        fixed = {name: section[name] for name in ("test", "test_rows") if name in section}
        jobs = grid("rows" if part in GENERATING else part, axes, **fixed)
        return [self._with(job, part, cnum) for job in jobs for cnum in self._cnums(part, job)]

    def _effort(self, job: Job) -> tuple[int, int, float]:
        how = job.settings["how"]
        trained = how.get("imputer") in NETWORKS
        # A study that is stopped has seed by seed, and what is quick first.
        middle = abs(job.settings.get("ratio", 0.5) - 0.5)
        return job.settings["seed"], _QUICK_ORDER[how["kind"]] + 2 * trained, middle

    def _with(self, job: Job, part: str, cnum: int) -> Job:
        """Return a job with the settings of its method."""
        section, how = self[part], dict(self["methods"][job.settings["method"]])
        cnum = int(how.pop("cnum", cnum)) if how["kind"] == "fedpsg" else 0
        rows = {}
        if "rows" in section:
            rows = {"rows": section["rows"].get(job.settings["dataset"], 0)}
        trains = how["kind"] in ("local", "joint") or how.get("imputer") in NETWORKS
        networks = self["networks"] if trains else {}
        return Job(
            job.part, {**job.settings, **rows, "cnum": cnum, "how": how, "networks": networks}
        )

    def _cnums(self, part: str, job: Job) -> list[int]:
        section, name = self[part], job.settings["method"]
        if self["methods"][name]["kind"] != "fedpsg":
            return [0]
        if part == "cnum":
            return list(range(1, int(section["largest"][job.settings["dataset"]]) + 1))
        if part == "imputers":
            return list(section["cnums"]) if name in section["at_every_cnum"] else [5]
        return [int(section["cnum"])]


def _key(job: Job) -> str:
    """Return the key of a job, whatever its data."""
    return Job(job.part, {**job.settings, "data": ""}).key("")
