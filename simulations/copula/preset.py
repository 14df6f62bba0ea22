"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.preset import load_preset
from simulations.study import Options

REPEATED: tuple[str, ...] = ()


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
