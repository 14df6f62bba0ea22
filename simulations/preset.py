"""Settings of a study, from its ``preset.toml``."""

import inspect
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from flwr_vertical.errors import ConfigError
from simulations.study import Options


@dataclass(frozen=True)
class StudyPreset:
    """The settings of one run of a study, from the ``preset.toml`` beside the class."""

    values: dict[str, Any]  # As in ``preset.toml``, without ``quick``

    repeated: ClassVar[tuple[str, ...]]  # Sections whose replications ``--seeds`` sets

    @classmethod
    def load(cls, options: Options) -> Self:
        """Read the preset, small if `options.quick`, with `options.seeds` runs if given."""
        path = Path(inspect.getfile(cls)).with_name("preset.toml")
        return cls(load_preset(path, options, cls.repeated))

    def __getitem__(self, section: str) -> dict[str, Any]:
        """Return one section."""
        return dict(self.values[section])

    @property
    def version(self) -> int:
        """Version of what a replication computes."""
        return int(self.values["version"])


def load_preset(path: Path, options: Options, repeated: Sequence[str]) -> dict[str, Any]:
    """Read a preset."""
    values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    quick = values.pop("quick")
    if options.quick:
        _change(values, quick, path.name)
    if options.seeds is not None:
        for part in repeated:
            values[part]["runs"] = options.seeds
    for line in options.changes:
        try:
            changed = tomllib.loads(line)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(
                f"--set {line!r} is no TOML ({error}); expected SECTION.NAME=VALUE, text in quotes"
            ) from error
        _change(values, changed, f"--set {line!r}")
    return values


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
