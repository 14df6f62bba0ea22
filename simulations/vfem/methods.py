"""The methods that are compared, by the paper's names, and what is measured of a fit."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from flwr_vertical import Result, Strategy, simulate
from flwr_vertical.errors import VerticalError
from simulations.replications import Metrics
from simulations.vfem.sample import Sample
from strategies.vfem import VFEM, CompleteCase, MeanImpute, Single
from strategies.vfem_iterations import VFEMIterations

BASELINES = ("Single", "CC", "Impute")
STEADIED, PRIOR = "VFEM, prior", 2.0
ALGORITHM_2, SKETCHES = "Algorithm 2", 4000
"""The paper's iterations, standard errors from its sketches: L m rows of them, 20 times 200."""


def make_method(name: str, holder: str) -> Strategy:
    """Return the strategy that the paper calls `name`."""
    if name == "Single":
        return Single(party_name=holder)
    if name == "CC":
        return CompleteCase()
    if name == "Impute":
        return MeanImpute()
    if name == ALGORITHM_2:
        return VFEMIterations(sketch_size=SKETCHES)
    # The paper's model. Where it starts (CC-VFEM, Impute-VFEM) changes no maximum.
    prior = PRIOR if name == STEADIED else 0.0
    return VFEM(covariance="block", check_correlation=False, noise_prior=prior)


def run_method(strategy: Strategy, sample: Sample, aggregation: str, seed: int) -> Result:
    """Run a method on what the parties and the server see of a sample."""
    return simulate(
        strategy,
        sample.parties,
        sample.seen_labels,
        aggregation=aggregation,
        seed=seed,
        min_rows=1,  # the tables are generated: there is nobody to protect
        progress=False,
    )


def measure(name: str, sample: Sample, holder: str, aggregation: str, seed: int) -> Metrics:
    """Fit one method and return what the tables need; ``failed`` alone where it cannot fit."""
    try:
        result = run_method(make_method(name, holder), sample, aggregation, seed)
    except VerticalError:
        # Such as complete cases fewer than columns; tables show a dash.
        return {f"{name}/failed": 1.0}
    found = measured(result, sample, ("converged", "r2", "adjusted_r2", "sigma2", "n_samples"))
    if sample.held_out.any():
        found["prediction"] = prediction_rmse(result, sample)
    return {f"{name}/{key}": value for key, value in found.items()}


def measured(result: Result, sample: Sample, names: Sequence[str]) -> Metrics:
    """Return errors and rounds of a fit, and those of its metrics that it has."""
    return {
        "failed": 0.0,
        "coefficients": coefficient_rmse(result, sample),
        "raw coefficients": coefficient_rmse(result, sample, standard=False),
        "rounds": float(result.ledger.rounds),
        **{name: float(result.metrics[name]) for name in names if name in result.metrics},
    }


def slopes(result: Result, sample: Sample, column: str = "estimate") -> "pd.Series[float]":
    """Return a column of the coefficients in the order of the truth, NaN where not estimated."""
    assert result.coefficients is not None
    found: pd.Series[float] = result.coefficients[column].reindex(sample.truth.index)
    return found.astype(float)


def flatten(name: str, values: "pd.Series[float]") -> Metrics:
    """Return one number for each coefficient: ``name/party/variable``."""
    return {
        f"{name}/{party}/{variable}": float(value)
        for (party, variable), value in zip(values.index, values, strict=True)
    }


def coefficient_rmse(result: Result, sample: Sample, *, standard: bool = True) -> float:
    """RMSE of slopes, 0 where not estimated; `standard`: in units of the columns' deviations."""
    error = slopes(result, sample).fillna(0.0) - sample.truth
    if standard:
        error = error * sample.scale
    return float(np.sqrt((error**2).mean()))


def prediction_rmse(result: Result, sample: Sample) -> float:
    """Root mean squared error over the held-out rows."""
    wanted = sample.labels[sample.held_out]
    assert result.predictions is not None
    predicted = result.predictions["prediction"].reindex(wanted.index).astype(float)
    return float(np.sqrt(((predicted - wanted) ** 2).mean()))
