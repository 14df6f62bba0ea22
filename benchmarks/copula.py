"""Copula synthesis: time and memory at the size of the paper's data, and at N = 5,000, p = 100.

    python benchmarks/copula.py            # the whole: about three minutes on two cores
    python benchmarks/copula.py --quick    # small sizes, for CI

The paper's data has 71,827 firms and 55 variables, the response included, at five institutions
whose missing rates are those of its Table 8; here the fifth, which lacks nobody, has the response.
"""

import time

import numpy as np
import pandas as pd
from common import alone, command_line, machine_line, peak_gib

from flwr_vertical import simulate
from flwr_vertical.privacy import Keystream
from strategies import copula
from strategies.copula.ranks import Flip, perturbed_ranks

PAPER_ROWS, PAPER_COLUMNS = 71_827, (13, 6, 6, 19, 10)
PAPER_RATES = (0.7234, 0.8353, 0.8733, 0.2711, 0.0)


def make_data(
    n_rows: int, sizes: tuple[int, ...], rates: tuple[float, ...], seed: int = 0
) -> tuple[dict[str, pd.DataFrame], "pd.Series[float]"]:
    """Make correlated columns, a third of them counts and a third indicators; binary labels."""
    rng = np.random.default_rng(seed)
    common, parties = rng.normal(size=n_rows), {}
    for k, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
        x = 0.6 * common[:, None] + 0.8 * rng.normal(size=(n_rows, size))
        x[:, 1::3] = np.floor(np.exp(x[:, 1::3] / 2 + 1))
        x[:, 2::3] = x[:, 2::3] > 0.5
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(size)])
        parties[f"party-{k}"] = frame[rng.random(n_rows) >= rate]
    return parties, pd.Series((common + rng.normal(size=n_rows) > 0).astype(float))


def measure(name: str, n_rows: int, sizes: tuple[int, ...], rates: tuple[float, ...]) -> None:
    """Run one strategy once and print time and peak memory of this process."""
    parties, labels = make_data(n_rows, sizes, rates)
    started = time.perf_counter()
    result = simulate(getattr(copula, name)(epsilon=1.0), parties, labels, progress=False)
    seconds = time.perf_counter() - started
    columns = sum(sizes) + 1
    goal = ""
    if name == "VCDS" and n_rows == PAPER_ROWS:
        goal = ", target 900 s and 4 GiB"
    elif n_rows == 5000:
        goal = ", target 15 s"
    missing = f"{1 - sum(map(len, parties.values())) / n_rows / len(parties):.0%} of blocks missing"
    print(
        f"{name:<7} {n_rows:,} rows, {columns} columns, {missing}: {seconds:.1f} s, "
        f"peak {peak_gib():.2f} GiB{goal}; {result.ledger.rounds} rounds, "
        f"{result.ledger.bytes_up / 2**20:.1f} MiB up, {result.ledger.bytes_down / 2**20:.1f} down",
        flush=True,
    )


def ranks_alone(n: int) -> None:
    """Print the time that one column's comparisons take."""
    values, stream = np.random.default_rng(0).random(n), Keystream()
    started = time.perf_counter()
    perturbed_ranks(values, Flip.of(0.5), stream)
    seconds = time.perf_counter() - started
    pairs = n * (n - 1) / 2
    print(f"ranks of one column, n = {n:,}: {seconds:.2f} s, {pairs / seconds:.1e} pairs a second")


def main() -> None:
    """Parse the command line and run; each run in a process of its own, so that peaks are its."""
    options = command_line(__doc__).parse_args()
    cases = {
        "wide": (500 if options.quick else 5000, (20,) * 5, (0.0,) * 5),
        "paper": (3000 if options.quick else PAPER_ROWS, PAPER_COLUMNS, PAPER_RATES),
    }
    if options.only:
        name, case = options.only.split(":")
        measure(name, *cases[case])
        return
    print(machine_line())
    ranks_alone(5_000 if options.quick else PAPER_ROWS)
    for case in cases:
        for name in ("VCDS", "EVCDS", "IEVCDS"):
            print(alone(__file__, f"{name}:{case}", options.quick), end="", flush=True)


if __name__ == "__main__":
    main()
