"""Linear discriminants over parties that lack rows, against densities row by row."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.protocol.messages import read_envelope
from strategies.lda import LDA
from strategies.lda.discriminant import fit_discriminant, log_odds
from strategies.least_squares import CompleteCase
from strategies.normal import JointNormal
from strategies.predict import Predict
from tests.kit.deviations import asked_for
from tests.oracles import discriminant

N, NEW = 900, 150
WIDTHS = {"bank": 3, "court": 2, "hospital": 2}
GRID = 1 / 16
ALLOWING = {"predictions": 60.0}


def make(seed=0, n_classes=3, missing=0.25):
    """Correlated columns of three parties, and classes that they tell apart; some rows missing."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=N)
    means = rng.normal(size=(n_classes, 7))
    x = means[y] + rng.normal(size=(N, 7)) @ (np.eye(7) + 0.4)
    x = x * [1, 10, 0.1, 1, 5, 1, 100] + [0, 50, 0, 3, 0, 0, 1000]
    ids = [f"s{i:03}" for i in range(N)]
    lacks = rng.random((N, 3)) < missing
    lacks[lacks.all(axis=1), 0] = False
    tables, start = {}, 0
    for k, (name, width) in enumerate(WIDTHS.items()):
        columns = [f"{name[0]}{j}" for j in range(width)]
        tables[name] = pd.DataFrame(x[:, start : start + width], ids, columns)[~lacks[:, k]]
        start += width
    truth = pd.Series(y.astype(float) + 1, ids, name="kind")
    return tables, truth.where(np.arange(N) >= NEW), truth


def pooled(tables, ids):
    return pd.concat([table.reindex(ids) for table in tables.values()], axis=1)


def run(tables, labels, **options):
    return simulate(LDA(), tables, labels, min_rows=30, **options)


@pytest.fixture(scope="module")
def data():
    return make()


@pytest.fixture(scope="module")
def fitted(data):
    return run(*data[:2])


def test_without_shrinkage_it_is_scikit_learns():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=40_000)
    x = rng.normal(size=(4, 3))[y] + rng.normal(size=(40_000, 3))
    flags = np.eye(4)[y]
    found = fit_discriminant(x.sum(0), x.T @ x, x.T @ flags, flags.sum(0).astype(int))
    slopes, level = log_odds(found, [3], np.ones((1, 1), dtype=bool))
    scores = (x[:200] - found.mean) @ slopes[0].T + level[0]
    other = LinearDiscriminantAnalysis().fit(x, y).decision_function(x[:200])
    # What shrinks is of the order of one in 40,000 rows.
    np.testing.assert_allclose(scores, other[:, 1:] - other[:, :1], atol=0.02)


def test_without_missing_rows_it_is_the_pooled_fit():
    tables, labels, _ = make(missing=0.0)
    result = run(tables, labels)
    x = pooled(tables, labels.index)
    known = labels.notna()
    classes, prior, means, covariance = discriminant.fit(
        x[known].to_numpy(), labels[known].to_numpy()
    )
    assert result.model.classes == classes.tolist()
    np.testing.assert_allclose(result.model.prior, prior)
    np.testing.assert_allclose(result.model.means.to_numpy().T, means, rtol=1e-6)
    np.testing.assert_allclose(result.model.covariance, covariance, rtol=1e-5, atol=1e-8)
    other = np.array(
        [discriminant.posterior((classes, prior, means, covariance), r) for r in x[~known].values]
    )
    own = result.predictions.drop(columns="prediction").to_numpy()
    # Three terms are rounded to a sixteenth of log odds.
    assert np.abs(np.log(own / own[:, :1]) - np.log(other / other[:, :1])).max() < 2 * GRID


def test_fewer_vectors_than_classes_are_refused_before_anything_is_masked(data):
    tables, labels, _ = data
    transcript, stated = [], {"bank": {**ALLOWING, "vectors": 2}}
    with pytest.raises(ConfigError, match=r"each of 3 classes, .* 'vectors' = 2; merge classes"):
        run(tables, labels, policy=stated, transcript=transcript)
    asked = [
        str(read_envelope(record.content)["step"])
        for record in transcript
        if record.direction == "down"
    ]
    assert "prepare_moments" in asked
    assert "send_masked" not in asked


def test_a_constant_column_changes_nothing():
    tables, labels, _ = make(missing=0.0)
    more = {**tables, "court": tables["court"].assign(seven=7.0)}
    found, expected = (run(given, labels) for given in (more, tables))
    assert found.model.shrinkage == expected.model.shrinkage
    pd.testing.assert_frame_equal(found.predictions, expected.predictions)


def test_labelled_rows_are_completed_and_others_go_by_what_is_there(data, fitted):
    """The fit is that of rows completed by `joint-normal`, the posterior that of the marginals."""
    tables, labels, truth = data
    result = fitted
    completed = simulate(JointNormal(), tables, min_rows=30).tables
    known = labels.index[labels.notna()]
    expected = discriminant.fit(pooled(completed, known).to_numpy(), labels[known].to_numpy())
    spread = np.sqrt(np.diag(result.model.covariance))
    # The fit does without rows that few parties share, and means are rounded.
    assert np.abs((result.model.means.to_numpy().T - expected[2]) / spread).max() < 0.03
    scaled = (result.model.covariance - expected[3]) / np.outer(spread, spread)
    assert np.abs(scaled).max() < 0.05
    new = result.predictions.index
    x = pooled(tables, new)
    own = (
        expected[0],
        result.model.prior,
        result.model.means.to_numpy().T,
        result.model.covariance,
    )
    other = np.array([discriminant.posterior(own, row) for row in x.to_numpy()])
    found = result.predictions.drop(columns="prediction").to_numpy()
    assert np.abs(np.log(found / found[:, :1]) - np.log(other / other[:, :1])).max() < 2 * GRID
    assert (result.predictions["prediction"] == truth[new]).mean() > 0.55
    assert result.metrics["samples_completed"] > 300


def test_rounds(fitted):
    assert fitted.ledger.rounds == 2 + 8


def test_new_rows_later_with_any_party(data, fitted, tmp_path):
    tables, _, truth = data
    result = Result.load(fitted.save(tmp_path / "fit"))
    new = {
        name: table.iloc[: 200 + 30 * k].rename(index=lambda i: f"new {i}")
        for k, (name, table) in enumerate(tables.items())
        if name != "hospital"
    }
    found = simulate(
        Predict(result), new, truth.rename(index=lambda i: f"new {i}"),
        fitted=fitted,
    )  # fmt: skip
    x = pooled(new, found.predictions.index)
    x = np.hstack([x.to_numpy(), np.full((len(x), 2), np.nan)])
    model = fitted.model
    own = np.array(model.classes), model.prior, model.means.to_numpy().T, model.covariance
    other = np.array([discriminant.posterior(own, row) for row in x])
    probabilities = found.predictions.drop(columns="prediction").to_numpy()
    gap = np.log(probabilities / probabilities[:, :1]) - np.log(other / other[:, :1])
    assert np.abs(gap).max() < 2 * GRID
    assert found.metrics["accuracy"] > 0.5


def test_a_class_that_one_party_alone_has():
    tables, labels, truth = make(seed=3)
    third = truth.index[truth == 3]
    for name in ("court", "hospital"):
        tables[name] = tables[name].drop(third, errors="ignore")
    result = run(tables, labels)
    assert np.isfinite(result.model.means.to_numpy()).all()
    assert set(result.predictions["prediction"]) <= {1.0, 2.0, 3.0}


def test_a_constant_column_has_no_say(data):
    tables, labels, _ = data
    more = {**tables, "bank": tables["bank"].assign(constant=7.0)}
    result, plain = run(more, labels), run(tables, labels)
    assert (result.model.coefficients.loc[("bank", "constant")] == 0).all()
    same = result.predictions["prediction"] == plain.predictions["prediction"]
    assert same.mean() > 0.98


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda y: y.where(y != 3, 3 + (y.index < "s155")), r"class.* fewer than 30 .*merge"),
        (lambda y: y * 0 + 1, "1 different value; lda tells 2 to"),
        (lambda y: pd.Series(np.arange(N) + 0.0, y.index), "900 different values"),
        (lambda y: None, "needs labels"),
    ],
)
def test_bad_labels(data, change, says):
    with pytest.raises(DataError, match=f"(?is){says}"):
        run(data[0], change(data[1]))


def test_a_regression_keeps_one_score_a_row_whatever_the_server_sends(data, monkeypatch):
    """Several scores of a row would tell more in one run than the grid of a prediction."""

    def deviating(common, each):
        common["n_outputs"] = 2
        for own in each.values():
            own |= {name: np.repeat(own[name], 2, axis=0) for name in ("coefficients", "offsets")}

    asked_for(monkeypatch, "finish_moments", deviating)
    with pytest.raises(PartyError, match="n_outputs"):
        simulate(CompleteCase(), *data[:2])


def test_nodes_bound_what_all_scores_tell_together():
    tables, labels, _ = make(seed=1, n_classes=8)
    with pytest.raises(PartyError, match=r"policy\.predictions"):
        run(tables, labels)
    result = run(tables, labels, policy=ALLOWING)
    assert result.metrics["bits_per_row"] <= 7 * 10
    assert result.predictions.shape == (NEW, 9)


def test_a_refusal_states_what_all_classes_take():
    tables, labels, _ = make(n_classes=8)
    with pytest.raises(PartyError, match=r"predictions\), of some of which 0 ") as caught:
        run(tables, labels)
    stated = re.search(r"policy\.predictions=(\d+)", str(caught.value))
    assert run(tables, labels, policy={"predictions": float(stated[1])}).predictions is not None


def test_columns_that_tell_a_class_are_named():
    rng = np.random.default_rng(0)
    y = pd.Series(rng.integers(3, size=600) + 0.0)
    bank = pd.DataFrame({"a": rng.normal(size=600), "b": rng.normal(5e3, 10, size=600)})
    court = pd.DataFrame({"c": rng.normal(size=600), "verdict": 2.0 * (y == 1) + 7})
    said = "columns ['court.verdict'] tell the labels exactly: leave out what is made of them"
    assert said in run({"bank": bank, "court": court}, y).notes
    # So does a number of each class, of which no class is a linear function.
    for code in ({0: 0, 1: 1, 2: 2}, {0: 5, 1: 1, 2: 9}, {0: 4, 1: 3, 2: 3}):
        coded = court[["c"]].assign(verdict=y.map(code).astype(float))
        assert said in run({"bank": bank, "court": coded}, y).notes
    noisy = court[["c"]].assign(verdict=y + 0.05 * rng.normal(size=600))
    for other in (noisy, court[["c"]]):
        assert not run({"bank": bank, "court": other}, y).notes
