"""Weight of evidence, information value, merged bins, stability of a population."""

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from strategies.binning.woe import (
    information_value,
    merge_bins,
    stability_index,
    weight_of_evidence,
)

# `binning_table.build()` of optbinning 1.0.0, which has too many dependencies to be one of tests:
#   rng = np.random.default_rng(0)
#   x = rng.normal(size=500)
#   y = (rng.random(500) < 1 / (1 + np.exp(1.0 - x))).astype(int)
#   x[:40] = np.nan
#   x[40:70] = -999.0
#   splits = [-0.8, 0.0, 0.8]
#   OptimalBinning(user_splits=splits, user_splits_fixed=[True] * 3, special_codes=[-999.0])
COUNT = np.array([97, 132, 108, 93, 30, 40])
EVENT = np.array([5, 23, 37, 61, 11, 12])
WOE = [
    *(2.0555107470945333, 0.6990137487795874, -0.20507795312331556),
    *(-1.501977878893991, -0.3102962111523365, -0.009542057133202886),
]
IV = [
    *(0.4697894789579333, 0.10917119447851147, 0.009442392992618292),
    *(0.4779712391906672, 0.00611111297514115, 7.298079988682712e-06),
]


def test_the_numbers_are_those_of_optbinning():
    np.testing.assert_allclose(weight_of_evidence(COUNT, EVENT), WOE, rtol=1e-12)
    np.testing.assert_allclose(information_value(COUNT, EVENT), IV, rtol=1e-10)


def test_a_half_counts_where_a_cell_is_empty_and_there_alone():
    n, events = np.array([50.0, 50.0, 0.0]), np.array([0.0, 20.0, 0.0])
    found = weight_of_evidence(n, events)
    assert found[0] == pytest.approx(np.log((50.0 + 0.5 * 80 / 20) / 80) - np.log(0.5 / 20))
    assert found[1] == pytest.approx(np.log(30 / 80) - np.log(20 / 20))
    assert found[2] == 0.0
    assert weight_of_evidence(n, n).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("n_gap", [1.0, 20.0, 60.0])
def test_few_rows_without_events_are_no_evidence_of_events(n_gap):
    """One event in a hundred rows: 0.5 for both would say that it is likelier among 20 rows."""
    n, events = np.array([n_gap, 2000.0 - n_gap]), np.array([0.0, 20.0])
    none = weight_of_evidence(n, events)
    assert none[0] > 0.0
    assert none[0] == pytest.approx(-weight_of_evidence(n, n - events)[0])  # or of events alone
    assert (information_value(n, events) >= 0.0).all()
    assert stability_index(np.array([0.0, 2000.0]), np.array([1.0, 50.0])) > 0.0


def test_the_stability_index_is_that_of_its_definition():
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.3, 0.45, 0.25])
    by_hand = sum((a - b) * np.log(a / b) for a, b in zip(p, q, strict=True))
    assert stability_index(1000 * p, 400 * q) == pytest.approx(by_hand)
    assert stability_index(1000 * p, 1000 * p) == 0.0
    assert np.isfinite(stability_index(np.array([5.0, 0.0]), np.array([5.0, 5.0])))


@pytest.mark.parametrize("rises", [True, False])
def test_merged_rates_are_those_of_isotonic_regression(rises):
    rng = np.random.default_rng(2)
    for _ in range(20):
        n = rng.integers(30, 200, 12).astype(float)
        slope = np.linspace(0.1, 0.5, 12)[:: 1 if rises else -1]
        events = rng.binomial(n.astype(int), slope).astype(float)
        merged = merge_bins(n, events, 12, nominal=False, share=0.0)
        sums = [np.bincount(merged, part) for part in (n, events)]
        smooth = IsotonicRegression(increasing=rises).fit_transform(
            np.arange(12), events / n, sample_weight=n
        )
        np.testing.assert_allclose((sums[1] / sums[0])[merged], smooth)


def test_levels_are_merged_by_rate_and_missing_cells_stay_alone():
    n = np.array([200.0, 20.0, 300.0, 200.0, 10.0])
    events = np.array([80.0, 9.0, 30.0, 20.0, 1.0])
    merged = merge_bins(n, events, 4, nominal=True, share=0.1)
    assert merged[0] == merged[1]  # 0.40 and 0.45: 20 rows are too few
    assert merged[2] == merged[3]  # the same rate
    assert len(set(merged.tolist())) == 3


def test_bins_without_events_join_a_neighbour():
    n, events = np.array([40.0, 60.0, 100.0]), np.array([0.0, 6.0, 50.0])
    assert merge_bins(n, events, 3, nominal=False, share=0.0).tolist() == [0, 0, 1]
