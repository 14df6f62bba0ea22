"""Flower runtimes of the tests' own: isolated homes, ports on loopback, stopped at the end."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

from apps.cli.watch import find_address, read_status

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(sys.executable).parent
IN_MEMORY = '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local-in-memory:"\n'


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def processes_of(home):
    """Processes whose environment names this Flower home (their daemons detach themselves)."""
    needle = f"FLWR_HOME={home}".encode()
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if needle in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


@contextmanager
def watching(folder):
    """Yield a list of what a run shows of itself that has its results below a folder."""
    seen, over = [], threading.Event()

    def look():
        while not over.wait(0.1):
            with suppress(OSError):
                if address := find_address(str(folder)):
                    seen.append(read_status(address))

    watcher = threading.Thread(target=look)
    watcher.start()
    yield seen
    over.set()
    watcher.join()


def stop_all(home):
    for sig in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes_of(home):
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + 10
        while processes_of(home) and time.monotonic() < deadline:
            time.sleep(0.2)


class Flower:
    """Runs commands in an isolated Flower home."""

    def __init__(self, home):
        self.home = home
        self.results = home / "results"
        self.env = os.environ | {
            "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", "")]),
            "FLWR_HOME": str(home),
            "FLWR_VERTICAL_HOME": str(self.results),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            # The environment that runs the tests has everything; fetching it again tests pip.
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            # The runs must not find the package by the tests' current folder.
            "PYTHONPATH": "",
        }

    def run(self, *arguments, timeout=240, cwd=ROOT):
        return subprocess.run(
            [sys.executable, "-m", "apps.cli.main", *arguments],
            cwd=cwd,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *command):
        log = (self.home / f"{command[0]}-{time.monotonic_ns()}.log").open("w")
        return subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.home,
            env=self.env,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
