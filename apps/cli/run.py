"""``flwr-vertical run``: run the app, show its log, and know how it ended.

``flwr run`` itself exits with 0 even when the ServerApp raises; ``flwr-vertical run`` waits for
the end, prints the cause and exits with 1. Settings are checked first: 2 if one is wrong.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError, VerticalError
from flwr_vertical.registry import available_strategies
from flwr_vertical.settings.toml import read_items, toml_text

from .local_superlink import check_simulation, local_options, run_environment
from .resume_hint import resume_hint
from .run_config import app_defaults, checked_config

_STARTS = 3
_NO_RAY = "Ray, which carries simulations, did not start on this machine, and nothing was computed"
_STARTED = re.compile(r"Successfully started run (\d+)")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a Flower app, show its log, and exit with 1 if it fails",
        description="Like `flwr run --stream`, but the exit code tells how the run ended. "
        "All settings are checked before anything is started; exits with 2 if one is wrong.",
        epilog="example: flwr-vertical run . --run-config 'fknn.n-neighbors=7 strategy=\"fknn\"' "
        "--federation-config 'num-supernodes=3'",
    )
    add_place(parser)
    add_settings(parser)
    return parser


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which app runs where."""
    parser.add_argument("app", nargs="?", default=".", help="folder of the app (default: this one)")
    parser.add_argument(
        "superlink", nargs="?", help="name of a SuperLink in Flower's configuration"
    )
    parser.add_argument(
        "--federation-config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of a simulation: num-supernodes=3 client-resources-num-cpus=1",
    )
    parser.add_argument(
        "--nodes",
        metavar="FOLDER",
        help="of a simulation: node configs, NAME.toml or NAME/node.toml, which name tables of "
        "your own; relative paths in them are taken from the current folder",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the settings of a run."""
    names = ", ".join(available_strategies())
    parser.add_argument(
        "-c",
        "--run-config",
        action="append",
        default=[],
        metavar="KEY=VALUE|TOML",
        help=f"settings, or a file of them; strategy is one of {names}, or module:Class; "
        "'flwr-vertical strategies NAME' shows the settings of one",
    )


def run(options: argparse.Namespace) -> int:
    """Run the app; returns the exit code."""
    return run_app(options, read_items(options.run_config))


def run_app(options: argparse.Namespace, given: dict[str, Any]) -> int:
    """Check the settings of a run, then run the app; returns the exit code."""
    app, superlink, federation_config = options.app, options.superlink, options.federation_config
    defaults = app_defaults(Path(app))
    settings = checked_config(defaults, given, superlink is None)
    simulation = local_options(superlink)
    if simulation is not None:
        check_simulation()
        stated = {**simulation, **read_items(federation_config)}
        from .nodes import checked_simulation  # brings the whole app's imports

        settings, count = checked_simulation(options.nodes, defaults, settings, stated)
        federation_config = [*federation_config, *count]
    elif options.nodes is not None:
        which = "Flower's default SuperLink" if superlink is None else repr(superlink)
        raise ConfigError(
            f"--nodes is for simulations, and {which} is not for these: real nodes start with "
            "their own node configs. Name one that is, such as 'local': flwr-vertical run . local "
            "--nodes FOLDER"
        )
    with tempfile.TemporaryDirectory(prefix="flwr-vertical-") as folder:
        file = Path(folder) / "run-config.toml"
        file.write_text(toml_text(settings))
        # Of several options `flwr run` keeps the last of each table alone.
        items = ["--run-config", str(file)] if settings else []
        return _stream(app, superlink, items, federation_config)


def _stream(
    app: str,
    superlink: str | None,
    run_config: list[str],
    federation_config: list[str],
    starts: int = _STARTS,
) -> int:
    """Start the run, show its log and wait for its end; returns the exit code."""
    flwr = _flwr()
    link = [superlink] if superlink else []
    command = [flwr, "run", app, *link, "--stream", *run_config]
    for item in federation_config:
        command += ["--federation-config", item]

    run_id, no_ray, told = None, False, False
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=run_environment(),
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                found = _STARTED.search(line)
                run_id = found.group(1) if found else run_id
                no_ray = no_ray or _is_ray_start(line)
                told = told or "to go on from there" in line
        except KeyboardInterrupt:
            if run_id is None:
                raise
            subprocess.run([flwr, "stop", run_id, *link], check=False)
            raise KeyboardInterrupt(resume_hint(Path(app), run_config)) from None
    if run_id is None:  # flwr has said why
        return process.returncode or 1
    run = _wait(flwr, run_id, link)
    if run["status"] == "finished:completed":
        return 0
    if no_ray and starts > 1:
        print(f"{_NO_RAY}: trying again ({_STARTS - starts + 2} of {_STARTS})", flush=True)
        return _stream(app, superlink, run_config, federation_config, starts - 1)
    hint = f"; {_NO_RAY}: run the command again" if no_ray else ""
    if not told:  # a ServerApp that was killed says nothing
        hint += resume_hint(Path(app), run_config)
    details = f"{run['status-details']}{hint}"
    print(f"error: the run ended as {run['status']!r}: {details}", file=sys.stderr)
    return 1


def _is_ray_start(line: str) -> bool:
    """Whether a line of the log says that Ray, under a simulation, did not start.

    Ray starts half a dozen processes and waits for some seconds for each, which a busy machine may
    need for longer. The log has the traceback.
    """
    in_start = "ray/_private/worker.py" in line and line.rstrip().endswith("in init")
    return in_start or ("Timed out waiting for file" in line and "ray" in line)


def _flwr() -> str:
    beside = Path(sys.executable).with_name("flwr")
    found = str(beside) if beside.exists() else shutil.which("flwr")
    if found is None:
        raise ConfigError("the command 'flwr' is not installed: pip install flwr")
    return found


def _wait(flwr: str, run_id: str, link: list[str], patience: float = 120.0) -> dict[str, Any]:
    """Ask how the run ended; a busy SuperLink may close the log long before, and not answer."""
    deadline = time.monotonic() + patience
    while True:
        answer = subprocess.run(
            [flwr, "ls", *link, "--run-id", run_id, "--format", "json"],
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            runs = json.loads(answer.stdout)["runs"]
        except (ValueError, KeyError):
            runs = []
        if runs and str(runs[0]["status"]).startswith("finished"):
            found: dict[str, Any] = runs[0]
            return found
        if runs:  # it goes on without a log
            deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            raise VerticalError(
                f"cannot learn how run {run_id} ended; ask `flwr ls` ({answer.stderr.strip()})"
            )
        time.sleep(1.0)
