"""How good generated rows are: errors, dependence, margins, and whether they are copies."""

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.grading import risks
from flwr_vertical.grading.quality import correlation_quality, margin_quality
from simulations.fedpsg.data import Task, coded, is_level, spans
from simulations.replications import Metrics

_ATTACKED = 2000  # rows of each group in the membership attack; nearest neighbours take long


def attribute_errors(made: pd.DataFrame, task: Task) -> "pd.Series[float]":
    """Return each attribute's RMSE in integer codes, divided by its range: our reading."""
    found, truth = coded(made, task.whole), coded(task.truth, task.whole)
    difference = (found.to_numpy() - truth.loc[found.index].to_numpy()) / spans(task.whole)
    each: Array = np.sqrt(np.mean(difference**2, axis=0))
    return pd.Series(each.tolist(), index=list(found.columns), dtype=float)


def rmse(made: pd.DataFrame, task: Task) -> float:
    """Return the RMSE over all attributes of the missing rows, pooled."""
    return float(np.sqrt(np.mean(attribute_errors(made, task) ** 2)))


def standard_error(made: pd.DataFrame, task: Task) -> float:
    """Return the RMSE over all attributes, each in units of its standard deviation at B."""
    found, whole = coded(made, task.whole), coded(task.whole, task.whole)
    spread = whole.std(ddof=0).to_numpy()
    gaps = (found - whole.loc[found.index]).to_numpy() / np.where(spread > 0, spread, 1.0)
    return float(np.sqrt(np.mean(gaps**2)))


def as_valid(made: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return rows with each attribute as a value it can have: levels, whole numbers."""
    out = {}
    codes = coded(made, task.whole)
    for name in task.whole:
        column = task.whole[name]
        if is_level(column):
            levels = np.array(sorted(column.unique()), dtype=object)
            place = codes[name].round().clip(0, len(levels) - 1).to_numpy(dtype=int)
            out[name] = levels[place]
        elif np.array_equal(column, column.round()):
            out[name] = codes[name].round().to_numpy()
        else:
            out[name] = codes[name].to_numpy()
    return pd.DataFrame(out, index=made.index)


def level_accuracy(made: pd.DataFrame, task: Task) -> float:
    """Return the share of levels that are right, the mean over B's attributes with levels."""
    found = as_valid(made, task)
    names = [name for name in task.whole if is_level(task.whole[name])]
    right = [float((found[name] == task.truth[name]).mean()) for name in names]
    return float(np.mean(right)) if right else float("nan")


def compare(real: dict[str, pd.DataFrame], made: dict[str, pd.DataFrame]) -> tuple[float, float]:
    """Return how far correlations and margins of B's rows are from the true ones."""
    # The quality report takes tables for synthetic whose samples are none of the real ones.
    fresh = {}
    for name, frame in made.items():
        fresh[name] = frame.set_axis([f"made {i}" for i in range(len(frame))])
    found = correlation_quality(real, fresh)
    of_b = np.array([party == "b" for party, _ in found.names])
    chosen = np.triu(of_b[:, None] | of_b[None, :], k=1)
    gaps = np.abs(np.nan_to_num(found.made) - np.nan_to_num(found.real))[chosen]
    margins = margin_quality({"b": real["b"]}, {"b": fresh["b"]})["distance"]
    return float(gaps.mean()), float(margins.mean())


def distances(real: dict[str, pd.DataFrame], made: dict[str, pd.DataFrame]) -> Metrics:
    """Return what `compare` does, and the number of the quality report: 1 less their mean."""
    correlation, margin = compare(real, made)
    quality = 1.0 - (correlation + margin) / 2.0
    return {"correlation": correlation, "margin": margin, "quality": quality}


def copies(made: pd.DataFrame, task: Task) -> tuple[float, float]:
    """Return which share of rows equals a row that B has, of the generated and of the true ones."""
    valid = as_valid(made, task)
    known = set(map(tuple, task.seen.to_numpy(dtype=object).tolist()))

    def share(frame: pd.DataFrame) -> float:
        rows = map(tuple, frame.to_numpy(dtype=object).tolist())
        return sum(row in known for row in rows) / len(frame)

    return share(valid), share(task.truth)


def membership(made: pd.DataFrame, task: Task, seed: int) -> float:
    """Return the points above chance of guessing which rows B has from the generated ones."""
    count = min(_ATTACKED, len(task.seen), len(task.truth))
    chosen = (frame.sample(count, random_state=seed) for frame in (task.seen, task.truth))
    members, others = chosen
    rows = as_valid(made, task)
    rows = rows.sample(min(len(rows), 2 * _ATTACKED), random_state=seed)
    return 50 * risks.membership(members, others, rows).gain.value


def judge(made: pd.DataFrame, task: Task, seed: int) -> Metrics:
    """Return all numbers of one table of generated rows."""
    errors = attribute_errors(made, task)
    real = {"a": task.a.loc[made.index], "b": task.truth.loc[made.index]}
    copied, chance = copies(made, task)
    return {
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "accuracy": level_accuracy(made, task),
        **distances(real, {"a": real["a"], "b": as_valid(made, task)}),
        "copies": copied,
        "copies by chance": chance,
        "membership": membership(made, task, seed),
        **{f"of {name}": float(value) for name, value in errors.items()},
    }
