"""The prior on the noise variance: where the fit ends, and that it steadies what is unsteady."""

import numpy as np
import pytest
from oracles import vfem as oracle
from vfem_runs import party_tables

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError
from strategies.vfem import VFEM


def run(pooled, weight, covariance="block"):
    parties, labels = party_tables(pooled)
    strategy = VFEM(covariance, noise_prior=weight, check_correlation=False)
    return simulate(strategy, parties, labels, min_rows=1, progress=False)


def penalised(pooled, weight):
    loglik, level = oracle.fast_loglik(pooled), 0.5 * np.var(pooled.y)

    def objective(theta):
        prior = -0.5 * weight * (np.log(theta.sigma2) + level / theta.sigma2)
        return loglik(theta) + prior

    return objective


def test_the_fit_ends_where_likelihood_and_prior_are_largest():
    pooled, _ = oracle.generate(80, [2, 1, 2], 0.3, seed=5, mean=0.5)
    result = run(pooled, 2.0)
    assert result.metrics["rows_merged"] == result.metrics["rows_left_out"] == 0
    theta = oracle.exact_em(pooled, oracle.initial(pooled), 1)[0]
    found = result.coefficients["estimate"].to_numpy()
    beta = np.split(found[1:], np.cumsum(pooled.sizes)[:-1])
    objective = penalised(pooled, 2.0 * sum(pooled.sizes))
    theta = oracle.Theta(found[0], beta, theta.mu, theta.sigma, result.metrics["sigma2"])
    # The parties' moments do not leave them: they follow from the rest by exact EM.
    for _ in range(500):
        after = oracle.exact_em(pooled, theta, 1)[0]
        moved = max(
            np.abs(one - other).max()
            for one, other in zip([*after.mu, *after.sigma], [*theta.mu, *theta.sigma], strict=True)
        )
        theta = oracle.Theta(found[0], beta, after.mu, after.sigma, result.metrics["sigma2"])
        if moved < 1e-9:
            break
    vector = oracle.flatten(theta)
    sizes = pooled.sizes

    def at(v):
        return objective(oracle.unflatten(v, sizes))

    for place in [*range(1 + sum(sizes)), len(vector) - 1]:
        step_size = 1e-4 * max(1.0, abs(vector[place]))
        up, down = vector.copy(), vector.copy()
        up[place] += step_size
        down[place] -= step_size
        slope = (at(up) - at(down)) / (2 * step_size) / len(pooled.y)
        assert abs(slope) < 1e-4


@pytest.mark.parametrize("covariance", ["block", "full"])
def test_zero_is_maximum_likelihood_and_more_pulls_up_the_noise(covariance):
    pooled, _ = oracle.generate(600, [2, 2, 2], [0.5, 0.6, 0.4], seed=2)
    fits = [run(pooled, weight, covariance) for weight in (0.0, 2.0, 20.0)]
    noise = [fit.metrics["sigma2"] for fit in fits]
    assert noise[0] < noise[1] < noise[2]
    assert fits[0].metrics["log_likelihood"] > fits[1].metrics["log_likelihood"]
    assert all(fit.metrics["converged"] for fit in fits)
    errors = [fit.coefficients["std_error"].iloc[1:].mean() for fit in fits]
    assert errors[0] < errors[1] < errors[2]


@pytest.mark.parametrize("seed", range(2))
def test_a_noise_variance_that_is_too_small_is_steadied(seed):
    """Where nine of ten blocks are missing, maximum likelihood takes noise for missing blocks."""
    pooled, truth = oracle.generate(1000, [5] * 5, [0, 0.9, 0.9, 0.9, 0.9], seed=seed, noise=3.0)
    bare, steady = run(pooled, 0.0), run(pooled, 2.0)
    wanted = np.concatenate(truth.beta)

    def error(result):
        found = result.coefficients["estimate"].to_numpy()[1:]
        return float(np.sqrt(np.mean((found - wanted) ** 2)))

    assert bare.metrics["sigma2"] < steady.metrics["sigma2"] < 2 * 9
    assert bare.metrics["sigma2"] < 0.9 * 9
    assert error(steady) < error(bare)


def test_the_weight_is_checked():
    for weight in (-1.0, np.inf, np.nan):
        with pytest.raises(ConfigError, match="noise_prior"):
            VFEM(noise_prior=weight)
