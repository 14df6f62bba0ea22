"""What a round costs over live channels, beside Flower's plain messages in the same run.

    python benchmarks/channels.py [--quick] [--parties 3 16] [--rounds 50] [--plain-rounds 2]

A SuperLink and a SuperNode per party are started on this machine, with homes of their own, and
stopped at the end: Flower's own SuperNodes, then those of `flwr-vertical`. A round sends as many
float64 values to every party and gets them back.
`--quick` times the channels alone, to parties in processes that are there already.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import NodeProcesses, begin, command_line
from flwr.clientapp import ClientApp

ROOT = Path(__file__).parents[1]
APP = Path(__file__).with_name("channel_app")
sys.path[:0] = [str(APP), str(ROOT / "tests" / "kit")]

from channel_bench import client, measure  # noqa: E402
from deployments import Deployment  # noqa: E402


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
            time.sleep(5.0 * n)  # the nodes have started by then, on an idle machine
            env = deployment.flower.env
            answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
        finally:
            deployment.stop()
        if not results.exists():
            raise SystemExit(f"the run failed:\n{answer.stdout[-4000:]}{answer.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(results.read_text())
        return found


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
    options = begin(parser)
    if options.quick:
        show(3, "without Flower", without_flower(3, max(20, options.rounds)))
        return
    for n in options.parties:
        for supernode in (("flower-supernode",), ("flwr-vertical", "supernode")):
            found = on_deployment(n, options.rounds, options.plain_rounds, supernode)
            show(n, " ".join(supernode), found)


if __name__ == "__main__":
    main()
