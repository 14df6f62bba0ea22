"""Moments from ciphertexts: as private products have them, under the same rules."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Arbiter, Strategy, Uses, simulate
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.products import EncryptedProducts, GroupKey, PrivateProducts, products_of
from flwr_vertical.products.arbiter import ProductKeySteps
from tests.kit.transcripts import arrays_of
from tests.products.test_products_private import MultiplyingParty

pytest.importorskip("tenseal")

N = 900


class MultiplyingArbiter(Arbiter):
    products = Uses(ProductKeySteps)


class OpenMoments(Strategy):
    """Opens moments of groups of rows, and keeps them."""

    name = "open-moments"
    party = MultiplyingParty
    arbiter = MultiplyingArbiter
    disclosure = (("server", "sums over groups of rows"),)

    def __init__(self, groups, vectors=None, missing=None):
        self.groups, self.vectors, self.missing = groups, vectors, missing

    def run(self, federation, alignment, result, progress):
        products = products_of(federation)
        products.send()
        group = self.groups(alignment)
        vectors = None if self.vectors is None else self.vectors[: alignment.n_samples]
        before = federation.ledger.rounds
        found = products.moments(group, int(group.max()) + 1, vectors, self.missing)
        result.metrics["rounds"] = federation.ledger.rounds - before
        products.close()
        result.model = found, group, alignment.ids, type(products)


def tables(k, seed=0):
    rng = np.random.default_rng(seed)
    index = [f"s{i:03}" for i in range(N)]
    found = {}
    for j, name in enumerate(("bank", "court", "hospital")[:k]):
        frame = pd.DataFrame({"a": rng.normal(size=N) * 10.0**j + j}, index=index)
        if j != 1:
            frame["flag"] = (rng.random(N) < 0.3).astype(float)
        found[name] = frame
    if k > 1:
        found["court"] = found["court"].iloc[: N - 200]
    return found


def patterns(alignment):
    """Rows that all have, in two parts, and the others."""
    complete = ~alignment.mask.any(axis=1)
    return np.where(complete, np.arange(len(complete)) % 3 // 2, 2 if not complete.all() else 0)


LABELS = np.random.default_rng(5).normal(size=(N, 2)) * [1.0, 30.0]


@pytest.mark.parametrize(
    ("k", "mode", "rounds"),
    [pytest.param(3, "ckks", 3, marks=pytest.mark.slow), (1, "ckks", 3), (1, "masked", 2)],
)
def test_moments_are_those_of_the_pooled_table(k, mode, rounds):
    given = tables(k)
    strategy, transcript = OpenMoments(patterns, LABELS), []
    how = {"aggregation": mode, "progress": False, "transcript": transcript}
    result = simulate(strategy, given, **how)
    found, group, ids, kind = result.model
    assert kind is EncryptedProducts
    assert result.metrics["rounds"] == rounds
    if k == 1:  # the party gets no label, and the server no row
        assert not any(a.dtype.kind == "f" and a.size >= N for a in arrays_of(transcript))
    pooled = pd.concat([t.reindex(ids) for t in given.values()], axis=1).to_numpy()
    held = ~np.isnan(pooled)
    for g in range(int(group.max()) + 1):
        rows = group == g
        np.testing.assert_array_equal(found.withheld[g], ~held[rows].all(axis=0))
        x, v = np.nan_to_num(pooled[rows]), LABELS[: len(pooled)][rows]
        size = np.sqrt((x**2).sum(axis=0)) + 1e-9
        products = np.abs(found.products[g] - x.T @ x) / np.outer(size, size)
        vectors = np.abs(found.with_vectors[g] - x.T @ v) / np.outer(
            size, np.sqrt((v**2).sum(axis=0))
        )
        assert products.max() < 1e-6
        assert vectors.max() < 1e-6
        np.testing.assert_allclose(found.sums[g], x.sum(axis=0), atol=1e-9)


@pytest.mark.parametrize(("k", "mode"), [(2, "ckks"), (1, "masked")])
def test_the_rules_on_rows_and_levels_hold(k, mode):
    few = lambda alignment: np.where(np.arange(alignment.n_samples) < 60, 0, 1)  # noqa: E731
    with pytest.raises(PartyError, match=r"tell of 60 of its rows alone"):
        simulate(OpenMoments(few, LABELS), tables(k), aggregation=mode)
    given = tables(k)
    given["bank"]["flag"] = (np.arange(N) < 5).astype(float)
    result = simulate(OpenMoments(patterns, LABELS), given, aggregation=mode)
    found = result.model[0]
    assert found.withheld[0].tolist() == [False, True, False][: k + 1]
    assert not found.products[0, 1].any()
    assert not found.with_vectors[0, 1].any()
    assert found.with_vectors[0, 0].all()


def test_which_way_fits_is_said():
    class Open:
        aggregation, parties = "masked", ("a", "b")
        random_bytes = staticmethod(bytes)

    assert isinstance(products_of(Open()), PrivateProducts)
    with pytest.raises(ConfigError, match="encrypted products of several parties need an arbiter"):
        EncryptedProducts(Open())
    Open.parties = ("a",)
    assert isinstance(products_of(Open()), EncryptedProducts)
    with pytest.raises(ConfigError, match=r"one alone has no helper.*EncryptedProducts"):
        PrivateProducts(Open(), GroupKey(Open()))
    with pytest.raises(ConfigError, match="call `send` first"):
        EncryptedProducts(Open()).moments(np.zeros(3, dtype=int), 1)
