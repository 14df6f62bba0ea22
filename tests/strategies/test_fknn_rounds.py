"""What a run of FKNN costs: rounds as the strategy's docstring states, bytes per pair."""

import math

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from strategies.fknn import FKNN

N = 60
OPENING = 2  # greeting and alignment
KEYS = 2  # of pairs, and of the group


def tables(n_rows=N, seed=0):
    """Every third row needs imputing."""
    rng = np.random.default_rng(seed)
    made = {
        name: pd.DataFrame(rng.normal(size=(n_rows, 2)), columns=[f"{name}0", f"{name}1"])
        for name in "abc"
    }
    made["a"].iloc[::3, 1] = np.nan
    made["c"].iloc[::6, 0] = np.nan
    return made


def run(mode="masked", data=None, **settings):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    data = tables() if data is None else data
    return simulate(FKNN(n_neighbors=3, **settings), data, aggregation=mode, progress=False)


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
@pytest.mark.parametrize("rows_a_block", [20, 7, 1])
def test_rounds_are_blocks_and_five(mode, rows_a_block):
    result = run(mode, block_pairs=rows_a_block * N)
    blocks = math.ceil(20 / rows_a_block)
    assert result.metrics["rows-imputed"] == 20
    sums = blocks + 2  # prepare, and the last block's donors
    expected = KEYS + sums + 1  # finish
    if mode == "ckks":
        expected += sums  # the arbiter opens each
    assert result.ledger.rounds == OPENING + expected


def test_a_run_that_needs_nothing_takes_four_rounds():
    complete = {name: table.fillna(0.0) for name, table in tables().items()}
    assert run("masked", complete).ledger.rounds == OPENING + KEYS + 2
    assert run("ckks", complete).ledger.rounds == OPENING + KEYS + 2 + 1  # flags


def test_every_step_is_in_the_ledger():
    ledger = run("ckks").ledger.to_frame()
    steps = ledger.groupby("step").agg({"mode": "unique", "party": "unique"})
    assert set(steps.index) == {
        "hello", "share_ids", "pair_key", "seal_group_seed", "prepare", "reveal", "impute", "rank",
        "finish",
    }  # fmt: skip
    assert list(steps.loc["rank", "mode"]) == ["open"]
    assert list(steps.loc["rank", "party"]) == ["(arbiter)"]
    assert sorted(steps.loc["impute", "party"]) == ["a", "b", "c"]
    assert list(steps.loc["impute", "mode"]) == ["ckks"]


@pytest.mark.parametrize(("mode", "bytes_a_pair"), [("plain", 16), ("masked", 16), ("ckks", 96)])
def test_bytes_of_a_pair(mode, bytes_a_pair):
    """Two numbers for each pair of row and donor: 8 bytes each, or three of 32 encrypted ones."""
    data = tables(480)
    frame = run(mode, data, weighting="exact").ledger.to_frame()
    up = frame[(frame["step"] == "impute") & (frame["party"] == "b")].iloc[0]
    pairs = 160 * 480
    assert up["values_up"] == (3 if mode == "ckks" else 2) * pairs
    assert up["bytes_up"] / pairs == pytest.approx(bytes_a_pair, rel=0.1)


def test_nothing_of_size_n_by_n_travels():
    """Twice the rows to impute in blocks of the same size: no message grows."""
    sizes = []
    for n in (60, 120):
        frame = run("masked", tables(n), block_pairs=600).ledger.to_frame()
        sizes.append(frame[frame["step"] == "impute"])
    assert max(frame["bytes_up"].max() for frame in sizes) < 600 * 16 * 1.5
    assert sizes[1]["round"].max() > sizes[0]["round"].max()
