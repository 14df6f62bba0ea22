"""What a round costs over live channels, beside Flower's plain messages in the same run.

    python benchmarks/channels.py [--quick] [--parties 3 16] [--rounds 50] [--plain-rounds 2]

A SuperLink and a SuperNode per party are started on this machine, with homes of their own, and
stopped at the end: Flower's own SuperNodes, then those of `flwr-vertical`. A round sends as many
float64 values to every party and gets them back.
`--quick` times the channels alone, to parties in processes that are there already.
`--endurance 200000` sends so many rounds of 100 values over one channel and shows whether this
process, which holds both its ends and the run's ledger, grows.
"""

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import NodeProcesses, begin, command_line, memory_gib
from flwr.clientapp import ClientApp

ROOT = Path(__file__).parents[1]
APP = Path(__file__).with_name("channel_app")
sys.path[:0] = [str(APP), str(ROOT / "tests" / "kit")]

from channel_bench import Echo, client, measure  # noqa: E402
from deployments import Deployment  # noqa: E402
from runtimes import processes_of  # noqa: E402

from flwr_vertical import Federation, LocalGrid, MemoryStorage, party_app  # noqa: E402
from flwr_vertical.channel import ChannelGrid  # noqa: E402
from flwr_vertical.tables import Table  # noqa: E402


def echo_app() -> ClientApp:
    """Return the app of a node."""
    return client


def without_flower(n: int, rounds: int) -> dict[str, Any]:
    """Measure with a process for each party, started before."""
    config = {"parties": n, "rounds": rounds, "plain-rounds": 0, "sizes": "100,10000,200000"}
    agreed = {"policy.aggregations": "plain", "policy.min-parties": 1}
    grid = NodeProcesses(echo_app, [{"party": f"p{k}"} | agreed for k in range(n)])
    found = measure(grid, config | {"transport": "channel"})
    grid.used()
    return found


def endure(rounds: int) -> None:
    """Show the memory of this process while one channel carries many rounds."""
    app = party_app(Echo, storage=MemoryStorage({"p0": Table.of(pd.DataFrame({"x": [1.0]}))}))
    base, first, started = np.arange(100.0), 0, time.perf_counter()
    with (
        LocalGrid(app, [{"party": "p0"}]) as local,
        ChannelGrid(local, transport="channel") as grid,
    ):
        federation = Federation(grid, aggregation="plain")
        federation.open()
        for done in range(rounds + 1):
            federation.call("numbers", {"base": base})
            if done % max(1, rounds // 10):
                continue
            gc.collect()
            size = round(2**20 * memory_gib("VmRSS"))
            first = first or (size if done else 0)
            note = f", {100 * (size / first - 1):+.1f} %" if first else ""
            seconds = time.perf_counter() - started
            print(f"{done:9,d} rounds after {seconds:6.0f} s: {size:8,d} kB{note}", flush=True)


def on_deployment(
    n: int, rounds: int, plain_rounds: int, supernode: tuple[str, ...]
) -> dict[str, Any]:
    """Measure on the Deployment Runtime, on loopback."""
    with tempfile.TemporaryDirectory(prefix="flwr-channels-") as folder:
        home = Path(folder)
        agreed = "policy.aggregations='plain' policy.min-parties=1"
        deployment = Deployment(home, {f"p{k}": agreed for k in range(n)}, supernode)
        results = home / "found.json"
        config = f"parties={n} rounds={rounds} plain-rounds={plain_rounds} results='{results}'"
        # Unlike `flwr run --stream` it waits for the end, if a busy SuperLink closes the log.
        command = [sys.executable, "-m", "apps.cli.main", "run", str(APP), "trial", "-c", config]
        try:
            _settle(home)
            env = deployment.flower.env
            answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
        finally:
            deployment.stop()
        if not results.exists():
            raise SystemExit(f"the run failed:\n{answer.stdout[-4000:]}{answer.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(results.read_text())
        return found


def _settle(home: Path) -> None:
    """Wait until the nodes have started: they are up before a run is submitted, as a rule."""
    used, deadline = _cpu_ticks(home), time.monotonic() + 240
    calm = 0
    while calm < 3 and time.monotonic() < deadline:
        time.sleep(2.0)
        before, used = used, _cpu_ticks(home)
        calm = calm + 1 if used - before < 0.3 * 2.0 * os.sysconf("SC_CLK_TCK") else 0


def _cpu_ticks(home: Path) -> int:
    """CPU time that the processes of a Flower home have used."""
    total = 0
    for pid in processes_of(home):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total


def show(n: int, where: str, found: dict[str, Any]) -> None:
    """Print what was measured."""
    print(
        f"{where}, {n} parties: opened in {found['opening']:.1f} s, "
        f"closed in {found['closing']:.2f} s"
    )
    for size, milliseconds in found["channels"].items():
        plain = found.get("messages", {}).get(size)
        beside = f", by messages {plain:8.0f} ms" if plain else ""
        print(f"  {int(size):7,d} values: {milliseconds:7.2f} ms a round{beside}")


def main() -> None:
    """Parse the command line and run."""
    parser = command_line(__doc__, "without Flower's processes, for CI")
    parser.add_argument("--parties", type=int, nargs="*", default=[3, 16])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--plain-rounds", type=int, default=2)
    parser.add_argument("--endurance", type=int, metavar="ROUNDS", help="memory of one channel")
    options = begin(parser)
    if options.endurance:
        endure(options.endurance)
        return
    if options.quick:
        show(3, "without Flower", without_flower(3, max(20, options.rounds)))
        return
    for n in options.parties:
        for supernode in (("flower-supernode",), ("flwr-vertical", "supernode")):
            found = on_deployment(n, options.rounds, options.plain_rounds, supernode)
            show(n, " ".join(supernode), found)


if __name__ == "__main__":
    main()
