"""Intervals and draws of the joint normal model, new rows by an earlier fit, Rubin's rules."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from oracles import joint_normal
from scipy import stats

from flwr_vertical import Kind, Result, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.reports import imputation
from simulations.attacks.experiments import attack_run
from simulations.attacks.recording import record
from strategies.fknn import FKNN
from strategies.normal import JointNormal
from strategies.normal.coding import Coding
from strategies.normal.completion import slices_of
from strategies.normal.equations import Conditioner, JointModel, Shown
from strategies.normal.filling import complete_rows, draw_rows, errors_of, own_columns
from strategies.normal.rubin import pool
from tests.kit.deviations import asked_for
from tests.kit.ledgered import Nodes

SEED = 20


def normal_tables(n, seed, prefix="s", k=3, width=2, cells=0.1, blocks=0.2):
    """Return incomplete tables and complete ones, of one normal distribution."""
    rng = np.random.default_rng([SEED, seed])
    loadings = np.random.default_rng(SEED).normal(size=(2, k * width))
    x = rng.normal(size=(n, 2)) @ loadings + rng.normal(size=(n, k * width))
    ids = [f"{prefix}{i:04}" for i in range(n)]
    given, whole = {}, {}
    for j, columns in enumerate(np.split(np.arange(k * width), k)):
        frame = pd.DataFrame(x[:, columns], index=ids, columns=[f"x{c}" for c in columns])
        kept = frame[rng.random(n) >= blocks]
        whole[f"p{j}"], given[f"p{j}"] = frame, kept.mask(rng.random(kept.shape) < cells)
    return given, whole


def random_model(rng, widths):
    p = sum(widths)
    root = rng.normal(size=(p, p))
    none = np.zeros((p, len(widths)), dtype=bool)
    covariance = root @ root.T + np.eye(p)
    return JointModel(rng.normal(size=p), covariance, 0.0, np.inf, 1.0, none, none[:, 0])


# -- numerics --------------------------------------------------------------------------------


def test_columns_that_are_not_shown_complete_nothing():
    """Two parties lack a row; for one of them, a helper leaves out a column."""
    rng = np.random.default_rng(4)
    widths = [2, 2, 3]
    model, slices = random_model(rng, widths), slices_of(dict(enumerate(widths)))
    unshown = np.zeros((7, 3), dtype=bool)
    unshown[5, 0] = True
    model = replace(model, unshown=unshown)
    parts = Conditioner(model, slices, draws=True).given([2], [0, 1])
    two, three = np.array([4, 6]), np.array([4, 5, 6])
    sigma = model.covariance

    def of_one(place, rows, rank=1):
        """Of the columns in `rows`: no more directions than half of the helper's columns."""
        root = np.linalg.cholesky(sigma[np.ix_(rows, rows)])
        size = np.sqrt(np.diag(sigma)[place])[:, None]
        left, values, right = np.linalg.svd(sigma[place][:, rows] / size @ np.linalg.inv(root.T))
        kept = (left[:, :rank] * values[:rank]) @ right[:rank] @ np.linalg.inv(root)
        whole = np.zeros((2, 7))
        whole[:, rows] = size * kept
        return whole

    both = np.vstack([of_one(slices[0], two), of_one(slices[1], three)])
    found = np.vstack([parts[k].coefficients[2].T for k in (0, 1)])
    np.testing.assert_allclose(found, both[:, 4:], atol=1e-10)
    assert (found[:2, 1] == 0.0).all()
    error = np.hstack([np.eye(4), np.zeros((4, 3))]) - both
    unit = np.concatenate([parts[k].unit for k in (0, 1)])
    expected = error @ sigma @ error.T + np.diag(unit**2 / 12)
    for k in (0, 1):
        np.testing.assert_allclose(parts[k].residual, expected[slices[k], slices[k]], atol=1e-10)
    factor = np.vstack([parts[k].factor for k in (0, 1)]).astype(float)
    np.testing.assert_allclose(factor @ factor.T, expected, atol=1e-5)


def test_errors_and_draws_of_own_cells_are_those_of_the_conditional_distribution():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    left, n = root @ root.T + 0.1 * np.eye(4), 40_000
    given = np.tile([1.0, np.nan, -2.0, np.nan], (n, 1))
    mean = np.tile(rng.normal(size=4), (n, 1))
    o, m = [0, 2], [1, 3]
    slope = left[np.ix_(m, o)] @ np.linalg.inv(left[np.ix_(o, o)])
    expected = left[np.ix_(m, m)] - slope @ left[np.ix_(o, m)]
    errors = errors_of(np.isnan(given), left)[0]
    np.testing.assert_allclose(errors[m], np.sqrt(np.diag(expected)), rtol=1e-6)
    assert (errors[o] == 0).all()
    noise = rng.normal(size=(1, n, 4)) @ np.linalg.cholesky(left).T
    (drawn,) = draw_rows(given, mean, left, noise)
    assert (drawn[:, o] == given[:, o]).all()
    np.testing.assert_allclose(np.cov(drawn[:, m].T), expected, atol=0.05 * expected.max())
    completed = complete_rows(given, mean, left)[0, m]
    np.testing.assert_allclose(drawn[:, m].mean(axis=0), completed, atol=0.05)


def test_what_filling_leaves_of_covariances_is_told_to_the_grid():
    rng = np.random.default_rng(1)
    root, n = rng.normal(size=(5, 5)), 20_000
    x = rng.normal(size=(n, 5)) @ root.T
    values, other = x[:, :3], x[:, 3:]
    missing = rng.random((n, 3)) < [0.3, 0.1, 0.2]
    missing[rng.random(n) < 0.05] = True
    own = own_columns(np.where(missing, np.nan, values))
    filled = own.fill(np.where(missing, np.nan, values)) - own.mean
    seen = own.shown @ own.covariance @ own.shown.T + own.spread
    scale = np.abs(own.covariance).max()
    np.testing.assert_allclose(filled.T @ filled / n, seen, atol=0.02 * scale)
    across = np.cov(values.T, other.T)[:3, 3:]
    found = (filled.T @ (other - other.mean(axis=0))) / n
    np.testing.assert_allclose(found, own.shown @ across, atol=0.02 * scale)
    whole = np.cov(x.T)
    shown = Shown.of([(own.shown, own.spread), (np.eye(2), np.zeros((2, 2)))])
    f = np.concatenate([filled, other], axis=1)
    np.testing.assert_allclose(shown.undone(np.cov(f.T)), whole, atol=0.06 * np.abs(whole).max())
    grid = 0.25 / np.sqrt(n)
    steps = (own.shown - np.eye(3)) / grid
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)
    # Of a table without gaps nothing is lost; of one that is nearly empty, errors stay bounded.
    np.testing.assert_array_equal(own_columns(values).shown, np.eye(3))
    rare = np.where(rng.random((n, 3)) < 0.95, np.nan, values)
    assert np.linalg.svd(own_columns(rare).shown, compute_uv=False).min() > 0.2


@pytest.mark.parametrize("whole", [True, False])
def test_intervals_count_what_is_not_known_once(whole):
    """A term of a hundredth, times two, is less than four hundredths of the variance."""
    covariance = np.eye(3)
    covariance[0, 1] = covariance[1, 0] = 0.015
    apart = np.zeros((3, 2), dtype=bool)
    apart[1:, 0] = [True, whole]
    apart[0, 1] = whole
    none = np.zeros(3, dtype=bool)
    slices = [slice(0, 1), slice(1, 3)]
    for size, sure in ((1.0, True), (2.0, False)):
        model = JointModel(np.zeros(3), covariance.copy(), 0.0, np.inf, 1.0, apart, none)
        model.covariance[0, 1] = model.covariance[1, 0] = 0.015 * size
        assert Conditioner(model, slices).given([1], [0])[0].sure.tolist() == [sure]


def test_means_and_noise_are_those_of_one_place_whatever_parties_show():
    """Two parties lack a row together, a third shows half of a column; noise goes together."""
    rng = np.random.default_rng(2)
    widths = [2, 3, 2, 1]
    model, slices = random_model(rng, widths), slices_of(dict(enumerate(widths)))
    shown, spread = np.eye(8), np.zeros((8, 8))
    shown[5, 5], spread[5, 5] = 0.5, 0.7
    found = Conditioner(model, slices, Shown(shown, spread), draws=True).given([2, 3], [0, 1])
    o, m = np.arange(5, 8), np.arange(5)
    t, s = shown[np.ix_(o, o)], model.covariance
    seen = t @ s[np.ix_(o, o)] @ t.T + spread[np.ix_(o, o)]
    f = s[np.ix_(m, o)] @ t.T @ np.linalg.inv(seen)
    left = s[np.ix_(m, m)] - f @ t @ s[np.ix_(o, m)]
    parts = [found[0], found[1]]
    got = np.concatenate([np.vstack([p.coefficients[2], p.coefficients[3]]).T for p in parts])
    np.testing.assert_allclose(got, f, atol=1e-9)
    unit = np.concatenate([p.unit for p in parts])
    np.testing.assert_allclose(unit, np.maximum(np.sqrt(np.diag(left)),
                                                np.sqrt(np.diag(s)[m]) / 8) / 4)  # fmt: skip
    noise = np.vstack([p.factor for p in parts])
    rounding = np.diag(2 * unit**2 / 12)
    np.testing.assert_allclose(noise @ noise.T, left + rounding, rtol=1e-5, atol=1e-5)
    for p, own in zip(parts, (slice(0, 2), slice(2, 5)), strict=True):
        np.testing.assert_allclose(p.residual, (left + rounding)[own, own], atol=1e-9)
        assert p.factor.shape == (own.stop - own.start, 5)
        assert p.columns.tolist() == [0, 1, 2, 3, 4]
        assert p.sure.all()
    # The longer way, by the inverse over all columns, gives the same.
    many = Conditioner(model, slices, Shown(shown, spread)).given([1, 2, 3], [0])[0]
    o = np.arange(2, 8)
    t = shown[np.ix_(o, o)]
    seen = t @ s[np.ix_(o, o)] @ t.T + spread[np.ix_(o, o)]
    f = s[np.ix_(m[:2], o)] @ t.T @ np.linalg.inv(seen)
    got = np.vstack([many.coefficients[k] for k in (1, 2, 3)]).T
    np.testing.assert_allclose(got, f, atol=1e-9)


def test_levels_are_drawn_by_their_shares():
    rng = np.random.default_rng(3)
    coding = Coding([Kind.BINARY, Kind.CATEGORICAL, Kind.ORDINAL, Kind.CONTINUOUS], [2, 3, 4, 0])
    n = 20_000
    mean = np.tile([0.3, 0.5, 0.7, -0.1, 1.4, 2.0], (n, 1))
    error = np.full((n, 6), 0.5)
    codes = coding.decode_drawn(mean, 0.5 * rng.normal(size=(n, 6)), error)
    assert (codes[:, 0] == 1).mean() == pytest.approx(0.3, abs=0.02)
    shares = [(codes[:, 1] == level).mean() for level in range(3)]
    assert shares == pytest.approx([0.5 / 1.2, 0.7 / 1.2, 0.0], abs=0.02)
    assert set(codes[:, 2]) <= {0, 1, 2, 3}
    assert codes[:, 3].std() == pytest.approx(0.5, rel=0.05)


# -- Rubin's rules ---------------------------------------------------------------------------


def fit_of(estimates, errors, names=("a", "b")):
    index = pd.MultiIndex.from_tuples([("bank", name) for name in names])
    table = pd.DataFrame({"estimate": estimates, "std_error": errors}, index=index)
    return Result("any", coefficients=table)


def test_pooling_is_that_of_rubin_and_of_barnard():
    q = np.array([[1.0, 2.0], [1.4, 2.0], [0.9, 2.0], [1.2, 2.0]])
    fits = [fit_of(row, [0.3, 0.1]) for row in q]
    fits[1] = fit_of([2.0, 1.4], [0.1, 0.3], names=("b", "a"))  # another order
    found = pool(fits, df=50)
    b, u, m = q[:, 0].var(ddof=1), 0.09, 4
    total = u + (1 + 1 / m) * b
    share = (1 + 1 / m) * b / total
    v = (m - 1) / share**2
    observed = 51 / 53 * 50 * (1 - share)
    df = 1 / (1 / v + 1 / observed)
    row = found.loc[("bank", "a")]
    assert row["estimate"] == pytest.approx(q[:, 0].mean())
    assert row["std_error"] == pytest.approx(np.sqrt(total))
    assert row["df"] == pytest.approx(df)
    ratio = (1 + 1 / m) * b / u
    assert row["fmi"] == pytest.approx((ratio + 2 / (df + 3)) / (1 + ratio))
    half = stats.t.ppf(0.975, df) * np.sqrt(total)
    assert row["ci_high"] - row["estimate"] == pytest.approx(half)
    assert pool(fits).loc[("bank", "a"), "df"] == pytest.approx(v)
    # Where draws agree, the fit on complete data is what counts.
    same = found.loc[("bank", "b")]
    assert same["std_error"] == pytest.approx(0.1)
    assert same["df"] == pytest.approx(51 / 53 * 50)


@pytest.mark.parametrize(
    ("fits", "options", "error", "says"),
    [
        ([fit_of([1, 2], [1, 1])], {}, ConfigError, "two draws or more, got 1"),
        ([fit_of([1, 2], [1, 1])] * 2, {"df": 0}, ConfigError, "df must be above 0"),
        ([fit_of([1, 2], [1, 1])] * 2, {"level": 1}, ConfigError, "level must be"),
        ([fit_of([1, 2], [1, 1]), Result("any")], {}, DataError, "fit 1 of 'any' has no standard"),
        (
            [fit_of([1, 2], [1, 1]), fit_of([1, 2], [1, 1], names=("a", "c"))],
            {}, DataError, "other coefficients than the first",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_pooled_is_said(fits, options, error, says):
    with pytest.raises(error, match=says):
        pool(fits, **options)


# -- runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fit():
    given, whole = normal_tables(1500, 0)
    result = simulate(JointNormal(draws=3), given, truth=whole)
    return SimpleNamespace(given=given, whole=whole, result=result)


def test_intervals_cover_and_stand_beside_the_completed_cells(fit):
    covered = [values["coverage"] for values in fit.result.party_metrics.values()]
    assert 0.93 < np.mean(covered) < 0.97
    for name, given in fit.given.items():
        table, found = fit.result.tables[name], fit.result.intervals[name]
        assert list(found.columns[:3]) == [f"{table.columns[0]} {what}"
                                           for what in ("std_error", "lower", "upper")]  # fmt: skip
        assert found.index.equals(table.index)
        there = given.reindex(table.index).notna()
        for column in table:
            ends = found[[f"{column} lower", f"{column} upper"]]
            assert (ends.isna().any(axis=1) == there[column]).all()
            middle = ends.mean(axis=1)[~there[column]]
            np.testing.assert_allclose(middle, table[column][~there[column]], rtol=1e-9)
        for drawn in fit.result.draws:
            kept = drawn[name].where(there)
            pd.testing.assert_frame_equal(kept, table.where(there))
            assert (drawn[name] != table).where(~there, True).to_numpy().all()
    assert len(fit.result.draws) == 3


def test_the_report_shows_how_sure_imputed_values_are(fit):
    """With the truth and without, as a party has it; and of one column, what stands there."""
    own = Result("joint-normal", originals={"p0": fit.given["p0"]}, truth={"p0": fit.whole["p0"]},
                 tables=fit.result.tables, intervals=fit.result.intervals)  # fmt: skip
    titles = [section.heading for section in imputation.sections(own)]
    assert titles == ["Imputed against true values", "How sure imputed values are"]
    own.truth = {}
    titles = [section.heading for section in imputation.sections(own)]
    assert titles == ["How sure imputed values are", "Imputed and observed values"]
    columns = imputation.columns_of(own)
    row = imputation.errors_of(columns).loc[("p0", columns[0].column)]
    errors = fit.result.intervals["p0"][f"{columns[0].column} std_error"].dropna()
    assert row["cells"] == row["with interval"] == len(errors)
    assert row["std_error"] == pytest.approx(errors.mean())


def test_draws_cost_no_round_and_follow_the_seed(fit):
    one, other = (simulate(JointNormal(draws=draws), fit.given) for draws in (0, 3))
    assert one.ledger.rounds == other.ledger.rounds == 2 + 6
    assert one.draws == []
    for name, table in one.tables.items():
        pd.testing.assert_frame_equal(table, fit.result.tables[name])
        for d in range(3):
            pd.testing.assert_frame_equal(other.draws[d][name], fit.result.draws[d][name])
    third = simulate(JointNormal(draws=1), fit.given, seed=1)
    assert not third.draws[0]["p0"].equals(fit.result.draws[0]["p0"])


def test_draws_of_parties_that_lack_the_same_row_go_together():
    _, whole = normal_tables(900, 2, cells=0.0)
    ids = whole["p0"].index
    given = whole | {name: whole[name].iloc[:600] for name in ("p0", "p1")}
    result = simulate(JointNormal(draws=30), given)
    late = ids[600:]
    mean, *draws = [
        np.concatenate([tables[name].loc[late].to_numpy() for name in ("p0", "p1")], axis=1)
        for tables in (result.tables, *result.draws)
    ]
    noise = np.concatenate([drawn - mean for drawn in draws])
    unit = np.array([2.0 ** np.ceil(np.log2(given[name][c].std(ddof=0)))
                     for name in ("p0", "p1") for c in given[name]])  # fmt: skip
    names = result.model.parties
    slices = slices_of(dict.fromkeys(names, 2))
    parts = Conditioner(result.model.joint(names), slices, draws=True).given([2], [0, 1])
    root = np.vstack([parts[0].factor, parts[1].factor])
    expected = root @ root.T * np.outer(unit, unit)
    np.testing.assert_allclose(np.cov(noise.T), expected, atol=0.04 * np.abs(expected).max())
    assert np.abs(expected[:2, 2:]).max() > 0.1 * expected.max()  # they do depend on each other


def test_new_rows_are_completed_by_the_model_of_the_fit(fit):
    given, whole = normal_tables(300, 1, prefix="n", cells=0.0)
    found = simulate(JointNormal(draws=1), given, fitted=fit.result, truth=whole)
    assert found.ledger.rounds == 2 + 5
    model = fit.result.model
    units = units_of(fit.result)
    held = np.stack([whole["p0"].index.isin(given[name].index) for name in given], axis=1)
    x = np.concatenate([((whole[n] - units[n].center) / units[n].unit).to_numpy() for n in whole],
                       axis=1)  # fmt: skip
    rows = np.flatnonzero(~held[:, 0] & held[:, 1] & held[:, 2])
    slope = np.linalg.solve(model.covariance[2:, 2:], model.covariance[2:, :2])
    best = model.mean[:2] + (x[rows, 2:] - model.mean[2:]) @ slope
    best = best * units["p0"].unit + units["p0"].center
    got = found.tables["p0"].loc[whole["p0"].index[rows]].to_numpy()
    size = whole["p0"].std().to_numpy()
    assert (np.abs(got - best) / size).max() <= 0.25 + 1e-6
    covered = [values["coverage"] for values in found.party_metrics.values()]
    assert 0.92 < np.mean(covered) < 0.98
    assert found.draws[0]["p0"].shape == found.tables["p0"].shape
    # Whoever is there: without a party, even a row or two of another one.
    few = {"p2": given["p2"], "p0": given["p0"].iloc[:2]}
    table = simulate(JointNormal(), few, fitted=fit.result).tables["p0"]
    assert set(table.index) == set(given["p2"].index) | set(few["p0"].index)
    assert table.notna().all().all()
    with pytest.raises(ConfigError, match="not a run that completed new rows"):
        simulate(JointNormal(), given, fitted=found)


def units_of(result):
    from strategies.normal.part import JointNormalPart

    return {name: JointNormalPart.from_bytes(b) for name, b in result._party_models.items()}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            lambda given: given | {"p1": given["p1"].rename(columns={"x2": "other"})},
            DataError, "lacks \\['x2'\\] of the earlier rows",
        ),
        (
            lambda given: given | {"stranger": given["p2"]},
            ConfigError, "parties \\['stranger'\\] took no part in the fit",
        ),
        (lambda given: {"p0": given["p0"]}, ConfigError, "it needs two parties or more"),
    ],
)  # fmt: skip
def test_new_rows_that_do_not_fit_the_model_are_refused(fit, change, error, says):
    given, _ = normal_tables(100, 1, prefix="n")
    with pytest.raises(error, match=says):
        simulate(JointNormal(), change(given), fitted=fit.result)


def test_a_fit_of_another_strategy_and_tables_alone_are_refused(fit):
    given, _ = normal_tables(100, 1, prefix="n")
    fknn = simulate(FKNN(), fit.given)
    with pytest.raises(ConfigError, match="fitted names a result of 'fknn'"):
        simulate(JointNormal(), given, fitted=fknn)
    with pytest.raises(PartyError, match="what an earlier run left, and the server fits anew"):
        simulate(JointNormal(), given, fitted=fit.result.tables)
    with pytest.raises(ConfigError, match="draws"):
        JointNormal(draws=-1)


def test_nodes_count_new_rows_as_those_of_a_fit_and_keep_intervals_beside_the_table(tmp_path):
    given, _ = normal_tables(400, 0)
    nodes = Nodes(tmp_path, given)
    early = nodes.run(JointNormal(draws=2))
    folder = tmp_path / "out" / "p0" / "run 1"
    assert {path.name for path in folder.glob("p0.*")} == {
        "p0.parquet", "p0.intervals.parquet", "p0.draw-1.parquet", "p0.draw-2.parquet",
        "p0.model.npz",
    }  # fmt: skip
    table, intervals = (
        pd.read_parquet(folder / f"p0{what}.parquet") for what in ("", ".intervals")
    )
    assert table.index.equals(intervals.index)
    new, _ = normal_tables(60, 1, prefix="n")
    nodes.write(new)
    late = nodes.run(JointNormal().building_on(early), fitted="run 1")
    assert late.ledger.rounds == 2 + 5
    noted = nodes.entries("bits", "p0")[-2:]
    assert [entry["receiver"] for entry in noted] == ["party 'p1'", "party 'p2'"]
    assert all(entry["bits"] == 8 * 2 and 0 < entry["n_rows"] < 60 for entry in noted)
    nodes.write(normal_tables(60, 3, prefix="m")[0])
    nodes.state(policy_openings=0)
    said = nodes.refused("openings", JointNormal().building_on(early), fitted="run 1")
    assert "terms of means of 2 column(s)" in said
    other = simulate(JointNormal(), normal_tables(400, 9)[0])
    with pytest.raises(PartyError, match="but the server asks for the model"):
        nodes.run(JointNormal().building_on(other), fitted="run 1")
    with pytest.raises(PartyError, match="name the run of the fit as 'fitted'"):
        simulate(JointNormal().building_on(other), new)


def test_intervals_that_depend_on_what_is_not_known_are_withheld():
    """p0 lacks rows that p1 and p2 hold, who share none else: how they vary together is unknown."""
    _, whole = normal_tables(1200, 0)
    rows = whole["p0"].index
    given = {
        "p0": whole["p0"].iloc[:1150],
        "p1": pd.concat([whole["p1"].iloc[:500], whole["p1"].iloc[1150:]]),
        "p2": whole["p2"].iloc[500:],
    }
    result = simulate(JointNormal(), given, truth=whole)
    assert any("intervals that depend on that are withheld" in note for note in result.notes)
    ends = result.intervals["p0"].loc[rows[1150:]]
    assert ends.isna().all().all()
    assert result.party_metrics["p0"]["cells_without_interval"] == 2 * 50
    assert result.tables["p0"].notna().all().all()
    # Of p1 given p0 and p2 nothing but the relation with p0 counts.
    assert result.intervals["p1"].loc[rows[600:1150]].notna().all().all()
    assert 0.9 < result.party_metrics["p1"]["coverage"] < 0.98


def test_constant_columns_and_more_columns_than_rows():
    given, _ = normal_tables(400, 0)
    given["p0"] = given["p0"].assign(one=7.0)
    result = simulate(JointNormal(draws=1), given)
    assert (result.tables["p0"]["one"] == 7.0).all()
    assert (result.draws[0]["p0"]["one"] == 7.0).all()
    late = result.intervals["p0"].drop(given["p0"].index)
    assert (late["one std_error"] == 0).all()
    wide, _ = normal_tables(110, 4, k=12, width=10, cells=0.02, blocks=0.0)
    result = simulate(JointNormal(), wide, min_rows=10)
    assert any("120 columns are more than the 110 rows" in note for note in result.notes)
    assert all(table.notna().all().all() for table in result.tables.values())


def test_columns_that_nothing_may_be_told_of_are_completed_from_the_own_ones():
    """A level of three rows is too rare to be told of; the party knows how frequent it is."""
    given, _ = normal_tables(600, 5, cells=0.0, blocks=0.0)
    x = given["p0"]["x0"]
    level = np.where(x > 0.5, "high", "low").astype(object)
    level[:3] = "rare"
    whole = {**given, "p0": given["p0"].assign(level=level)}
    late = whole | {"p0": whole["p0"].iloc[:400]}
    late["p0"].iloc[100:150, 2] = None
    result = simulate(JointNormal(draws=2), late, truth=whole)
    common = pd.Series(level[400:]).value_counts(normalize=True).max()
    for tables in (result.tables, *result.draws):
        assert (tables["p0"]["level"] == "rare").sum() < 30
        held = (tables["p0"]["level"].iloc[100:150].to_numpy() == level[100:150]).mean()
        assert held > 0.6  # by the own column
    found = result.tables["p0"].loc[x.index[400:], "level"].to_numpy()
    assert (found == level[400:]).mean() >= common - 0.02


def test_wide_parties_of_which_one_lacks_a_few_rows_more_than_a_hundred():
    """The server leaves them out where the parties would refuse what they alone tell of."""
    whole = normal_tables(1200, 8, width=25, cells=0.0)[1]
    given = whole | {"p1": whole["p1"].iloc[120:]}
    result = simulate(JointNormal(), given, truth=whole)
    assert result.metrics["rows_left_out"] == 120
    assert result.party_metrics["p1"]["rmse_in_sd"] < 1.0


NOT_THERE = object()


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("factor", lambda f: f * 1.1, "the noise of draws has another covariance"),
        ("factor", lambda f: f[:, :1], "argument 'factor'"),
        ("factor", lambda f: NOT_THERE, "the noise of 1 draws was left out"),
        ("factor", lambda f: f + np.float32(np.nan), "numbers that are not finite"),
        ("sure", lambda flags: flags[:, :1], "argument 'sure'"),
        ("draws", lambda n: 9, "argument 'draws'"),
    ],
)
def test_a_server_that_deviates_is_refused(fit, monkeypatch, name, change, says):
    def deviating(common, each):
        del common["draws"]
        for own in each.values():
            own["draws"] = 1
            if (value := change(own.pop(name))) is not NOT_THERE:
                own[name] = value

    asked_for(monkeypatch, "finish", deviating)
    with pytest.raises(PartyError, match=says):
        simulate(JointNormal(draws=1), fit.given)


def test_attacks_on_completing_new_rows_find_nothing(fit):
    given, _ = normal_tables(260, 1, prefix="n")
    run = record(JointNormal(draws=2), given, fitted=fit.result)
    assert all(finding.beyond == 0.0 for finding in attack_run(run))


def test_the_outcome_must_be_a_column_when_cells_are_drawn():
    """The slope of x1 on x2: of draws that know x1 right, of draws without it too small."""
    _, whole = normal_tables(2500, 6, cells=0.0)
    y = whole["p0"]["x1"]
    given = whole | {"p1": whole["p1"].iloc[:1000]}
    ids = whole["p0"].index

    def slope(tables):
        x = np.column_stack([np.ones(len(ids)), tables["p1"].loc[ids, "x2"]])
        return np.linalg.lstsq(x, y.loc[ids], rcond=None)[0][1]

    best = slope(whole)
    with_outcome = simulate(JointNormal(draws=2), given)
    without = simulate(JointNormal(draws=2), given | {"p0": given["p0"][["x0"]]})
    two_parties = simulate(JointNormal(draws=1), {n: given[n] for n in ("p1", "p2")})
    right, low = (np.mean([slope(d) for d in r.draws]) for r in (with_outcome, without))
    assert any("held by one party alone" in note for note in two_parties.notes)
    assert abs(right / best - 1.0) < 0.08
    assert low / best < 0.85


def test_completed_cells_and_their_errors_are_those_of_one_place(fit):
    """Row by row, from all columns at once: what is filled, undone, repaired, conditioned."""
    parts = [fit.given[n].reindex(fit.whole[n].index).to_numpy(float) for n in fit.given]
    width, k = parts[0].shape[1], len(parts)
    # A row whose cells are all open is held, too.
    held = np.stack([fit.whole[n].index.isin(fit.given[n].index) for n in fit.given], axis=1)
    spans = [slice(j * width, (j + 1) * width) for j in range(k)]
    shown, spread, filled = np.eye(k * width), np.zeros((k * width,) * 2), []
    units = units_of(fit.result)
    for j, (name, part) in enumerate(zip(fit.given, list(parts), strict=True)):
        part = parts[j] = (part - units[name].center) / units[name].unit
        own = own_columns(part[held[:, j]])
        shown[spans[j], spans[j]], spread[spans[j], spans[j]] = own.shown, own.spread
        block = np.full(part.shape, np.nan)
        block[held[:, j]] = own.fill(part[held[:, j]])
        filled.append(block)
    mean, covariance, n_rows = joint_normal.covariance_of_pairs(filled)
    inverse = np.linalg.inv(shown)
    covariance = inverse @ (covariance - spread) @ inverse.T
    party = np.repeat(np.arange(k), width)
    covariance, weight = joint_normal.repaired(covariance, n_rows, party)
    assert fit.result.metrics["shrinkage"] == pytest.approx(weight, rel=1e-5)
    np.testing.assert_allclose(fit.result.model.covariance, covariance, atol=1e-6)
    n = 1.0 / np.mean(1.0 / n_rows[~np.eye(len(n_rows), dtype=bool)])
    f, x = np.concatenate(filled, axis=1), np.concatenate(parts, axis=1)
    off, errors = [], []
    for i in range(0, len(x), 5):
        for j, name in enumerate(fit.given):
            m = np.flatnonzero(np.isnan(x[i, spans[j]])) + spans[j].start
            helpers = [h for h in np.flatnonzero(held[i]) if h != j]
            if not len(m) or len(helpers) < 2 or fit.whole[name].index[i] not in fit.result.tables[
                name].index:  # fmt: skip
                continue  # one helper tells fewer numbers
            here = np.arange(spans[j].start, spans[j].stop)
            o = np.concatenate([np.arange(spans[h].start, spans[h].stop) for h in helpers])
            t = shown[np.ix_(o, o)]
            seen = t @ covariance[np.ix_(o, o)] @ t.T + spread[np.ix_(o, o)]
            slope = np.linalg.solve(seen, t @ covariance[np.ix_(o, here)]).T
            told = mean[here] + slope @ (f[i, o] - mean[o])
            left = covariance[np.ix_(here, here)] - slope @ t @ covariance[np.ix_(o, here)]
            explained = slope @ t @ covariance[np.ix_(o, here)]
            more = 2.0 * (1.0 - n / np.diag(n_rows).mean()) * explained
            left = left + 2.0 * (1.0 - weight) ** 2 * len(o) / n * (left + more)
            size = np.sqrt(np.diag(covariance)[here])
            unit = np.maximum(np.sqrt(np.diag(left)), size / 8) / 4
            left += np.diag(len(helpers) * unit**2 / 12)
            best = complete_rows(x[[i], spans[j]], told[None], left)[0]
            error = errors_of(np.isnan(x[[i], spans[j]]), left)[0]
            row = fit.whole[name].index[i]
            got = (fit.result.tables[name].loc[row] - units[name].center) / units[name].unit
            off += (np.abs(got.to_numpy() - best) / size).tolist()
            stated = fit.result.intervals[name].loc[row].to_numpy().reshape(-1, 3)[:, 0]
            errors += (stated / units[name].unit / error)[m - spans[j].start].tolist()
    assert len(errors) > 100
    assert max(off) < 0.3
    assert np.sqrt(np.mean(np.square(off))) < 0.1
    np.testing.assert_allclose(errors, 1.0, rtol=1e-4)
