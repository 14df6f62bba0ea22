"""The methods that are compared, by the paper's names, from tables to coefficients."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression, Ridge

from flwr_vertical import Result, Strategy, simulate
from flwr_vertical.arrays import Array
from flwr_vertical.errors import VerticalError
from simulations.copula.criteria import selection_criteria
from simulations.copula.design import LINEAR, CopulaSample
from simulations.replications import Metrics
from strategies.copula import EVCDS, IEVCDS, VCDS
from strategies.glm_admm import GLMADMM

Tables = Mapping[str, pd.DataFrame]

CENTRAL, FEDERATED, NOISY = "Original-C", "Original-VFL", "VFL-ADMM-DP"
ORACLE = "True support"  # maximum likelihood on the columns that have an effect
SHRUNK = "True support, shrunk"  # the same with the ridge that comes nearest to the truth
UNPROTECTED = (CENTRAL, FEDERATED, ORACLE, SHRUNK)
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0)  # scikit-learn's C: the larger, the less it shrinks
FRESH = " (fresh rows)"
TREES = " (trees)"  # margins by the library's default; the paper's are Bernstein polynomials
TOLERANCE = 1e-3  # of the fits; the rounds that the page prints are to it
RANK_SHARE = 0.5  # the tables printed in the paper halve epsilon
SYNTHESES: dict[str, dict[str, Any]] = {
    "VCDS": {},
    # As printed, rows follow the ranks of real ones (line 21 of Algorithm 2) ...
    "EVCDS": {"rearrange": True},
    "IEVCDS": {"rearrange": True},
    # ... which protects no row; by default this library draws them afresh.
    "EVCDS" + FRESH: {},
    "IEVCDS" + FRESH: {},
}
BASELINES = {"CC-": "complete-case", "Impute-": "impute"}
_CLASSES: dict[str, Callable[..., Strategy]] = {"VCDS": VCDS, "EVCDS": EVCDS, "IEVCDS": IEVCDS}


def make_synthesis(name: str, epsilon: float, rows: int = 0) -> Strategy:
    """Return the strategy that makes synthetic tables, such as ``Impute-EVCDS``."""
    prefix = next((start for start in BASELINES if name.startswith(start)), "")
    kind = name.removeprefix(prefix).removesuffix(TREES)
    margin = "tree" if name.endswith(TREES) else "bernstein"
    settings = {"rank_share": RANK_SHARE, "margin": margin, **SYNTHESES[kind]}
    if prefix:
        settings["missing"] = BASELINES[prefix]
    strategy = _CLASSES[kind.removesuffix(FRESH)]
    return strategy(epsilon=epsilon, budget="per-variable", rows=rows or None, **settings)


def synthesise(
    name: str, tables: Tables, labels: "pd.Series[float]", epsilon: float, seed: int
) -> Result:
    """Make synthetic tables; under ``CC-`` as many rows as samples are complete."""
    rows = 0
    if name.startswith("CC-"):
        held = [frame.index for frame in tables.values()]
        rows = int(np.logical_and.reduce([labels.index.isin(index) for index in held]).sum())
    strategy = make_synthesis(name, epsilon, rows)
    # Nothing is summed, so the mode of sums does not matter.
    return simulate(strategy, tables, labels, aggregation="plain", seed=seed, progress=False)


def fit_table(
    table: pd.DataFrame, labels: "pd.Series[float]", family: str, settings: Mapping[str, Any]
) -> tuple[Array, float]:
    """Fit one complete table by VFL-GLM-VS; return coefficients and intercept.

    Synthetic tables are fitted so, too: their maker has all columns, and the same estimator over
    five parties takes three times as long.
    """
    named = table.set_axis([f"x{j}" for j in range(table.shape[1])], axis=1)
    strategy = GLMADMM(family, tol=TOLERANCE, **settings)
    fit = simulate(strategy, {"all": named}, labels, aggregation="plain", progress=False)
    assert fit.coefficients is not None
    level, *beta = fit.coefficients["estimate"].fillna(0.0)
    return np.array(beta), float(level)


def nearest_ridge(
    table: pd.DataFrame, labels: "pd.Series[float]", family: str, truth: Array
) -> Array:
    """Return the ridge estimates that are nearest to the truth: what shrinking can gain at most."""
    fits = [
        Ridge(alpha=1 / c) if family == "gaussian" else LogisticRegression(C=c, max_iter=1000)
        for c in RIDGES
    ]
    found = [np.ravel(fit.fit(table.to_numpy(dtype=float), labels).coef_) for fit in fits]
    return np.asarray(min(found, key=lambda beta: float(np.linalg.norm(beta - truth))))


def together(made: Result, real: Tables) -> pd.DataFrame:
    """Return synthetic tables side by side, columns as in the real ones."""
    return pd.concat({name: made.tables[name][list(table)] for name, table in real.items()}, axis=1)


def measure(settings: Mapping[str, Any], sample: CopulaSample, held: Tables) -> Metrics:
    """Run one method and return what the tables need; ``failed`` alone where it cannot run."""
    started = time.perf_counter()
    try:
        found = _estimates(settings, sample, held)
    except VerticalError:
        return {"failed": 1.0}
    truth = np.asarray(sample.truth, dtype=np.float64)
    numbers = selection_criteria(found.pop("beta"), truth) | found
    return {"failed": 0.0, "seconds": time.perf_counter() - started, **numbers}


def _estimates(settings: Mapping[str, Any], sample: CopulaSample, held: Tables) -> dict[str, Any]:
    name, epsilon, glm = (settings[key] for key in ("method", "epsilon", "glm"))
    family = "gaussian" if settings["model"] == LINEAR else "binomial"
    if name == CENTRAL:
        whole = pd.concat(held, axis=1)
        return {"beta": fit_table(whole, sample.labels, family, glm)[0]}
    if name in (ORACLE, SHRUNK):
        truth = np.asarray(sample.truth, dtype=np.float64)
        real = truth != 0
        whole = pd.concat(held, axis=1).loc[:, real]
        if name == ORACLE:
            found = fit_table(whole, sample.labels, family, {"penalty": None})[0]
        else:
            found = nearest_ridge(whole, sample.labels, family, truth[real])
        beta = np.zeros(len(real))
        beta[real] = found
        return {"beta": beta}
    if name in (FEDERATED, NOISY):
        arguments: dict[str, Any] = {**glm, "family": family, "tol": TOLERANCE}
        if name == NOISY:
            arguments |= {"epsilon": epsilon, "max_iter": 20}
        strategy = GLMADMM(**arguments)
        result = simulate(strategy, held, sample.labels, aggregation="masked", progress=False)
        assert result.coefficients is not None
        estimate = result.coefficients["estimate"].reindex(sample.truth.index)
        return {
            "beta": estimate.to_numpy(dtype=np.float64),
            "rounds": float(result.ledger.rounds),
            "iterations": result.metrics["iterations"],
        }
    made = synthesise(name, held, sample.labels, epsilon, settings["seed"])
    assert made.labels is not None
    whole = together(made, sample.tables)
    return {"beta": fit_table(whole, made.labels, family, glm)[0]}
