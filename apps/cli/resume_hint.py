"""What `flwr-vertical run` says after a run whose ServerApp died without a word."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr_vertical.node.storage import output_home
from flwr_vertical.server.journal import FILE_NAME


def resume_hint(app: Path, run_config: Sequence[str]) -> str:
    """Say how a run that failed can go on; "" if it kept no journal."""
    config = _run_config(app, run_config)
    name = str(config.get("run-name", ""))
    if not name or True not in (config.get("checkpoint"), config.get("resume")):
        return ""
    again = f"start the run again with resume=true run-name={name!r} and the same settings"
    output = str(config.get("output", ""))
    folder = (Path(output).expanduser() if output else output_home() / "server") / name
    if (folder / FILE_NAME).is_file():
        return (
            f"; what was done so far is kept in {folder / FILE_NAME}: to go on from there, {again}"
        )
    return (
        f"; if it got beyond its opening, the machine of the ServerApp holds {FILE_NAME} in its "
        f"folder of the run: then {again}"
    )


def _run_config(app: Path, run_config: Sequence[str]) -> dict[str, Any]:
    """Return the app's run config with what the options change, keys as Flower writes them."""
    from flwr.common.config import flatten_dict, parse_config_args

    project = tomllib.loads((app / "pyproject.toml").read_text("utf-8"))
    found: dict[str, Any] = flatten_dict(project["tool"]["flwr"]["app"].get("config", {}))
    for item in run_config:
        found |= parse_config_args([item])
    return found
