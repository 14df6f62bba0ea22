"""VerticalGLM on all labelled rows, of labels 0 and 1 or counts: against one place, and rules."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from oracles import joint_normal
from scipy.special import expit

from flwr_vertical import simulate
from flwr_vertical.errors import DataError, PartyError
from simulations.attacks.recording import record
from simulations.attacks.suite import LABELS, RULED, attack_run
from strategies.glm import VerticalGLM
from strategies.glm.unseen import Unseen
from strategies.linear.families import family_named
from tests.kit.deviations import altered, asked_for
from tests.kit.ledgered import Nodes

FAMILIES = {"binomial": sm.families.Binomial(), "poisson": sm.families.Poisson()}


def truth(family="binomial", widths=(2, 2, 2), n=1500, seed=0, strength=0.6):
    """Correlated columns on different scales, as one table a party, and labels."""
    rng = np.random.default_rng(seed)
    p, ids = sum(widths), pd.Index([f"s{i:04}" for i in range(n)], name="id")
    x = rng.normal(size=(n, p)) + 0.8 * rng.normal(size=(n, 1))
    beta = strength * (-1.0) ** np.arange(p)
    eta = (x @ beta if family == "binomial" else 0.5 * x @ beta) - 0.2
    y = rng.random(n) < expit(eta) if family == "binomial" else rng.poisson(np.exp(eta))
    x = x * 10.0 ** rng.integers(-1, 2, size=p) + rng.normal(scale=5, size=p)
    ends = np.cumsum(widths)
    tables = {
        f"p{k}": pd.DataFrame(x[:, e - w : e], ids, [f"x{j}" for j in range(e - w, e)])
        for k, (e, w) in enumerate(zip(ends, widths, strict=True))
    }
    return tables, pd.Series(y.astype(float), ids, name="y")


def without(tables, missing=0.3, seed=1, of=None):
    """Each row lacks one party at most: of those in `of`, all by default."""
    rng, of = np.random.default_rng(seed), list(of or tables)
    ids = next(iter(tables.values())).index
    lacks = np.where(rng.random(len(ids)) < missing, rng.integers(len(of), size=len(ids)), -1)
    gone = {name: lacks == k for k, name in enumerate(of)}
    return {n: t[~gone[n]] if n in gone else t for n, t in tables.items()}


def glm(family="binomial", penalty="none", **settings):
    return VerticalGLM(family=family, penalty=penalty, rows="all", **settings)


def run(tables, labels, *arguments, mode="masked", **settings):
    return simulate(glm(*arguments, **settings), tables, labels, aggregation=mode)


def levels_of_two(tables):
    """The first party's last column as levels."""
    first = tables["p0"].copy()
    first["x1"] = np.where(first["x1"] > first["x1"].median(), "high", "low")
    return {**tables, "p0": first}


@pytest.mark.parametrize("mode", ["masked", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("family", "widths", "lacking", "levels"),
    [
        ("binomial", (2, 2, 2), None, False),
        ("poisson", (2, 2, 2), None, False),
        ("binomial", (1, 3), ["p0"], False),
        ("binomial", (2, 2, 2), None, True),
    ],
)
def test_estimates_are_those_of_the_table_completed_at_one_place(
    mode, family, widths, lacking, levels
):
    """A ridge so small that it does nothing: what a selection gives is corrected."""
    tables, labels = truth(family, widths)
    given = without(levels_of_two(tables) if levels else tables, 0.5, of=lacking)
    found = run(given, labels, family, "ridge", l2=1e-6, mode=mode)
    blocks = []
    for table in given.values():
        block = table.apply(lambda c: c if c.dtype.kind == "f" else (c == "low").astype(float))
        blocks.append(block.reindex(labels.index).to_numpy())
    filled, _, _ = joint_normal.complete(blocks)
    x = sm.add_constant(np.column_stack(filled))
    expected = sm.GLM(labels.to_numpy(), x, family=FAMILIES[family]).fit()
    gap = (found.coefficients["estimate"].to_numpy() - expected.params) / expected.bse
    assert np.abs(gap).max() < 0.2  # means are told in whole units
    assert np.abs(gap).max() > 1e-6
    by_mean = [np.where(np.isnan(b), np.nanmean(b, axis=0), b) for b in blocks]
    other = sm.GLM(labels.to_numpy(), sm.add_constant(np.column_stack(by_mean)),
                   family=FAMILIES[family]).fit()  # fmt: skip
    assert np.abs((other.params - expected.params) / expected.bse).max() > 4 * np.abs(gap).max()
    lacking_some = sum(np.isnan(b).any(axis=1) for b in blocks)
    assert found.metrics["samples_completed"] == lacking_some.sum()
    assert found.metrics["n_samples"] == len(labels)


@pytest.mark.parametrize("family", ["binomial", pytest.param("poisson", marks=pytest.mark.slow)])
def test_where_nothing_is_missing_numbers_are_those_of_complete_rows(family):
    tables, labels = truth(family, n=600)
    found = run(tables, labels, family).coefficients
    expected = simulate(VerticalGLM(family=family, penalty="none"), tables, labels).coefficients
    gap = found["estimate"] - expected["estimate"]
    assert (gap.abs() / expected["std_error"]).max() < 1e-4
    np.testing.assert_allclose(found["std_error"], expected["std_error"], rtol=1e-4)


def test_errors_are_smaller_than_those_of_complete_rows_and_samples_are_predicted():
    tables, labels = truth(n=3000, strength=0.4)
    given, some = without(tables, 0.6), labels.copy()
    some.iloc[::5] = np.nan
    found = run(given, some)
    fewer = simulate(VerticalGLM(family="binomial", penalty="none"), given, some)
    ratio = found.coefficients["std_error"] / fewer.coefficients["std_error"]
    assert (ratio < 0.95).all()
    assert len(found.predictions) == 600
    p = found.predictions["prediction"].reindex(labels.index[::5])
    assert abs(p.mean() - labels.iloc[::5].mean()) < 0.05
    assert np.corrcoef(p, labels.iloc[::5])[0, 1] > 0.25
    later = found.predict({name: table.loc[p.index[:50]] for name, table in tables.items()})
    eta = found.coefficients["estimate"].to_numpy() @ np.vstack(
        [np.ones(50), *(t.loc[p.index[:50]].to_numpy().T for t in tables.values())]
    )
    np.testing.assert_allclose(later.predictions["prediction"], expit(eta), atol=0.01)


def test_a_penalty_selects_on_completed_rows():
    tables, labels = truth(n=2500)
    rng = np.random.default_rng(0)
    noise = pd.DataFrame(rng.normal(size=(2500, 2)), labels.index, ["n0", "n1"])
    result = run(without({**tables, "p3": noise}), labels, "binomial", "scad")
    estimates = result.coefficients["estimate"]
    assert (estimates["p3"] == 0).all()
    assert (np.abs(estimates[:-2]) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_corrected_estimates_come_near_the_fit_of_the_full_table(family):
    tables, labels = truth(family, n=6000, strength=1.2)
    given = without(tables, 0.6)
    x = sm.add_constant(np.column_stack([table.to_numpy() for table in tables.values()]))
    full = sm.GLM(labels.to_numpy(), x, family=FAMILIES[family]).fit()
    found = run(given, labels, family).coefficients
    plain = run(given, labels, family, "ridge", l2=1e-6).coefficients["estimate"]
    errors = found["std_error"].to_numpy()
    gap, other = (np.asarray(e - full.params) for e in (found["estimate"], plain))
    assert np.abs(gap / errors).max() < 3.5
    # Of labels 0 and 1 slopes are too small, of counts the level at the columns' means too large.
    off = [d / errors if family == "binomial" else x.mean(axis=0) @ d for d in (gap, other)]
    assert np.abs(off[1]).max() > 3 * np.abs(off[0]).max()


# -- the correction ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_the_correction_undoes_what_means_do_to_a_large_sample(family):
    """Rows are drawn, the missing columns' means put in, and a plain model is fitted."""
    rng = np.random.default_rng(2)
    n, owner = 400_000, np.array([0, 0, 1, 2])
    root = rng.normal(size=(4, 4))
    covariance, mean = 0.3 * root @ root.T + 0.4 * np.eye(4), np.array([0.5, -1.0, 0.0, 2.0])
    beta = np.array([1.0, -0.7, 0.9, 0.6]) * (1.0 if family == "binomial" else 0.4)
    x = rng.multivariate_normal(mean, covariance, size=n)
    eta = -1.0 + x @ beta
    y = rng.random(n) < expit(eta) if family == "binomial" else rng.poisson(np.exp(eta))
    held = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 0]], dtype=bool)
    which, seen, maps = rng.integers(3, size=n), x.copy(), np.stack([np.eye(4)] * 3)
    for g, parties in enumerate(held):
        o, m = np.flatnonzero(parties[owner]), np.flatnonzero(~parties[owner])
        slope = np.linalg.solve(covariance[np.ix_(o, o)], covariance[np.ix_(o, m)])
        if g == 2:  # of two helping columns one direction is told of
            slope = np.outer([0.4, -0.3], slope[1])
        maps[g][m] = 0.0
        maps[g][np.ix_(m, o)] = slope.T
        rows = np.flatnonzero(which == g)
        seen[np.ix_(rows, m)] = mean[m] + (x[np.ix_(rows, o)] - mean[o]) @ slope
    fit = sm.GLM(y.astype(float), sm.add_constant(seen), family=FAMILIES[family]).fit()
    counts = np.bincount(which).astype(float)
    by_chance = np.zeros((len(maps), 4)), maps @ covariance @ maps.swapaxes(1, 2)
    unseen = Unseen(family_named(family), mean, covariance, maps, counts, *by_chance)
    told, level, errors = unseen.corrected(fit.params[0], fit.params[1:], fit.cov_params())
    off = np.abs(np.append(level, told) - np.append(-1.0, beta))
    assert (off < 4.0 * np.sqrt(np.diag(errors))).all()
    assert np.abs(fit.params - np.append(-1.0, beta)).max() > 10 * off.max()
    # The derivative beside it, by the sandwich of the rows themselves.
    wide = sm.add_constant(seen)
    left = (y - fit.fittedvalues)[:, None] * wide
    robust = fit.cov_params() @ (left.T @ left) @ fit.cov_params()
    steps = [1e-4 * np.eye(5)[j] for j in range(5)]
    around = [
        [np.roll(np.append(*unseen.corrected(b[0], b[1:], fit.cov_params())[:2]), 1)
         for b in (fit.params + s, fit.params - s)] for s in steps
    ]  # fmt: skip
    slope = np.stack([(a - b) / 2e-4 for a, b in around], axis=1)
    np.testing.assert_allclose(np.diag(errors), np.diag(slope @ robust @ slope.T), rtol=0.15)


def test_counts_of_rows_that_are_missing_by_anothers_columns():
    """Such rows have another mean of the columns, and of what is not seen of them."""
    found, beta = [], np.array([0.5, -0.4, 0.4, 0.3])
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(6000, 4)) @ np.linalg.cholesky(0.4 + 0.6 * np.eye(4)).T
        labels = pd.Series(rng.poisson(np.exp(0.3 + x @ beta)).astype(float))
        whole = pd.DataFrame(x, columns=list("abcd"))
        lacks = rng.random(len(x)) < expit(1.5 * whole["a"] - 0.4)
        tables = {"p0": whole[["a", "b"]], "p1": whole[["c", "d"]][~lacks]}
        told = run(tables, labels, "poisson").coefficients
        found.append((told["estimate"] - np.append(0.3, beta)) / told["std_error"])
    assert np.abs(np.mean(found, axis=0)).max() < 1.75  # with means of all rows, 2.6


def test_blocks_may_be_missing_by_anothers_columns():
    """Coefficients of completed rows, where the second party lacks rows by the first one's."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(6000, 4)) + rng.normal(size=(6000, 1))
    labels = pd.Series((rng.random(len(x)) < expit(0.5 * x.sum(axis=1))).astype(float))
    whole = pd.DataFrame(x, columns=list("abcd"))
    lacks = rng.random(len(x)) < expit(2.0 * whole["a"])
    found = run({"p0": whole[["a", "b"]], "p1": whole[["c", "d"]][~lacks]}, labels).coefficients
    fit = sm.GLM(labels, sm.add_constant(x), family=FAMILIES["binomial"]).fit()
    gap = (found["estimate"] - fit.params.to_numpy()) / found["std_error"]
    assert gap.abs().max() < 2.0


def test_a_correction_without_a_solution_leaves_coefficients_and_errors_out():
    huge = Unseen(
        family_named("poisson"), np.zeros(2), 1e6 * np.eye(2),
        np.diag([1.0, 0.0])[None], np.array([100.0]), np.zeros((1, 2)),
        np.diag([1e6, 0.0])[None],
    )  # fmt: skip
    assert huge.corrected(0.0, np.array([3.0, 3.0]), np.eye(3)) is None


# -- what is refused -----------------------------------------------------------------------------


def test_what_does_not_go_together_is_said():
    tables, labels = truth(n=400)
    apart = {"p0": tables["p0"].iloc[:215], "p1": tables["p1"].iloc[185:]}
    with pytest.raises(DataError, match="no two parties share enough rows"):
        run(apart, labels)
    few = {"p0": tables["p0"].iloc[:150], "p1": tables["p1"].iloc[:140]}
    with pytest.raises(DataError, match="too few rows to tell anything of: 140 labelled samples"):
        run(few, labels)


def test_rows_that_few_others_are_held_with_are_left_out():
    tables, labels = truth(n=1000)
    given = {**without(tables, of=["p0"]), "p2": tables["p2"].drop(tables["p2"].index[:30])}
    result = run(given, labels)
    assert result.metrics["rows_left_out"] == 30
    assert any("30 of 1,000 labelled samples are left out" in note for note in result.notes)


def rare_level():
    """Of 300 rows that p1 lacks, 15 have a level that tells of the label; complete, and not."""
    tables, labels = truth(n=3000)
    rng = np.random.default_rng(5)
    rare = pd.Series(rng.random(3000) < 0.05, labels.index)
    level = np.where(rare, "rare", np.where(rng.random(3000) < 0.4, "some", "most"))
    labels = labels.where(~rare | (rng.random(3000) < 0.2), 1.0)
    tables["p0"]["level"] = level
    return tables, without(tables, 0.1, of=["p1"]), labels


def test_a_level_that_is_rare_where_a_party_lacks_rows_keeps_its_coefficient():
    """It completes no row of that party, and these are sums over all own rows, as complete ones."""
    tables, given, labels = rare_level()
    result = run(given, labels)
    whole = run(tables, labels)
    assert result.metrics["columns_withheld"] == 0
    assert any("of p0 with those of p1: a value is too rare" in note for note in result.notes)
    assert not whole.notes
    found, expected = result.coefficients, whole.coefficients
    off = (found["estimate"] - expected["estimate"]).abs()
    assert (off < 1.5 * expected["std_error"]).all()


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_a_column_that_two_parties_hold_counts_once(family):
    """Completed copies differ by the error of completion: errors of both were a hundred times."""
    tables, labels = truth(family, (3, 3))
    first, own = tables["p0"]["x0"], tables["p1"]
    once = run(without(tables), labels, family).coefficients["std_error"]
    again = {**tables, "p1": own.assign(again=5 - 3 * first)}
    twice = run(without(again), labels, family)
    assert np.isnan(twice.coefficients.loc[("p1", "again"), "estimate"])
    assert any("['p1.again'] follow from others" in note for note in twice.notes)
    kept = twice.coefficients["std_error"].drop(("p1", "again"))
    assert (kept < 1.02 * once).all()
    # The copy completes rows that lack the first party, and a column that only resembles it stays.
    assert kept["p0", "x0"] < 0.97 * once["p0", "x0"]
    noise = 0.1 * first.std() * np.random.default_rng(5).normal(size=len(first))
    other = run(without({**tables, "p1": own.assign(again=first + noise)}), labels, family)
    assert np.isfinite(other.coefficients.loc[("p1", "again"), "estimate"])


def test_columns_without_labelled_samples_or_variance_have_no_coefficient():
    tables, labels = truth(n=1000)
    some = labels.copy()
    some.iloc[:400] = np.nan
    result = run({**tables, "p2": tables["p2"].iloc[:400]}, some)
    assert result.coefficients["estimate"].isna().tolist() == [False] * 5 + [True] * 2
    assert any("['p2'] have no labelled sample of the fit" in note for note in result.notes)
    constant = {**tables, "p1": tables["p1"].assign(x2=1.0)}
    with pytest.warns(UserWarning, match="all .* observed cells are the same"):
        result = run(without(constant, 0.6), labels)
    assert np.isnan(result.coefficients.loc[("p1", "x2"), "estimate"])
    assert any("['p1.x2'] do not vary" in note for note in result.notes)


def one_row_apart(common, own):
    """A set of one row, held as others are."""
    common["holders"] = np.vstack([common["holders"], common["holders"][-1:]])
    common["pattern"][np.flatnonzero(common["pattern"] == len(common["holders"]) - 2)[0]] += 1
    common["n_patterns"] += 1
    for arguments in own.values():
        for name, value in arguments.items():
            arguments[name] = np.concatenate([value, value[-1:]])


def other_holders(common, own):
    common["holders"][0] = ~common["holders"][0]


def others_hold(common, own):
    lacking = np.flatnonzero(common["holders"][:, 0] & ~common["holders"][:, 1])
    common["holders"][lacking, 1] = True


def far_out(common, own):
    """A number that no sum of terms is, in one row: it would be a vector of the server's."""
    for arguments in own.values():
        if "total" in arguments:
            arguments["total"] = arguments["total"] + np.uint64(2**20)


def large_units(common, own):
    for arguments in own.values():
        if "unit" in arguments:
            arguments["unit"] = 100.0 * arguments["unit"]


def narrow_unit(common, own):
    for arguments in own.values():
        for name in {"unit", "offset"} & set(arguments):
            arguments[name] = arguments[name][:, :1]


@pytest.mark.parametrize(
    ("step", "change", "says"),
    [
        ("complete", one_row_apart, "may tell of 1 of its rows alone"),
        ("complete", other_holders, "holds other rows than the server's patterns say"),
        ("complete", others_hold, "that other parties hold than the server said"),
        ("complete", altered("wanted:p1", lambda rows: rows + np.uint64(1)),
         "which rows 'p1' wants is not what"),
        ("complete", altered("tags", lambda tags: [b"x" * 16, *tags[1:]]),
         "which rows 'p0' wants is not what"),
        ("send_masked", far_out, "beyond what others can have told"),
        ("send_masked", large_units, "'unit' has numbers"),
        ("send_masked", narrow_unit, "has shape"),
        ("open_products", altered("group", np.zeros_like), "rows of the fit were not completed"),
    ],
)  # fmt: skip
def test_a_server_that_deviates_is_refused(monkeypatch, step, change, says):
    tables, labels = truth(n=1300)
    given = {**without(tables, 0.5), "p2": tables["p2"].iloc[30:]}
    asked_for(monkeypatch, step, change)
    with pytest.raises(PartyError, match=says):
        run(given, labels)


def test_a_level_that_is_rare_for_it_completes_no_row_of_a_party(monkeypatch):
    def by_all_columns(common, own):
        own["p0"]["for:p1"] = own["p0"]["for:p1"] + np.float32(0.01)

    asked_for(monkeypatch, "complete", by_all_columns)
    with pytest.raises(PartyError, match="of 'p1' would be completed by a column of which"):
        run(*rare_level()[1:])


def test_rows_that_others_lack_are_counted_over_runs(tmp_path):
    tables, labels = truth(n=900)
    given = without(tables, 0.5, of=["p0"])
    nodes = Nodes(tmp_path, given)
    nodes.run(glm(), labels)
    lacked = 900 - len(given["p0"])
    noted = nodes.entries("rows", "p1")
    (terms,) = [entry for entry in noted if "for p0" in entry["what"]]
    assert terms["n_rows"] == lacked
    bits = nodes.entries("bits", "p1")
    assert [(entry["bits"], entry["n_rows"]) for entry in bits if entry["n_rows"]] == [(16, lacked)]
    nodes.run(glm(), labels)  # the same again
    # A row more that p0 lacks: the difference of two runs would tell of it.
    nodes.write({**given, "p0": given["p0"].iloc[1:]})
    nodes.refused("min-rows", glm(), labels)


@pytest.mark.slow
def test_attacks_on_what_nodes_see_find_nothing():
    tables, labels = truth(n=1000)
    labels.iloc[::7] = np.nan
    for finding in attack_run(record(glm(), without(tables, 0.5), labels)):
        found = finding.cells if finding.attack in {*RULED, LABELS} else finding.beyond
        assert found == 0.0, finding


@pytest.mark.parametrize("family", ["binomial", pytest.param("poisson", marks=pytest.mark.slow)])
def test_evaluations_are_those_that_all_parties_allow(family):
    """Owners who state `vectors` allow more than one for every ten rows of a small set."""
    tables, labels = truth(family, (2, 2), n=150)
    policy = {"min-rows": 10, "vectors": 10**6, "openings": 10**6}
    found = [
        simulate(fit, tables, labels, policy=policy)
        for tables, fit in [
            (without(tables), glm(family)),
            ({name: t[:60] for name, t in tables.items()}, VerticalGLM(family, penalty="none")),
        ]
    ]
    for result in found:
        assert result.metrics["converged"] == 1.0
        assert result.model.outcome == "converged"
    x = np.hstack([t[:60] for t in tables.values()])
    fit = sm.GLM(labels[:60], sm.add_constant(x), family=FAMILIES[family]).fit()
    np.testing.assert_allclose(found[1].coefficients["estimate"], fit.params, atol=1e-3)


def test_a_fit_that_stops_early_says_so(monkeypatch):
    monkeypatch.setattr("strategies.glm.means.MOST_EVALUATIONS", 1)
    tables, labels = truth("poisson", (2, 2), n=800, strength=1.5)
    result = run(without(tables), labels, "poisson")
    assert result.metrics["converged"] == 0.0
    assert result.model.outcome == "not converged"
    assert "Not converged" in result.model.summary()
    assert any("fewest 'vectors' that a node" in text for text in result.notes)
