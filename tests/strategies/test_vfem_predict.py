"""Predictions of new samples from a fitted VFEM, as returned and as saved."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError, PartyError
from strategies.fknn import FKNN
from strategies.vfem import VFEM, VFEMPredict


def make(n, seed, missing=0.3):
    rng = np.random.default_rng(seed)
    ids = [f"firm {i}" for i in range(n)]
    bank = pd.DataFrame(rng.normal([5, -2], [2, 0.1], size=(n, 2)), index=ids, columns=["u", "v"])
    court = pd.DataFrame({"w": rng.normal(size=n), "town": rng.choice(list("abc"), n)}, index=ids)
    fit = bank["u"] + 20 * bank["v"] - 2 * court["w"] + 3 * (court["town"] == "b")
    y = 7 + fit + rng.normal(size=n)
    return {"bank": bank[rng.random(n) >= missing], "court": court[rng.random(n) >= missing]}, y


@pytest.fixture(scope="module")
def fitted():
    parties, y = make(1500, 0)
    return simulate(VFEM(encoding="one-hot"), parties, y, progress=False)


def test_predictions_are_those_of_the_model(fitted, tmp_path):
    parties, y = make(1000, 1)
    result = simulate(VFEMPredict(fitted), parties, y, progress=False)
    table = fitted.coefficients["estimate"]
    for name, row in result.predictions.iloc[:50].iterrows():
        expected = table["server", "intercept"]
        if name in parties["bank"].index:
            known = parties["bank"].loc[name]
            expected += known["u"] * table["bank", "u"] + known["v"] * table["bank", "v"]
        else:
            expected += fitted.party_metrics["bank"]["fit_mean"]
        if name in parties["court"].index:
            known = parties["court"].loc[name]
            expected += known["w"] * table["court", "w"]
            expected += sum((known["town"] == c) * table["court", f"town={c}"] for c in "bc")
        else:
            expected += fitted.party_metrics["court"]["fit_mean"]
        assert row["prediction"] == pytest.approx(expected, abs=1e-6)
    assert 0.93 < result.metrics["coverage"] < 0.97
    assert result.ledger.rounds == 3  # greeting, alignment, one sum
    folder = fitted.save(tmp_path / "model")
    again = simulate(VFEMPredict(str(folder)), parties, y, progress=False)
    np.testing.assert_allclose(
        again.predictions.to_numpy(), result.predictions.to_numpy(), rtol=1e-9
    )
    loaded = Result.load(folder)
    assert simulate(VFEMPredict(loaded), parties, progress=False).metrics.keys() == {"n_samples"}


def test_equals_predictions_of_unlabelled_samples_of_the_fit(fitted):
    parties, y = make(1500, 0)
    hidden = y.where(np.arange(1500) >= 100)
    fit = simulate(VFEM(encoding="one-hot"), parties, hidden, progress=False)
    later = simulate(VFEMPredict(fit), parties, progress=False)
    both = fit.predictions.join(later.predictions.add_suffix("_later"))
    assert len(both) == len(fit.predictions) > 80
    np.testing.assert_allclose(both["prediction"], both["prediction_later"], atol=1e-6)
    # The later run knows the variance of coefficients only through the level.
    np.testing.assert_allclose(both["upper"], both["upper_later"], rtol=0.01)


def test_what_cannot_be_predicted(fitted):
    parties, _ = make(50, 2)
    other = simulate(FKNN(n_neighbors=2), {"bank": parties["bank"]}, progress=False)
    with pytest.raises(ConfigError, match="no model"):
        simulate(VFEMPredict(), parties, progress=False)
    with pytest.raises(ConfigError, match="a 'vfem' run"):
        simulate(VFEMPredict(other), parties, progress=False)
    with pytest.raises(ConfigError, match="fitted with the parties"):
        simulate(VFEMPredict(fitted), {"bank": parties["bank"]}, progress=False)
    lacking = parties | {"bank": parties["bank"].drop(columns="u")}
    with pytest.raises(PartyError, match="no column 'u'"):
        simulate(VFEMPredict(fitted), lacking, progress=False)
    words = parties | {
        "bank": parties["bank"].assign(u="many").assign(u=lambda f: f["u"] + f.index)
    }
    with pytest.raises(PartyError, match="held numbers"):
        simulate(VFEMPredict(fitted), words, progress=False)
    with pytest.raises(ConfigError, match="must be a Result"):
        VFEMPredict(3)


def test_missing_cells_count_as_missing_blocks(fitted):
    parties, _ = make(60, 3)
    name = parties["bank"].index.intersection(parties["court"].index)[0]
    without = parties | {"bank": parties["bank"].drop(index=name)}
    parties["bank"].loc[name, "v"] = np.nan
    left = simulate(VFEMPredict(fitted), parties, progress=False).predictions.loc[name]
    right = simulate(VFEMPredict(fitted), without, progress=False).predictions.loc[name]
    np.testing.assert_allclose(left, right)
