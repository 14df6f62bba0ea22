"""Moments that the server opens are those of the pooled table; grouping and its limits."""

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Strategy, simulate
from flwr_vertical.errors import DataError
from strategies.linear.moment_party import MomentParty
from strategies.linear.moments.collect import open_moments
from strategies.linear.moments.groups import by_pattern, complete_rows
from strategies.linear.moments.steps import rough_units


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


def test_rounds_after_alignment():
    parties, y = tables()
    result = opened(Opened(), parties, y)[0]
    steps = result.ledger.to_frame().groupby("step")["round"].nunique()
    own = ["prepare_moments", "seal_group_seed", "send_masked", "open_products"]
    assert steps[own].to_list() == [1, 1, 1, 1]
    assert result.ledger.rounds == 2 + 4 + 1  # greeting and alignment; the end


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
