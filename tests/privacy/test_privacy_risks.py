"""Risks of synthetic tables, beside the numbers of the package that defines them."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import DataError
from flwr_vertical.grading.predicates import Term, counts_of
from flwr_vertical.grading.proportions import Rate, Risk
from flwr_vertical.grading.risks import inference, inferences, linkability, membership, singling_out

# Computed by anonymeter 1.0.0 (numpy 1.26, pandas 2.1) on the tables of `fixed`: InferenceEvaluator
# with all other columns known and n_attacks=200, LinkabilityEvaluator with n_neighbors=3, and
# SingleOutEvaluator with n_attacks=150, the mean of 12 runs. Rates of members and of the control.
INFERENCE = {
    "age": (0.3577325723, 0.0830092637, 0.2995922399),
    "income": (0.3577325723, 0.0830092637, 0.2995922399),
    "debt": (0.3332037055, 0.0535746235, 0.2954581406),
    "job": (0.5049057734, 0.3381094789, 0.2519998235),
}
LINKABILITY = (0.3332037055, 0.0339515300, 0.3097693177)
SINGLING_OUT = {1: (0.288, 0.037), 3: (0.380, 0.239)}


def draw(rng, n=200):
    age = rng.integers(18, 90, n)
    income = np.round(np.exp(rng.normal(8, 0.6, n)) + 20 * age, 0)
    job = rng.choice(["nurse", "clerk", "smith", "cook"], n, p=[0.4, 0.3, 0.2, 0.1])
    debt = np.round(income * rng.uniform(0.1, 2, n), 1)
    return pd.DataFrame({"age": age.astype(float), "income": income, "debt": debt, "job": job})


@pytest.fixture(scope="module")
def fixed():
    """Three samples of one population; three in ten synthetic rows are members' own."""
    rng = np.random.default_rng(5)
    members, others, synthetic = draw(rng), draw(rng), draw(rng)
    copied = rng.random(200) < 0.3
    synthetic.loc[copied] = members[copied]
    return members, others, synthetic


@pytest.mark.parametrize("column", INFERENCE)
def test_inference_is_anonymeters(fixed, column):
    risk = inference(*fixed, target=column)
    found = (risk.members.value, risk.chance.value, risk.excess.value)
    np.testing.assert_allclose(found, INFERENCE[column], atol=1e-9)


def test_linkability_is_anonymeters_but_for_ties(fixed):
    """Rows at the same distance come in no particular order there; it concerns 3 of 200 people."""
    risk = linkability(*fixed, left=["age", "job"], right=["income", "debt"], n_neighbors=3)
    found = (risk.members.value, risk.chance.value, risk.excess.value)
    np.testing.assert_allclose(found, LINKABILITY, atol=0.016)


@pytest.mark.parametrize("n_columns", SINGLING_OUT)
def test_singling_out_is_anonymeters_but_for_chance(fixed, n_columns):
    """Rates of single runs have standard deviations of 0.02 (members) and 0.015 (others)."""
    risks = [singling_out(*fixed, n_columns=n_columns, n_attacks=150, seed=s) for s in range(6)]
    found = np.mean([(r.members.value, r.chance.value) for r in risks], axis=0)
    np.testing.assert_allclose(found, SINGLING_OUT[n_columns], atol=0.03)


def test_several_columns_are_guessed_at_the_price_of_one(fixed):
    """Taking a column's part off the whole distance is exact, so ties are the same ones."""
    rounded = [table.assign(age=table["age"] // 10, debt=table["debt"] // 1e4) for table in fixed]
    together = {risk.attack: risk for risk in inferences(*rounded)}
    for column in INFERENCE:
        alone = inference(*rounded, target=column, known=[c for c in INFERENCE if c != column])
        assert (alone.members, alone.chance) == (
            together[alone.attack].members, together[alone.attack].chance
        )  # fmt: skip


def attacks(members, others, synthetic):
    """One risk for each kind of attack."""
    tables = (members, others, synthetic)
    return [
        singling_out(*tables, n_columns=1, n_attacks=150),
        singling_out(*tables, n_columns=3, n_attacks=150),
        linkability(*tables, ["age", "job"], ["income", "debt"]),
        membership(*tables),
        *inferences(*tables),
    ]


@pytest.mark.parametrize("others_known", [True, False])
def test_a_copy_is_at_risk_and_a_fresh_sample_is_not(fixed, others_known):
    members, others, _ = fixed
    others = others if others_known else None
    # Every fourth person has the commonest job, which the nearest other row tells as well.
    assert min(risk.gain.value for risk in attacks(members, others, members)) > 0.4
    fresh = attacks(members, others, draw(np.random.default_rng(6)))
    assert max(risk.gain.low for risk in fresh) <= 0.02
    assert all(risk.gain.low <= risk.gain.value <= risk.gain.high for risk in fresh)


def test_membership_is_a_share_of_each_kind(fixed):
    members, others, _ = fixed
    risk = membership(members, others, members)
    assert (risk.members, risk.chance) == (Rate(200, 200), Rate(0, 200))
    some = membership(members, others.head(50), members)
    assert some.members.n == some.chance.n == 50
    few = membership(members, None, members, n_attacks=30)
    assert (few.members, few.chance) == (Rate(30, 30), Rate(0, 30))


def test_predicates_count_rows(fixed):
    table = fixed[0]
    both = (Term("age", ">=", 60.0), Term("job", "==", "cook"))
    expected = ((table["age"] >= 60) & (table["job"] == "cook")).sum()
    low = (table["age"] <= 20.0).sum()
    assert counts_of([both, (Term("age", "<=", 20.0),)], table).tolist() == [expected, low]


def test_intervals_are_statsmodels():
    from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

    for hits, n in ((0, 20), (7, 50), (50, 50)):
        rate = Rate(hits, n)
        expected = proportion_confint(hits, n, method="wilson")
        got = (rate.value - rate.error, rate.value + rate.error)
        np.testing.assert_allclose(got, expected, atol=1e-12)
    for first, second in (((30, 50), (7, 40)), ((50, 50), (0, 9))):
        gain = Risk("any", Rate(*first), Rate(*second)).gain
        expected = confint_proportions_2indep(*first, *second, method="newcomb", compare="diff")
        np.testing.assert_allclose(gain[1:], expected, atol=1e-12)


def test_rows_that_nobody_is_singled_out_by():
    same = pd.DataFrame({"a": ["x"] * 20, "b": ["y"] * 20})
    with pytest.raises(DataError, match="no predicate on 1 columns holds for one synthetic row"):
        singling_out(same, same, same, n_columns=1)
