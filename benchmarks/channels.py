"""What a round costs over live channels, beside Flower's plain messages in the same run.

    python benchmarks/channels.py [--quick] [--parties 3,16] [--rounds 50] [--plain-rounds 2]

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
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import Cases, NodeProcesses, run, show
from flwr.clientapp import ClientApp

ROOT = Path(__file__).parents[1]
APP = Path(__file__).with_name("channel_app")
sys.path[:0] = [str(APP), str(ROOT / "tests" / "kit")]

from channel_bench import Figures, client, measure  # noqa: E402
from deployments import Deployment  # noqa: E402


def echo_app() -> ClientApp:
    """Return the app of a node."""
    return client


def without_flower(n: int, rounds: int) -> Figures:
    """Measure with a process for each party, started before."""
    config = {"parties": n, "rounds": rounds, "plain-rounds": 0, "sizes": "100,10000,200000"}
    agreed = {"policy.aggregations": "plain", "policy.min-parties": 1}
    grid = NodeProcesses(echo_app, [{"party": f"p{k}"} | agreed for k in range(n)])
    found = measure(grid, config | {"transport": "channel"})
    grid.used()
    return found


def on_deployment(n: int, rounds: int, plain_rounds: int, supernode: tuple[str, ...]) -> Figures:
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
        found: Figures = json.loads(results.read_text())
        return found


def show_all(where: str, measured: Callable[[], Figures]) -> None:
    """Print what was measured."""
    for what, figures in measured().items():
        show(f"{where}, {what}", figures)


def main(options: Namespace) -> Cases:
    """Return the cases by name."""
    if options.quick:
        quick = partial(without_flower, 3, max(20, options.rounds))
        return {"quick": partial(show_all, "without Flower, 3 parties", quick)}
    found = {}
    for n in map(int, options.parties.split(",")):
        for supernode in ("flower-supernode", "flwr-vertical supernode"):
            rounds = options.rounds, options.plain_rounds
            measured = partial(on_deployment, n, *rounds, tuple(supernode.split()))
            found[f"{n} {supernode}"] = partial(show_all, f"{supernode}, {n} parties", measured)
    return found


if __name__ == "__main__":
    counts = {"rounds": (50, "of each size"), "plain_rounds": (2, "by Flower's messages")}
    parties = ("3,16", "how many, one after the other")
    run(__doc__, main, "without Flower's processes, for CI", parties=parties, **counts)
