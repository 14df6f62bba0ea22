"""What the command line says, and the settings of a study, from its ``preset.toml``."""

import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from flwr_vertical.errors import ConfigError
from simulations.data import HERE
from simulations.replications import Job

CHOICES = {
    "parts": "part", "datasets": "dataset", "methods": "method", "rows": "rows", "ratios": "ratio",
    "shares": "share", "train": "train", "simsiam": "simsiam", "only-seeds": "seed",
}  # fmt: skip
"""Options that choose among replications, and the setting that each is about; ``page.toml`` says
which of them a study has."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    output: Path  # Where everything goes; made if needed
    data: Path | None = None  # Folder of the data sets
    workers: int | None = None  # Processes for Ray, default all cores; 0 = without Ray
    seeds: int | None = None  # Replications of every part, default as in the preset
    quick: bool = False  # Whether to run the preset's small version
    # A page of the documentation that the study writes, where it writes one
    write: Path | None = None
    # Settings that differ from the preset's, each a line of TOML such as ``complete.runs = 3``
    changes: Sequence[str] = ()
    # Which replications to run, where a study lets one choose: names by option
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Whether to run nothing and make tables and page of the replications that are there
    report: bool = False
    fresh: bool = False  # Whether to leave aside the replications that are kept in the repository
    # A user's file and what is asked of it, where a study takes one; empty without a file
    own: Mapping[str, Any] = field(default_factory=dict)

    def choice(self, name: str, known: Sequence[str]) -> list[str]:
        """Return what was chosen of some names, all of them if nothing was; in the order known."""
        chosen = self.chosen.get(name) or tuple(known)
        if unknown := [each for each in chosen if each not in known]:
            raise ConfigError(
                f"--{name} {unknown[0]!r} is unknown; there are {', '.join(map(repr, known))}"
            )
        return [each for each in known if each in chosen]


@dataclass(frozen=True)
class StudyPreset:
    """The settings of one run of a study, from the ``preset.toml`` of its folder."""

    values: dict[str, Any]  # As in ``preset.toml``, without ``quick``

    @classmethod
    def load(cls, study: str, options: Options) -> Self:
        """Read a study's preset, small if `options.quick`, with `options.seeds` runs if given."""
        path = HERE / study / "preset.toml"
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        quick = values.pop("quick")
        if options.quick:
            _change(values, quick, path.name)
        if options.seeds is not None:
            for part in values.values():
                if isinstance(part, dict) and "runs" in part:
                    runs, seeds = part["runs"], options.seeds
                    by_data = isinstance(runs, dict)  # as small tables need more seeds
                    part["runs"] = dict.fromkeys(runs, seeds) if by_data else seeds
        for line in options.changes:
            try:
                changed = tomllib.loads(line)
            except tomllib.TOMLDecodeError as error:
                raise ConfigError(
                    f"--set {line!r} is no TOML ({error}); expected SECTION.NAME=VALUE, text in "
                    "quotes"
                ) from error
            _change(values, changed, f"--set {line!r}")
        return cls(values)

    def __getitem__(self, section: str) -> dict[str, Any]:
        """Return one section."""
        return dict(self.values[section])

    @property
    def version(self) -> int:
        """Version of what a replication computes."""
        return int(self.values["version"])

    def jobs(self) -> list[Job]:
        """Return all replications; none where the study makes them of its data."""
        return []

    def chosen(self, jobs: Sequence[Job], options: Options) -> list[Job]:
        """Return the replications that the command line chooses of these."""

        def named(job: Job, setting: str) -> str:
            return job.part if setting == "part" else str(job.settings.get(setting, ""))

        chosen = list(jobs)
        for option, setting in CHOICES.items():
            if options.chosen.get(option):
                known = dict.fromkeys(named(job, setting) for job in jobs)
                names = options.choice(option, list(known))
                chosen = [job for job in chosen if named(job, setting) in names]
        return chosen


def quick_asked(description: str | None) -> bool:
    """Read the command line of a study without a preset, which has ``--quick`` alone."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few runs, for a first look")
    return bool(parser.parse_args().quick)


def _change(values: dict[str, Any], changed: dict[str, Any], where: str) -> None:
    """Change settings in place, those of nested tables one by one."""
    for name, value in changed.items():
        if name not in values:
            raise ConfigError(
                f"{where}: the preset has no setting {name!r} there; it has {', '.join(values)}"
            )
        if isinstance(value, dict) and isinstance(values[name], dict):
            _change(values[name], value, where)
        elif isinstance(value, dict) or isinstance(values[name], dict):
            raise ConfigError(f"{where}: {name!r} is a table in one place, a value in the other")
        else:
            values[name] = value
