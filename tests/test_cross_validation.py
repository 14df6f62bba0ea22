"""Cross-validation: folds, scores, every kind of predictor, grids, and what nodes refuse."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

from flwr_vertical import cross_validate, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.validation.cross_validation import are_classes, make_folds
from strategies import register_all
from strategies.baselines import Mean
from strategies.forest import VerticalForest
from strategies.glm import VerticalGLM
from strategies.scorecard import Scorecard
from strategies.split import FinalNet
from strategies.svm import VerticalSVM
from strategies.trees import VerticalGBDT
from strategies.vfem import VFEM, CompleteCase

N = 330


@pytest.fixture(scope="module")
def data():
    """Tables of two parties, numbers, and classes; some rows are lacking, some labels unknown."""
    rng = np.random.default_rng(0)
    ids = [f"s{i:03}" for i in range(N)]
    x = rng.normal(size=(N, 3))
    tables = {
        "bank": pd.DataFrame(x[:, :2], ids, ["a", "b"])[5:],
        "court": pd.DataFrame(x[:, 2:], ids, ["c"])[:-5],
    }
    score = pd.Series(x @ [1.0, -0.5, 1.0] + rng.normal(size=N), ids, name="y")
    unknown = rng.random(N) < 0.05
    return tables, score.mask(unknown), score.gt(0).astype(float).mask(unknown)


def test_folds_are_scikit_learn_s_and_scores_those_of_the_pooled_table(data):
    tables, labels, _ = data
    found = cross_validate(CompleteCase(), tables, labels, 4, seed=3)
    known = labels.dropna()
    whole = tables["bank"].join(tables["court"], how="inner")
    fold = make_folds(known.to_numpy(), 4, 3, stratify=False)
    for k, (_, test) in enumerate(KFold(4, shuffle=True, random_state=3).split(known)):
        assert (np.flatnonzero(fold == k) == test).all()
        train = known.index[fold != k].intersection(whole.index)
        held = known.index[fold == k].intersection(whole.index)
        model = LinearRegression().fit(whole.loc[train], known[train])
        expected = model.predict(whole.loc[held])
        own = found.predictions[found.predictions["fold"] == k + 1].loc[held, "prediction"]
        np.testing.assert_allclose(own, expected, atol=0.02)  # the grid of the terms
    line = found.folds.iloc[0]
    first = found.predictions[found.predictions["fold"] == 1]
    gap = first["prediction"] - known[first.index]
    assert line["rmse"] == pytest.approx(np.sqrt((gap**2).mean()))
    assert line["n_train"] + line["n_test"] == len(known)
    assert found.folds["n_test"].sum() == len(found.predictions) == len(known)
    assert found.scores.loc["rmse", "mean"] == pytest.approx(found.folds["rmse"].mean())
    assert found.predictions.index.is_unique
    assert "a run of its own" in str(found)
    assert f"rmse{'':14}{found.scores.loc['rmse', 'mean']:.4f} ±" in str(found)
    assert "rmse" in repr(found)


CLASSIFIERS = [
    VerticalGLM("binomial", "ridge"),
    VerticalSVM(loss="squared", rows="mean"),
    VerticalGBDT(n_trees=4, max_depth=2),
    pytest.param(VerticalForest(n_trees=12, max_depth=3), marks=pytest.mark.slow),
    FinalNet(latent_dim=2, width=8, iterations=30, learning_rate=2e-2),
]
REGRESSIONS = [VFEM(), VerticalGLM(penalty="lasso", lambdas=[0.3, 0.1, 0.03])]


@pytest.mark.parametrize("strategy", CLASSIFIERS, ids=lambda s: s.name)
def test_classifiers_are_scored_as_classifiers(data, strategy):
    tables, _, labels = data
    found = cross_validate(strategy, tables, labels, 2)
    assert found.score == "auc"
    assert found.scores.loc["auc", "mean"] > 0.75
    assert found.scores.loc["accuracy", "mean"] > 0.65
    # Stratified: as many of each class in both folds, but for one.
    shares = found.predictions.groupby("fold")["label"].sum()
    assert abs(shares[1] - shares[2]) <= 1
    for name in ("accuracy", "f1", "auc"):
        assert found.folds[name].between(0, 1).all()


@pytest.mark.parametrize("strategy", REGRESSIONS, ids=lambda s: s.name)
def test_regressions_are_scored_by_their_errors(data, strategy):
    tables, labels, _ = data
    found = cross_validate(strategy, tables, labels, 2)
    assert found.score == "rmse"
    assert 0.9 < found.scores.loc["rmse", "mean"] < 1.2
    assert found.scores.loc["r2", "mean"] > 0.5


def test_classes_may_be_texts(data):
    tables, _, classes = data
    texts = classes.map({0.0: "no", 1.0: "yes"})
    settings = {"folds": 2, "progress": False}
    found = cross_validate(CompleteCase(), tables, texts, positive_label="yes", **settings)
    expected = cross_validate(CompleteCase(), tables, classes, **settings)
    pd.testing.assert_series_equal(found.scores["mean"], expected.scores["mean"])
    with pytest.raises(DataError, match="state positive-label"):
        cross_validate(CompleteCase(), tables, texts, **settings)


def test_counts_some_of_which_are_rare_are_cross_validated(data):
    tables, scores, _ = data
    counts = scores.rank(pct=True).mul(4).round().where(scores < scores.max(), 9.0)
    counts = counts.where(scores.notna())
    poisson = VerticalGLM("poisson", "ridge")
    found = cross_validate(poisson, tables, counts, 3)
    assert "not stratified" in str(found)
    assert found.score == "rmse"
    with pytest.raises(DataError, match=r"label 9 has 1 samples.*stratify=False"):
        cross_validate(poisson, tables, counts, 3, stratify=True)


def test_counts_that_are_all_0_and_1_where_they_are_withheld_are_no_classes(data):
    tables, scores, _ = data
    rare = np.random.default_rng(0).random(len(scores)) < 0.1
    counts = pd.Series(rare.astype(float), scores.index)
    counts.iloc[30] = 2.0
    poisson = VerticalGLM("poisson", "ridge")
    found = cross_validate(poisson, tables, counts, 3)
    assert found.folds["rmse"].notna().all()
    assert "auc" not in found.folds
    fit = simulate(poisson, tables, counts[:250])
    later = {name: table.loc["s250":] for name, table in tables.items()}
    made = fit.predict(later, counts[250:])
    assert made.evaluation.task == "numbers"


def test_of_biases_the_one_nearest_to_zero_is_the_best(data):
    tables, labels, _ = data
    grid = {"intercept": [False, True]}  # without one, predictions are too low
    found = cross_validate(CompleteCase(), tables, labels + 3.0, 2, grid=grid, score_by="bias")
    assert found.candidates["intercept"].tolist() == [True, False]
    assert found.candidates["bias"].abs().is_monotonic_increasing
    up = cross_validate(CompleteCase(), tables, labels - 3.0, 2, grid=grid, score_by="bias")
    assert up.candidates["intercept"].tolist() == [True, False]


def test_a_grid_is_compared_on_the_same_folds_and_the_best_is_returned(data):
    tables, _, labels = data
    given = VerticalSVM(loss="squared")
    grid = {"l2": [1e5, 1.0], "rows": ["complete", "mean"]}
    found = cross_validate(given, tables, labels, 2, grid=grid, score_by="f1")
    assert len(found.candidates) == 4
    assert list(found.candidates.columns[:2]) == ["l2", "rows"]
    assert found.candidates["f1"].is_monotonic_decreasing
    assert found.strategy.l2 == found.candidates["l2"][0]
    assert found.scores.loc["f1", "mean"] == pytest.approx(found.candidates["f1"][0])
    assert given == VerticalSVM(loss="squared")
    alone = cross_validate(found.strategy, tables, labels, 2)
    pd.testing.assert_frame_equal(alone.folds[["accuracy", "f1"]], found.folds[["accuracy", "f1"]])


def test_nodes_count_all_folds_and_refuse_what_their_rules_forbid(data):
    register_all()
    tables, labels, _ = data
    # Rows that are in no fold but one are told of apart by the difference of two runs.
    agreed = cross_validate(CompleteCase(), tables, labels, 2, policy={"min-rows": 100})
    assert len(agreed.folds) == 2
    words = r"(?s)refuses by policy.*fold 2 of 8 of the cross-validation: .*run of its own"
    with pytest.raises(PartyError, match=words):  # a fold was begun: the command exits with 1
        cross_validate(CompleteCase(), tables, labels, 8, policy={"min-rows": 100})


def test_scorecards_are_judged_as_classifiers(data):
    rng = np.random.default_rng(3)
    bank, court = (pd.DataFrame({name: rng.normal(size=600)}) for name in "ab")
    labels = (bank["a"] - court["b"] + rng.normal(size=600) > 0).astype(float)
    card = Scorecard(bins=4)
    found = cross_validate(card, {"bank": bank, "court": court}, labels, 2)
    assert {"auc", "log_loss"} <= set(found.folds)
    assert "rmse" not in found.folds
    assert found.folds["auc"].min() > 0.7


def test_few_whole_numbers_are_classes():
    assert are_classes(np.array([0.0, 1.0, 1.0, 0.0]))
    assert not are_classes(np.array([0.5, 1.0, 1.0, 0.5]))
    assert not are_classes(np.arange(100.0))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"folds": 1}, ConfigError, "at least 2, got 1"),
        ({"folds": 400}, DataError, "400 folds need as many"),
        ({"grid": {"corners": [1]}}, ConfigError, r"'corners' \(did you mean 'corner'\?\)"),
        ({"grid": {"l2": []}}, ConfigError, "a list of values of 'l2'"),
    ],
)
def test_what_cannot_be_done_is_named(data, arguments, error, words):
    tables, _, labels = data
    with pytest.raises(error, match=words):
        cross_validate(VerticalSVM(loss="squared"), tables, labels, **arguments)


def test_an_unknown_score_is_refused_after_the_first_candidate(data, monkeypatch):
    tables, _, labels = data
    runs = []

    def counting(*arguments, **options):
        runs.append(arguments)
        return simulate(*arguments, **options)

    monkeypatch.setattr("flwr_vertical.validation.cross_validation.simulate", counting)
    with pytest.raises(ConfigError, match="no such score; these labels have"):
        cross_validate(
            VerticalSVM(loss="squared"), tables, labels, 2, score_by="auk", grid={"l2": [1.0, 2.0]}
        )
    assert len(runs) == 2


def test_a_strategy_that_predicts_nothing_is_named(data):
    tables, labels, _ = data
    with pytest.raises(ConfigError, match="'mean' predicted no sample in fold 1 of 5"):
        cross_validate(Mean(), tables, labels)


def test_a_class_with_too_few_samples_is_named(data):
    tables, _, labels = data
    rare = labels.where(np.arange(N) > 3, 2.0)
    with pytest.raises(DataError, match=r"label 2 has 4 samples, and 5 folds .*fewer folds"):
        cross_validate(VerticalGBDT("multiclass"), tables, rare, stratify=True)


# -- settings by name --------------------------------------------------------------------------


def test_settings_are_read_changed_and_copied_as_of_an_estimator():
    one = VerticalSVM(l2=2)
    assert one.get_params()["l2"] == 2.0
    assert one.set_params(l2=3.0, loss="squared") is one
    assert (one.l2, one.loss) == (3.0, "squared")
    with pytest.raises(ConfigError, match="rows='mean' goes with loss='squared' only"):
        one.set_params(l2=9.0, loss="squared_hinge", rows="mean")
    assert one.l2 == 3.0  # all or nothing
    with pytest.raises(ConfigError, match=r"no setting 'los' \(did you mean 'loss'\?\)"):
        one.set_params(los="squared")
    other = one.clone()
    assert other == one
    assert other is not one
    assert clone(one) == one  # scikit-learn's
    assert clone(VerticalGLM(lambdas=[0.1, 0.2])) == VerticalGLM(lambdas=[0.1, 0.2])
