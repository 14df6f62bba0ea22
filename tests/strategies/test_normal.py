"""Completion by a joint normal model: against a plain model at one place, and what is told."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from oracles import joint_normal
from scipy.linalg import hadamard

from flwr_vertical import Federation, Kind, simulate
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.incomplete import imputation_accuracy
from strategies.baselines import Mean
from strategies.normal import JointNormal, completion
from strategies.normal.coding import Coding
from strategies.normal.equations import Conditioner, JointModel, shrinkage_weight
from strategies.normal.filling import complete_rows, own_columns
from tests.kit.ledgered import Nodes

N = 800


def truth(k=3, n=N, seed=0, width=3):
    """Correlated columns on different scales, as one table a party."""
    rng = np.random.default_rng([seed, k])
    factors = rng.normal(size=(n, 2))
    ids = [f"s{i:03}" for i in range(n)]
    tables = {}
    for j in range(k):
        x = factors @ rng.normal(size=(2, width)) + 0.5 * rng.normal(size=(n, width))
        x = x * 10.0 ** rng.integers(-1, 2, size=width) + rng.normal(scale=5, size=width)
        columns = [f"p{j}c{c}" for c in range(width)]
        tables[f"party {j}"] = pd.DataFrame(x, index=ids, columns=columns)
    return tables


def incomplete(tables, cells=0.0, blocks=0.3, seed=1):
    rng = np.random.default_rng(seed)
    found = {}
    for name, table in tables.items():
        kept = table[rng.random(len(table)) >= blocks]
        found[name] = kept.mask(rng.random(kept.shape) < cells)
    return found


def blocks_of(tables):
    union = pd.Index(sorted({i for table in tables.values() for i in table.index}))
    return [table.reindex(union).to_numpy(float) for table in tables.values()], union


@pytest.mark.parametrize("mode", ["masked", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("k", "width"), [(3, 3), (4, 2), (5, 4)])
def test_completed_rows_are_those_of_one_place_to_their_grid(mode, k, width):
    given = incomplete(truth(k, n=1500, width=width))
    result = simulate(JointNormal(), given, aggregation=mode)
    assert result.metrics["rows_left_out"] == 0
    parts, union = blocks_of(given)
    filled, covariance, weight = joint_normal.complete(parts)
    assert result.metrics["shrinkage"] == pytest.approx(weight, rel=1e-6)
    size = np.sqrt(np.diag(covariance))
    held = np.stack([~np.isnan(part).all(axis=1) for part in parts], axis=1)
    many = held.sum(axis=1) >= 2  # one party alone tells fewer numbers
    for j, name in enumerate(given):
        here = slice(j * width, (j + 1) * width)
        found = result.tables[name].loc[union].to_numpy()
        error = np.abs(found - filled[j])[~held[:, j] & many] / size[here]
        # Each helper rounds to a unit, at most a quarter of a standard deviation.
        assert error.max() <= 0.125 * (k - 1) + 1e-6
        assert np.sqrt((error**2).mean()) < 0.1
        assert error.max() > 1e-3  # rounded at all


@pytest.mark.parametrize("k", [2, 3])
def test_blocks_may_be_missing_by_anothers_columns(k):
    """Rows that the others lack have larger columns at the first: sums over shared rows differ."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(4000, 2 * k)) + rng.normal(size=(4000, 1))
    ids = [f"s{i:04}" for i in range(len(x))]
    whole = {f"p{j}": pd.DataFrame(x[:, 2 * j : 2 * j + 2], ids, ["a", "b"]) for j in range(k)}
    given = dict(whole)
    for name in list(whole)[1:]:
        given[name] = whole[name][rng.random(len(x)) > 1.0 / (1.0 + np.exp(-2.0 * x[:, 0]))]
    result = simulate(JointNormal(), given)
    for name in list(whole)[1:]:
        lacks = ~whole[name].index.isin(given[name].index)
        truth = whole[name][lacks]
        off = (result.tables[name].loc[truth.index] - truth).mean()
        by_means = (given[name].mean() - truth.mean()).abs()
        assert (off.abs() < 0.2 * by_means).all()
        ends = result.intervals[name].loc[truth.index]
        for column, true in truth.items():
            inside = true.between(ends[f"{column} lower"], ends[f"{column} upper"])
            assert inside.mean() == pytest.approx(0.95, abs=0.02)


def test_own_cells_and_others_columns_are_used_together():
    whole = truth(3, n=1500)
    given = incomplete(whole, cells=0.15, blocks=0.1)
    result = simulate(JointNormal(), given)
    parts, union = blocks_of(given)
    filled, _, _ = joint_normal.complete(parts)
    by_mean = simulate(Mean(), given)
    for j, (name, table) in enumerate(whole.items()):
        own = imputation_accuracy(given[name], result.tables[name], table)["rmse_in_sd"]
        mean = imputation_accuracy(given[name], by_mean.tables[name], table)["rmse_in_sd"]
        oracle = pd.DataFrame(filled[j], index=union, columns=table.columns)
        best = imputation_accuracy(given[name], oracle, table)["rmse_in_sd"]
        assert own < 0.75 * mean
        assert own < best + 0.05
        kept = given[name].notna()
        pd.testing.assert_frame_equal(
            result.tables[name].loc[given[name].index].where(kept), given[name].where(kept)
        )


def test_levels_are_completed_and_keep_their_types():
    rng = np.random.default_rng(3)
    x = rng.normal(size=N)
    ids = [f"i{k}" for k in range(N)]
    size = pd.CategoricalDtype(["small", "mid", "large"], ordered=True)
    bank = pd.DataFrame(
        {
            "income": x + 0.3 * rng.normal(size=N),
            "owner": x + 0.3 * rng.normal(size=N) > 0,
            "grade": pd.Categorical(np.where(x > 0.7, "A", np.where(x > -0.5, "B", "C"))),
            "size": pd.Categorical.from_codes(np.digitize(x, [-0.6, 0.8]), dtype=size),
            "loans": rng.poisson(np.exp(0.5 * x)),
        },
        index=ids,
    )
    court = pd.DataFrame({"score": x, "other": rng.normal(size=N), "debts": x**2}, index=ids)
    given = {"bank": bank.iloc[: N - 200], "court": court}
    result = simulate(JointNormal(), given)
    table = result.tables["bank"]
    assert len(table) == N
    assert table.dtypes.equals(bank.dtypes)
    late = bank.index[N - 200 :]
    for name in ("owner", "grade", "size"):
        right = (table.loc[late, name].astype(str) == bank.loc[late, name].astype(str)).mean()
        common = bank[name].astype(str).value_counts(normalize=True).max()
        assert right > common + 0.1, name


def test_six_rounds_and_no_number_of_a_sample_for_the_server(monkeypatch):
    given, sent = incomplete(truth(3)), []
    once = Federation.call

    def watch(self, step, *arguments, **more):
        answer = once(self, step, *arguments, **more)
        if step in ("send_masked", "finish"):
            sent.append(answer)
        return answer

    monkeypatch.setattr(Federation, "call", watch)
    result = simulate(JointNormal(), given)
    # hello, alignment, then six
    assert result.ledger.rounds == 2 + 6
    flags = sent[0]["party 0"]["wanted"]
    assert len(np.unique(flags)) == len(flags)  # under a key stream


def test_a_party_that_helps_alone_is_asked_for_half_of_its_columns(monkeypatch):
    """As many numbers of a row as it has columns would tell them all."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    covariance = root @ root.T + np.eye(6)
    model = JointModel(
        np.zeros(6), covariance, 0.0, np.inf, 1.0, np.zeros((6, 2), bool), np.zeros(6, bool)
    )
    slices = [slice(0, 3), slice(3, 6)]
    part = Conditioner(model, slices).given([1], [0])[0]
    full = covariance[:3, 3:] @ np.linalg.inv(covariance[3:, 3:])
    found = part.coefficients[1].T
    assert np.linalg.matrix_rank(found, tol=1e-8) == 1
    left = covariance[:3, :3] - full @ covariance[3:, :3]
    explained = (full - found) @ covariance[3:, 3:] @ (full - found).T
    rounding = np.diag(part.unit**2 / 12)
    np.testing.assert_allclose(part.residual, left + explained + rounding, atol=1e-10)

    given = incomplete(truth(2))
    simulate(JointNormal(), given)
    from strategies.normal import equations

    monkeypatch.setattr(equations, "_of_low_rank", lambda matrix, *_: matrix)
    with pytest.raises(PartyError, match="would be told more than 1 number"):
        simulate(JointNormal(), given)


@pytest.mark.parametrize("fitted", [False, True])
def test_columns_that_follow_from_others_are_no_more_numbers_to_tell(fitted, monkeypatch):
    """Of an amount, the same in another currency, a constant and another column, one is told."""
    whole = truth(2)
    x = whole["party 1"].iloc[:, :2].set_axis(["euro", "age"], axis=1)
    own = x.assign(dollar=1.1 * x["euro"], country=4.0)
    given = incomplete({"party 0": whole["party 0"], "party 1": own})
    new = {name: table.set_axis("n" + table.index) for name, table in given.items()}
    fit = simulate(JointNormal(), given)

    def run():
        tables, earlier = (new, fit) if fitted else (given, None)
        return simulate(JointNormal(), tables, fitted=earlier)

    told, once = [], completion.ask_for_means

    def watch(*arguments, **more):
        common, found = once(*arguments, **more)
        told.append(arguments[2].n_alone)
        return common, found

    monkeypatch.setattr("strategies.normal.strategy.ask_for_means", watch)
    run()
    assert told == [[1, 1]]  # of three columns of the other one, too
    monkeypatch.setattr(
        "strategies.normal.strategy.ask_for_means",
        lambda f, products, model, *more, **options: once(
            f, products, replace(model, n_alone=None), *more, **options
        ),
    )
    with pytest.raises(
        PartyError, match=r"more than 1 number\(s\) a row .* its 4 column\(s\) do not"
    ):
        run()


def test_what_a_party_that_helps_alone_tells_does_not_depend_on_the_units_of_who_is_told():
    given = incomplete(truth(2, seed=2, width=5))
    unit = np.array([1.9, 0.6, 1.45, 3.3, 1.2])  # each between two powers of two
    other = given | {"party 0": given["party 0"] * unit}
    found, moved = (simulate(JointNormal(), each) for each in (given, other))
    pd.testing.assert_frame_equal(moved.tables["party 0"] / unit, found.tables["party 0"])


def test_what_a_party_is_told_of_rows_is_counted_and_can_be_refused(tmp_path):
    nodes = Nodes(tmp_path, incomplete(truth(3)))
    nodes.run(JointNormal())
    noted = nodes.entries("bits", "party 0")
    assert [entry["receiver"] for entry in noted] == ["party 'party 1'", "party 'party 2'"]
    assert all(entry["bits"] == 8 * 3 for entry in noted)
    assert all(0.15 * N < entry["n_rows"] < 0.35 * N for entry in noted)
    nodes.state(policy_openings=0)
    said = nodes.refused("openings", JointNormal())
    assert "terms of means of 3 column(s)" in said


def test_equations_at_their_limits():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4))
    assert own_columns(x).fill(x) is x
    gone = x.copy()
    gone[::5, 1] = np.nan
    filled = own_columns(gone).fill(gone)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(gone)], x[~np.isnan(gone)])
    # Of independent columns the identity is nearly all; of equal ones nearly nothing.
    assert shrinkage_weight(np.corrcoef(rng.normal(size=(2000, 30)), rowvar=False), 2000) > 0.5
    assert shrinkage_weight(np.full((30, 30), 0.99) + 0.01 * np.eye(30), 2000) < 0.01
    covariance = np.cov(rng.normal(size=(4, 30)))
    given = np.array([[1.0, np.nan, np.nan, -1.0]])
    mean = np.zeros((1, 4))
    o, m = [0, 3], [1, 2]
    expected = np.linalg.solve(covariance[np.ix_(o, o)], covariance[np.ix_(o, m)]).T @ [1.0, -1.0]
    np.testing.assert_allclose(complete_rows(given, mean, covariance)[0, m], expected, rtol=1e-6)


def test_codes_come_back():
    kinds = [Kind.CONTINUOUS, Kind.BINARY, Kind.CATEGORICAL, Kind.ORDINAL]
    coding = Coding(kinds, [0, 2, 3, 4])
    codes = np.array([[0.5, 1.0, 2.0, 3.0], [-1.0, 0.0, 0.0, np.nan], [2.0, np.nan, np.nan, 1.0]])
    columns = coding.encode(codes)
    assert columns.shape == (3, 6)
    np.testing.assert_array_equal(np.isnan(columns[2]), [False, True, True, True, True, False])
    whole = codes[:1]
    np.testing.assert_array_equal(coding.decode(coding.encode(whole)), whole)
    assert coding.names(list("abcd"))[2:4] == ("c (1 of 3)", "c (2 of 3)")


def test_a_column_without_values_cannot_be_completed():
    given = incomplete(truth(2))
    given["party 1"]["none"] = np.nan
    with pytest.raises(DataError, match="columns without a single observed value: none"):
        simulate(JointNormal(), given)


def test_parties_without_shared_rows_are_noted():
    whole = truth(3)
    ids = whole["party 0"].index
    given = {
        "party 0": whole["party 0"],
        "party 1": whole["party 1"].iloc[: N // 2],
        "party 2": whole["party 2"].iloc[N // 2 :],
    }
    result = simulate(JointNormal(), given)
    assert any("party 1 and party 2 share too few rows" in note for note in result.notes)
    assert set(result.tables["party 1"].index) == set(ids)


def test_columns_with_values_far_out_read_these_rows(monkeypatch):
    """What docs/privacy.md says of a party that crafts its table: rounding does not stop it."""
    seen, work_out = {}, completion._coefficients

    def kept(parts, names, helper, *more):
        seen[names[helper]] = work_out(parts, names, helper, *more)
        return seen[names[helper]]

    monkeypatch.setattr(completion, "_coefficients", kept)
    cosines, signs = [], hadamard(4)  # one value alone far out would be withheld
    for seed in range(6):
        rng = np.random.default_rng(seed)
        truth = rng.normal(size=(1500, 4)) @ rng.normal(size=(4, 4))
        crafted = rng.normal(size=(1500, 5)) * [1.0, *[1e-3] * 4]
        crafted[5:9, 1:] = 1e6 * signs
        tables = {
            "clinic": pd.DataFrame(truth[:1200], columns=list("abcd")),
            "spy": pd.DataFrame(crafted, columns=list("vwxyz")),
        }
        simulate(JointNormal(), tables)
        told = seen["spy"]["for:clinic"]
        read = signs[1] @ told[np.abs(told).sum(axis=(1, 2)).argmax()][1:]
        row = truth[6] / truth.std(axis=0)
        cosines.append(read @ row / np.linalg.norm(read) / np.linalg.norm(row))
    assert 0.6 < np.median(cosines) < 1.0
