"""VFEM from submission to saved result on Flower's Deployment Runtime: channels, then messages.

    python benchmarks/deployment.py [--parties 5] [--rows 5000] [--quick]

A SuperLink and a SuperNode per party are started on this machine, with homes of their own, and
stopped at the end. The time of a run is that of `flwr-vertical run`, from the command to its end;
every party reads its own Parquet file. `--quick` is a small run over channels alone.
"""

import re
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from common import command_line, machine_line

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

from deployments import Deployment

from flwr_vertical import simulate
from strategies.vfem import VFEM

MISSING = (0.2, 0.5, 0.3, 0.4, 0.1, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Shares of the samples that parties lack."""


def make_data(n_rows: int, n_parties: int) -> tuple[dict[str, pd.DataFrame], "pd.Series[float]"]:
    """Make five normal columns of each party; blocks missing completely at random."""
    rng = np.random.default_rng(0)
    y, parties = rng.normal(size=n_rows), {}
    covariance = 0.3 ** np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    for k, rate in enumerate(MISSING[:n_parties]):
        x = rng.normal(size=(n_rows, 5)) @ np.linalg.cholesky(covariance).T
        y += x @ rng.normal(size=5)
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(5)])
        parties[f"party-{k}"] = frame[rng.random(n_rows) >= rate]
    return parties, pd.Series(y)


def measure(n_parties: int, n_rows: int, transports: tuple[str, ...]) -> None:
    """Run VFEM by each transport and print seconds, rounds and the distance to `simulate`."""
    parties, labels = make_data(n_rows, n_parties)
    expected = simulate(VFEM(), parties, labels, alignment="plain", progress=False)
    with tempfile.TemporaryDirectory(prefix="flwr-vfem-") as folder:
        home = Path(folder)
        labels.rename("y").rename_axis("id").to_csv(home / "labels.csv")
        for name, table in parties.items():
            table.rename_axis("id").to_parquet(home / f"{name}.parquet")
        deployment = Deployment(
            home,
            {
                n: f"data='{home / n}.parquet' output='{home / n}-out' policy.alignments='plain'"
                for n in parties
            },
        )
        try:
            for transport in transports:
                _run(deployment, parties, transport, expected.coefficients)
        finally:
            deployment.stop()


def _run(
    deployment: Deployment,
    parties: dict[str, pd.DataFrame],
    transport: str,
    expected: pd.DataFrame,
) -> None:
    started = time.perf_counter()
    run = deployment.submit(
        strategy="vfem",
        parties=",".join(parties),
        labels=str(deployment.flower.home / "labels.csv"),
        alignment="plain",
        transport=transport,
        run_name=transport,
        channel_timeout=240.0,
    )
    if run.finish(1800) != 0:
        raise SystemExit(run.text[-4000:])
    seconds = time.perf_counter() - started
    rounds = re.search(r"^total +(\d+) .*  (\S.*?) *$", run.text, re.MULTILINE)
    opened = re.search(r"channels are open after ([\d.]+ s)", run.text)
    found = pd.read_csv(deployment.folder(transport) / "coefficients.csv", index_col=[0, 1])
    off = np.abs(found["estimate"] - expected["estimate"]).max()
    print(
        f"{transport:8}: {seconds:6.1f} s from the command to its end"
        + (f", channels opened in {opened[1]}" if opened else "")
        + (f", {rounds[1]} rounds in {rounds[2]}" if rounds else "")
        + f"; largest difference to simulate {off:.1e}",
        flush=True,
    )


def main() -> None:
    """Parse the command line and run."""
    parser = command_line(__doc__, "2 parties, 200 rows, channels alone")
    parser.add_argument("--parties", type=int, default=5)
    parser.add_argument("--rows", type=int, default=5000)
    options = parser.parse_args()
    print(machine_line() + "\n")
    if options.quick:
        measure(2, 200, ("channel",))
        return
    print(f"VFEM, {options.parties} parties x {options.rows} rows, 5 columns each")
    measure(options.parties, options.rows, ("channel", "messages"))


if __name__ == "__main__":
    main()
