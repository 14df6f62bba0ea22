"""Private products over a federation: exact moments, nothing of a row, rules that parties keep."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import (
    LocalGrid,
    MemoryStorage,
    Party,
    RecordingGrid,
    Strategy,
    Table,
    Uses,
    party_app,
    simulate,
)
from flwr_vertical.alignment import make_aligner
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.products import HeldColumns, PairKeySteps
from flwr_vertical.products.group_key import GroupKey, GroupKeySteps
from flwr_vertical.products.opened import PrivateProducts
from flwr_vertical.products.private import PrivateProductSteps
from flwr_vertical.server import Federation
from tests import resuming
from tests.transcripts import arrays_of

N = 700
NAMES = ("bank", "court", "hospital", "insurer", "tax")


class MultiplyingParty(Party):
    pair_keys = Uses(PairKeySteps)
    group_key = Uses(GroupKeySteps)
    products = Uses(PrivateProductSteps, purpose="test")

    def columns_to_multiply(self):
        positions = np.asarray(self.positions)
        order = np.argsort(positions)
        return HeldColumns(
            self.table.frame.to_numpy(dtype=float)[order], positions[order], self.n_samples
        )


def tables(k, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for j, name in enumerate(NAMES[:k]):
        held = np.flatnonzero(rng.random(N) > (0.3 if j else 0.0))
        values = rng.normal(size=(len(held), j % 2 + 1)) * 10.0**j + j
        columns = [f"{name}{c}" for c in range(values.shape[1])]
        found[name] = pd.DataFrame(values, index=[f"s{i:03}" for i in held], columns=columns)
    return found


class Opened:
    """An open federation of multiplying parties, aligned."""

    def __init__(
        self, given, mode="masked", wrap=lambda grid: grid, party=MultiplyingParty, config=None
    ):
        own = {name: Table.of(frame) for name, frame in given.items()}
        app = party_app(party, storage=MemoryStorage(own))
        self.local = LocalGrid(
            app, [{"party": name, **(config or {}).get(name, {})} for name in given]
        )
        self.federation = Federation(wrap(self.local), aggregation=mode)
        self.federation.open()
        self.alignment = make_aligner("plain").align(self.federation)
        rows = [frame.reindex(self.alignment.ids) for frame in given.values()]
        self.rows = pd.concat(rows, axis=1).to_numpy(dtype=float)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.local.close()


def expected(rows, group, n_groups, vectors):
    filled = np.nan_to_num(rows)
    parts = [filled[group == g] for g in range(n_groups)]
    return (
        np.stack([part.sum(axis=0) for part in parts]),
        np.stack([part.T @ part for part in parts]),
        np.stack([filled[group == g].T @ vectors[group == g] for g in range(n_groups)]),
    )


@pytest.mark.parametrize(("k", "mode"), [(2, "masked"), (3, "masked"), (5, "masked"), (3, "plain")])
@pytest.mark.parametrize(("limbs", "tolerance"), [(1, 1e-6), (2, 1e-12)])
def test_moments_by_group_are_those_of_the_pooled_table(k, mode, limbs, tolerance):
    with Opened(tables(k), mode) as opened:
        n = len(opened.rows)
        rng = np.random.default_rng(1)
        labels = np.column_stack([rng.normal(size=n) * 50, np.ones(n)])
        group = rng.integers(-1, 2, size=n)
        products = PrivateProducts(opened.federation, GroupKey(opened.federation), limbs)
        products.send()
        before = opened.federation.ledger.rounds
        found = products.moments(group, 2, labels)
        assert opened.federation.ledger.rounds == before + 1
        filled = np.nan_to_num(opened.rows)
        size = np.sqrt((filled**2).sum(axis=0))
        for value, truth, unit in zip(
            (found.sums, found.products, found.with_vectors),
            expected(opened.rows, group, 2, labels),
            (size, np.outer(size, size), np.outer(size, np.sqrt((labels**2).sum(axis=0)))),
            strict=True,
        ):
            assert np.abs((value - truth) / unit).max() < tolerance


@pytest.mark.parametrize("k", [2, 3])
def test_no_message_shows_a_column_or_a_label(k):
    """Correlation over rows: what is uniform has none, an affine image of a column has 1."""
    recorders = []

    def record(grid):
        recorders.append(RecordingGrid(grid))
        return recorders[0]

    with Opened(tables(k), wrap=record) as opened:
        labels = np.random.default_rng(2).normal(size=(len(opened.rows), 1))
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        products.send()
        products.moments(np.zeros(len(labels), dtype=int), 1, labels)
        secret = np.column_stack([np.nan_to_num(opened.rows), labels])
        seen = 0
        for array in arrays_of(recorders[0].transcript):
            if array.ndim == 2 and len(array) == len(secret) and array.dtype == np.uint64:
                seen += 1
                for column in array.T:
                    for low in (column >> np.uint64(32), column & np.uint64(2**32 - 1)):
                        r = np.corrcoef(low.astype(float), secret.T)[0, 1:]
                        assert np.abs(r).max() < 6 / np.sqrt(len(secret))
            else:
                assert array.shape[:1] != (len(secret),) or array.ndim == 1
        # U of every party, and v + rho to each.
        assert seen >= 2 * k


def test_groups_too_small_vectors_too_many_and_atoms_are_refused_by_the_parties():
    with Opened(tables(2)) as opened:
        n = len(opened.rows)
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        products.send()
        small = np.where(np.arange(n) < 40, 0, 1)
        with pytest.raises(PartyError, match=r"tell of 40 of its rows alone.* fewer than 100"):
            products.moments(small, 2)
        everything = np.zeros(n, dtype=int)
        products.moments(everything, 1)
        # All rows but thirty: the difference of the two tells of the thirty.
        with pytest.raises(PartyError, match="tell of 30 of its rows alone"):
            products.moments(np.where(np.arange(n) < 30, -1, 0), 1)
        halves = np.where(np.arange(n) < n // 2, 0, 1)
        products.moments(halves, 2, np.ones((n, 20)))
        # Twenty vectors are known to the server already, over rows of each half.
        with pytest.raises(PartyError, match=r"\d+ vectors in all are too many"):
            products.moments(halves, 2, np.random.default_rng(0).normal(size=(n, 40)))


class AskMinimum(Strategy):
    """Opens sums over the first rows, as few as the parties say."""

    name = "ask-minimum"
    party = MultiplyingParty
    disclosure = (("server", "sums over some rows"),)

    def run(self, federation, alignment, result, progress):
        products = PrivateProducts(federation, GroupKey(federation))
        products.send()
        result.metrics["asked"] = fewest = products.min_rows(3, 1)
        group = np.where(np.arange(alignment.n_samples) < fewest, 0, -1)
        result.metrics["sum"] = float(products.moments(group, 1).sums[0, 0])


def test_the_minimum_of_rows_is_the_largest_of_the_parties():
    given = {name: frame.loc[:"s699"] for name, frame in tables(2).items()}
    shared = given["bank"].index.intersection(given["court"].index)
    given = {name: frame.loc[shared] for name, frame in given.items()}
    for minimum, asked in ((None, 100), (7, 7), (200, 200)):
        found = simulate(AskMinimum(), given, min_rows=minimum, progress=False).metrics
        assert found["asked"] == asked
        assert np.isclose(found["sum"], given["bank"].iloc[:asked, 0].sum())
    with Opened(given, config={"court": {"min-rows": 20}}) as opened:
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        products.send()
        assert products.min_rows(49, 1) == 150  # the bank has the default


@pytest.mark.parametrize(("minimum", "why"), [(0, "expected at least 1"), (2.5, "a whole number")])
def test_a_minimum_that_is_none_is_refused(minimum, why):
    with pytest.raises(PartyError, match=rf"party 'bank': node config min-rows.*{why}"):
        simulate(AskMinimum(), tables(2), min_rows=minimum, progress=False)


def test_the_scale_of_a_column_tells_its_size_to_a_power_of_two():
    """Exact, it would open the squares of rows in no group, by subtracting what is opened."""
    with Opened(tables(3)) as opened:
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        products.send()
        told = np.concatenate(list(products._scale.values()))
        size = np.sqrt(np.mean(np.nan_to_num(opened.rows) ** 2, axis=0))
        np.testing.assert_array_equal(np.log2(told), np.ceil(np.log2(size)))


def test_columns_that_changed_since_they_were_sent_are_refused():
    class Restless(MultiplyingParty):
        moved = 0.0

        def take(self, name, arguments):
            self.cache.clear()  # as in a new process
            return super().take(name, arguments)

        def columns_to_multiply(self):
            held = super().columns_to_multiply()
            return HeldColumns(held.values + type(self).moved, held.rows, held.n_samples)

    with Opened(tables(2), party=Restless) as opened:
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        products.send()
        Restless.moved = 1.0
        with pytest.raises(PartyError, match="no longer those that it sent for 'test'"):
            products.moments(np.zeros(len(opened.rows), dtype=int), 1)


def test_an_attempt_is_used_once(monkeypatch):
    with Opened(tables(3)) as opened:
        n = len(opened.rows)
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        products.send()
        monkeypatch.setattr(opened.federation, "random_bytes", lambda count: bytes(count))
        products.moments(np.zeros(n, dtype=int), 1, np.ones((n, 1)))
        with pytest.raises(PartyError, match="this one was used before"):
            products.moments(np.zeros(n, dtype=int), 1, np.ones((n, 1)))


def test_the_seed_is_erased_in_the_end():
    with Opened(tables(2)) as opened:
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        products.send()
        everything = np.zeros(len(opened.rows), dtype=int)
        products.moments(everything, 1)
        products.close()
        with pytest.raises(ConfigError, match="call `send` first"):
            products.moments(everything, 1)
        with pytest.raises(PartyError, match="has no group seed"):
            opened.federation.sum(
                "open_products",
                {
                    "limbs": 2, "names": ["bank", "court"], "widths": [1, 2], "tags": [b"", b""],
                    "group": everything, "n_groups": 1,
                },
            )  # fmt: skip


def test_a_seed_that_was_exchanged_on_the_way_is_refused():
    with Opened(tables(3)) as opened:
        key = GroupKey(opened.federation)
        arguments = key.arguments()
        arguments["court"]["sealed"] = arguments["hospital"]["sealed"]
        with pytest.raises(PartyError, match="not sealed by it for this run"):
            opened.federation.call("send_masked", {"limbs": 1}, per_party=arguments)


def test_what_cannot_be_multiplied_privately_is_said():
    with Opened(tables(1)) as opened, pytest.raises(ConfigError, match="two parties or more"):
        PrivateProducts(opened.federation, GroupKey(opened.federation))
    with Opened(tables(2), mode="plain") as opened:
        with pytest.raises(ConfigError, match="limbs must be 1 or 2"):
            PrivateProducts(opened.federation, GroupKey(opened.federation), 3)
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        with pytest.raises(ConfigError, match="call `send` first"):
            products.moments(np.zeros(3, dtype=int), 1)


class MomentsOnly(Strategy):
    name = "moments-only"
    party = MultiplyingParty
    disclosure = (("server", "sums over all rows"),)

    def run(self, federation, alignment, result, progress):
        products = PrivateProducts(federation, GroupKey(federation))
        products.send()
        everything = np.zeros(alignment.n_samples, dtype=int)
        labels = np.nan_to_num(federation.labels)[:, None]
        first = products.moments(everything, 1, labels)
        second = products.moments(everything, 1, labels)
        products.close()
        result.model = np.stack([first.products[0], second.products[0]])
        result.metrics["with_labels"] = float(first.with_vectors.sum())


def test_a_run_that_was_killed_goes_on_and_the_masked_columns_are_in_no_journal(
    tmp_path, monkeypatch
):
    given = tables(3, seed=4)
    index = given["bank"].index
    labels = pd.Series(np.random.default_rng(3).normal(size=len(index)), index=index)
    monkeypatch.setitem(resuming.METHODS, "moments", (MomentsOnly, lambda: (given, labels)))
    whole = resuming.Place(tmp_path / "whole", "moments").run()
    rounds = 9
    for kill in range(2, rounds):
        for fault in ("die_before", "die_after"):
            place = resuming.Place(tmp_path / f"{fault}{kill}", "moments")
            try:
                place.run(**{fault: kill})
                continue  # it has fewer rounds
            except resuming.ServerKilled:
                pass
            held = place.journal.read_bytes()
            for record in place.transcript:
                for name, found in record.content.items():
                    if name == "values.arrays" and "masked" in found:
                        assert found["masked"].data[:64] not in held
            again = place.run(resume=True)
            np.testing.assert_array_equal(again.result.model, whole.result.model)
            assert again.result.metrics == whole.result.metrics
