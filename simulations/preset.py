"""Settings of a study, from its ``preset.toml``."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulations.study import Options


def load_preset(path: Path, options: Options, repeated: Sequence[str]) -> dict[str, Any]:
    """Read a preset.

    Parameters
    ----------
    path : Path
        A TOML file; its table ``quick`` says what a quick run changes, by section.
    options : Options
        Of the command line: `quick`, and `seeds`, the runs of every part.
    repeated : sequence of str
        Sections that have runs.

    Returns
    -------
    dict[str, Any]
        The sections, without ``quick``.
    """
    values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    quick = values.pop("quick")
    if options.quick:
        for section, changed in quick.items():
            values[section].update(changed)
    if options.seeds is not None:
        for part in repeated:
            values[part]["runs"] = options.seeds
    return values
