"""What generated rows must be read by: a random draw, the mean, and the best conditional mean.

None of the three is a method. RMSE is smallest for the conditional mean given what A has, so no
generated row can beat it but by chance; the mean is what somebody reaches who ignores A; a random
row of B is what an unconditional generator reaches that has learnt B's distribution perfectly.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from simulations.fedpsg.data import Task, coded, is_level

DRAW, MEAN, BEST, VALID = "random draw", "mean", "conditional mean", "conditional mean, valid"
BOOSTED = "boosting of A"
TRUE = "other true rows"
"""Not of B's missing rows, so without an error: what distances are due to few rows."""


def draw(task: Task, a: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return random rows of B."""
    chosen = np.random.default_rng(seed).integers(len(task.seen), size=len(task.truth))
    return task.seen.iloc[chosen].set_axis(task.missing)


def mean(task: Task, a: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the mean code of each attribute, which is no valid value of a level."""
    means = coded(task.seen, task.whole).mean()
    return pd.DataFrame([means] * len(task.truth), index=task.missing)


def boosted(task: Task, a: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return each attribute's code as gradient boosting predicts it from A's (scikit-learn's)."""
    n = len(task.seen)
    # Few samples are learnt by heart otherwise.
    smallest, rate = (20, 0.1) if n >= 2000 else (max(5, n // 10), 0.03)
    model = HistGradientBoostingRegressor(
        max_iter=100, learning_rate=rate, min_samples_leaf=smallest, random_state=seed
    )
    return _predicted(task, a, model)


def stopped(task: Task, a: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return each attribute's code by boosting on A's for as long as held-out rows gain by it."""
    model = HistGradientBoostingRegressor(max_iter=500, early_stopping=True, random_state=seed)
    return _predicted(task, a, model)


def _predicted(task: Task, a: pd.DataFrame, model: HistGradientBoostingRegressor) -> pd.DataFrame:
    inputs, targets = coded(task.a, a), coded(task.seen, task.whole)
    made = {
        name: model.fit(inputs.loc[targets.index], targets[name]).predict(inputs.loc[task.missing])
        for name in targets
    }
    return pd.DataFrame(made, index=task.missing)


def valid(task: Task, a: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return `boosted` with levels rounded to the nearest: the floor of whoever returns levels."""
    made = boosted(task, a, seed)
    for name in made:
        if is_level(task.whole[name]):
            made[name] = made[name].round().clip(0, task.whole[name].nunique() - 1)
    return made


FLOORS: dict[str, Callable[[Task, pd.DataFrame, int], pd.DataFrame]] = {
    DRAW: draw, MEAN: mean, BEST: boosted, VALID: valid, BOOSTED: stopped,
}  # fmt: skip
