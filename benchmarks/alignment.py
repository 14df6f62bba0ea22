"""Private alignment of two parties: speed, memory, growth, and OpenMined's PSI beside it.

    python benchmarks/alignment.py [--quick] [--psi-python PATH]

Two parties with half of their IDs in common run in this process, sharing the cores of this machine:
`kkrt` on one core, right before and after `private-id`, whose blinding spreads over worker
processes. The bare primitive is measured before and after as well, with every core busy: X25519
calls in a loop, two for every ID and party.
``--psi-python`` names the Python of an environment with ``openmined-psi``, which needs another
protobuf than Flower: python -m venv psi && psi/bin/pip install openmined-psi.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from common import Timed, alone, begin, command_line, memory_gib, timed

from apps.cli.align import AlignOnly
from flwr_vertical import Result, simulate

BARE = """
import os, sys, time
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
key, count = X25519PrivateKey.generate(), int(sys.argv[1])
points = [os.urandom(32) for _ in range(count)]
started = time.process_time()
for point in points:
    key.exchange(X25519PublicKey.from_public_bytes(point))
print((time.process_time() - started) / count)
"""

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


def bare_seconds(processes: int, count: int) -> float:
    """Seconds of the processor of one X25519 call, so many processes being busy with it."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", BARE, str(count)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(processes)
    ]
    return float(np.mean([float(process.communicate()[0]) for process in running]))


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


def main() -> None:
    """Parse the command line and run."""
    parser = command_line(__doc__)
    parser.add_argument("--psi-python", type=Path, help="Python with openmined-psi installed")
    options = begin(parser)
    if options.only:
        alignment, count = options.only.split(":")
        align(int(count), alignment)
        print(memory_gib())
        return
    cores = len(os.sched_getaffinity(0))
    counts = [1_000, 10_000] if options.quick else [10_000, 100_000, 1_000_000]
    seconds = {}
    for count in counts:
        # Two parties, two calls an ID each, on all cores; before and after, as the speed drifts.
        calls = min(200_000, 4 * count // cores)
        before = bare_seconds(cores, calls)
        first = align(count, "kkrt").seconds
        _, seconds[count], used = align(count, "private-id")
        by_transfers = min(first, align(count, "kkrt").seconds)
        one_call = (before + bare_seconds(cores, calls)) / 2
        bare = 4 * count * one_call
        print(
            f"private-id, 2 x {count:>9,}: {seconds[count]:7.2f} s, "
            f"{1e6 * seconds[count] / count:5.1f} us an ID, "
            f"{bare / used:4.0%} of its processor time is the bare primitive "
            f"({1e6 * one_call:.1f} us a call; target 85 % at 1,000,000)"
        )
        print(
            f"kkrt,       2 x {count:>9,}: {by_transfers:7.2f} s, "
            f"{1e6 * by_transfers / count:5.1f} us an ID, "
            f"{seconds[count] / by_transfers:.1f} times as fast (target 20 s at 1,000,000)"
        )
    for alignment in ("private-id", "kkrt"):
        peak = float(alone(__file__, f"{alignment}:{counts[-1]}").split()[-1])
        print(f"peak memory of {alignment} at 2 x {counts[-1]:,}: {peak:.2f} GiB (target 1)")
    if options.psi_python:
        count = counts[-1]
        answer = subprocess.run(
            [str(options.psi_python), "-c", PSI, str(count)],
            check=True,
            capture_output=True,
            text=True,
        )
        theirs = float(answer.stdout)
        print(
            f"openmined-psi, 2 x {count:,}: {theirs:.2f} s; private-id is "
            f"{theirs / seconds[count]:.1f} times as fast (target 2)"
        )
    count = 200 if options.quick else 10_000
    print(f"blind-rsa, 3,072 bits, 2 x {count:,}: {align(count, 'blind-rsa').seconds:.1f} s")


if __name__ == "__main__":
    main()
