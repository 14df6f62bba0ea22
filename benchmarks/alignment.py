"""Private alignment of two parties: speed, memory, growth, and OpenMined's PSI beside it.

    python benchmarks/alignment.py [--quick] [--psi-python PATH]

Two parties with half of their IDs in common run in this process, sharing the cores of this machine:
`kkrt` on one core, `private-id`, whose blinding spreads over worker processes, and `blind-rsa`.
``--psi-python`` names the Python of an environment with ``openmined-psi``, which needs another
protobuf than Flower: python -m venv psi && psi/bin/pip install openmined-psi.
"""

import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
from common import alone, begin, command_line, memory_gib, timed

from apps.cli.align import AlignOnly
from flwr_vertical import simulate

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


def align(count: int, alignment: str) -> float:
    """Align two tables with half of the IDs in common, from greeting to positions; seconds."""
    given = {
        name: pd.DataFrame(
            {"x": np.arange(count) % 7}, [f"person-{k + shift:09d}" for k in range(count)]
        )
        for name, shift in (("a", 0), ("b", count // 2))
    }
    found = timed(lambda: simulate(AlignOnly(), given, alignment=alignment, progress=False))
    assert found.value.metrics["samples_of_all"] == count - count // 2
    return found.seconds


def main() -> None:
    """Parse the command line and run."""
    parser = command_line(__doc__)
    parser.add_argument("--psi-python", type=Path, help="Python with openmined-psi installed")
    options = begin(parser)
    if options.only:
        alignment, size = options.only.split(":")
        align(int(size), alignment)
        print(memory_gib())
        return
    counts = [1_000, 10_000] if options.quick else [10_000, 100_000, 1_000_000]
    cases = [(alignment, count) for count in counts for alignment in ("private-id", "kkrt")]
    cases += [("blind-rsa", 200 if options.quick else 10_000)]
    seconds = {}
    for alignment, count in cases:
        seconds[alignment, count] = spent = align(count, alignment)
        each = f"{1e6 * spent / count:.1f} us an ID"
        print(f"{alignment:<10} 2 x {count:>9,}: {spent:7.2f} s, {each}", flush=True)
    most = counts[-1]
    print(f"targets at 1,000,000: kkrt 20 s; at 2 x {most:,}:")
    for alignment in ("private-id", "kkrt"):
        peak = float(alone(__file__, f"{alignment}:{most}").split()[-1])
        print(f"peak memory of {alignment}: {peak:.2f} GiB (target 1)")
    if options.psi_python:
        command = [str(options.psi_python), "-c", PSI, str(most)]
        theirs = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        ratio = theirs / seconds["private-id", most]
        print(f"openmined-psi: {theirs:.2f} s; private-id is {ratio:.1f} times as fast (target 2)")


if __name__ == "__main__":
    main()
