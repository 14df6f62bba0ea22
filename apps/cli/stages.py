"""The run config of a file that lists the stages of a pipeline."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.toml import flat

_STAGES = "stages"


def read_pipeline(path: Path) -> dict[str, Any]:
    """Return the run config of a pipeline, which keeps checkpoints under the name of its file."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from error
    return {"run-name": path.stem, "checkpoint": True} | with_stages(flat(found), str(path))


def with_stages(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the run config of settings with a list of stages."""
    from strategies import register_all  # all of them take a second to import
    from strategies.pipeline import Pipeline

    register_all()  # stages name strategies, whether the package is installed or not
    stages = found.get(_STAGES)
    if not isinstance(stages, list) or not stages:
        raise ConfigError(
            f"{where} has no stages; each is written as a table [[{_STAGES}]] with a name, a "
            "strategy and its settings, see docs/how-to/pipelines.md"
        )
    if found.get("strategy", Pipeline.name) != Pipeline.name:
        raise ConfigError(
            f"{where} has strategy = {found['strategy']!r} outside its stages; put it into one"
        )
    own = {"strategy": Pipeline.name, f"{Pipeline.name}.{_STAGES}": json.dumps(stages)}
    return {key: value for key, value in found.items() if key != _STAGES} | own
