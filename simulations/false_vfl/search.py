"""Compare choices that the paper leaves open, on speakers that no training sample is of.

``python -m simulations.false_vfl.search --output search.csv`` trains on subsets 1 to 3 of Isolet
and validates on subset 4; the test subset is not read. A line is written after each stop.
"""

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flwr_vertical.errors import DataError
from flwr_vertical.incomplete import FALSE_VFL_REGIMES
from simulations.data import Sources
from simulations.false_vfl.data import draw_labelled, draw_mask, load_isolet, to_blocks
from simulations.false_vfl.training import Pretraining, Stages, fit_head
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.networks import NetworkSettings

_OF_IMAGES = ("networks", "image_shape", "image_channels")  # the same for all: there are none
_BASE = NetworkSettings(party_layers=3)
_TWO = replace(_BASE, party_layers=2)

CANDIDATES: dict[str, NetworkSettings] = {
    "base": _BASE,
    "sigma-x from 0.37": replace(_BASE, x_bounds=(-1.0, 1.0)),
    "sigma-x from 0.05": replace(_BASE, x_bounds=(-3.0, 1.0)),
    "width 256": replace(_BASE, party_width=256, global_width=256),
    "width 64": replace(_BASE, party_width=64, global_width=64),
    "party layers 2": _TWO,
    "party layers 1": replace(_BASE, party_layers=1),
    "party layers 2, width 256": replace(_TWO, party_width=256, global_width=256),
    "party layers 2, party width 256": replace(_TWO, party_width=256),
    "party layers 2, tanh": replace(_TWO, activation="tanh"),
    "party layers 2, silu": replace(_TWO, activation="silu"),
    "party layers 2, elu": replace(_TWO, activation="elu"),
    "party layers 2, sigma-x from 0.05": replace(_TWO, x_bounds=(-3.0, 1.0)),
    "party layers 2, sigma-h from 0.14": replace(_TWO, h_bounds=(-2.0, 1.0), z_bounds=(-2.0, 1.0)),
    "tanh": replace(_BASE, activation="tanh"),
    "silu": replace(_BASE, activation="silu"),
    "elu": replace(_BASE, activation="elu"),
    "sigma-h from 0.14": replace(_BASE, h_bounds=(-2.0, 1.0), z_bounds=(-2.0, 1.0)),
    "sigma-h from 0.002": replace(_BASE, h_bounds=(-6.0, 2.0), z_bounds=(-6.0, 2.0)),
}


@dataclass(frozen=True)
class Plan:
    """What a candidate goes through."""

    regime: str = "MCAR 2"  # Of training blocks
    variant: str = "I"
    # Epochs of the first stage after which the second is trained and validated
    stops: tuple[int, ...] = (30,)
    epochs: int = 150  # Of the second stage
    seed: int = 0
    tests: tuple[str, ...] = tuple(FALSE_VFL_REGIMES)  # Regimes of validation blocks
    n_draws: int = 50  # Draws of a prediction


def try_out(
    settings: NetworkSettings, plan: Plan, sources: Sources, stages: Stages
) -> list[dict[str, Any]]:
    """Train one candidate; return a record for each stop."""
    data = load_isolet(sources, train=(1, 2, 3), test=(4,))
    labelled, aligned = draw_labelled(len(data.train_labels), plan.seed)
    mask = draw_mask(data.train, plan.regime, plan.seed, aligned)
    blocks = to_blocks(data.train, mask)
    rows, y = torch.from_numpy(labelled), torch.from_numpy(data.train_labels[labelled])
    held_out = {
        test: to_blocks(data.test, draw_mask(data.test, test, plan.seed + 1000, aligned[:0]))
        for test in plan.tests
    }
    model = CentralModel(blocks, settings, plan.variant, 26, plan.seed)
    pretraining = Pretraining(model, blocks, len(mask), stages, plan.seed)
    records: list[dict[str, Any]] = []
    started, loss = time.perf_counter(), float("nan")
    for epoch in range(1, max(plan.stops) + 1):
        loss = pretraining.epoch()
        if epoch not in plan.stops:
            continue
        seconds = time.perf_counter() - started
        fitted = fit_head(model, blocks, rows, y, plan.epochs, stages, plan.seed)
        everyone = torch.arange(len(data.test_labels))
        record: dict[str, Any] = {"pretrain_epochs": epoch, "loss": round(loss, 2)}
        for test, held in held_out.items():
            found = fitted.predict(held, everyone, plan.n_draws, plan.seed).value.numpy()
            record[test] = round(100.0 * float(np.mean(found == data.test_labels)), 1)
        record["mean"] = round(float(np.mean([record[test] for test in plan.tests])), 2)
        record["pretrain_seconds"] = round(seconds, 1)
        records.append(record)
    return records


def add_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a CSV file, which is made with a header if it is not there."""
    fresh = not path.exists()
    with path.open("a+", newline="") as file:
        file.seek(0)
        names = next(csv.reader(file), [])
        if not fresh and names != list(line):
            raise DataError(f"{path} has columns {names}, expected {list(line)}; name another file")
        writer = csv.DictWriter(file, list(line))
        if fresh:
            writer.writeheader()
        writer.writerow(line)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run candidates one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="a CSV file, added to")
    parser.add_argument("--only", nargs="*", default=list(CANDIDATES), help="names of candidates")
    parser.add_argument("--stops", nargs="*", type=int, default=[30])
    parser.add_argument("--epochs", type=int, default=150, help="of the second stage")
    parser.add_argument("--regime", default="MCAR 2")
    parser.add_argument("--variant", default="I")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="*", default=list(FALSE_VFL_REGIMES))
    parser.add_argument("--draws", type=int, default=50, help="of a prediction")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    sources = Sources.find(options.data)
    plan = Plan(
        regime=options.regime,
        variant=options.variant,
        stops=tuple(options.stops),
        epochs=options.epochs,
        seed=options.seed,
        tests=tuple(options.tests),
        n_draws=options.draws,
    )
    for name in options.only:
        settings = CANDIDATES[name]
        about = {"candidate": name, "regime": plan.regime, "variant": plan.variant}
        about |= {"seed": plan.seed, "epochs": plan.epochs}
        for record in try_out(settings, plan, sources, Stages()):
            line = {**about, **record, **asdict(settings)}
            for name in _OF_IMAGES:
                del line[name]
            add_line(options.output, line)


if __name__ == "__main__":
    main()
