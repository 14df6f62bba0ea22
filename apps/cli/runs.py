"""Finished runs: found by the names that the server gave their folders, or by paths."""

from pathlib import Path

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.storage import output_home
from flwr_vertical.result import Result
from flwr_vertical.results.storage import holds_result
from flwr_vertical.settings import nearest

NAMED = "the name of a run in the server's default folder of results, or its folder"


def find_run(run: str) -> Path:
    """Return the folder of a run's result; `ConfigError` names those that there are."""
    home = output_home() / "server"
    for folder in (home / run, Path(run).expanduser()):
        if holds_result(folder):
            return folder
    there = sorted(path.name for path in home.glob("*") if holds_result(path))
    listed = f"{home} has {', '.join(there)}" if there else f"{home} has none"
    raise ConfigError(
        f"{run!r} is no finished run{nearest(run, there)}: expected a name or a folder with the "
        f"result of one; {listed}"
    )


def load_run(run: str) -> Result:
    """Return the result of a run, named after its folder if it has no name."""
    folder = find_run(run)
    result = Result.load(folder)
    result.name = result.name or folder.absolute().name
    return result
