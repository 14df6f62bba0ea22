"""A setting that names an earlier fit."""

from pathlib import Path

from flwr_vertical import Result
from flwr_vertical.errors import ConfigError


def result_or_folder(model: object) -> Result | str:
    """Return a setting that names a fit: a result, or the folder of a saved one, as text."""
    if not isinstance(model, Result | str | Path):
        raise ConfigError(
            f"model must be a Result or the folder of a saved one, got {type(model).__name__}"
        )
    return model if isinstance(model, Result) else str(model)
