"""The local SuperLink: Flower starts it for the first simulation and leaves it running.

It listens at one port of the machine, whichever environment asks, and keeps the packages and the
environment variables with which it was started.
"""

import importlib.util
import itertools
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.optional import require

NO_INSTALLATION = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
_PROGRAM = "flower-superlink"
# What decides which packages serve a run, and where its results are.
_KEPT = (NO_INSTALLATION, "FLWR_VERTICAL_HOME", "PYTHONPATH")
_PORTS = (
    "export FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=39191 FLWR_LOCAL_CONTROL_API_PORT=39193 gives this "
    "environment one of its own"
)
_SECONDS = 10.0  # for a process to end when it is asked to


@dataclass(frozen=True)
class LocalSuperLink:
    """The process that listens where Flower looks for its local SuperLink."""

    process: Any
    program: Path  # The command that it runs, which lies in its environment

    def __str__(self) -> str:
        """Name it for messages."""
        where = f"127.0.0.1:{_port()}"
        return f"the local SuperLink at {where} (process {self.process.pid}, {self.program})"


def local_options(superlink: str | None) -> Mapping[str, Any] | None:
    """Return options of simulations that Flower's configuration has for the local SuperLink."""
    import click
    from flwr.cli.constant import (
        LOCAL_SUPERLINK_ADDRESS_MAGIC_VALUE,
        LOCAL_SUPERLINK_ADDRESS_MAGIC_VALUE_IN_MEMORY,
    )
    from flwr.cli.flower_config import read_superlink_connection

    try:
        found = read_superlink_connection(superlink)
    except click.ClickException as error:
        cause = error.__cause__  # Flower calls a name that is not there unexpected
        why = cause if isinstance(cause, click.ClickException) else error
        raise ConfigError(
            f"{' '.join(why.message.split())} Name one that is there, or add a table [superlink."
            f"{superlink or 'NAME'}] with its address"
        ) from None
    local = LOCAL_SUPERLINK_ADDRESS_MAGIC_VALUE, LOCAL_SUPERLINK_ADDRESS_MAGIC_VALUE_IN_MEMORY
    if found.address not in local and (found.address is not None or found.options is None):
        return None
    return {} if found.options is None else {"num-supernodes": found.options.num_supernodes}


def run_environment() -> dict[str, str]:
    """Return the environment variables of ``flwr run``, which a SuperLink keeps that it starts."""
    # flwr starts helpers of its own by name: the programs beside this Python come first.
    beside = str(Path(sys.executable).parent)
    found = os.environ | {"PATH": os.pathsep.join([beside, os.environ.get("PATH", "")])}
    # A simulation's Ray would wait for a cluster that was killed, if its address file is left.
    found["RAY_ADDRESS"] = os.environ.get("RAY_ADDRESS") or "local"
    # What is installed here is what runs: a package index need not have this package.
    found.setdefault(NO_INSTALLATION, "1")
    return found


def check_simulation() -> None:
    """Raise unless a simulation can run here, by packages of this environment."""
    missing = [name for name in ("ray", "psutil") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a simulation needs {' and '.join(map(repr, missing))}, not installed here: pip "
            "install 'flwr-vertical[simulation]', or name a SuperLink of real nodes"
        )
    found = find_local_superlink()
    if found is None:
        return
    expected = run_environment()
    own = shutil.which(_PROGRAM, path=expected["PATH"])
    if own is None or Path(own).resolve() != found.program.resolve():
        raise ConfigError(
            f"{found} belongs to another environment, whose packages would serve this run; "
            f"'flwr-vertical stop' ends it and its runs, or {_PORTS}"
        )
    kept = _environment_of(found)
    for name in _KEPT:
        if kept.get(name, "") != expected.get(name, ""):
            raise ConfigError(
                f"{found} was started with {name}={kept.get(name, '')!r} and keeps it; this run "
                f"has {expected.get(name, '')!r}: 'flwr-vertical stop' ends it and its runs, and "
                "the next run starts another"
            )


def _environment_of(found: LocalSuperLink) -> dict[str, str]:
    import psutil

    try:
        return dict(found.process.environ())
    except psutil.AccessDenied:
        raise ConfigError(f"{found} belongs to another user; {_PORTS}") from None


def stop_local_superlink() -> str:
    """End the local SuperLink and what it started; returns what was done, in words."""
    psutil = require("psutil", "'flwr-vertical stop'")
    found = find_local_superlink()
    if found is None:
        return f"no local SuperLink runs at 127.0.0.1:{_port()}"
    started = found.process.children(recursive=True)
    try:
        found.process.terminate()
        psutil.wait_procs([found.process], timeout=_SECONDS)
        left = [one for one in (found.process, *started) if one.is_running()]
        for one in left:
            one.kill()
        psutil.wait_procs(left, timeout=_SECONDS)
    except psutil.AccessDenied:
        raise ConfigError(f"{found} belongs to another user; {_PORTS}") from None
    return f"ended {found}"


def find_local_superlink() -> LocalSuperLink | None:
    """Return the SuperLink that was told the local port, whoever started it; None if none was."""
    import psutil

    # Only names of processes and their arguments are asked for, which every user may read.
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        programs = [word for word in words[:2] if Path(word).stem == _PROGRAM]
        if programs and ("--port", _port()) in itertools.pairwise(words):
            return LocalSuperLink(process, Path(programs[0]))
    return None


def _port() -> str:
    from flwr.cli.constant import LOCAL_SUPERLINK_HTTP_API_PORT

    return str(LOCAL_SUPERLINK_HTTP_API_PORT)
