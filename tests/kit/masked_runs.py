"""Federations whose parties evaluate masked means, without a strategy."""

from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy.special import expit

from flwr_vertical import LocalGrid, MemoryStorage, Party, RecordingGrid, Table, Uses, party_app
from flwr_vertical.alignment.registry import make_aligner
from flwr_vertical.products import (
    GroupKey,
    GroupKeySteps,
    HeldColumns,
    PairKeySteps,
    PrivateProducts,
    PrivateProductSteps,
)
from flwr_vertical.server import Federation
from strategies.linear.families import family_named
from strategies.linear.masked_means.evaluate import MaskedMeans
from strategies.linear.masked_means.fit import fit_mean_model
from strategies.linear.masked_means.problem import MeanProblem
from strategies.linear.masked_means.steps import MaskedMeanSteps


class MeanParty(Party):
    pair_keys = Uses(PairKeySteps)
    group_key = Uses(GroupKeySteps)
    products = Uses(PrivateProductSteps, purpose="test of means")
    means = Uses(MaskedMeanSteps)

    def columns_to_multiply(self):
        positions = np.asarray(self.positions)
        order = np.argsort(positions)
        values = self.table.frame.to_numpy(dtype=float)[order]
        return HeldColumns(values, positions[order], self.n_samples)


def pooled(family, n, p, seed=0, strength=0.5, intercept=-0.5):
    """Columns in their own units, some flags and some skewed, and labels of a family."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p))
    x[:, 1::3] = x[:, 1::3] > 0.5
    x[:, 2::5] = rng.exponential(size=x[:, 2::5].shape)
    x = x * rng.uniform(0.1, 10.0, p) + 3.0 * rng.standard_normal(p)
    eta = intercept + (x - x.mean(axis=0)) @ (strength * rng.standard_normal(p) / x.std(axis=0))
    if family == "binomial":
        return x, (rng.random(n) < expit(eta)).astype(float)
    return x, rng.poisson(np.exp(eta)).astype(float)


def statsmodels_fit(family, x, y, intercept=True):
    kind = sm.families.Binomial() if family == "binomial" else sm.families.Poisson()
    wide = sm.add_constant(x) if intercept else x
    return sm.GLM(y, wide, family=kind).fit(tol=1e-14, maxiter=200)


def split(x, k):
    """Tables of k parties."""
    ids = [f"s{i:06}" for i in range(len(x))]
    cuts = np.linspace(0, x.shape[1], k + 1).astype(int)
    return {
        f"p{j}": pd.DataFrame(x[:, a:b], columns=[f"x{c}" for c in range(a, b)], index=ids)
        for j, (a, b) in enumerate(pairwise(cuts))
    }


class Run:
    """An open federation over tables that all hold the same rows."""

    def __init__(self, grid, tables, mode):
        self.grid, self.tables = grid, tables
        self.federation = Federation(grid, aggregation=mode)
        self.federation.open()
        make_aligner("plain").align(self.federation)
        self.group_key = GroupKey(self.federation)
        self.columns = {name: list(table) for name, table in tables.items()}

    @property
    def everything(self):
        return np.zeros(len(next(iter(self.tables.values()))), dtype=int)

    def fit(self, family, y, group=None, intercept=True, **settings):
        products = PrivateProducts(self.federation, self.group_key)
        products.send()
        group = self.everything if group is None else group
        moments = products.moments(group, 1, np.where(group >= 0, y, 0.0)[:, None])
        names = [f"{party}:{name}" for party, own in self.columns.items() for name in own]
        means = MaskedMeans(self.federation, self.group_key)
        own = y[np.asarray(group) >= 0]
        problem = MeanProblem(means, family_named(family), own, moments, names, intercept)
        return fit_mean_model(problem, group, **settings)


@contextmanager
def opened(x, k, mode="masked", party=MeanParty):
    tables = x if isinstance(x, dict) else split(x, k)
    storage = MemoryStorage({name: Table.of(table) for name, table in tables.items()})
    local = LocalGrid(party_app(party, storage=storage), [{"party": name} for name in tables])
    with local:
        yield Run(RecordingGrid(local), tables, mode)
