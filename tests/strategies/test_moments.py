"""The normal model from moments: against rows, generic optimisers; the moments that are opened."""

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from oracles import normal

from flwr_vertical import Strategy, Table, simulate
from flwr_vertical.errors import DataError
from strategies.glm import VerticalGLM
from strategies.least_squares import MeanImpute
from strategies.linear.design import make_design
from strategies.linear.formula_design import make_formula_design
from strategies.linear.moment_party import MomentParty
from strategies.linear.moments import collect
from strategies.linear.moments.collect import open_moments
from strategies.linear.moments.covariances import BlockCovariance, FullCovariance
from strategies.linear.moments.fit import Likelihood, fit_normal
from strategies.linear.moments.groups import by_pattern, complete_rows
from strategies.linear.moments.patterns import Patterns
from strategies.linear.moments.steps import rough_units
from strategies.svm import VerticalSVM
from strategies.vfem import VFEM


def data(n, widths, correlation=0.4, missing=0.35, seed=0, beta=None):
    """Columns of several parties with rows missing in blocks, the label last; beta too."""
    rng = np.random.default_rng(seed)
    p = sum(widths)
    z = rng.multivariate_normal(
        np.arange(p) / p, correlation + (1 - correlation) * np.eye(p), size=n
    )
    beta = rng.normal(size=p) if beta is None else beta
    y = 0.7 + z @ beta + rng.normal(size=n)
    absent = rng.random((n, len(widths))) < missing
    absent[absent.all(axis=1), 0] = False
    return np.column_stack([np.where(np.repeat(absent, widths, axis=1), np.nan, z), y]), beta


def full(d):
    return FullCovariance(np.ones((d, d), dtype=bool))


def test_the_likelihood_from_moments_is_that_of_the_rows():
    rows, _ = data(60, [2, 1], seed=1)
    rows[3, -1] = np.nan  # a sample without a label
    mean = np.array([0.1, 0.2, -0.3, 1.0])
    covariance = 0.3 + np.diag([1.0, 2.0, 0.5, 4.0])
    found = Patterns.of(rows).log_likelihood(mean, covariance)
    assert found == pytest.approx(normal.log_likelihood(rows, mean, covariance), abs=1e-8)
    assert Patterns.of(rows).log_likelihood(mean, -covariance) == -np.inf


@pytest.mark.parametrize("model", [full(4), BlockCovariance([2, 1])], ids=["full", "block"])
def test_score_and_information_are_derivatives_of_the_likelihood(model):
    patterns = Patterns.of(data(80, [2, 1], seed=2)[0])
    covariance = 0.2 + np.diag([1.0, 1.5, 0.8, 3.0])
    theta = np.concatenate([[0.1, 0.0, 0.4, 0.5], model.nearest(covariance)])

    def value(theta):
        return patterns.log_likelihood(theta[:4], model.covariance(theta[4:]))

    def score(theta):
        by_mean, by_covariance = patterns.score(theta[:4], model.covariance(theta[4:]))
        directions = model.directions(theta[4:])
        return np.concatenate([by_mean, np.einsum("ijk,ij->k", directions, by_covariance)])

    h = 1e-5
    steps = h * np.eye(len(theta))
    numeric = [(value(theta + e) - value(theta - e)) / (2 * h) for e in steps]
    np.testing.assert_allclose(score(theta), numeric, rtol=1e-5, atol=1e-4)
    hessian = np.array([(score(theta + e) - score(theta - e)) / (2 * h) for e in steps])
    information = Likelihood(patterns, model).information(theta[:4], theta[4:], observed=True)
    np.testing.assert_allclose(information, -hessian, rtol=1e-6, atol=1e-4)


def test_expected_information_is_the_mean_of_the_observed_one():
    rng = np.random.default_rng(3)
    model, mean = full(3), np.array([0.5, -1.0, 2.0])
    covariance = np.array([[2.0, 0.5, 0.3], [0.5, 1.0, -0.2], [0.3, -0.2, 1.5]])
    absent = rng.random((400, 3)) < 0.3
    absent[absent.all(axis=1)] = False
    found = []
    for _ in range(200):
        rows = rng.multivariate_normal(mean, covariance, size=400)
        patterns = Patterns.of(np.where(absent, np.nan, rows))
        found.append(Likelihood(patterns, model).information(mean, model.nearest(covariance), True))
    expected = Likelihood(patterns, model).information(mean, model.nearest(covariance), False)
    error = np.std(found, axis=0) / np.sqrt(200)
    assert (np.abs(np.mean(found, axis=0) - expected) <= 5 * error + 1e-9).all()


def test_the_maximum_is_that_of_a_generic_optimiser():
    rows, _ = data(60, [1, 1], seed=4)
    fit = fit_normal(Patterns.of(rows), full(3))
    mean, covariance, value = normal.maximum(
        rows, np.ones((3, 3), bool), np.zeros(3), 2.0 * np.eye(3)
    )
    assert fit.converged
    assert fit.log_likelihood >= value - 1e-6
    np.testing.assert_allclose(fit.mean, mean, atol=2e-4)
    np.testing.assert_allclose(fit.covariance, covariance, atol=2e-3)


def apart(n, q, correlation=0.4, seed=0, parties=3):
    """Parties of which the first two share no row, as rows with NaN, and the coefficients."""
    rows, beta = data(n, [q] * parties, correlation, missing=0.0, seed=seed)
    first = np.random.default_rng(seed).random(n) < 0.5
    rows[np.ix_(first, range(q))], rows[np.ix_(~first, range(q, 2 * q))] = np.nan, np.nan
    return rows, beta


def of_what_is_told(rows, fewest=30):
    patterns = Patterns.of(rows)
    return fit_normal(patterns, FullCovariance(patterns.joint_rows() >= fewest))


def test_zero_partial_covariances_are_those_of_a_generic_optimiser():
    """Also where the pairs that share no row are no chain, and where a few rows are shared."""
    rng = np.random.default_rng(3)
    ring, _ = data(80, [1] * 4, missing=0.0, seed=5)
    hidden = np.array([[0, 1], [1, 2], [2, 3], [3, 0]])[rng.integers(0, 4, size=80)]
    ring[np.arange(80)[:, None], hidden] = np.nan  # 0 and 2, and 1 and 3, share no row
    few = apart(60, 1, seed=2)[0]
    few[:5, :2] = data(5, [1] * 3, missing=0.0, seed=2)[0][:, :2]
    for rows in (apart(60, 1, seed=1)[0], few, ring):
        free = Patterns.of(rows).joint_rows() >= 10
        assert not free.all()
        fit = of_what_is_told(rows, 10)
        start = np.nanmean(rows, axis=0), np.diag(np.nanvar(rows, axis=0))
        mean, covariance, value = normal.maximum(rows, free, *start)
        assert fit.converged
        assert fit.log_likelihood >= value - 1e-6
        np.testing.assert_allclose(fit.mean, mean, atol=2e-3)
        np.testing.assert_allclose(fit.covariance, covariance, atol=5e-3)


def test_what_moves_with_a_covariance_that_no_rows_tell():
    rows, _ = apart(400, 1, seed=4, parties=4)
    fit = of_what_is_told(rows)
    assert fit.moved.shape == (2, 5, 1)
    for r, moved in zip((0.5, -0.5), fit.moved[:, :, 0], strict=True):
        inverse = np.linalg.inv(fit.covariance)
        change = r / np.sqrt(inverse[0, 0] * inverse[1, 1])
        covariance = fit.covariance.copy()
        covariance[[0, 1], [1, 0]] += change
        other = np.linalg.inv(covariance)
        assert -other[0, 1] / np.sqrt(other[0, 0] * other[1, 1]) == pytest.approx(r)
        beta = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
        level = fit.mean[-1] - fit.mean[:-1] @ beta
        np.testing.assert_allclose(moved[1:], beta - fit.beta, atol=1e-12)
        assert moved[0] == pytest.approx(level - fit.intercept)
    assert fit_normal(Patterns.of(data(99, [1, 1])[0]), full(3)).moved.shape == (2, 3, 0)


@pytest.mark.parametrize("ring", [False, True])
def test_implied_covariances_follow_the_free_ones(ring):
    free = np.ones((5, 5), dtype=bool)
    for a, b in ((0, 2), (1, 3)) if ring else ((0, 2),):
        free[a, b] = free[b, a] = False
    model = FullCovariance(free)
    at = model.nearest(0.4 + 0.6 * np.eye(5) + np.diag([0.1, 0.3, 0.2, 0.5, 1.0]))
    inverse = np.linalg.inv(model.covariance(at))
    assert np.abs(inverse[~free]).max() < 1e-10
    h = 1e-5
    numeric = [
        (model.covariance(at + e) - model.covariance(at - e)) / (2 * h) for e in h * np.eye(len(at))
    ]
    np.testing.assert_allclose(model.directions(at), np.moveaxis(numeric, 0, -1), atol=1e-6)


def test_elements_that_no_covariance_can_have_are_refused():
    free = np.ones((4, 4), dtype=bool)
    free[0, 2] = free[2, 0] = free[1, 3] = free[3, 1] = False
    around = 0.9 * np.eye(4, k=1) - 0.9 * np.eye(4, k=3)  # each follows the last, but 0 not 3
    model = FullCovariance(free)
    with pytest.raises(np.linalg.LinAlgError, match="no positive definite"):
        model.covariance(model.nearest(np.eye(4) + around + around.T))


def test_missing_information_grows_with_what_is_missing():
    shares = [
        fit_normal(Patterns.of(data(2000, [2, 2], missing=m, seed=9)[0]), full(5))
        .missing_information[1:]
        .mean()
        for m in (0.0, 0.2, 0.5)
    ]
    assert shares[0] < 1e-6 < shares[1] < shares[2] < 1.0


def test_a_constant_column_is_refused():
    rows, _ = data(50, [2], seed=10)
    rows[:, 1] = np.where(np.isnan(rows[:, 1]), np.nan, 3.0)
    with pytest.raises(DataError, match=r"columns \[1\].* do not vary"):
        fit_normal(Patterns.of(rows), full(3))


class Opened(Strategy):
    """Opens moments and keeps them."""

    name = "opened"
    party = MomentParty
    needs_labels = True
    disclosure = (("server", "moments"),)
    grouping: str = "pattern"
    columns_of: str = ""

    def run(self, federation, alignment, result, progress):
        how = {"pattern": by_pattern, "complete": complete_rows}[self.grouping]
        self.given.append(
            open_moments(
                federation, alignment, result,
                missing_labels="drop", intercept=True, grouping=how, columns_of=self.columns_of,
            )
        )  # fmt: skip
        self.given.append(alignment.ids[self.given[0].problem.labelled])
        federation.call("erase_group_seed")

    given: ClassVar[list] = []


def tables(n=1200, missing=(0.15, 0.3, 0.5), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)) @ rng.normal(size=(5, 5)) * 10.0 ** rng.uniform(-3, 3, 5) + 3.0
    ids = [f"s{i:04}" for i in range(n)]
    frame = pd.DataFrame(x, index=ids, columns=list("abcde"))
    y = pd.Series(x / x.std(axis=0) @ rng.normal(size=5) + rng.normal(size=n), index=ids)
    y[:30] = np.nan
    held = {"bank": list("ab"), "court": list("c"), "shop": list("de")}
    rates = zip(held.items(), missing, strict=True)
    return {k: frame.loc[rng.random(n) >= rate, own] for (k, own), rate in rates}, y


def opened(strategy, parties, y):
    Opened.given.clear()
    result = simulate(strategy, parties, y)
    return result, *Opened.given


def pooled_rows(parties, y, moments, ids):
    """The standardised table as the moments have it: NaN where a block is missing."""
    joined = pd.concat([table.reindex(ids) for table in parties.values()], axis=1)
    x = (joined.to_numpy() - moments.center) / moments.unit
    label = (y[ids].to_numpy() - moments.problem.y_center) / moments.problem.y_scale
    return np.column_stack([x, label])


def test_sums_by_pattern_are_those_of_the_pooled_table():
    parties, y = tables()
    result, moments, ids = opened(Opened(), parties, y)
    rows = pooled_rows(parties, y, moments, ids)
    groups = moments.groups
    assert groups.n_merged > 0  # patterns of fewer than 100 rows have given up a block
    assert result.metrics["rows_merged"] == groups.n_merged
    assert any(
        f"{groups.n_merged:,} rows count as lacking a party that holds them" in note
        for note in result.notes
    )
    for g, pattern in enumerate(moments.held):
        own = rows[groups.group == g][:, pattern.observed]
        assert pattern.n_rows == len(own) >= 100
        np.testing.assert_allclose(pattern.sums, own.sum(axis=0), atol=1e-9 * len(own))
        np.testing.assert_allclose(pattern.products, own.T @ own, atol=1e-9 * len(own))
    used = moments.problem.mask.shape[0] - groups.n_left_out
    assert sum(p.n_rows for p in moments.held) == used


def test_one_party_s_columns_alone_with_the_others_as_helpers():
    parties, y = tables()
    parties["court"] = parties["court"].assign(town="Ulm")  # no number: it is not asked for
    _, moments, _ = opened(Opened("complete", "shop"), parties, y)
    assert moments.n_columns == 2
    assert moments.problem.columns == {"bank": [], "court": [], "shop": ["d", "e"]}


@pytest.mark.parametrize("grouping", ["pattern", "complete"])
def test_too_few_rows_are_refused_with_what_to_do(grouping):
    parties, y = tables(120)
    with pytest.raises(DataError, match=r"fewer than 10\d .*min-rows"):
        opened(Opened(grouping), parties, y)


def test_rough_units_tell_hardly_anything():
    rng = np.random.default_rng(3)
    flag = (np.arange(500) < 7).astype(float)
    raw = np.column_stack([rng.normal(1e6, 3.0, size=500), flag, np.full(500, 0.1)])
    center, unit = rough_units(raw, np.array([False, True, False]))
    np.testing.assert_array_equal(unit, [4.0, 0.5, 1.0])
    assert center[0] % 1.0 == 0.0
    assert abs(center[0] - 1e6) <= 1.0
    assert (center[1], center[2]) == (0.5, 0.1)  # however rare the flag is; the constant itself
    again = rough_units(
        np.where(flag[:, None] > 0, raw + 1e-3, raw), np.array([False, True, False])
    )
    np.testing.assert_array_equal(again[1][:1], unit[:1])


def test_columns_that_are_told_of_nowhere_are_named_together(caplog):
    parties, y = tables()
    parties["court"][["rare", "other"]] = 0.0
    for at, column in enumerate(["rare", "other"]):
        for name in parties["court"].index[at::40]:
            parties["court"].loc[name, column] = 1.0
    everyone = set.intersection(*(set(own.index) for own in parties.values()))
    result, *_ = opened(Opened("complete"), parties, y[y.index.isin(everyone)][:150])
    assert result.metrics["columns_withheld"] == 2.0
    (note,) = (note for note in result.notes if "too rare to be told of" in note)
    assert "columns ['court.rare', 'court.other'] (2 of 7) take no part" in note
    assert note in caplog.text


@pytest.mark.parametrize("how", [VFEM(), MeanImpute(), VerticalSVM(loss="squared", rows="mean")])
def test_one_note_says_why_a_column_is_not_in_the_fit(how):
    parties, y = tables()
    parties["court"]["rare"] = 0.0
    for own in (parties["court"].index[:3], parties["court"].index[-3:]):
        parties["court"].loc[own, "rare"] = 1.0
    parties["court"]["sparse"] = (np.arange(len(parties["court"])) % 50 == 0).astype(float)
    few = parties["court"].index[parties["court"].index.isin(y.index[y.notna()])][:8]
    parties["late"] = pd.DataFrame({"new": np.arange(8) % 7.0}, few)
    labels = y.gt(y.median()).astype(float) if how.name == "svm" else y
    result = simulate(how, parties, labels, min_rows=20)
    gone = result.coefficients["estimate"].isna()
    for column in gone[gone].index.map(".".join):
        party, name = column.split(".")
        said = [note for note in result.notes if "no coefficient" in note]
        assert sum(column in note or (party in note and f"'{name}'" in note) for note in said) == 1
    assert gone[gone].index.to_list() == [("court", "rare"), ("court", "sparse"), ("late", "new")]


def test_a_rare_level_counts_as_missing():
    parties, y = tables()
    parties["court"]["rare"] = 0.0
    parties["court"].iloc[100:103, -1] = 1.0
    result, moments, _ = opened(Opened(), parties, y)
    assert result.metrics["columns_withheld"] == 1.0
    assert any("'court.rare' has a value that is too rare" in note for note in result.notes)
    # Columns are a, b, c, rare, d, e; where the rare one is told of, it has one value.
    with_c = [p for p in moments.patterns.patterns if 2 in p.observed]
    assert any(3 not in p.observed for p in with_c)
    for p in with_c:
        if 3 in p.observed:
            at = list(p.observed).index(3)
            assert p.products[at, at] == pytest.approx(p.sums[at] ** 2 / p.n_rows, abs=1e-8)


def lone_row(case):
    """A table of which combinations of columns tell a row (or four) apart; and its formula."""
    rng, formula = np.random.default_rng(7), ""
    a, b = rng.integers(0, 2, 1000).astype(float), rng.normal(size=1000)
    if case == "far out":
        return pd.DataFrame({"a": np.where(np.arange(1000) == 3, 1e4, b)}), formula
    if case == "almost a copy":
        return pd.DataFrame({"a": a, "b": np.where(np.arange(1000) == 3, 1 - a, a)}), formula
    if case == "first level":  # of which 4 of the 120 labelled rows are
        level = np.repeat([*"abcbcabc"], [4, 58, 58, 390, 390, 60, 20, 20])
        return pd.DataFrame({"level": level}), formula
    if case == "powers":
        a = np.where(np.arange(1000) == 3, 5.0, rng.integers(0, 5, 1000))
        return pd.DataFrame({"a": a}), "poly(a, 5)"
    a = np.where(np.arange(1000) == 3, 2.0, 1.0)
    return pd.DataFrame({"a": a, "b": b}), "b + a:b"


@pytest.mark.parametrize(
    "case", ["far out", "almost a copy", "first level", "powers", "interaction"]
)
def test_columns_together_tell_of_no_row(case, monkeypatch):
    """Sums of their products with another party's column would be sums of this over few rows."""
    kept, make = [], collect.Offered.__init__
    monkeypatch.setattr(
        collect.Offered, "__init__", lambda *args: (make(*args), kept.append(args[1]))[0]
    )
    bank, formula = lone_row(case)
    labels = pd.Series(np.arange(1000) % 7, dtype=float)
    labels[120 if case == "first level" else 1000 :] = np.nan
    parties = {"bank": bank, "court": pd.DataFrame({"debt": np.exp(np.sin(np.arange(1000.0)))})}
    glm = VerticalGLM(penalty="none", formula={"bank": formula} if formula else "")
    simulate(glm, parties, labels)
    (moments,) = kept
    made = make_formula_design if formula else make_design
    x = made(Table.of(bank), np.arange(1000), "bank", *([formula] if formula else [])).x
    x = x[labels.notna()]
    row = np.zeros(len(x))
    row[slice(0, 4) if case == "first level" else 3] = 1.0

    def share(columns):  # of a flag of the row that combinations of columns tell
        columns = np.column_stack([np.ones(len(x)), columns])
        return row @ columns @ np.linalg.lstsq(columns, row)[0] / row.sum()

    told = ~moments.withheld[0, : x.shape[1]]
    assert share(x) > 0.999
    assert share(x[:, told]) < 0.5
    assert (moments.products[0, : x.shape[1]][~told] == 0.0).all()
    assert moments.products[0, -1, -1] > 0.0  # the other party's are told of


def test_flags_of_two_parties_that_differ_in_a_row_read_it():
    """What docs/privacy.md says: neither party sees it, and the server only has to subtract."""
    rng = np.random.default_rng(0)
    flag = rng.integers(0, 2, 1000).astype(float)
    ids = [f"s{i:03}" for i in range(1000)]
    debt = pd.DataFrame({"debt": np.exp(rng.normal(size=1000))}, ids)
    other = np.where(np.arange(1000) == 3, 1.0 - flag, flag)
    parties = {
        "bank": pd.DataFrame({"flag": flag}, ids),
        "court": pd.DataFrame({"flag": other}, ids),
        "shop": debt,
    }
    _, moments, _ = opened(Opened(), parties, pd.Series(rng.normal(size=1000), ids))
    (pattern,) = moments.held
    center, unit = moments.center, moments.unit
    one = pattern.n_rows * center + unit * pattern.sums[:3]
    across = center * (one * 0.0 + pattern.sums[2] * unit[2] + 1000 * center[2])
    across += unit * (center[2] * pattern.sums[:3] + unit[2] * pattern.products[2, :3])
    assert across[1] - across[0] == pytest.approx(
        debt["debt"].iloc[3] * (other - flag)[3], abs=1e-6
    )
