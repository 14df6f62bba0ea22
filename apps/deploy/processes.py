"""Processes of a trial federation: started in the background, found again, and ended."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from flwr_vertical.errors import ConfigError

MARK = "FLWR_VERTICAL_DEPLOY"  # environment variable that tells whose a process is
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process that was started."""

    name: str  # What it is, for people
    pid: int  # Its number
    started: str  # When it began: a number may be given to another process later
    log: str  # Its log file

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return _table().get(self.pid, ("", 0))[0] == self.started


def start(home: Path, name: str, command: list[str], environment: dict[str, str]) -> Process:
    """Start a process that outlives this one, with a log of its own in the folder ``logs``."""
    log = home / "logs" / f"{name}.log"
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    with open(descriptor, "ab") as file:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=environment | {MARK: str(home)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
        )
    # A process that has ended already stays in the table until somebody asks how.
    return Process(name, process.pid, _table().get(process.pid, ("gone", 0))[0], str(log))


def command(name: str) -> str:
    """Return the path of one of Flower's commands, beside this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise ConfigError(f"there is no {path}; install this package and flwr: pip install -e .")
    return str(path)


def environment(flower_home: Path, results: Path) -> dict[str, str]:
    """Environment of a process: nothing of it lies in the user's own Flower home."""
    beside = str(Path(sys.executable).parent)
    # The kernel of a notebook forces colours, which would stand in what is read of a command.
    own = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return own | {
        "PATH": os.pathsep.join([beside, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(flower_home),
        "FLWR_VERTICAL_HOME": str(results),
        # Everything is installed where this runs; fetching it anew for each run takes a minute.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def tail(log: str | Path, lines: int = 15) -> str:
    """Return the last lines of a log."""
    try:
        text = Path(log).read_text(errors="replace").strip()
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


def check_alive(processes: list[Process]) -> None:
    """Raise with the end of its log if one of the processes has died."""
    for process in processes:
        if not process.alive:
            raise ConfigError(
                f"{process.name} has died; the end of {process.log}:\n{tail(process.log)}"
            )


def stop(home: Path, processes: list[Process], patience: float = 15.0) -> list[str]:
    """End processes and whatever they started; returns the names of those that were alive."""
    ended = [process.name for process in processes if process.alive]
    known: dict[int, str] = {}
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while True:
            table = _table()
            roots = {p.pid for p in processes if table.get(p.pid, ("", 0))[0] == p.started}
            found = roots | _descendants(roots, table) | _marked(home)
            for pid in found & table.keys():
                known.setdefault(pid, table[pid][0])
            left = {pid for pid, began in known.items() if table.get(pid, ("", 0))[0] == began}
            # Who is not in the table began after it was read, and is in the next one.
            if not left and found <= table.keys():
                return ended
            # Asked to end, SuperLink and SuperNodes end what they have started; told twice, no.
            for pid in (left if sign == signal.SIGKILL else left & roots) - told:
                _signal(pid, sign)
                told.add(pid)
            # What they should have ended and have not; who was killed has all the patience.
            if sign == signal.SIGTERM and not left & roots:
                deadline = min(deadline, time.monotonic() + 3.0)
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
    raise ConfigError(f"the processes {sorted(left)} do not end; end them by hand")


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int) -> None:
    """Raise if somebody uses this port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port} of 127.0.0.1 cannot be used ({error}); choose another --port, "
                "or none to get a free one"
            ) from error


def _signal(pid: int, sign: int) -> None:
    try:
        os.kill(pid, sign)
        os.waitpid(pid, os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        pass


def _descendants(roots: set[int], table: dict[int, tuple[str, int]]) -> set[int]:
    found, new = set(roots), set(roots)
    while new:
        new = {pid for pid, (_, parent) in table.items() if parent in new} - found
        found |= new
    return found - roots


def _table() -> dict[int, tuple[str, int]]:
    """When each process began, and its parent; those that only wait to be buried are left out."""
    found = {}
    if (_PROC / "self" / "stat").exists():
        for path in _PROC.glob("[0-9]*/stat"):
            try:
                fields = path.read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                found[int(path.parent.name)] = (fields[19], int(fields[1]))
        return found
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state=,lstart="], capture_output=True, text=True, check=True
    ).stdout
    for line in listing.splitlines():
        pid, parent, state, began = line.split(maxsplit=3)
        if not state.startswith("Z"):
            found[int(pid)] = (began.strip(), int(parent))
    return found


def _marked(home: Path) -> set[int]:
    """Find processes by the mark in their environment, where the system shows it (Linux)."""
    needle = f"{MARK}={home}".encode()
    found = set()
    for path in _PROC.glob("[0-9]*/environ"):
        try:
            if needle in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found - {os.getpid()}
