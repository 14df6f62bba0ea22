"""Bins by their owners, and sums of labels by bin: those that pandas counts on the pooled table."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Federation, LocalGrid, MemoryStorage, Party, Table, Uses, party_app
from flwr_vertical.alignment.registry import make_aligner
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.products import GroupKey, GroupKeySteps, PairKeySteps
from strategies.binning.bins import MISSING, NO_BIN, fit_column_bins
from strategies.binning.label_sums import LabelSums
from strategies.binning.steps import BinSteps


class BinningParty(Party):
    pair_keys = Uses(PairKeySteps)
    group_key = Uses(GroupKeySteps)
    bins = Uses(BinSteps, purpose="test")


N = 900


def tables(seed=0, rare=0):
    rng = np.random.default_rng(seed)
    ids = [f"s{i:04}" for i in range(N)]
    age = pd.Series(rng.integers(18, 80, N).astype(float), index=ids)
    age[rng.random(N) < 0.1] = np.nan
    wealth = pd.Series(rng.lognormal(size=N), index=ids)
    wealth[rng.random(N) < 0.2] = -999.0
    job = pd.Series(rng.choice(["clerk", "nurse", "pilot"], N), index=ids, dtype=object)
    job.iloc[:rare] = "king"
    first = pd.DataFrame({"age": age, "wealth": wealth})
    second = pd.DataFrame({"job": job, "flag": rng.integers(0, 2, N)}, index=ids)
    return {"bank": first.iloc[rng.random(N) < 0.8], "court": second.iloc[rng.random(N) < 0.7]}


def flags(rng, n):
    return rng.integers(0, 2, n).astype(float)


class Opened:
    """An open federation of parties that bin their columns, with labels of its server."""

    def __init__(self, given, aggregation="masked", draw=flags, config=None):
        self.tables = {name: Table.of(frame) for name, frame in given.items()}
        app = party_app(BinningParty, storage=MemoryStorage(self.tables))
        self.local = LocalGrid(app, [{"party": name, **(config or {})} for name in given])
        self.federation = Federation(self.local, aggregation=aggregation)
        self.federation.open()
        ids = make_aligner("plain").align(self.federation).ids
        rng = np.random.default_rng(1)
        values = draw(rng, len(ids))
        self.labels = pd.Series(np.where(rng.random(len(ids)) < 0.25, np.nan, values), index=ids)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.local.close()

    def sums(self, most=5, special=(-999.0,), limbs=2):
        found = LabelSums(self.federation, GroupKey(self.federation), limbs)
        found.send_bins(self.labels.to_numpy(), most, special)
        return found.open_bins()

    def expected(self, name, most=5, special=(-999.0,), minimum=None):
        """Counts and sums by bin, by pandas."""
        table = self.tables[name]
        bins = fit_column_bins(table, most, special, minimum)
        numbers = bins.numbers(table, name)
        y = self.labels.reindex(table.frame.index).to_numpy()
        parts = []
        for j, width in enumerate(bins.n_bins):
            cells = pd.DataFrame({"bin": numbers[:, j], "y": y, "free": np.isnan(y)})
            by = cells.groupby("bin")
            found = pd.DataFrame(
                {"n": by["y"].count(), "sum": by["y"].sum(), "unlabelled": by["free"].sum()}
            )
            parts.append(found.reindex(range(width), fill_value=0.0))
        return pd.concat(parts).to_numpy(dtype=float)


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("aggregation", ["masked", "plain"])
def test_sums_of_flags_are_exact(aggregation, limbs):
    with Opened(tables(), aggregation) as opened:
        found = opened.sums(limbs=limbs)
        for name, own in found.items():
            np.testing.assert_array_equal(own.frame.to_numpy(), opened.expected(name))
            assert not own.withheld.any()
            assert not own.free_withheld.any()


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: np.where(rng.random(n) < 0.3, 1.9, -0.7),
        lambda rng, n: np.where(rng.random(n) < 0.3, 5.0, 1.0),
        lambda rng, n: rng.normal(1e3, 50.0, n),
        lambda rng, n: rng.poisson(1.0, n).astype(float),
    ],
)
def test_sums_of_any_labels_are_those_of_pandas(draw):
    with Opened(tables(), draw=draw) as opened:
        for name, own in opened.sums().items():
            np.testing.assert_allclose(own.frame, opened.expected(name), rtol=1e-12, atol=1e-9)


def test_a_party_that_lacks_rows_of_the_other_tells_all_of_its_own():
    given = tables()
    given["audit"] = given["bank"].rename(columns=str.upper).iloc[::3]
    with Opened(given) as opened:
        held = {name: own.frame["n"].sum() for name, own in opened.sums().items()}
        known = opened.labels.dropna().index
        for name, rows in held.items():
            table = opened.tables[name].frame
            assert rows == len(table.index.intersection(known)) * table.shape[1]


def test_a_column_with_a_rare_bin_among_labelled_rows_is_withheld():
    with Opened(tables()) as opened:
        job = opened.tables["court"].frame["job"]
        few = job.index[job == "pilot"][4:]
        opened.labels[few] = np.nan  # leaves four with a label, one of ten nearly
        opened.labels[job.index[job == "pilot"][:4]] = 1.0
        own = opened.sums()["court"]
        assert own.withheld.tolist() == [True, False]
        assert own.frame.loc["job", ["n", "sum"]].isna().all(axis=None)
        assert own.frame.loc["job", "unlabelled"].notna().all()


def test_a_party_with_few_labelled_rows_tells_nothing_of_them():
    with Opened(tables()) as opened:
        known = opened.labels.index.isin(opened.tables["bank"].frame.index[:80])
        opened.labels[~known] = np.nan
        for own in opened.sums().values():
            assert own.withheld.all()
            assert not own.free_withheld.any()


def test_what_a_node_states_decides_on_rare_bins():
    table = Table.of(tables(rare=8)["court"])
    named = {"clerk", "king", "nurse", "pilot"}
    assert set(fit_column_bins(table, 9, minimum=2).told[0]) == named
    merged = fit_column_bins(table, 9)
    assert merged.told[0][-1] == "other"
    assert "king" not in merged.told[0]
    counts = np.bincount(merged.numbers(table, "court")[:, 0])
    assert counts.min() > 100  # other has the rarest level beside the king


def test_what_two_codings_differ_in_is_no_smaller_than_a_bin():
    """A server that asks twice, for other bins or special values, subtracts to sums of these."""
    rng = np.random.default_rng(3)
    spend = np.where(rng.random(N) < 0.3, 0.0, np.round(rng.lognormal(3.0, 1.0, N)) - 3.0)
    spend[rng.integers(0, N, 4)] = np.nan  # too few to be told of
    job = rng.choice([*"abcdefgh"], N, p=np.array([9, 7, 6, 5, 0.1, 0.1, 0.1, 0.1]) / 27.4)
    frame = pd.DataFrame({"age": rng.normal(40, 9, N), "spend": spend, "job": job})
    frame.loc[rng.random(N) < 0.15, "age"] = -999.0
    table = Table.of(frame)
    rare = sorted(float(v) for v, n in frame["spend"].value_counts().items() if n < 4)
    codings = [
        fit_column_bins(table, most, special).numbers(table, "bank")
        for most in (2, 3, 4, 5, 7, 10, 11, 19, 20)
        for special in ((), (-999.0,), (0.0, -999.0), tuple(rare[:7]), tuple(rare[:8]))
    ]
    assert len({own.tobytes() for own in codings}) > 10
    for column in range(3):
        cells = np.unique([own[:, column] for own in codings], axis=1, return_counts=True)[1]
        assert cells.min() >= 40


def test_bins_have_names_for_their_owner_and_numbers_for_others():
    table = Table.of(tables()["bank"])
    bins = fit_column_bins(table, 4, [-999.0])
    numbers, wealth = bins.numbers(table, "bank"), table.frame["wealth"].to_numpy()
    assert bins.labels[0][-1] == bins.told[0][-1] == MISSING
    assert bins.labels[1][-1] == bins.told[1][-1] == "-999"
    assert bins.told[0][:-1] == [f"{i} of 4" for i in range(1, 5)]
    assert bins.n_proper == [4, 4]
    special = bins.n_bins[1] - 1
    assert ((numbers[:, 1] == special) == (wealth == -999.0)).all()
    for label, number in zip(bins.labels[1][:4], range(4), strict=True):
        low, high = (float(end) for end in label[1:-1].split(","))
        own = wealth[numbers[:, 1] == number]
        assert (own > low * (1 - 1e-5)).all()
        assert (own <= high * (1 + 1e-5)).all()
    new = pd.DataFrame({"age": [30.0], "wealth": [np.nan]}, index=["new"])
    assert bins.numbers(Table.of(new, like=table), "bank")[0, 1] == NO_BIN


@pytest.mark.parametrize(
    "values",
    [
        1e9 + np.random.default_rng(0).normal(size=900),
        np.random.default_rng(0).integers(20200101, 20241231, 900),
        2.0**60 + 1e6 * np.arange(900),
    ],
    ids=["far from 0", "dates as numbers", "beyond 2^53"],
)
def test_limits_of_ranges_are_told_apart(values):
    special = [9999998.0, 9999999.0]
    frame = pd.DataFrame({"a": np.append(np.repeat(special, 400), values)})
    bins = fit_column_bins(Table.of(frame, {"a": "continuous"}), 5, special)
    assert bins.labels[0][-2:] == bins.told[0][-2:] == ["9999998", "9999999"]
    numbers = bins.numbers(Table.of(frame), "bank")[800:, 0]
    for label, number in zip(bins.labels[0][:5], range(5), strict=True):
        low, high = (float(end) for end in label[1:-1].split(","))
        assert np.mean((values > low) & (values <= high) == (numbers == number)) > 0.995


def test_other_labels_are_refused_in_the_same_run():
    with Opened(tables()) as opened:
        sums = LabelSums(opened.federation, GroupKey(opened.federation))
        sums.send_bins(opened.labels.to_numpy(), 5)
        sums.open_bins()
        again = LabelSums(opened.federation, sums.group_key)
        with pytest.raises(PartyError, match="differ from those that it committed to"):
            again.send_bins(1.0 - opened.labels.to_numpy(), 5)


def test_two_parties_and_exact_sums_are_needed():
    one = {"bank": tables()["bank"]}
    with Opened(one) as opened, pytest.raises(ConfigError, match="two parties or more"):
        LabelSums(opened.federation, GroupKey(opened.federation))
