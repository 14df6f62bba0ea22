"""``flwr-vertical pipeline``: the run config of a file that lists stages."""

import json
import tomllib
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.toml import flat
from strategies import register_all
from strategies.pipeline import Pipeline

_STAGES = "stages"


def read_pipeline(path: Path) -> dict[str, Any]:
    """Return the run config of a pipeline; it keeps checkpoints, under the name of its file.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has no stages.
    """
    register_all()  # stages name strategies, whether the package is installed or not
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from error
    stages = found.pop(_STAGES, None)
    if not isinstance(stages, list) or not stages:
        raise ConfigError(
            f"{path} has no stages; each is written as a table [[{_STAGES}]] with a name, a "
            "strategy and its settings, see docs/how-to/pipelines.md"
        )
    if found.get("strategy", Pipeline.name) != Pipeline.name:
        raise ConfigError(
            f"{path} has strategy = {found['strategy']!r} outside its stages; put it into one"
        )
    named = {"run-name": path.stem, "checkpoint": True}
    own = {"strategy": Pipeline.name, f"{Pipeline.name}.{_STAGES}": json.dumps(stages)}
    return named | flat(found) | own
