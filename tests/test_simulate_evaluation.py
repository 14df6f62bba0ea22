"""`simulate(test_labels=...)`: predictions against the truth, and each party alone."""

import logging

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from flwr_vertical import cross_validate, simulate
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.log import logger
from flwr_vertical.pages.page import format_value
from flwr_vertical.reports.glossary import meaning_of
from flwr_vertical.reports.report import report_html
from flwr_vertical.single_parties import single_party_results
from strategies.glm import VerticalGLM
from strategies.least_squares import CompleteCase
from strategies.trees import VerticalGBDT

N = 600
TREES = {"n_trees": 8, "max_depth": 3, "n_bins": 16, "min_child": 10, "histograms": "open"}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    index = pd.Index([f"s{i}" for i in range(N)], name="sample")
    bank = pd.DataFrame(rng.normal(size=(N, 2)), index, ["a", "b"])
    court = pd.DataFrame(rng.normal(size=(N, 1)), index, ["c"])
    signal = 1.5 * bank["a"] - court["c"]
    truth = (rng.random(N) < 1 / (1 + np.exp(-signal))).astype(float).rename("label")
    labels = truth.mask(np.arange(N) % 3 == 0)
    return {"bank": bank, "court": court}, labels, truth


@pytest.fixture(scope="module")
def trees(data):
    tables, labels, truth = data
    tables = {"bank": tables["bank"], "court": tables["court"].iloc[100:]}
    return simulate(
        VerticalGBDT(**TREES), tables, labels, test_labels=truth, beside_single_parties=True,
    )  # fmt: skip


def test_only_samples_without_a_label_are_compared(data, trees):
    _, labels, truth = data
    assert len(trees.evaluation) == labels.isna().sum()
    y = truth[trees.predictions.index]
    p = trees.predictions["probability_1"]
    assert trees.metrics["test_auc"] == pytest.approx(roc_auc_score(y, p))
    prior = np.full(len(y), labels.mean())
    constant = trees.evaluation.metrics("constant")
    assert constant["log_loss"] == pytest.approx(log_loss(y, prior))


def test_each_party_alone(data, trees):
    tables, labels, _ = data
    table = trees.evaluation.table()
    assert list(table.index) == ["this run", "constant", "bank alone", "court alone"]
    assert table.loc["this run", "auc"] > table["auc"].drop("this run").max() + 0.02
    assert "court alone: 34 of 200 samples have the constant prediction" in trees.evaluation.notes
    blank = pd.DataFrame({"x": 0.0}, tables["bank"].index)
    alone = simulate(VerticalGBDT(**TREES), {"bank": tables["bank"], "no": blank}, labels)
    expected = alone.predictions["probability_1"]
    found = trees.evaluation.beside["bank alone"]["probability_1"]
    pd.testing.assert_series_equal(found, expected)
    assert trees.ledger.rounds == 2 + 4 + 2 * 8 * 3  # of the run of all parties alone


@pytest.mark.parametrize("family", ["binomial", "gaussian"])
def test_regressions_of_both_kinds(data, family, caplog):
    tables, labels, truth = data
    strategy = VerticalGLM(family="binomial") if family == "binomial" else CompleteCase()
    result = simulate(
        strategy, tables, labels, test_labels=truth, beside_single_parties=True, min_rows=50
    )
    y, found = truth[labels.isna()], result.predictions["prediction"]
    assert list(result.evaluation.beside) == ["constant", "bank alone", "court alone"]
    assert not any("nobody" in line for line in caplog.messages)  # the blank party
    if family == "binomial":
        assert result.metrics["test_auc"] == pytest.approx(roc_auc_score(y, found[y.index]))
        return
    rmse = np.sqrt(np.mean((found[y.index] - y) ** 2))
    assert result.metrics["test_rmse"] == pytest.approx(rmse)
    # Labels that the method completes by its predictions are not the constant's.
    constant = result.evaluation.beside["constant"]["prediction"]
    np.testing.assert_allclose(constant, labels.mean())


def test_new_rows_with_labels_are_compared_by_themselves(data, trees):
    tables, _, truth = data
    result = trees.predict(tables, truth)
    y, p = truth[result.predictions.index], result.predictions["probability_1"]
    assert result.metrics["auc"] == pytest.approx(roc_auc_score(y, p))
    assert result.metrics["log_loss"] == pytest.approx(result.metrics["loss"])
    assert len(result.evaluation) == N


def test_samples_with_composite_ids_are_compared(data):
    """Of them a run has one text each."""
    shop, day = np.divmod(np.arange(N), 20)
    pairs = pd.MultiIndex.from_arrays([shop, day], names=["shop", "day"])
    tables = {name: table.set_axis(pairs) for name, table in data[0].items()}
    labels, truth = (own.set_axis(pairs) for own in data[1:])
    fitted = simulate(VerticalGLM("binomial", "none"), tables, labels, test_labels=truth)
    plain = simulate(VerticalGLM("binomial", "none"), *data[:2])
    expected = plain.evaluate(data[2]).metrics()["auc"]
    assert fitted.metrics["test_auc"] == pytest.approx(expected)
    assert len(fitted.evaluation) == labels.isna().sum()
    for strategy in (VerticalGLM("binomial", "none"), VerticalGBDT(**TREES)):
        result = simulate(strategy, tables, truth)
        later = result.predict({"bank": tables["bank"], "court": tables["court"]}, truth)
        assert len(later.evaluation) == N
        assert 0.5 < later.metrics["auc"] < 1.0
    with pytest.raises(ConfigError, match="have a label in labels"):
        simulate(VerticalGBDT(**TREES), tables, truth, test_labels=truth)
    folds = cross_validate(VerticalGLM("binomial", "none"), tables, truth, folds=3)
    assert len(folds.predictions) == N


def test_a_held_out_share_is_compared(data):
    tables, labels, _ = data
    result = simulate(VerticalGBDT(**TREES, validation_share=0.25), tables, labels)
    assert result.evaluation.what == "held-out samples (validation_share)"
    assert len(result.evaluation) == 100
    found = result.evaluation.metrics()
    assert found["auc"] == pytest.approx(result.metrics["validation_auc"])
    assert found["log_loss"] == pytest.approx(result.metrics["validation_loss"])


def test_figures_of_the_fit_say_so_and_held_out_ones_come_first(data, trees):
    tables, labels, truth = data
    assert {"train_auc", "train_loss", "test_auc"} <= set(trees.metrics)
    assert not {"auc", "loss"} & set(trees.metrics)
    assert not {"loss"} & set(trees.history[0])
    assert repr(trees).startswith("Result(gbdt: test_auc 0.")
    assert meaning_of("train_auc").endswith("0.5 is chance; on the samples of the fit.")
    held_out = ["validation_auc", "train_auc"]
    for strategy in (VerticalGBDT(**TREES, validation_share=0.25), VerticalGBDT(**TREES)):
        result = simulate(strategy, tables, labels)
        first = next(name for name in held_out if name in result.metrics)
        assert first == ("validation_auc" if "validation_loss" in result.metrics else "train_auc")
        assert repr(result).startswith(f"Result({strategy.name}: {first} 0.")
        assert f"; {first} 0." in report_html(result)
    result.evaluate(truth)
    assert f"; test_auc {format_value(result.metrics['test_auc'])}" in report_html(result)


def test_bad_test_labels_are_refused_before_the_run(data):
    tables, labels, truth = data
    run = {"progress": False}
    with pytest.raises(ConfigError, match="set theirs to NaN"):
        simulate(CompleteCase(), tables, truth, test_labels=truth, **run)
    with pytest.raises(ConfigError, match="give test_labels"):
        simulate(CompleteCase(), tables, labels, beside_single_parties=True, **run)
    with pytest.raises(DataError, match="pandas Series"):
        simulate(CompleteCase(), tables, labels, test_labels=truth.to_numpy(), **run)


def test_what_cannot_be_compared_in_the_end_is_a_note(data):
    tables, labels, truth = data
    strangers = truth.iloc[:5].set_axis([f"t{i}" for i in range(5)])
    logging.disable(logging.CRITICAL)
    try:
        result = simulate(CompleteCase(), tables, labels, test_labels=strangers, min_rows=50)
    finally:
        logging.disable(logging.NOTSET)
    assert result.evaluation is None
    assert "none of the 5 samples to compare with is predicted" in result.notes[-1]
    assert len(result.predictions) == labels.isna().sum()


def test_lines_of_the_log_say_which_party_was_run_alone(data, caplog):
    def run(alone):
        logger.warning("%s left out", ", ".join(alone))

    single_party_results(CompleteCase(), data[0], run)
    logger.warning("the run is over")
    assert caplog.messages == [
        "party 'bank' alone: bank left out",
        "party 'court' alone: court left out",
        "the run is over",
    ]
