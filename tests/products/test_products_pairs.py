"""Pairwise moments: exact, over the rows that two parties share, under rules that parties keep."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_vertical import Uses, simulate
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.products.group_key import GroupKey
from flwr_vertical.products.pairs import PairProducts, PairProductSteps, plan_pairs, rows_beside
from flwr_vertical.products.told_rows import ToldRows
from strategies.explore import Explore
from strategies.explore.associations import Pooled
from strategies.least_squares import CompleteCase
from strategies.normal import JointNormal
from tests.kit.deviations import asked_for, told_otherwise
from tests.kit.ledgered import Nodes
from tests.products.test_products_private import MultiplyingParty, N, Opened, tables


class PairParty(MultiplyingParty):
    products = Uses(PairProductSteps, purpose="test")


def opened_pairs(opened, limbs=1):
    products = PairProducts(opened.federation, GroupKey(opened.federation), limbs)
    products.send()
    return products


@pytest.mark.parametrize("mode", ["masked", "plain"])
@pytest.mark.parametrize(("k", "limbs", "tolerance"), [(2, 1, 1e-7), (3, 2, 1e-12), (5, 1, 1e-7)])
def test_moments_are_those_of_the_rows_that_two_parties_hold(mode, k, limbs, tolerance):
    with Opened(tables(k), mode, party=PairParty) as opened:
        held = ~opened.alignment.mask
        found = opened_pairs(opened, limbs).pairs(held)
        taken, together = plan_pairs(held, np.full(k, 100), np.full((k, k), 100))
        x = np.where(taken[:, None], np.nan_to_num(opened.rows), 0.0)
        assert found.n_left_out == (~taken).sum() <= N // 2
        assert not found.withheld.any()
        assert together.sum() >= k
        size = np.sqrt((x**2).sum(axis=0))
        party = np.repeat(np.arange(k), [frame.shape[1] for frame in tables(k).values()])
        np.testing.assert_array_equal(found.apart, (~together & ~np.eye(k, dtype=bool))[party])
        # Rows that a party lacks are 0 there.
        expected = np.where(found.apart[:, party], 0.0, x.T @ x)
        np.testing.assert_allclose(
            found.products / np.outer(size, size), expected / np.outer(size, size), atol=tolerance
        )
        np.testing.assert_allclose(found.sums, x.sum(axis=0), rtol=1e-9)
        both = held[taken].astype(int).T @ held[taken].astype(int)
        np.testing.assert_array_equal(found.n_rows, both)


def test_parties_that_share_few_rows_are_apart():
    own = tables(3)
    ids = [f"s{i:03}" for i in range(N)]
    own["court"] = own["court"][own["court"].index.isin(ids[:350])]
    own["hospital"] = own["hospital"][~own["hospital"].index.isin(ids[:300])]
    with Opened(own, party=PairParty) as opened:
        found = opened_pairs(opened).pairs(~opened.alignment.mask)
    n_hospital = own["hospital"].shape[1]
    court, hospital = [[False, False, True]] * 2, [[False, True, False]] * n_hospital
    assert found.apart.tolist() == [[False] * 3, *court, *hospital]
    assert (found.products[1:3, 3:] == 0.0).all()
    assert 0 < found.n_rows[1, 2] < 100
    assert found.products[0, 1] != 0.0


def test_too_few_rows_for_the_levels_of_a_text_are_told_with_its_columns():
    """A text of many levels is as many columns, which a reader of the table does not see."""
    rng = np.random.default_rng(0)
    bank = pd.DataFrame({"income": rng.normal(size=300), "age": rng.normal(size=300)})
    court = pd.DataFrame(
        {"cases": rng.normal(size=260), "town": [f"t{i % 40}" for i in range(260)]}
    )
    said = r"260, and need 410 \(of 'bank' with 2 columns and 'court' with 41; each level of a text"
    with pytest.raises(DataError, match=said):
        simulate(JointNormal(), {"bank": bank, "court": court})


def test_without_shared_rows_there_is_nothing_to_open():
    own = tables(2)
    own["court"] = own["court"][~own["court"].index.isin(own["bank"].index)]
    own["court"] = pd.concat([own["court"], tables(2)["court"].iloc[:30]])
    own["bank"] = own["bank"].iloc[:400]
    own["court"] = own["court"][~own["court"].index.duplicated()]
    with Opened(own, party=PairParty) as opened:
        products, held = opened_pairs(opened), ~opened.alignment.mask
        with pytest.raises(DataError, match=r"share enough rows.*at most 30, and need 100"):
            products.pairs(held)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.floats(0.02, 0.6), st.integers(0, 10_000))
def test_what_is_left_has_no_small_difference(k, missing, seed):
    held = np.random.default_rng(seed).random((400, k)) > missing
    taken, together = plan_pairs(held, np.full(k, 40), np.full((k, k), 60))
    assert (together == together.T).all()
    held &= taken[:, None]
    marked = np.random.default_rng(seed + 1).random(400) > missing
    chosen = rows_beside(held, np.full(k, 40), together | np.eye(k, dtype=bool), marked)
    for j in range(k):
        mine = held[:, j]
        shared = [mine & held[:, i] for i in np.flatnonzero(together[j])]
        factors = np.array(list(itertools.product([-2, -1, 0, 1], *[[-1, 0, 1]] * len(shared))))
        told = (factors @ np.array([mine, *shared], dtype=int) != 0).sum(axis=1)
        assert not ((told > 0) & (told < 40)).any()
        assert all(rows.sum() >= 60 for rows in shared)
        for one in [mine, *shared]:
            for other in shared:
                assert not 0 < (one & ~other).sum() < 40
                for rows in (one, one & ~other):
                    for part in (chosen & marked, chosen & ~marked, ~chosen):
                        assert not 0 < (rows & part).sum() < 40


def test_a_rare_flag_is_not_told_of_with_the_columns_of_who_knows_these():
    """Six of 400: 2^42 sets of people could be these. The other party has an equation for each."""
    rng = np.random.default_rng(0)
    own = {name: frame.copy() for name, frame in tables(2).items()}
    own["bank"]["flag"] = 0.0
    shared = own["bank"].index.intersection(own["court"].index)
    own["bank"].loc[rng.choice(shared, 6, replace=False), "flag"] = 1.0
    own["bank"]["half"] = (rng.random(len(own["bank"])) < 0.5).astype(float)
    with Opened(own, party=PairParty) as opened:
        found = opened_pairs(opened).pairs(~opened.alignment.mask)
    assert not found.withheld.any()
    assert np.argwhere(found.apart).tolist() == [[1, 1]]
    assert found.sums[1] == pytest.approx(6.0)
    assert found.products[1, 1] == pytest.approx(6.0)
    assert (found.products[1, 3:] == 0.0).all()
    assert (found.products[0, 3:] != 0.0).all()


@pytest.mark.parametrize("most", [2, 3])
def test_values_and_ranks_together_tell_no_rare_value_apart(most, monkeypatch):
    """Of `explore`: value, rank and 1 are as many numbers as a column of three values has."""
    kept, make = [], Pooled.__init__
    monkeypatch.setattr(Pooled, "__init__", lambda *args: (make(*args), kept.append(args))[0])
    rng = np.random.default_rng(0)
    children = np.where(np.arange(1000) < most - 1, most, rng.integers(0, 2, 1000))
    income = np.where(np.arange(1000) == 7, np.nan, rng.normal(size=1000))
    bank = pd.DataFrame({"children": children, "income": income})
    court = pd.DataFrame({"debt": np.exp(rng.normal(size=1000)), "gaps": bank["income"].shift(9)})
    court.loc[100:300, "gaps"] = np.nan  # so that squares are offered, too
    simulate(Explore(), {"bank": bank, "court": court})
    (_, parts, moments) = kept[0]
    value, *more = (parts[0].columns(role)[0] for role in ("value", "square", "rank"))
    assert more[0] >= 0
    assert not moments.withheld[value]
    assert moments.withheld[more].all()
    np.testing.assert_array_equal(moments.products[more], 0.0)


def one_row_alone(common, own):
    """All rows that bank and court share take part, and one that only the bank holds."""
    held = common["held"]
    lone = np.flatnonzero(held[:, 0] & ~held[:, 1])
    common["taken"] = common["taken"].copy()
    common["taken"][lone[1:]] = False


def one_of_two_others(common, own):
    """Of the rows that the bank shares with the court all but one are the hospital's as well."""
    held = common["held"]
    lone = np.flatnonzero(held[:, 0] & held[:, 1] & ~held[:, 2])
    common["taken"] = common["taken"].copy()
    common["taken"][lone[1:]] = False


def one_of_both_others(common, own):
    """Of the bank's rows either other one holds each but for one, which both do."""
    held = common["held"]
    of_others = held[:, 1:].sum(axis=1)
    common["taken"] = ~held[:, 0] | (of_others == 1)
    common["taken"][np.flatnonzero(held[:, 0] & (of_others == 2))[0]] = True


def other_holders(common, own):
    common["held"] = common["held"].copy()
    common["held"][:50, 0] = False


@pytest.mark.parametrize(
    ("k", "change", "says"),
    [
        (2, one_row_alone, "sums that tell of 1 of its rows alone"),
        (
            3,
            one_of_two_others,
            "may tell of 1 of its rows alone, which 'court' holds, and 'hospital'",
        ),
        (3, one_of_both_others, "sums that tell of 1 of its rows alone, over its rows and over"),
        (3, other_holders, "holds other rows than the server says"),
    ],
)
def test_a_node_refuses_sets_of_rows_that_differ_by_few(monkeypatch, k, change, says):
    with Opened(tables(k), party=PairParty) as opened:
        products = opened_pairs(opened)
        asked_for(monkeypatch, "open_pairs", change)
        with pytest.raises(PartyError, match=says):
            products.pairs(~opened.alignment.mask)


def test_parties_that_are_told_of_other_rows_open_noise(monkeypatch):
    """Masks and pads follow from what all are asked; else a row more at one party would open it."""
    with Opened(tables(2), "plain", party=PairParty) as opened:
        held = ~opened.alignment.mask
        honest = opened_pairs(opened).pairs(held)
        told_otherwise(
            monkeypatch,
            "open_pairs",
            "court",
            lambda asked: {"taken": asked["taken"] & (np.arange(N) < N - 300)},
        )
        told = opened_pairs(opened).pairs(held)
        # Uniform over some ten thousand: it is near no sum that was asked for.
        x = np.nan_to_num(opened.rows)
        fewer = x[: N - 300].T @ x[: N - 300]
        for sums in (honest.products, fewer):
            assert np.abs(told.products - sums)[0, 1:].min() > 1e-3


def people(n=400, seed=1):
    rng = np.random.default_rng(seed)
    ids = pd.Index([f"c{i:03}" for i in range(n)], name="id")
    common = rng.normal(size=n)
    return {
        name: pd.DataFrame({f"{name}{j}": common + rng.normal(size=n) for j in range(2)}, index=ids)
        for name in ("bank", "court")
    }


def test_rows_that_are_shared_are_counted_over_runs(tmp_path):
    """A row less at the court, and the difference of two runs would be the bank's columns of it."""
    own = people()
    nodes = Nodes(tmp_path, own)
    nodes.run(JointNormal())
    noted = nodes.entries("rows")
    assert [("with court" in entry["what"]) for entry in noted] == [False, True]
    assert [entry["n_rows"] for entry in noted] == [400, 400]
    nodes.run(JointNormal())  # the same rows: nothing is new
    less = {"bank": own["bank"], "court": own["court"].iloc[1:]}
    nodes.write(less)
    said = nodes.refused("min-rows", JointNormal())
    assert "sums that tell of 1 of its rows alone" in said
    nodes.write({"bank": own["bank"], "court": own["court"].iloc[150:]})
    nodes.run(JointNormal())
    assert nodes.ledger().state["smallest_set"] >= 100


@pytest.mark.parametrize("at_once", [False, True])
def test_sums_over_rows_of_two_others_read_no_row(at_once, tmp_path, monkeypatch):
    """Court and hospital each hold half of the bank's rows, and one both do: `explore` read it."""
    bank = people(401)["bank"]
    other = pd.Series(np.random.default_rng(2).normal(size=401), bank.index)
    parts = {"court": other[:201], "hospital": other[200:]}
    own = {"bank": bank} | {name: part.to_frame(name[:4]) for name, part in parts.items()}
    told, judge = [], ToldRows.admit_pairs

    def judged(self, held, widths, taken, who, wanted):
        found = judge(self, held, widths, taken, who, wanted)
        if self._name == "bank":
            names, mine = list(widths), who[:, list(widths).index("bank")] & taken
            told.append(mine)
            told.extend(mine & who[:, k] for k in np.flatnonzero(~found[1]) if names[k] != "bank")
        return found

    monkeypatch.setattr(ToldRows, "admit_pairs", judged)
    nodes = Nodes(tmp_path, own)
    if at_once:
        nodes.run(Explore())
    else:
        configs = nodes.configs
        nodes.configs = {name: configs[name] for name in ("bank", "court")}
        nodes.run(Explore())
        nodes.configs = {name: configs[name] for name in ("bank", "hospital")}
        assert "tell of 1 of its rows alone, over sets" in nodes.refused("min-rows", Explore())
        told = told[:2]
    sets = np.array(told, dtype=float)
    _, s, vt = np.linalg.svd(sets, full_matrices=False)
    assert (vt[s > 1e-9] ** 2).sum(axis=0).max() < 0.1


def test_sums_by_groups_of_rows_count_for_pairs_too(tmp_path):
    """What another method opened over some rows is less than the sum over all of them."""
    own = people()
    nodes = Nodes(tmp_path, own)
    labels = pd.Series(np.arange(400.0), own["bank"].index, name="y")
    labels.iloc[:3] = np.nan
    nodes.run(CompleteCase(), labels)
    said = nodes.refused("min-rows", JointNormal())
    assert "sums that tell of 3 of its rows alone" in said
