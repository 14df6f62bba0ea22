"""What VFEM refuses, and that it says which party, which column, and what to do."""

import numpy as np
import pandas as pd
import pytest
from oracles.vfem import generate
from vfem_runs import EXACT, estimates, fit_tables, held_by_somebody, party_tables, std_errors

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from strategies.vfem import VFEM


@pytest.fixture
def data():
    pooled = held_by_somebody(generate(200, [2, 1, 3], [0.3, 0.4, 0.2], 3, mean=0.5)[0])
    return party_tables(pooled)


def refused(error, tables, labels, *texts, mode="masked", **settings):
    with pytest.raises(error) as caught:
        fit_tables(tables, labels, mode, **settings)
    for text in texts:
        assert text in str(caught.value)


# -- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("step", "newton"),
        ("step", None),
        ("learning_rate", 0),
        ("learning_rate", -0.1),
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("acceleration", "anderson"),
        ("initial", "random"),
        ("intercept", "false"),
        ("standard_errors", "sem"),
        ("max_iter", 0),
        ("max_iter", 2.5),
        ("max_iter", True),
        ("tol", -1e-9),
        ("tol", 1.0),
        ("tol", float("nan")),
        ("encoding", "target"),
        ("missing_cells", "ignore"),
        ("missing_labels", "impute"),
        ("standardize", "no"),
        ("check_correlation", 1),
        ("sketch_size", 0),
        ("n_sketches", "many"),
    ],
)
def test_unknown_settings_are_named(setting, value):
    with pytest.raises(ConfigError, match=setting):
        VFEM(**{setting: value})


def test_none_may_be_written_as_text():
    """A run config carries no None."""
    strategy = VFEM(exchange="sums", acceleration="none", standard_errors="none")
    assert (strategy.acceleration, strategy.standard_errors) == (None, None)


# -- rows and columns ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_a_party_without_labelled_rows(data, mode):
    tables, labels = data
    labels = labels[~labels.index.isin(tables["p1"].index)]
    text = "party 'p1' holds 0 rows of labelled samples"
    refused(PartyError, tables, labels, text, "leave out columns or the party", mode=mode)


def test_fewer_rows_than_columns(data):
    tables, labels = data
    few = {**tables, "p2": tables["p2"].iloc[:4]}
    refused(
        PartyError, few, labels,
        "party 'p2' holds 4 rows of labelled samples", "3 columns need at least 5",
    )  # fmt: skip


def test_text_without_an_encoding_is_refused_and_with_one_used(data):
    tables, labels = data
    rng = np.random.default_rng(0)
    town = pd.Series(rng.choice(["Delft", "Gent", "Ulm"], len(tables["p1"])), tables["p1"].index)
    levels = tables["p1"].assign(town=town)
    refused(
        PartyError, {**tables, "p1": levels}, labels,
        "party 'p1', column 'town' holds levels", "encoding='one-hot'",
    )  # fmt: skip
    result = fit_tables({**tables, "p1": levels}, labels, "plain", **EXACT, encoding="one-hot")
    by_hand = tables["p1"].assign(
        **{f"town={level}": (town == level).astype(float) for level in ("Gent", "Ulm")}
    )
    other = fit_tables({**tables, "p1": by_hand}, labels, "plain", **EXACT)
    assert list(result.coefficients.index) == list(other.coefficients.index)
    np.testing.assert_allclose(result.coefficients, other.coefficients, atol=1e-9)


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_missing_cells_are_refused_or_their_rows_left_out(data, mode):
    tables, labels = data
    holes = tables["p0"].copy()
    holes.iloc[[3, 40, 41], [0, 1, 1]] = np.nan
    holes.iloc[[3, 40, 41], 0] = np.nan
    given = {**tables, "p0": holes}
    refused(
        PartyError, given, labels, "party 'p0': 3 of", "'x00': 3", "strategy 'fknn'",
        "missing_cells='drop-row'", mode=mode,
    )  # fmt: skip
    settings = {"check_correlation": False, "missing_cells": "drop-row"}
    result = fit_tables(given, labels, mode, **settings)
    other = fit_tables({**tables, "p0": holes.dropna()}, labels, mode, **settings)
    np.testing.assert_allclose(result.coefficients, other.coefficients, rtol=1e-6)
    assert "party 'p0': 3 rows with missing cells left out" in result.notes
    none = tables["p0"].copy()
    none.iloc[::2, 0], none.iloc[1::2, 1] = np.nan, np.nan
    refused(
        PartyError, {**tables, "p0": none}, labels, "party 'p0': no row without missing cells",
        "strategy 'fknn'", missing_cells="drop-row", mode=mode,
    )  # fmt: skip


# -- columns that tell nothing ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["expected", "gram", "sketch", None])
def test_constant_and_repeated_columns_get_a_ridge_and_a_note(data, kind):
    if kind == "gram":
        pytest.importorskip("tenseal")
    tables, labels = data
    more = tables["p0"].assign(seven=7.0, again=tables["p0"]["x00"])
    given = {**tables, "p0": more}
    result = fit_tables(given, labels, standard_errors=kind, check_correlation=False)
    assert result.model.outcome == "converged"
    (note,) = [note for note in result.notes if "p0" in note and "follow from others" in note]
    assert "columns ['seven', 'again'] are constant or follow from others" in note
    one = fit_tables(tables, labels, standard_errors=kind, check_correlation=False)
    shared = result.coefficients.loc["p0", "estimate"]
    both = shared["x00"] + shared["again"]
    assert both == pytest.approx(one.coefficients.loc[("p0", "x00"), "estimate"], abs=1e-4)
    for party in ("p1", "p2"):
        np.testing.assert_allclose(
            result.coefficients.loc[party, "estimate"], one.coefficients.loc[party, "estimate"],
            atol=1e-4,
        )  # fmt: skip
    if kind:
        assert result.coefficients.loc["p0", "std_error"][["seven", "again"]].isna().all()
        rtol = 0.02 if kind == "sketch" else 1e-3
        np.testing.assert_allclose(
            result.coefficients.loc["p2", "std_error"], one.coefficients.loc["p2", "std_error"],
            rtol=rtol,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "intercept"),
    [("plain", False), ("masked", True), ("masked", False), ("ckks", True)],
)
def test_a_party_with_nothing_but_a_constant(data, mode, intercept):
    """Without an intercept a column of ones is one's own, and no error."""
    tables, labels = data
    ones = pd.DataFrame({"one": 1.0}, index=tables["p1"].index)
    given = {**tables, "p1": ones}
    result = fit_tables(given, labels, mode, intercept=intercept, check_correlation=False)
    assert result.model.outcome == "converged"
    follow = [note for note in result.notes if "constant or follow from others" in note]
    assert any("p1" in note for note in follow) is intercept
    rest = {name: tables[name] for name in ("p0", "p2")}
    if intercept:
        assert result.coefficients.loc[("p1", "one"), "estimate"] == pytest.approx(0, abs=1e-4)
        assert np.isnan(result.coefficients.loc[("p1", "one"), "std_error"])
        one = fit_tables(rest, labels, mode, check_correlation=False)
        for party in rest:
            np.testing.assert_allclose(
                result.coefficients.loc[party, "estimate"],
                one.coefficients.loc[party, "estimate"],
                atol=2e-3,
            )


def test_the_same_column_at_two_parties_is_warned_of():
    pooled = held_by_somebody(generate(600, [2, 1], 0.15, 5)[0])
    tables, labels = party_tables(pooled)
    copy = tables["p0"]["x01"].reindex(tables["p1"].index)
    tables["p1"]["copy"] = copy.fillna(0.0)
    result = fit_tables(tables, labels)
    (note,) = [note for note in result.notes if "uncorrelated" in note]
    for name in ("'x01'", "'p0'", "'copy'", "'p1'"):
        assert name in note
    assert result.metrics["rank_correlation_rms"] > 0.1


def test_what_cannot_be_checked_is_said_and_is_no_number(data):
    """All metrics are finite: a report and a JSON file hold no NaN."""
    tables, labels = data
    few = {name: table[table.index < "s00040"] for name, table in tables.items()}
    result = fit_tables(few, labels[labels.index < "s00040"], standard_errors=None)
    assert "rank_correlation_rms" not in result.metrics
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert any("correlations between parties were not checked" in note for note in result.notes)


# -- labels ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "settings", "text"),
    [
        (lambda y: None, {}, "a regression needs labels"),
        (lambda y: y * np.nan, {}, "only 0 samples have a label"),
        (lambda y: y * 0 + 4.0, {}, "labels are the same"),
        (lambda y: y.replace(y.iloc[7], np.inf), {}, "1 labels are infinite"),
        (lambda y: y.replace(y.iloc[7], np.nan), {"missing_labels": "error"},
         "1 of 197 samples have no label, and missing_labels is 'error'"),
    ],
    ids=["none", "NaN", "constant", "infinite", "some missing"],
)  # fmt: skip
def test_unusable_labels(data, change, settings, text):
    tables, labels = data
    refused(DataError, tables, change(labels), text, **settings)


def test_labels_of_other_samples(data):
    tables, labels = data
    labels.index = [f"other {i}" for i in range(len(labels))]
    refused(DataError, tables, labels, "no label belongs to a sample of any party")


# -- the arbiter of 'gram' -------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_gram_gets_an_arbiter_in_every_mode(data, mode):
    pytest.importorskip("tenseal")
    result = simulate(VFEM(exchange="sums", standard_errors="gram"), *data, mode, progress=False)
    assert np.isfinite(std_errors(result)).all()
    assert "(arbiter)" in set(result.ledger.to_frame()["party"])


def test_samples_of_single_columns_and_integers_do():
    rng = np.random.default_rng(1)
    tables = {
        "a": pd.DataFrame({"n": rng.poisson(3, 80), "flag": rng.random(80) < 0.5}),
        "b": pd.DataFrame({"x": rng.normal(size=80)}).iloc[10:],
    }
    y = 1.0 + 0.5 * tables["a"]["n"] - tables["a"]["flag"] + rng.normal(size=80)
    result = fit_tables(tables, y, check_correlation=False)
    assert np.isfinite(estimates(result)).all()
    assert list(result.coefficients.loc["a"].index) == ["n", "flag"]
