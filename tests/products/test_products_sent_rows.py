"""Rows of masked columns in parts: the same numbers as at once, whatever the strategy."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import scratch, step
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.products import sent_rows
from tests.kit import cases
from tests.products.test_products_private import MultiplyingParty, N, Opened, in_groups, tables


def moments(party=MultiplyingParty):
    with Opened(tables(3), party=party) as opened:
        labels = np.random.default_rng(0).normal(size=(N, 1))
        products = opened.products()
        found = products.moments(in_groups(opened, slice(None)), 1, labels)
        steps = opened.federation.ledger.to_frame().groupby("round")["step"].first().tolist()
        on_disk = {scratch.is_mapped(rows) for rows in products._masked.values()}
    return found, steps.count("send_rows"), on_disk


@pytest.mark.parametrize(("part", "n_rounds"), [(N, 0), (N - 1, 1), (100, 6), (350, 1)])
@pytest.mark.parametrize("held", [scratch.HOLD_BYTES, 0])
def test_moments_are_those_of_rows_sent_at_once(monkeypatch, part, n_rounds, held):
    expected, *_ = moments()
    monkeypatch.setattr(sent_rows, "PART_ROWS", part)
    monkeypatch.setattr(scratch, "HOLD_BYTES", held)
    found, rounds, on_disk = moments()
    assert (rounds, on_disk) == (n_rounds, {bool(n_rounds and not held)})
    for name in ("sums", "products", "with_vectors"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


class Short(MultiplyingParty):
    """Sends a row less than it should."""

    @step
    def send_rows(self, limbs, start):
        told = self.products.send_rows(limbs, start)
        return {"masked": told["masked"][: -1 if self.name == "court" else None]}


class Fewer(MultiplyingParty):
    """Has a part of the samples alone."""

    @step
    def send_masked(self, limbs, owner, sealed, **keys):
        told = self.products.send_masked(limbs, owner, sealed, **keys)
        return {k: v for k, v in told.items() if k != "n_rows" or self.name != "court"}


@pytest.mark.parametrize(
    ("party", "error", "why"),
    [
        (Short, PartyError, r"'court'.*sent rows of shape \(299, 4\), expected \(300, 4\)"),
        (Fewer, DataError, r"of different lengths: .*'bank': 700.* or less of \['court'\]"),
    ],
)
def test_rows_that_do_not_fit_are_refused(monkeypatch, party, error, why):
    monkeypatch.setattr(sent_rows, "PART_ROWS", 300)
    with pytest.raises(error, match=why):
        moments(party)


@pytest.mark.parametrize("case", ["explore", "fedpsg-ar", "glm all"])
def test_steps_of_strategies_send_more_rows_too(monkeypatch, case):
    def run():
        result = cases.run(case, alignment="plain")
        return result, result.ledger.to_frame()["step"].tolist()

    expected, at_once = run()
    monkeypatch.setattr(sent_rows, "PART_ROWS", 30)
    found, in_parts = run()
    assert "send_rows" in in_parts
    assert [name for name in in_parts if name != "send_rows"] == at_once
    # Rounds are counted in what parties draw: noise that rounds a mean is another one.
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-3, abs=1e-9)
    for name, table in expected.tables.items():
        pd.testing.assert_frame_equal(found.tables[name], table)
