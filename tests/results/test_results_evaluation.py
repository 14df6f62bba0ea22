"""Figures of merit against scikit-learn's, what is compared with what, and what comes back."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk
from test_results_page import Checker

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.reports.evaluation import gain_curve
from flwr_vertical.reports.report import report_html
from flwr_vertical.result import Result
from flwr_vertical.results.evaluation import evaluate
from strategies.linear.prediction.regressions import class_table

N = 400
INDEX = pd.Index([f"s{i}" for i in range(N)], name="sample")


def of_classes(n_classes, seed=0):
    """Probabilities that are calibrated up to noise, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    raw = 1.5 * rng.normal(size=(N, n_classes))
    p = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    y = (rng.random((N, 1)) > p.cumsum(axis=1)).sum(axis=1).astype(float)
    columns = {f"probability_{c}": p[:, c] for c in range(n_classes)}
    found = pd.DataFrame({"prediction": p.argmax(axis=1).astype(float), **columns}, index=INDEX)
    return found, pd.Series(y, INDEX), p


def test_two_classes_are_those_of_scikit_learn():
    found, y, p = of_classes(2)
    known = pd.Series([0.0, 0.0, 0.0, 1.0])
    made = evaluate(found, y, known=known)
    got, one = made.metrics(), p[:, 1]
    assert {name: got[name] for name in got if name != "samples"} == pytest.approx({
        "auc": sk.roc_auc_score(y, one), "average_precision": sk.average_precision_score(y, one),
        "log_loss": sk.log_loss(y, one), "brier": sk.brier_score_loss(y, one),
        "accuracy": sk.accuracy_score(y, one >= 0.5), "f1": sk.f1_score(y, one >= 0.5),
    })  # fmt: skip
    constant = made.metrics("constant")
    assert constant["auc"] == 0.5
    assert constant["log_loss"] == pytest.approx(sk.log_loss(y, np.full(N, 0.25)))
    assert constant["accuracy"] == pytest.approx((y == 0).mean())
    assert not made.notes
    assert list(made.table().index) == ["this run", "constant"]
    assert repr(made).startswith("Evaluation(400 test samples: auc 0.")


def test_thresholds():
    found, y, p = of_classes(2)
    youden = evaluate(found, y, threshold="youden")
    wrong, right, cuts = sk.roc_curve(y, p[:, 1])
    assert youden.threshold == cuts[np.argmax(right - wrong)]
    high = evaluate(found, y, threshold=0.9)
    expected = sk.confusion_matrix(y, p[:, 1] >= 0.9)
    np.testing.assert_array_equal(high.confusion().to_numpy(), expected)
    assert high.metrics()["auc"] == youden.metrics()["auc"]
    for bad in (1.5, "best"):
        with pytest.raises(ConfigError, match="between 0 and 1, or 'youden'"):
            evaluate(found, y, threshold=bad)
    with pytest.raises(ConfigError, match="two classes"):
        evaluate(*of_classes(3)[:2], threshold="youden")
    with pytest.raises(DataError, match="both classes"):
        evaluate(found, y[y == 1.0], threshold="youden")


def test_several_classes_are_averaged():
    found, y, p = of_classes(4)
    got = (made := evaluate(found, y)).metrics()
    expected = sk.roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert got["auc"] == pytest.approx(expected)
    assert got["log_loss"] == pytest.approx(sk.log_loss(y, p))
    assert got["f1"] == pytest.approx(sk.f1_score(y, p.argmax(axis=1), average="macro"))
    hit = y.to_numpy()[:, None] == np.arange(4)
    assert got["brier"] == pytest.approx(((p - hit) ** 2).sum(axis=1).mean())
    by_class = made.by_class()
    assert by_class["auc"].mean() == pytest.approx(expected)
    assert by_class["samples"].sum() == N


@pytest.mark.parametrize("names", [[1000001, 1000002, 1000003], [0.1234567, 0.1234568, 1 / 3]])
def test_classes_of_many_digits_are_told_apart(names):
    found, y, p = of_classes(3)
    expected = evaluate(found, y, known=y)
    table = class_table(p, [float(name) for name in names]).set_axis(found.index)
    labels = pd.Series(np.array(names, dtype=float)[y.to_numpy().astype(int)], y.index)
    made = evaluate(table, labels, known=labels)
    assert made.classes == [float(name) for name in names]
    pd.testing.assert_frame_equal(made.table(), expected.table())
    np.testing.assert_array_equal(made.by_class(), expected.by_class())
    assert made.by_class().index.to_list() == [str(name) for name in names]


def test_numbers():
    rng = np.random.default_rng(2)
    y = pd.Series(rng.normal(size=N), INDEX)
    found = pd.DataFrame({"prediction": y + 0.5 + rng.normal(size=N), "std_error": 1.0})
    made = evaluate(found, y, known=pd.Series([1.0, 3.0]))
    got, off = made.metrics(), found["prediction"] - y
    assert made.task == "numbers"
    assert got["r2"] == pytest.approx(sk.r2_score(y, found["prediction"]))
    assert got["rmse"] == pytest.approx(np.sqrt((off**2).mean()))
    assert got["mae"] == pytest.approx(off.abs().mean())
    assert got["bias"] == pytest.approx(off.mean())
    assert made.metrics("constant")["bias"] == pytest.approx(2.0 - y.mean())


def test_an_expectation_of_zero_or_one_is_a_probability():
    found, y, p = of_classes(2)
    mean = pd.DataFrame({"prediction": p[:, 1], "linear_predictor": 0.0}, index=INDEX)
    assert evaluate(mean, y).metrics() == pytest.approx(evaluate(found, y).metrics())
    assert evaluate(mean, y, task="numbers").task == "numbers"
    assert evaluate(mean, y + 2.0).task == "numbers"
    assert evaluate(mean, y, known=y.iloc[::2]).task == "classes"
    assert evaluate(mean, y, known=pd.Series([0.0, 1.0, 2.0])).task == "numbers"
    without = evaluate(found[["prediction"]], y, task="classes").metrics()
    assert set(without) == {"accuracy", "f1"}
    with pytest.raises(ConfigError, match="task"):
        evaluate(mean, y, task="regression")


def test_others_are_compared_on_the_same_samples():
    found, y, _ = of_classes(2)
    other = of_classes(2, seed=9)[0].iloc[: N // 2]
    made = evaluate(found, y[100:], beside={"bank alone": other})
    assert len(made) == N - 100
    assert made.notes[1] == "bank alone: 200 of 300 samples have the constant prediction"
    alone = made.probabilities("bank alone")[:, 1]
    np.testing.assert_array_equal(alone[:100], other["probability_1"].iloc[100:])
    np.testing.assert_allclose(alone[100:], y[100:].mean())
    with pytest.raises(DataError, match="'bank alone' have columns"):
        evaluate(found, y, beside={"bank alone": other[["prediction"]]})


def test_labels_that_cannot_be_compared():
    found, y, _ = of_classes(2)
    for bad, message in (
        (y.to_numpy(), "pandas Series"),
        (pd.concat([y, y[:1]]), "'s0' stands twice"),
        (y.map({0.0: "no", 1.0: "yes"}), "code classes"),
        (y.set_axis(range(N)), "none of the 400 samples"),
        (y * np.nan, "none of the 0 samples"),
    ):
        with pytest.raises(DataError, match=message):
            evaluate(found, bad)
    strange = y.copy()
    strange[:3] = 7.0
    made = evaluate(found, strange)
    assert "3 samples have labels [7.0]" in made.notes[0]
    assert "log_loss" not in made.metrics()
    assert made.confusion().shape == (3, 3)
    decision = found["probability_1"] - found["probability_0"]
    by_sign = evaluate(found[["prediction"]].assign(decision=decision), strange)
    assert "3 samples have labels [7.0]" in by_sign.notes[0]
    assert by_sign.metrics()["auc"] == pytest.approx(sk.roc_auc_score(strange == 1.0, decision))
    one_class = evaluate(found, y[y == 1.0]).metrics()
    assert "auc" not in one_class
    with pytest.raises(ConfigError, match="no predictions"):
        Result("any").evaluate(y)


def test_samples_whose_ids_the_server_does_not_know_are_to_be_listed_without_a_label():
    labels = pd.Series([1.0, 2.0], index=["a", "b"])
    for names, listed in ((["aligned-3", "aligned-7+"], True), (["c", "aligned-7"], False)):
        with pytest.raises(DataError, match="samples to compare with is predicted") as caught:
            evaluate(pd.DataFrame({"prediction": [0.5, 1.5]}, names), labels)
        assert ("list these samples, without a label" in str(caught.value)) is listed


def test_gain_curve_by_hand():
    chosen, share = gain_curve(np.array([1, 0, 1, 0], dtype=bool), np.array([4.0, 3.0, 3.0, 1.0]))
    np.testing.assert_allclose(chosen, [0, 0.25, 0.75, 1])  # equal scores are chosen together
    np.testing.assert_allclose(share, [0, 0.5, 1, 1])


@pytest.mark.parametrize("kind", ["two", "eight", "numbers", "no-probabilities"])
def test_saved_loaded_and_reported(kind, tmp_path, drawn):
    found, y, p = of_classes(8 if kind == "eight" else 2)
    task = None
    if kind == "numbers":
        found = pd.DataFrame({"prediction": p[:, 0]}, index=INDEX)
    elif kind == "no-probabilities":
        found, task = found[["prediction"]], "classes"
    labels = pd.Series([0.0, 1.0], ["x", "y"])
    result = Result("any <b>", predictions=found, labels=labels)
    result.evaluate(y, task=task, beside={"bank <i> alone": found.iloc[::2]})
    expected = result.evaluation.metrics()
    assert {k: v for k, v in result.metrics.items() if k.startswith("test_")} == {
        f"test_{name}": value for name, value in expected.items()
    }
    loaded = Result.load(result.save(tmp_path / "it"))
    pd.testing.assert_frame_equal(loaded.evaluation.table(), result.evaluation.table())
    assert loaded.evaluation.to_plain() == result.evaluation.to_plain()
    page = report_html(loaded)
    Checker(page)
    assert "Predictions against true labels" in page
    assert "bank &lt;i&gt; alone" in page
    assert page.count("<img") >= 1


def test_contributions_and_importance_are_saved_and_reported(tmp_path, drawn):
    keys = pd.MultiIndex.from_tuples([("bank", "age"), ("court", "a$b")], names=["party", "column"])
    importance = pd.DataFrame({"splits": [3, 1], "gain": [2.0, 0.5]}, index=keys)
    parts = pd.DataFrame({"base": 0.5, "bank": np.arange(N) / N, "court": 0.0}, index=INDEX)
    result = Result("any", importance=importance, contributions=parts)
    loaded = Result.load(result.save(tmp_path / "it"))
    pd.testing.assert_frame_equal(loaded.importance, importance)
    pd.testing.assert_frame_equal(loaded.contributions, parts)
    page = report_html(loaded)
    assert "Importance by column" in page
    assert "Contributions by party" in page
    nothing = Result("any", importance=importance * 0)
    assert "What moves predictions" not in report_html(nothing)


def test_a_strategy_s_own_tables_are_attributes_saved_and_reported(tmp_path):
    index = pd.MultiIndex.from_tuples([("bank", "age"), ("court", "debt")], names=["party", "name"])
    frame = pd.DataFrame({"kind": ["count", None], "vif": [1.5, np.nan]}, index=index)
    result = Result("any", frames={"columns": frame})
    loaded = Result.load(result.save(tmp_path / "result"))
    pd.testing.assert_frame_equal(loaded.columns, frame)
    assert "In Python: result.columns" in loaded.report(tmp_path / "page").read_text("utf-8")
    with pytest.raises(AttributeError, match=r"no attribute 'rows'; its frames are \['columns'\]"):
        _ = loaded.rows
    assert not hasattr(Result("any"), "columns")
