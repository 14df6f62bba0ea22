"""MST and AIM: time, rounds and memory at the size of the copula paper's data.

    python benchmarks/marginals.py            # the whole: some minutes on two cores
    python benchmarks/marginals.py --quick    # small sizes, for CI

71,827 rows of 55 columns at three parties: a third counts, a third indicators.
"""

import time

from common import alone, command_line, machine_line, peak_gib
from copula import PAPER_ROWS, make_data

from flwr_vertical import simulate
from strategies import marginals

SIZES = (19, 18, 18)
GOAL_SECONDS, GOAL_ROUNDS = 120, 40


def measure(name: str, n_rows: int) -> None:
    """Run one strategy once and print time, rounds and peak memory of this process."""
    parties, _ = make_data(n_rows, SIZES, (0.0,) * len(SIZES))
    # Names differ between parties: the synthetic tables are put side by side.
    parties = {party: table.add_prefix(f"{party} ") for party, table in parties.items()}
    started = time.perf_counter()
    result = simulate(getattr(marginals, name)(epsilon=1.0), parties, progress=False)
    seconds = time.perf_counter() - started
    goal = f", target {GOAL_SECONDS} s and {GOAL_ROUNDS} rounds" if n_rows == PAPER_ROWS else ""
    told = result.metrics
    print(
        f"{name} {n_rows:,} rows, {sum(SIZES)} columns, {told['levels']:.0f} levels, "
        f"{told['chosen_pairs']:.0f} pairs chosen: {seconds:.1f} s, {result.ledger.rounds} rounds, "
        f"peak {peak_gib():.2f} GiB{goal}; {result.ledger.bytes_up / 2**20:.1f} MiB up, "
        f"{result.ledger.bytes_down / 2**20:.1f} down",
        flush=True,
    )


def main() -> None:
    """Parse the command line and run; each run in a process of its own, so that peaks are its."""
    options = command_line(__doc__).parse_args()
    if options.only:
        name, rows = options.only.split(":")
        measure(name, int(rows))
        return
    print(machine_line())
    for name in ("MST", "AIM"):
        only = f"{name}:{2000 if options.quick else PAPER_ROWS}"
        print(alone(__file__, only), end="", flush=True)


if __name__ == "__main__":
    main()
