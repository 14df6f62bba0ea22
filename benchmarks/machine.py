"""What every benchmark prints first: the machine and the versions it ran on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine_line() -> str:
    """Describe processor, cores, memory and versions in one line."""
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
        f"Python {platform.python_version()}, {packages}"
    )
