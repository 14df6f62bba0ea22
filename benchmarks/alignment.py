"""Private alignment of two parties: speed, memory, growth, and OpenMined's PSI beside it.

    python benchmarks/alignment.py [--quick] [--psi-python PATH]

Two parties with half of their IDs in common run in this process, sharing the cores of this machine:
`kkrt` on one core, right before and after `private-id`, whose blinding spreads over worker
processes. The bare primitive is measured before and after as well, with every core busy: X25519
calls in a loop, two for every ID and party.
``--psi-python`` names the Python of an environment with ``openmined-psi``, which needs another
protobuf than Flower: python -m venv psi && psi/bin/pip install openmined-psi.
"""

import multiprocessing
import os
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from common import Cases, Timed, memory_gib, run, say, show, timed
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from apps.cli.align import AlignOnly
from flwr_vertical import Result, simulate

PSI = """
import sys, time
import private_set_intersection.python as psi
count = int(sys.argv[1])
ours = [f"person-{k:09d}" for k in range(count)]
theirs = [f"person-{k + count // 2:09d}" for k in range(count)]
started = time.perf_counter()
client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
setup = server.CreateSetupMessage(0.0, count, theirs, psi.DataStructure.RAW)
response = server.ProcessRequest(client.CreateRequest(ours))
assert len(client.GetIntersection(setup, response)) == count - count // 2
print(time.perf_counter() - started)
"""


def bare_call(count: int) -> float:
    """Seconds of the processor of one X25519 call, the mean of so many."""
    key, points = X25519PrivateKey.generate(), [os.urandom(32) for _ in range(count)]
    started = time.process_time()
    for point in points:
        key.exchange(X25519PublicKey.from_public_bytes(point))
    return (time.process_time() - started) / count


def bare_seconds(processes: int, count: int) -> float:
    """Seconds of the processor of one X25519 call, so many processes being busy with it."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return float(np.mean(list(pool.map(bare_call, [count] * processes))))


def align(count: int, alignment: str) -> Timed[Result]:
    """Align two tables with half of the IDs in common, from greeting to positions."""
    given = {
        name: pd.DataFrame(
            {"x": np.arange(count) % 7}, [f"person-{k + shift:09d}" for k in range(count)]
        )
        for name, shift in (("a", 0), ("b", count // 2))
    }
    found = timed(lambda: simulate(AlignOnly(), given, alignment=alignment, progress=False))
    assert found.value.metrics["samples_of_all"] == count - count // 2
    return found


def by_turns(count: int) -> None:
    """Print the speed of `private-id`, and of `kkrt` right before and after it."""
    # Two parties, two calls an ID each, on all cores; before and after, as the speed drifts.
    cores = len(os.sched_getaffinity(0))
    calls = min(200_000, 4 * count // cores)
    before = bare_seconds(cores, calls)
    first = align(count, "kkrt").seconds
    _, seconds, used = align(count, "private-id")
    by_transfers = min(first, align(count, "kkrt").seconds)
    one_call = (before + bare_seconds(cores, calls)) / 2
    figures = {"s": seconds, "us an ID": 1e6 * seconds / count, "us a bare call": 1e6 * one_call}
    bare = "% of its processor time is the bare primitive"
    figures[bare] = 400 * count * one_call / used
    show(f"private-id, 2 x {count:,}", figures, "85 % at 1,000,000")
    figures = {"s": by_transfers, "us an ID": 1e6 * by_transfers / count}
    times = {"times as fast": seconds / by_transfers}
    show(f"kkrt, 2 x {count:,}", figures | times, "20 s at 1,000,000")


def peak(count: int, alignment: str) -> None:
    """Print the most memory of this process."""
    align(count, alignment)
    show(f"{alignment}, 2 x {count:,}", {"GiB at most": memory_gib()}, "1 GiB")


def beside_openmined(count: int, python: str) -> None:
    """Print the speed of OpenMined's PSI, and what it is to that of `private-id`."""
    command = [python, "-c", PSI, str(count)]
    theirs = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ratio = theirs / align(count, "private-id").seconds
    show(f"openmined-psi, 2 x {count:,}", {"s": theirs, "times the time of private-id": ratio}, "2")


def main(options: Namespace) -> Cases:
    """Return the cases by name."""
    counts = [1_000, 10_000] if options.quick else [10_000, 100_000, 1_000_000]
    found: dict[str, Callable[[], Any]] = {
        f"speed-{count}": partial(by_turns, count) for count in counts
    }
    found |= {how: partial(peak, counts[-1], how) for how in ("private-id", "kkrt")}
    if options.psi_python:
        found["openmined"] = partial(beside_openmined, counts[-1], options.psi_python)
    few = 200 if options.quick else 10_000
    rsa = partial(say, f"blind-rsa, 3,072 bits, 2 x {few:,}", partial(align, few, "blind-rsa"))
    return found | {"blind-rsa": rsa}


if __name__ == "__main__":
    run(__doc__, main, psi_python=("", "Python with openmined-psi installed"))
