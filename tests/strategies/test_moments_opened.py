"""Moments that the server opens are those of the pooled table; grouping and its limits."""

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Party, Strategy, Uses, simulate
from flwr_vertical.errors import DataError
from flwr_vertical.products import GroupKeySteps, PairKeySteps
from strategies.regression import RegressionData
from strategies.regression.moments import MomentSteps, all_rows, complete_rows, open_moments
from strategies.regression.moments.groups import Minimum, by_pattern, rows_given_up


class Opening(Party):
    data = Uses(RegressionData)
    pair_keys = Uses(PairKeySteps)
    group_key = Uses(GroupKeySteps)
    moments = Uses(MomentSteps, purpose="test")


class Opened(Strategy):
    """Opens moments and keeps them."""

    name = "opened"
    party = Opening
    needs_labels = True
    disclosure = (("server", "moments"),)
    grouping: str = "pattern"
    columns_of: str = ""

    def run(self, federation, alignment, result, progress):
        how = {"pattern": by_pattern, "complete": complete_rows, "all": all_rows}[self.grouping]
        self.given.append(
            open_moments(
                federation, alignment, result, encoding="none", missing_cells="error",
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
    result = simulate(strategy, parties, y, progress=False)
    return result, *Opened.given


def pooled(parties, y, moments, ids):
    """The standardised table as the moments have it: NaN where a block is missing."""
    joined = pd.concat([table.reindex(ids) for table in parties.values()], axis=1)
    x = (joined.to_numpy() - moments.center) / moments.unit
    label = (y[ids].to_numpy() - moments.problem.y_center) / moments.problem.y_scale
    return np.column_stack([x, label])


def test_sums_by_pattern_are_those_of_the_pooled_table():
    parties, y = tables()
    result, moments, ids = opened(Opened(), parties, y)
    rows = pooled(parties, y, moments, ids)
    groups = moments.groups
    assert groups.n_merged > 0  # patterns of fewer than 100 rows have given up a block
    assert result.metrics["rows_merged"] == groups.n_merged
    assert any("a block that a party has counts as missing" in note for note in result.notes)
    for g, pattern in enumerate(moments.held):
        own = rows[groups.group == g][:, pattern.observed]
        assert pattern.n_rows == len(own) >= 100
        np.testing.assert_allclose(pattern.sums, own.sum(axis=0), atol=1e-9 * len(own))
        np.testing.assert_allclose(pattern.products, own.T @ own, atol=1e-9 * len(own))
    used = moments.problem.mask.shape[0] - groups.n_left_out
    assert sum(p.n_rows for p in moments.held) == used


def test_rounds_after_alignment():
    parties, y = tables()
    result = opened(Opened(), parties, y)[0]
    steps = result.ledger.to_frame().groupby("step")["round"].nunique()
    own = ["prepare_moments", "seal_group_seed", "send_masked", "open_products"]
    assert steps[own].to_list() == [1, 1, 1, 1]
    assert result.ledger.rounds == 2 + 4 + 1  # greeting and alignment; the end


def test_all_rows_in_one_group_have_zeros_where_a_block_is_missing():
    parties, y = tables()
    _, moments, ids = opened(Opened("all"), parties, y)
    rows = np.nan_to_num(pooled(parties, y, moments, ids))
    (pattern,) = moments.held
    np.testing.assert_allclose(pattern.products, rows.T @ rows, atol=1e-7)


def test_one_party_s_columns_alone_with_the_others_as_helpers():
    parties, y = tables()
    parties["court"] = parties["court"].assign(town="Ulm")  # no number: it is not asked for
    _, moments, _ = opened(Opened("complete", "shop"), parties, y)
    assert moments.n_columns == 2
    assert moments.problem.columns == {"bank": [], "court": [], "shop": ["d", "e"]}


def test_rows_given_up_are_those_that_count_as_missing():
    mask = np.array([[False, False]] * 15 + [[False, True]] * 19 + [[True, False]] * 2)
    groups = by_pattern(mask, np.array([2, 1]), Minimum(16, by_rule=False))
    assert (groups.n_merged, groups.n_left_out) == (15, 2)
    assert rows_given_up(groups, mask, 0).tolist() == []
    assert rows_given_up(groups, mask, 1).tolist() == [*range(15), 34, 35]


@pytest.mark.parametrize("grouping", ["pattern", "complete"])
def test_too_few_rows_are_refused_with_what_to_do(grouping):
    parties, y = tables(120)
    with pytest.raises(DataError, match=r"fewer than 10\d .*min-rows"):
        opened(Opened(grouping), parties, y)


def test_pairs_of_parties_with_few_rows_in_common_are_grouped_by_pattern():
    mask = np.array([[False, True]] * 200 + [[True, False]] * 200 + [[False, False]] * 3)
    groups = all_rows(mask, np.array([1, 1]), Minimum())
    assert groups.n_merged == 3
    assert len(groups.mask) == 2
