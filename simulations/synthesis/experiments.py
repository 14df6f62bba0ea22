"""One replication: from settings to numbers."""

import time
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ks_2samp

from flwr_vertical import simulate
from flwr_vertical.grading import quality_score
from flwr_vertical.privacy import seeded_noise
from simulations.replications import Job, Metrics
from simulations.synthesis.data import draw, split
from strategies.copula import VCDS


def replicate(job: Job, data: dict[str, pd.DataFrame]) -> Metrics:
    """Make synthetic tables of one data set and measure them; nothing is stated of its columns."""
    settings = job.settings
    table = draw(settings["dataset"], data[settings["dataset"]], settings["rows"], settings["seed"])
    real = split(table)
    started = time.process_time()
    # The data are public, so the noise may be repeated: the study's numbers can be, too.
    with seeded_noise(settings["seed"]):
        result = simulate(
            VCDS(settings["epsilon"], margin=settings["method"]),
            real,
            seed=settings["seed"],
            progress=False,
        )
    seconds = time.process_time() - started
    score = quality_score(real, result.tables)
    made = pd.concat([result.tables[name] for name in real], axis=1)
    return {
        "quality": score.score,
        "column shapes": float(score.shapes.mean()),
        "pair trends": float(score.trends.mean()),
        "rows": float(len(table)),
        "CPU seconds": seconds,
        **{f"KS {name}": value for name, value in distances(table, made).items()},
    }


def distances(real: pd.DataFrame, made: pd.DataFrame) -> dict[str, float]:
    """Return Kolmogorov and Smirnov's distance of every column of numbers."""
    numeric: list[Any] = [c for c in real if pd.api.types.is_numeric_dtype(real[c])]
    return {
        str(name): float(
            ks_2samp(
                np.asarray(real[name], dtype=float),
                np.asarray(made[name], dtype=float),
                method="asymp",
            ).statistic
        )
        for name in numeric
    }
