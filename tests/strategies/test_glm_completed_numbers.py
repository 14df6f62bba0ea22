"""How well completed rows tell coefficients: a simulation on pooled equations, without messages.

``python -m pytest -s -m slow tests/strategies/test_glm_completed_numbers.py`` prints the table of
`docs/methods/glm.md`, there with RUNS = 200.
"""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit

from flwr_vertical.products.pairs import PairMoments
from strategies.glm.unseen import Unseen, maps_of
from strategies.linear.families import family_named
from strategies.normal.completion import MOST, slices_of
from strategies.normal.equations import Conditioner, fit_model

OWNER, SLICES = np.repeat(np.arange(3), 2), slices_of(dict.fromkeys("abc", 2))
EFFECTS = np.array([1.0, -0.8, 0.6, 0.5, -1.0, 0.7])
FAMILIES = {"binomial": sm.families.Binomial(), "poisson": sm.families.Poisson()}


def drawn(rng, family, strength, shape, n=2000):
    x = rng.multivariate_normal(np.zeros(6), 0.6 * np.eye(6) + 0.4, size=n)
    if shape == "skewed":
        x[:, 0], x[:, 3] = 2.0 * (x[:, 0] > 0.5), np.exp(0.6 * x[:, 3]) - 1.2
    eta = -0.2 + x @ (strength * EFFECTS)
    return x, (rng.random(n) < expit(eta) if family == "binomial" else rng.poisson(np.exp(eta)))


def completed(x, held):
    """Fill in what parties would be told, to its units; returns the model as well."""
    seen, n = np.where(held[:, OWNER], x, 0.0), held.astype(np.int64)
    none = np.zeros(6, dtype=bool)
    moments = PairMoments(
        seen.sum(axis=0), seen.T @ seen, n.T @ n, none, np.zeros((6, 3), dtype=bool), 0
    )
    model = fit_model(moments, SLICES)
    conditioner = Conditioner(model, SLICES)
    for parties in np.unique(held, axis=0):
        rows = np.flatnonzero((held == parties).all(axis=1))
        helpers, lacking = np.flatnonzero(parties).tolist(), np.flatnonzero(~parties).tolist()
        for k, part in conditioner.given(helpers, lacking).items() if lacking else ():
            terms = sum(
                np.rint(np.clip(x[rows, SLICES[h]] @ (f / part.unit), -MOST, MOST))
                for h, f in part.coefficients.items()
            )
            seen[rows, SLICES[k]] = terms * part.unit + part.offset
    return seen, model


def fits(family, strength, missing, shape, n_runs, seed=0):
    """By estimator, estimates (n_runs, 7) and whether the intervals cover."""
    rng, truth = np.random.default_rng(seed), np.append(-0.2, strength * EFFECTS)
    told = {name: ([], []) for name in ("full", "complete", "means", "corrected")}

    def note(name, estimate, error):
        told[name][0].append(estimate)
        told[name][1].append(np.abs(estimate - truth) < 1.96 * error)

    def fit(y, x):
        return sm.GLM(y, sm.add_constant(x), family=FAMILIES[family]).fit()

    for _ in range(n_runs):
        x, y = drawn(rng, family, strength, shape)
        found = fit(y, x)
        note("full", found.params, found.bse)
        held = rng.random((len(x), 3)) >= missing
        kinds, which, counts = np.unique(held, axis=0, return_inverse=True, return_counts=True)
        large = kinds.any(axis=1) & (counts >= 160)
        rows = large[which.ravel()]
        x, y, held = x[rows], y[rows], held[rows]
        whole = held.all(axis=1)
        found = fit(y[whole], x[whole])
        note("complete", found.params, found.bse)
        seen, model = completed(x, held)
        found = fit(y, seen)
        note("means", found.params, found.bse)
        kinds, counts = kinds[large], counts[large].astype(float)
        maps, _ = maps_of(model, SLICES, kinds)
        by_chance = np.zeros(maps.shape[:2]), maps @ model.covariance @ maps.swapaxes(1, 2)
        where = model.mean, model.covariance, maps, counts, *by_chance
        unseen = Unseen(family_named(family), *where)
        plain = found.params[0], found.params[1:], found.cov_params()
        if (solved := unseen.corrected(*plain)) is not None:
            beta, level, errors = solved
            note("corrected", np.append(level, beta), np.sqrt(np.diag(errors)))
    return {name: (np.array(a), np.array(b)) for name, (a, b) in told.items()}, truth


def row(family, strength, missing, shape, n_runs):
    """RMSE of slopes by estimator, what slopes are multiplied by, coverage of slopes in %."""
    found, truth = fits(family, strength, missing, shape, n_runs)
    cells, slopes = {"solved": len(found["corrected"][0]) / n_runs}, truth[1:]
    for name, (estimates, covers) in found.items():
        cells[f"rmse {name}"] = np.sqrt(((estimates[:, 1:] - slopes) ** 2).mean())
        cells[f"times {name}"] = (estimates[:, 1:] @ slopes).mean() / (slopes @ slopes)
        cells[f"cover {name}"] = 100.0 * covers[:, 1:].mean()
        cells[f"intercept {name}"] = estimates[:, 0].mean() - truth[0]
    return cells


def test_a_few_runs_have_the_errors_that_they_state():
    cells = row("binomial", 1.0, 0.4, "normal", 12)
    assert abs(cells["times corrected"] - 1.0) < 0.05 < 1.0 - cells["times means"]
    assert cells["cover corrected"] > 85 > cells["cover means"]
    assert cells["rmse corrected"] < cells["rmse complete"]


CASES = [*(("binomial", s) for s in (0.5, 1, 2)), ("poisson", 0.25), ("poisson", 0.5)]
SHOWN = {
    "rmse": (".3f", ("full", "complete", "means", "corrected")),
    "times": (".2f", ("means",)),
    "cover": (".1f", ("means", "corrected")),
    "intercept": (".3f", ("means", "corrected")),
}


RUNS = 40


@pytest.mark.slow
def test_coverage_over_many_runs():
    print()
    for family, strength in CASES:
        for missing, shape in ((0.3, "normal"), (0.5, "normal"), (0.4, "skewed")):
            cells = row(family, strength, missing, shape, RUNS)
            first = f"| {family} | {strength:g} | {missing:.0%} | {shape} | "
            shown = [
                format(cells[f"{what} {name}"], form)
                for what, (form, names) in SHOWN.items()
                for name in names
            ]
            print(first + " | ".join([*shown, f"{cells['solved']:.3f} |"]), flush=True)
            assert 88 < cells["cover corrected"] < 98
