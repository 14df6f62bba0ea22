"""What benchmarks share: the machine they ran on, seconds and memory, the command line."""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path


def machine_line() -> str:
    """Describe processor, cores, memory, versions and load in one line."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":")[1] for line in info.read_text().splitlines() if "model name" in line
        ]
        processor = names[0].strip() if names else processor
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("flwr", "numpy", "scikit-learn"))
    return (
        f"{processor}, {os.cpu_count()} cores, {pages:.0f} GiB; "
        f"Python {platform.python_version()}, {packages}; load {os.getloadavg()[0]:.1f}"
    )


def command_line(doc: str | None, quick: str = "small sizes, for CI") -> argparse.ArgumentParser:
    """Return a parser that knows ``--quick``."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)  # see `alone`
    return parser


def seconds_of(action: Callable[[], object]) -> float:
    """Return the seconds that an action takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def peak_gib() -> float:
    """Return the most memory that this process has had, in GiB.

    ``ru_maxrss`` would count the parent's before ``exec``.
    """
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if "VmHWM" in line).split()[1]) / 2**20


def alone(file: str, only: str, quick: bool = False) -> str:
    """Run a benchmark's case in a process of its own, and return what it prints."""
    command = [sys.executable, file, "--only", only, *(["--quick"] * quick)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
