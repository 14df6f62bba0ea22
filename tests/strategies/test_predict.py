"""Predictions with coefficients that stay at the parties: exact but for the grid, and no more."""

import itertools

import numpy as np
import pandas as pd
import pytest
from ledgered import Nodes
from scipy import integrate, stats
from scipy.special import expit

from flwr_vertical import Alignment, Party, Result, Strategy, Uses, load_strategy, simulate
from flwr_vertical.errors import ConfigError, PartyError
from strategies.fknn import FKNN
from strategies.glm import VerticalGLM
from strategies.glm_admm import GLMADMM
from strategies.linear.data import RegressionData
from strategies.linear.moments.covariances import BlockCovariance, FullCovariance
from strategies.linear.moments.fit import fit_normal
from strategies.linear.moments.patterns import Patterns
from strategies.linear.prediction.conditional_regressions import joint_regressions
from strategies.linear.prediction.party_model import LinearPart
from strategies.linear.prediction.regressions import (
    Regressions,
    find_patterns,
    pattern_list,
    prediction_table,
)
from strategies.linear.prediction.server import keep_and_predict
from strategies.linear.prediction.steps import PredictionSteps, bounds
from strategies.linear.problem import open_problem, sample_index
from strategies.predict import Predict
from strategies.svm import VerticalSVM
from strategies.vfem import VFEM, CompleteCase, MeanImpute, Single
from strategies.vfem_iterations import VFEMIterations

COLUMNS = {"bank": ["u", "v"], "court": ["w"], "hospital": ["h"]}
WIDTHS = (2, 1, 1)
NAMES = list(COLUMNS)


def make(n, seed, missing=0.3):
    """Three parties whose columns correlate, one of them 0 or 1."""
    rng = np.random.default_rng(seed)
    ids = [f"firm {seed}-{i}" for i in range(n)]
    common = rng.normal(size=(n, 1))
    x = 0.8 * common + rng.normal(size=(n, 4))
    x[:, 3] = x[:, 3] > 1
    y = 7 + x @ [2.0, -1.0, 1.5, 3.0] + rng.normal(size=n)
    table = pd.DataFrame(5.0 + x, index=ids, columns=["u", "v", "w", "h"])
    table["h"] -= 5.0
    held = rng.random((n, 3)) >= missing
    held[~held.any(axis=1), 0] = True
    tables = {name: table.loc[held[:, k], COLUMNS[name]] for k, name in enumerate(NAMES)}
    return tables, pd.Series(y, ids, name="profit"), table, held


class FitParty(Party):
    """The party half of a fit that somebody else has worked out."""

    data = Uses(RegressionData)
    prediction = Uses(PredictionSteps)


class Known(Strategy):
    """A fit whose regressions are given: only the keeping and the prediction are tested."""

    name = "known"
    needs_labels = True
    party = FitParty
    regressions = None

    def run(self, federation, alignment, result, progress):
        problem = open_problem(
            federation, alignment, result,
            missing_labels="drop",
            standardize=True, intercept=True,
        )  # fmt: skip
        for _ in range(self.times):
            keep_and_predict(
                federation, alignment, result, self.regressions, problem, step="keep_model"
            )

    times = 1


def known(regressions, times=1):
    return type("Known", (Known,), {"regressions": regressions, "times": times})()


def central(table, held, y, model=None):
    """Fit the joint model to the pooled table."""
    rows = np.column_stack([table.to_numpy(dtype=float), y])
    rows[:, :4][~np.repeat(held, WIDTHS, axis=1)] = np.nan
    patterns = Patterns.of(rows)
    model = model or FullCovariance(np.ones((5, 5), dtype=bool))
    fit = fit_normal(patterns, model)
    return fit, joint_regressions(patterns, model, fit, WIDTHS)


@pytest.fixture(scope="module")
def fitted():
    """A simulated fit with 100 samples without a label, and what the pooled table says."""
    tables, y, table, held = make(2000, 0)
    hidden = y.where(np.arange(len(y)) >= 100)
    fit, regressions = central(table[100:], held[100:], y[100:])
    transcript = []
    result = simulate(known(regressions), tables, hidden, transcript=transcript)
    return result, fit, (tables, y, table, held), transcript


def expected(fit, table, held):
    """Conditional expectation and variance of the label, row by row."""
    means, variances = [], []
    for row, own in zip(table.to_numpy(dtype=float), np.repeat(held, WIDTHS, axis=1), strict=True):
        o = np.flatnonzero(own)
        beta = np.linalg.solve(fit.covariance[np.ix_(o, o)], fit.covariance[o, -1])
        means.append(fit.mean[-1] + (row[o] - fit.mean[o]) @ beta)
        variances.append(fit.covariance[-1, -1] - beta @ fit.covariance[o, -1])
    return np.array(means), np.array(variances)


def test_predictions_are_conditional_expectations_but_for_the_grid(fitted):
    result, fit, (_, _y, table, held), _ = fitted
    mean, variance = expected(fit, table[:100], held[:100])
    found = result.predictions.loc[table.index[:100]]
    grid = result.predictor.grid
    noise = result.predictor.noise
    assert fit.noise < noise < 1.01 * fit.noise  # what the estimates take up
    assert grid == pytest.approx(0.01 * np.sqrt(noise))
    unit = sum(grid * 2.0**c for c in result.predictor.coarser.values())
    assert unit <= 4 * grid  # one party's term is rounded to two steps: 12 bits are enough for that
    np.testing.assert_allclose(found["prediction"], mean, atol=unit / 2 + 1e-9)
    half = (found["upper"] - found["lower"]) / 2 / stats.norm.ppf(0.975)
    # Beside the noise and what is not seen: what the estimates and the grid add, a per cent or so.
    assert (half**2 > variance).all()
    np.testing.assert_allclose(half**2, variance, rtol=0.02)
    np.testing.assert_allclose(half**2, found["std_error"] ** 2 + noise, rtol=1e-9)
    np.testing.assert_allclose(result.labels.loc[found.index], found["prediction"])
    # Several patterns of parties, each with coefficients of its own.
    assert len(np.unique(held[:100], axis=0)) == 7
    assert len(result.predictor.present) == 8


@pytest.mark.parametrize("alignment", ["private-id", "kkrt"])
def test_predictions_have_the_ids_that_parties_know(alignment):
    rng = np.random.default_rng(4)
    index = [f"i{k}" for k in rng.permutation(300)]
    a = pd.DataFrame({"x": rng.normal(size=300), "y": np.nan}, index=index)
    a.loc[index[:200], "y"] = a["x"] + 0.1 * rng.normal(size=300)
    b = pd.DataFrame({"z": rng.normal(size=300)}, index=index[::-1])
    result = simulate(
        CompleteCase(), {"a": a, "b": b}, alignment=alignment, label_holder="a", label_column="y",
        policy={"labels": "y"}, min_rows=10,
    )  # fmt: skip
    found = result.predictions["prediction"]
    assert set(found.index) == set(index[200:])
    np.testing.assert_allclose(found, a.loc[found.index, "x"], atol=0.15)


def test_later_predictions_are_those_of_the_fit(fitted, tmp_path):
    result, _, (tables, _y, table, _held), _ = fitted
    new = {name: t.loc[t.index.isin(table.index[:100])] for name, t in tables.items()}
    again = simulate(Predict(result), new)
    both = result.predictions.join(again.predictions.add_suffix("_later"))
    assert len(both) == 100
    for column in ("prediction", "std_error", "lower", "upper"):
        np.testing.assert_allclose(both[column], both[f"{column}_later"], rtol=1e-12)
    assert again.ledger.rounds == 4  # greeting, alignment, rows, one sum
    assert again.metrics["bits_per_row"] == result.metrics["bits_per_row"]
    assert again.metrics.keys() == {"bits_per_row", "n_samples"}
    folder = result.save(tmp_path / "model")
    for way in (Result.load(folder).predict(new), simulate(Predict(str(folder)), new)):
        pd.testing.assert_frame_equal(way.predictions, again.predictions)


def test_new_samples_fall_into_the_intervals(fitted):
    result = fitted[0]
    tables, y, table, held = make(2000, 1)
    found = result.predict(tables, y)
    assert 0.94 < found.metrics["coverage"] < 0.96
    assert found.metrics["rmse"] == pytest.approx(
        np.sqrt(np.mean((found.predictions["prediction"] - y.loc[found.predictions.index]) ** 2))
    )
    for kind in np.unique(held, axis=0):  # also where a party lacks the sample
        rows = found.predictions.loc[table.index[(held == kind).all(axis=1)]]
        inside = y.loc[rows.index].between(rows["lower"], rows["upper"])
        assert stats.binomtest(int(inside.sum()), len(rows), 0.95).pvalue > 0.001


def test_a_party_that_has_left_is_a_missing_block(fitted):
    result, fit, _, _ = fitted
    tables, _, table, held = make(60, 2)
    without = {name: t for name, t in tables.items() if name != "court"}
    found = result.predict(without)
    held[:, 1] = False
    some = held.any(axis=1)
    mean, _ = expected(fit, table[some], held[some])
    np.testing.assert_allclose(
        found.predictions.loc[table.index[some], "prediction"],
        mean,
        atol=1.5 * result.predictor.grid + 1e-9,  # one of two parties rounds to two steps
    )
    assert any("['court'] of the fit take no part" in note for note in found.notes)


def test_missing_cells_count_as_missing_blocks(fitted):
    result = fitted[0]
    tables, _, table, held = make(60, 3)
    name = table.index[held.all(axis=1)][0]
    without = tables | {"bank": tables["bank"].drop(index=name)}
    gap = tables["bank"].copy()
    gap.loc[name, "v"] = np.nan
    left = result.predict(tables | {"bank": gap}).predictions
    right = result.predict(without).predictions
    pd.testing.assert_frame_equal(left.loc[right.index], right)


def test_a_party_keeps_its_own_coefficients_and_no_more(fitted):
    result, _, _, transcript = fitted
    parts = {name: LinearPart.from_bytes(data) for name, data in result._party_models.items()}
    assert {name: part.columns for name, part in parts.items()} == COLUMNS
    for name, part in parts.items():
        assert part.coefficients.shape == (8, len(COLUMNS[name]))
        assert not part.coefficients[~part.present[:, NAMES.index(name)]].any()
    # What the server keeps has no coefficients, and messages go to their own party only.
    assert not hasattr(result.predictor, "coefficients")
    down = [record for record in transcript if record.direction == "down"]
    for name, part in parts.items():
        own = part.coefficients[part.present.all(axis=1)][0, 0].tobytes()
        got = {
            record.node_id
            for record in down
            for arrays in record.content.array_records.values()
            for array in arrays.values()
            if own in array.data
        }
        assert len(got) == 1, name


# -- a server that wants more ----------------------------------------------------------------


def test_a_server_that_edits_its_model_reads_no_column(fitted):
    """The audit's attack: coefficient 1 for one column, 0 for all others."""
    result = fitted[0]
    tables, _, _table, _held = make(80, 5, missing=0.0)
    honest = result.predict(tables).predictions["prediction"]
    edited = Result("known", predictor=result.predictor)
    edited._party_models = result._party_models
    index = pd.MultiIndex.from_tuples([(p, c) for p, own in COLUMNS.items() for c in own])
    edited.coefficients = pd.DataFrame({"estimate": 0.0}, index=index)
    edited.coefficients.loc[("hospital", "h"), "estimate"] = 1.0
    found = edited.predict(tables).predictions["prediction"]
    pd.testing.assert_series_equal(found, honest)  # the parties use what they kept

    # No step takes coefficients, and no other model has the name of this one.
    class Asks(Predict):
        asked = ("predict_kept", {"coefficients": np.array([1.0])})

        def run(self, federation, alignment, result, progress):
            federation.sum(self.asked[0], self.asked[1])

    with pytest.raises(PartyError, match="coefficients"):
        simulate(Asks(result), tables)

    class Another(Asks):
        asked = ("predict_kept", {"model": "0" * 32})

    with pytest.raises(PartyError, match=r"left the model \w+, but the server asks for the"):
        simulate(Another(result), tables)


def test_a_run_predicts_a_row_once(fitted):
    result = fitted[0]

    class Twice(Predict):
        def run(self, federation, alignment, result, progress):
            super().run(federation, alignment, result, progress)
            super().run(federation, alignment, result, progress)

    with pytest.raises(PartyError, match="next may come nothing more"):
        simulate(Twice(result), make(60, 6)[0])


def test_a_run_keeps_one_model():
    tables, y, _table, _held = make(300, 7)
    with pytest.raises(PartyError, match="each run has one"):
        simulate(known(additive(), times=2), tables, y)


def additive(**changes):
    values = {
        "widths": WIDTHS,
        "intercept": 1.0,
        "beta": np.array([2.0, -1.0, 1.5, 3.0]),
        "mean_fit": np.array([5.0, 7.5, 0.5]),
        "explained": np.array([4.0, 2.0, 1.0]),
        "noise": 1.0,
    }
    return Regressions.additive(**(values | changes))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"coefficients": np.array([[np.nan, 1.0]])}, "that are not finite"),
        ({"coefficients": np.ones((1, 3))}, "was sent 3 coefficients"),
        ({"coefficients": np.ones((2, 2))}, "expected coefficients of its own"),
        (
            {"offsets": np.array([1e30])},
            r"of up to 1.26765e\+30 \(a power of two\) cannot be counted",
        ),
        ({"grid": 0.0}, "positive number"),
        ({"own": 1}, "party number 1"),
        ({"present": np.array([[0, 1, 1]], dtype=np.uint8)}, "in which it is absent"),
    ],
)
def test_coefficients_that_cannot_be_used_are_refused(spoil, message):
    tables, y, _, _ = make(300, 7)

    class Spoils(Known):
        def run(self, federation, alignment, result, progress):
            original = federation.sum

            def spoilt(step, arguments=None, *, per_party=None, **more):
                if step == "keep_model":
                    own = {name: value for name, value in spoil.items() if name not in arguments}
                    arguments = arguments | {name: spoil[name] for name in spoil.keys() - own}
                    per_party = per_party | {"bank": per_party["bank"] | own}
                return original(step, arguments, per_party=per_party, **more)

            federation.sum = spoilt
            super().run(federation, alignment, result, progress)

        regressions = additive()

    with pytest.raises(PartyError, match=message) as caught:
        simulate(Spoils(), tables, y)
    assert caught.value.party == "bank"


def test_without_a_prediction_nothing_tells_how_far_terms_reach():
    """By where bits or coarseness change, a server had the range of a column in a few runs."""
    tables, y, _, _ = make(300, 7, missing=0.0)
    told = []

    class Tries(Known):
        regressions = additive()

        def run(self, federation, alignment, result, progress):
            problem = open_problem(
                federation,
                alignment,
                result,
                missing_labels="drop",
                standardize=True,
                intercept=True,
            )
            given = self.regressions, problem
            total = keep_and_predict(federation, alignment, result, *given, step="keep_model")
            told.append(total.public)

    for noise in np.geomspace(1e-2, 1e2, 7):
        strategy = type("Tries", (Tries,), {"regressions": additive(noise=noise)})()
        fit = simulate(strategy, tables, y)
        later = fit.predict({name: table[:9] for name, table in tables.items()})
        assert later.metrics["bits_per_row"] > 9
    assert told == [{name: {"outside": 0} for name in NAMES}] * 7


def test_a_chosen_model_tells_no_more_than_the_bits_of_the_node():
    """A server that sends unit coefficients in a fit of its own gets a coarse column, at most."""
    rng = np.random.default_rng(8)
    income = pd.DataFrame({"income": np.append(rng.normal(4000, 900, 499), 9000.0).round(2)})
    terms = income.to_numpy()
    for bits in (2, 4, 12):
        ends = terms.min(axis=0), terms.max(axis=0)
        coarser, low, high, told = bounds(*ends, 1e-9, bits, "bank")
        assert told <= bits
        # As many values as the bits say, over at most four times the range.
        n_values = (high - low)[0] / 2.0**coarser + 1
        assert n_values <= 2.0**bits
        assert n_values > 2.0**bits / 4
        assert (terms / 1e-9 >= low).all()
        assert (terms / 1e-9 <= high).all()


def flags_read(n_parties, bits, seed=0):
    """Share of 0/1 columns that the best guess from a prediction and known coefficients gets.

    Six columns at each party, values equally likely, coefficients as large as the noise.
    """
    rng = np.random.default_rng(seed)
    beta = rng.normal(size=(n_parties, 6))
    every = ((np.arange(64)[:, None] >> np.arange(6)) & 1).astype(float)
    levels = []
    for own in beta:
        terms = every @ own
        coarser, low, high, _ = bounds(
            terms[None].min(axis=1), terms[None].max(axis=1), 0.01, bits, "party"
        )
        unit = 2.0**coarser
        levels.append(np.clip(np.rint(terms / 0.01 / unit) * unit, low, high).astype(np.int64))
    sums = levels[0]
    for own in levels[1:]:
        sums = (sums[:, None] + own[None, :]).reshape(-1)
    numbers = np.arange(64**n_parties)
    shares = []
    for party in range(n_parties):
        rows = every[numbers // 64 ** (n_parties - 1 - party) % 64]
        _, kind = np.unique(sums, return_inverse=True)
        share = np.array([np.bincount(kind, rows[:, j]) for j in range(6)]) / np.bincount(kind)
        guess = (share > 0.5).T[kind]
        shares.append(np.mean(guess == rows.astype(bool)))
    return float(np.mean(shares))


def test_what_a_prediction_tells_of_columns_of_two_values():
    """Alone, a party's six flags are read off 12 bits; few bits, or other parties, blur them."""
    read = {
        (n, bits): np.mean([flags_read(n, bits, seed) for seed in (1, 2, 3)])
        for n, bits in ((1, 12), (1, 6), (1, 3), (3, 12))
    }
    # The figures of docs/privacy.md.
    assert {key: round(100 * share) for key, share in read.items()} == {
        (1, 12): 100, (1, 6): 75, (1, 3): 62, (3, 12): 58,
    }  # fmt: skip


def test_nodes_bound_the_bits_and_predictions_allow_for_it(tmp_path):
    tables, y, table, _held = make(400, 9, missing=0.0)
    hidden = y.where(np.arange(400) >= 100)
    nodes = Nodes(tmp_path, tables, **{"prediction-bits": 5})
    result = nodes.run(known(additive()), hidden, run_name="fit")
    assert result.predictor.bits == {"bank": 5, "court": 5, "hospital": 5}
    assert result.metrics["bits_per_row"] <= 9  # of the sum, in steps of the finest party
    exact = 1.0 + table[:100].to_numpy() @ [2.0, -1.0, 1.5, 3.0]
    error = result.predictions.loc[table.index[:100], "prediction"] - exact
    rounding = sum(result.predictor.rounding_variance.values())
    assert np.sqrt(np.mean(error**2)) == pytest.approx(np.sqrt(rounding), rel=0.2)
    assert error.std() > 0.1  # of a residual SD of 1: the node has chosen so
    assert result.predictions["std_error"].min() ** 2 == pytest.approx(rounding)
    # Without the name of the fit's run there is nothing to predict with.
    with pytest.raises(PartyError, match="name the run of the fit as 'fitted'"):
        nodes.run(Predict(result), run_name="later")
    later = nodes.run(Predict(result), run_name="later", fitted="fit")
    assert later.ledger.rounds == 3  # greeting, alignment, one sum: a single regression
    pd.testing.assert_frame_equal(
        later.predictions.loc[result.predictions.index], result.predictions
    )
    for wrong in (1, 31):
        bad = Nodes(tmp_path, tables, **{"prediction-bits": wrong})
        with pytest.raises(
            PartyError, match="prediction-bits must be an integer of at least 2 and"
        ):
            bad.run(known(additive()), hidden, run_name="other")
    with pytest.raises(ConfigError, match="predict by a run of the app"):
        result.predict(tables)


# -- what cannot be predicted ----------------------------------------------------------------


def test_what_cannot_be_predicted(fitted):
    result, _, (_tables, *_), _ = fitted
    new = make(50, 10)[0]
    other = simulate(FKNN(n_neighbors=2), {"bank": new["bank"]})
    with pytest.raises(ConfigError, match="no model"):
        simulate(Predict(), new)
    with pytest.raises(ConfigError, match="'fknn' holds no model"):
        other.predict(new)
    tables, labels, _, _ = make(100, 11)
    admm = simulate(GLMADMM(lambdas=0.1), tables, labels)
    with pytest.raises(ConfigError, match="only the fit itself predicts samples without a label"):
        admm.predict(new)
    with pytest.raises(ConfigError, match=r"\['registry'\] took no part in the fit"):
        result.predict(new | {"registry": new["court"].rename(columns={"w": "r"})})
    lacking = new | {"bank": new["bank"].drop(columns="u")}
    with pytest.raises(PartyError, match="no column 'u'"):
        result.predict(lacking)
    words = new | {"bank": new["bank"].assign(u=[f"many {i}" for i in range(len(new["bank"]))])}
    with pytest.raises(PartyError, match="held numbers"):
        result.predict(words)
    with pytest.raises(ConfigError, match="must be a Result"):
        Predict(3)
    with pytest.raises(ConfigError, match="contributions='shapley' is for boosted trees"):
        simulate(Predict(result, contributions="shapley"), new)


def test_the_strategies_of_before_say_what_to_use():
    for fit in ("vfem", "false-vfl", "split", "gbdt", "forest"):
        with pytest.raises(ConfigError, match="was removed: 'predict', whatever fitted the model"):
            load_strategy(f"{fit}-predict")


def test_levels_are_known_again_and_new_ones_are_missing_blocks():
    rng = np.random.default_rng(11)
    ids = [f"firm {i}" for i in range(300)]
    town = pd.DataFrame({"town": rng.choice(list("abc"), 300)}, index=ids)
    size = pd.DataFrame({"size": rng.integers(1, 4, 300)}, index=ids)
    y = pd.Series((town["town"] == "b") * 3.0 + (size["size"] == 3) + rng.normal(size=300), ids)
    tables = {"bank": town, "court": size}
    kinds = {"court": {"size": "categorical"}}
    regressions = Regressions.additive(
        (2, 2), 0.0, np.array([3.0, 0.0, 0.0, 1.0]), np.array([1.0, 0.3]), np.array([2.0, 0.2]), 1.0
    )
    result = simulate(known(regressions), tables, y, kinds=kinds)
    new = {
        "bank": pd.DataFrame({"town": ["a", "b", "d", None]}, index=list("wxyz")),
        "court": pd.DataFrame({"size": [3.0, 1.0, 3.0, np.nan]}, index=list("wxyz")),
    }
    predicted = result.predict(new)
    found = predicted.predictions["prediction"]
    np.testing.assert_allclose(found.loc[list("wxyz")], [1.0, 3.0, 2.0, 1.3], atol=0.01)
    told = [note for note in predicted.notes if "a level that the fit did not know" in note]
    assert [note[:23] for note in told] == ["party 'bank': 2 rows ha", "party 'court': 1 row ha"]
    # One row at a time: a column has no value at all.
    last = {name: table.loc[["z"]] for name, table in new.items()}
    alone = result.predict(last).predictions["prediction"]
    np.testing.assert_array_equal(alone, found.loc[["z"]])


# -- numerics --------------------------------------------------------------------------------


def test_with_complete_rows_the_leverage_is_that_of_least_squares():
    _, y, table, held = make(500, 12, missing=0.0)
    fit, regressions = central(table, held, y)
    x = table.to_numpy()
    for i, present in enumerate(regressions.present):
        own = np.column_stack([np.ones(500), x[:, np.repeat(present, WIDTHS)]])
        beta, rss, *_ = np.linalg.lstsq(own, y.to_numpy(), rcond=None)
        noise = rss[0] / 500
        np.testing.assert_allclose(
            regressions.coefficients[i, np.repeat(present, WIDTHS)], beta[1:], rtol=1e-6
        )
        assert regressions.unseen[i] + fit.noise == pytest.approx(noise, rel=1e-6)
        assert regressions.leverage[i] == pytest.approx(noise * own.shape[1] / 500, rel=1e-5)
        if i == 0:  # the unbiased estimate, to first order
            assert regressions.noise == pytest.approx(rss[0] / (500 - 5), rel=2e-4)


def test_with_missing_blocks_the_leverage_is_that_of_the_estimates():
    _, y, table, held = make(500, 13)
    fit, regressions = central(table, held, y)
    mean, inner = fit.mean[:-1], fit.covariance[:-1, :-1]
    own = np.append(1.0, mean)
    spread = own @ fit.vcov @ own + np.sum(fit.vcov[1:, 1:] * inner)
    assert regressions.leverage[0] == pytest.approx(spread, rel=1e-8)
    units = regressions.in_units(2.0, 3.0).of_columns(np.full(4, 5.0), np.full(4, 0.1))
    np.testing.assert_allclose(units.coefficients, 30.0 * regressions.coefficients)
    row = table.to_numpy()[0]
    at = 5.0 + 0.1 * row
    one = regressions.level[0] + row @ regressions.coefficients[0] - regressions.offsets[0].sum()
    other = units.level[0] + at @ units.coefficients[0] - units.offsets[0].sum()
    assert other == pytest.approx(2.0 + 3.0 * one)


@pytest.mark.parametrize(
    "strategy", [VerticalGLM(penalty="none"), VerticalSVM(0.0, loss="squared")]
)
def test_a_column_that_is_left_out_tells_of_the_other_where_that_is_missing(strategy):
    """Samples that lacked the first party were predicted as if the second had no copy."""
    rng = np.random.default_rng(0)
    age, other, noise = rng.normal(size=(3, 900))
    bank, court = pd.DataFrame({"age": age}), pd.DataFrame({"again": 5 - 3 * age, "other": other})
    labels = pd.Series((age + other + 0.5 * noise > 0).astype(float)).where(np.arange(900) >= 50)
    result = simulate(strategy, {"bank": bank[50:], "court": court}, labels)
    table = result.coefficients["estimate"]
    assert np.isnan(table["court", "again"])
    found = result.predictions.iloc[:, -1 if "decision" in result.predictions else 0]
    slopes = table["bank", "age"] * age[:50] + table["court", "other"] * other[:50]
    np.testing.assert_allclose(found, table["server", "intercept"] + slopes, atol=0.05)


def test_uncorrelated_blocks_need_one_regression():
    _, y, table, held = make(500, 14)
    fit, regressions = central(table, held, y, BlockCovariance(WIDTHS))
    assert regressions.present.tolist() == [[True] * 3]
    np.testing.assert_allclose(regressions.coefficients[0], fit.beta, rtol=1e-9)
    ends = np.cumsum((0, *WIDTHS))
    for k, (a, b) in enumerate(itertools.pairwise(ends)):
        own = fit.beta[a:b] @ fit.covariance[a:b, a:b] @ fit.beta[a:b]
        assert regressions.absent_variance[k] == pytest.approx(own, rel=1e-6)


def test_with_many_parties_a_row_gets_the_best_regression_that_it_can():
    occurring = np.array([[1, 1, 1, 0, 0, 0, 0]], dtype=bool)
    present = pattern_list(7, occurring)
    assert present[0].all()
    assert len(present) == 1 + 7 + 7 + 1 + 1
    unseen = 7.0 - present.sum(axis=1)
    held = np.array([[1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1], [0] * 7], dtype=bool)
    chosen = present[find_patterns(present, unseen, held)]
    assert (chosen[0] == occurring[0]).all()
    assert chosen[1].sum() == 1
    assert not (chosen[1] & ~held[1]).any()
    assert not chosen[2].any()


@pytest.mark.parametrize(("family", "mean"), [("binomial", expit), ("poisson", np.exp)])
def test_other_families_average_over_what_is_not_seen(family, mean):
    eta, unseen = np.array([-1.0, 0.5, 2.0]), np.array([0.0, 0.6, 1.5])
    table = prediction_table(family, eta, unseen, np.full(3, 0.01), 1.0)
    for i in range(3):
        if unseen[i] == 0:
            assert table["prediction"][i] == pytest.approx(mean(eta[i]))
            continue
        normal = stats.norm(eta[i], np.sqrt(unseen[i]))
        moments = [
            integrate.quad(lambda t, p=p, d=normal: mean(t) ** p * d.pdf(t), -12, 14)[0]
            for p in (1, 2)
        ]
        assert table["prediction"][i] == pytest.approx(moments[0], rel=1e-6)
        # The estimates add a little to what is not seen.
        spread = moments[1] - moments[0] ** 2
        assert 1.0 < table["std_error"][i] ** 2 / spread < 1.05
    assert (table["lower"] < table["prediction"]).all()
    assert (table["upper"] > table["prediction"]).all()


# -- every method -----------------------------------------------------------------------------

METHODS = {
    "vfem": VFEM(),
    "vfem, block": VFEM("block"),
    "vfem-iterations": VFEMIterations(max_iter=200),
    "complete-case": CompleteCase(),
    "mean-impute": MeanImpute(),
    "single": Single("bank"),
    "glm": VerticalGLM(penalty=None),
}


@pytest.mark.parametrize("strategy", METHODS.values(), ids=METHODS)
def test_every_linear_method_predicts_later_as_in_its_fit(strategy, tmp_path):
    tables, y, table, held = make(600, 15)
    hidden = y.where(np.arange(600) >= 60)
    fit = simulate(strategy, tables, hidden, min_rows=20)
    loaded = Result.load(fit.save(tmp_path / "fit"))
    new = {name: t.loc[t.index.isin(table.index[:60])] for name, t in tables.items()}
    later = loaded.predict(new, y)
    both = fit.predictions.join(later.predictions.add_suffix("_later"))
    assert len(both) == 60
    assert len(np.unique(held[:60], axis=0)) > 4
    for column in ("prediction", "std_error", "lower", "upper"):
        np.testing.assert_allclose(both[column], both[f"{column}_later"], rtol=1e-9)
    assert later.metrics["coverage"] > 0.85
    # Where all parties have a sample, it is the coefficients times the columns, but for the grid.
    whole = table[:60][held[:60].all(axis=1)]
    beta = fit.coefficients["estimate"]
    exact = beta["server", "intercept"] + sum(
        whole[column] * beta.get((name, column), 0.0) for name in NAMES for column in COLUMNS[name]
    )
    unit = sum(fit.predictor.grid * 2.0**c for c in fit.predictor.coarser.values())
    np.testing.assert_allclose(both.loc[whole.index, "prediction"], exact, atol=unit / 2 + 1e-6)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_other_families_predict_later_what_labels_are_expected(family, tmp_path):
    rng = np.random.default_rng(16)
    x = rng.normal(size=(1500, 3)) * [1.0, 0.7, 0.5]
    ids = [f"firm {i}" for i in range(1500)]
    mean = {"binomial": expit, "poisson": np.exp}[family]
    draw = {"binomial": lambda m: rng.random(1500) < m, "poisson": rng.poisson}[family]
    y = pd.Series(draw(mean(0.3 + x @ [1.0, -0.5, 0.5])).astype(float), ids)
    bank = pd.DataFrame(x[:, :2], ids, ["a", "b"])
    court = pd.DataFrame(x[:, 2:], ids, ["c"])
    hidden = y.where(np.arange(1500) >= 300)
    tables = {"bank": bank, "court": court[100:]}
    fit = simulate(VerticalGLM(family, None), tables, hidden)
    later = Result.load(fit.save(tmp_path / "fit")).predict(
        {"bank": bank[:300], "court": court[100:300]}, y
    )
    both = fit.predictions.join(later.predictions.add_suffix("_later"))
    assert len(both) == 300
    for column in fit.predictions:
        np.testing.assert_allclose(both[column], both[f"{column}_later"], rtol=1e-9)
    beta = fit.coefficients["estimate"].to_numpy()
    eta = beta[0] + x @ beta[1:]
    unit = sum(fit.predictor.grid * 2.0**c for c in fit.predictor.coarser.values())
    found = both.loc[ids[100:300]]
    np.testing.assert_allclose(found["linear_predictor"], eta[100:300], atol=unit / 2 + 1e-6)
    np.testing.assert_allclose(found["prediction"], mean(found["linear_predictor"]), rtol=1e-9)
    # Where the court lacks the sample, predictions are means over what it may have.
    lacking = both.loc[ids[:100]]
    drawn = x[rng.integers(0, 1500, 4000), 2]
    expected = np.mean(mean(beta[0] + x[:100, :2] @ beta[1:3] + beta[3] * drawn[:, None]), axis=0)
    np.testing.assert_allclose(lacking["prediction"], expected, rtol=0.06)
    assert (lacking["std_error"].mean()) > 2 * found["std_error"].mean()
    assert later.metrics["rmse"] < y[:300].std()
    if family == "binomial":  # of other labels there is no probability
        strange = fit.predict({"bank": bank[:300]}, y[:300] + (y[:300] > 0))
        assert "log_loss" in later.metrics
        assert "log_loss" not in strange.metrics


def test_samples_have_one_name_each_where_labels_have_ids_of_an_earlier_run():
    rng = np.random.default_rng(8)
    # As the table that an earlier run completed has them: in another order than the aligned rows.
    ids = pd.Index([f"aligned-{i}" for i in rng.permutation(400)], name="id")
    bank, court = (pd.DataFrame(rng.normal(size=(400, 1)), ids, [name]) for name in "bc")
    labels = (bank["b"] - court["c"] + 0.01 * rng.normal(size=400)).rename("y")
    known = labels.iloc[:300]
    result = simulate(
        VerticalGLM(penalty="none"), {"bank": bank, "court": court}, known,
        alignment="private-id",
    )  # fmt: skip
    found = result.predictions["prediction"]
    assert sorted(found.index) == sorted(ids[300:])
    np.testing.assert_allclose(found, labels[found.index], atol=0.1)


def test_the_server_s_names_differ_from_the_labels_ids():
    labels = pd.Series([1.0, 2.0], ["aligned-1", "aligned-1+"])
    alignment = Alignment(["bank"], np.zeros((3, 1), dtype=bool), None, np.array([0, 2]))
    found = sample_index(alignment, labels, np.arange(3))
    assert list(found) == ["aligned-1", "aligned-1++", "aligned-1+"]
