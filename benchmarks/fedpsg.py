"""FedPSG-AR on Bank Marketing: time of both stages, and errors beside what they must be read by.

    python benchmarks/fedpsg.py            # rules at three ratios, regressions, 200 training steps
    python benchmarks/fedpsg.py --quick    # one ratio, 10 steps, for CI

Errors are root mean squares over all attributes of the missing samples: integer codes, levels by
their names, each attribute divided by its range. The split is customer information at party a (age,
job, marital, education, day, month, duration, pdays), bank information at b; the paper names none.
A prediction of every attribute's mean, which is no valid value of a level, is the floor of whoever
knows nothing of the other party.
"""

import argparse
import os
import time

import numpy as np
import numpy.typing as npt
import pandas as pd
from machine import machine_line

from flwr_vertical import Table, simulate
from flwr_vertical.incomplete import sample_missing
from simulations.data import Sources
from strategies.fedpsg import FedPSGAR
from strategies.fedpsg.association_rules import RULES

CUSTOMER = ["age", "job", "marital", "education", "day", "month", "duration", "pdays"]
BANK = ["default", "balance", "housing", "loan", "contact", "campaign", "previous", "poutcome"]


def codes_of(frame: pd.DataFrame, like: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return integer codes divided by each attribute's range, array of the frame's shape."""
    columns = []
    for name in like:
        levels = {level: i for i, level in enumerate(sorted(like[name].unique()))}
        numeric = pd.api.types.is_numeric_dtype(like[name])
        column = frame[name] if numeric else frame[name].map(levels)
        whole = like[name] if numeric else like[name].map(levels)
        columns.append(column.to_numpy(dtype=float) / float(whole.max() - whole.min()))
    return np.column_stack(columns)


def stated_as_numbers(frame: pd.DataFrame, like: pd.DataFrame) -> Table:
    """Return levels as integer codes that are stated as numbers, so that they have means."""
    columns = {}
    for name in frame:
        levels = {level: float(i) for i, level in enumerate(sorted(like[name].unique()))}
        numeric = pd.api.types.is_numeric_dtype(like[name])
        columns[name] = frame[name].astype(float) if numeric else frame[name].map(levels)
    return Table.of(pd.DataFrame(columns), dict.fromkeys(columns, "continuous"))


def rmse(found: npt.NDArray[np.float64], truth: npt.NDArray[np.float64]) -> float:
    """Return the root of the mean square over all cells."""
    return float(np.sqrt(np.mean((found - truth) ** 2)))


def main() -> None:
    """Parse the command line, run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one ratio, few steps, for CI")
    parser.add_argument("--steps", type=int, default=0, help="training steps to be timed")
    options = parser.parse_args()
    print(machine_line(), f"; load {os.getloadavg()[0]:.1f}")
    table = pd.read_csv(Sources.find().path("bank/bank_full.csv"))
    customer, bank = table[CUSTOMER], table[BANK]
    for ratio in (0.5,) if options.quick else (0.2, 0.5, 0.8):
        missing = sample_missing(len(table), ratio, seed=0)
        tables = {"a": customer, "b": bank[~missing]}
        truth, seen = codes_of(bank[missing], bank), codes_of(bank[~missing], bank)
        drawn = np.random.default_rng(0).integers(0, len(seen), size=truth.shape)
        draw = np.take_along_axis(seen, drawn, axis=0)
        print(
            f"ratio {ratio}: draw {rmse(draw, truth):.3f}, "
            f"mean {rmse(seen.mean(axis=0), truth):.3f}"
        )
        for rule in RULES:
            started = time.perf_counter()
            result = simulate(FedPSGAR(rule=rule), tables, progress=False)
            seconds = time.perf_counter() - started
            made = codes_of(result.tables["b"].loc[bank.index[missing]], bank)
            print(
                f"  {rule:<6} {rmse(made, truth):.3f} in {seconds:.1f} s (target 30), "
                f"{result.ledger.rounds} rounds, {result.ledger.bytes_up / 2**20:.0f} MiB up",
                flush=True,
            )
        if ratio == 0.5:
            best = result.model["correlations"]
            best = best.loc[best["correlation"].abs().groupby(best["other attribute"]).idxmax()]
            shown = dict(zip(best["other attribute"], best["correlation"].round(2), strict=True))
            print(f"  largest correlations: {shown}")
    coded = {name: stated_as_numbers(part, table) for name, part in tables.items()}
    for imputer in ("mice",) if options.quick else ("mice", "forest"):
        started = time.perf_counter()
        strategy = FedPSGAR(n_associated=0, imputer=imputer)
        result = simulate(strategy, coded, progress=False)
        seconds = time.perf_counter() - started
        found = result.tables["b"].loc[bank.index[missing]]
        made = codes_of(found, stated_as_numbers(bank, table).frame)
        print(
            f"{imputer}, expected codes of ratio {ratio}: {rmse(made, truth):.3f} in "
            f"{seconds:.1f} s, {result.ledger.rounds} rounds, "
            f"{result.ledger.bytes_up / 2**20:.0f} MiB up",
            flush=True,
        )
    steps = options.steps or (10 if options.quick else 200)
    for generator in ("local", "joint"):
        cpu = {}
        for count in (1, 1, steps):  # the first imports; the difference of the others is training
            started = time.process_time()
            strategy = FedPSGAR(imputer="gain", generator=generator, iterations=count)
            result = simulate(strategy, tables, progress=False)
            cpu[count] = time.process_time() - started
        frame = result.ledger.to_frame().drop_duplicates("round")
        trained = frame["step"].isin(["embed", "forward", "by_others", "update"])
        wall = float(frame["seconds"][trained].sum()) / steps
        busy = (cpu[steps] - cpu[1]) / (steps - 1)
        print(
            f"gain, {generator}: {1000 * wall:.1f} ms a step in rounds, {1000 * busy:.1f} of CPU\n"
            f"  projected from these, not run: 10,000 steps in {10_000 * wall:.0f} s, "
            f"{10_000 * busy:.0f} of CPU (target 1,200)",
            flush=True,
        )


if __name__ == "__main__":
    main()
