"""Private products over a federation: exact moments, nothing of a row, rules that parties keep."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomTreesEmbedding

from flwr_vertical import (
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    Strategy,
    Table,
    Uses,
    party_app,
    simulate,
)
from flwr_vertical.alignment.registry import make_aligner
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.node.state import State
from flwr_vertical.products import (
    EncryptedGroupSteps,
    HeldColumns,
    PairKeySteps,
    lone_rows,
    sent_rows,
)
from flwr_vertical.products import arithmetic as ring
from flwr_vertical.products.columns import OF_TREES, EncodedColumns
from flwr_vertical.products.group_key import GroupKey, GroupKeySteps
from flwr_vertical.products.labels import digest_of
from flwr_vertical.products.masked import PrivateProducts, PrivateProductSteps
from flwr_vertical.products.row_groups import group_rows
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import ARGUMENTS, read_envelope
from tests.kit import resuming

N = 700
NAMES = ("bank", "court", "hospital", "insurer", "tax")


class MultiplyingParty(Party):
    pair_keys = Uses(PairKeySteps)
    group_key = Uses(GroupKeySteps)
    products = Uses(PrivateProductSteps, purpose="test")
    ciphertexts = Uses(EncryptedGroupSteps, purpose="test")

    def columns_to_multiply(self):
        positions = np.asarray(self.positions)
        order = np.argsort(positions)
        values = self.table.frame.to_numpy(dtype=float)[order]
        names = tuple(self.table.columns)
        return HeldColumns(values, positions[order], self.n_samples, names)


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

    @property
    def held_by_all(self):
        """Numbers of the rows that every party holds."""
        return np.flatnonzero(~self.alignment.mask.any(axis=1))

    def noted_sums(self):
        """A list of the totals that the server will get."""
        told, call = [], self.federation.sum
        self.federation.sum = lambda *a, **b: told.append(call(*a, **b)) or told[-1]
        return told

    def products(self, limbs=2):
        """Private products, sent."""
        found = PrivateProducts(self.federation, GroupKey(self.federation), limbs)
        found.send()
        return found


def in_groups(opened, *sets):
    """Group of each row: sets of places among the rows that all hold, -1 elsewhere."""
    group = np.full(len(opened.rows), -1)
    for g, places in enumerate(sets):
        group[opened.held_by_all[places]] = g
    return group


def check_moments(found, opened, group, labels, withheld, tolerance):
    """Compare with sums over the pooled table, to a share of the columns' lengths."""
    np.testing.assert_array_equal(found.withheld, withheld)
    for g in range(len(withheld)):
        pooled = np.where(withheld[g], 0.0, np.nan_to_num(opened.rows))
        size = np.maximum(np.sqrt((pooled**2).sum(axis=0)), 1e-9)
        rows = group == g
        for value, truth, unit in (
            (found.sums[g], pooled[rows].sum(axis=0), size),
            (found.products[g], pooled[rows].T @ pooled[rows], np.outer(size, size)),
            (
                found.with_vectors[g],
                pooled[rows].T @ labels[rows],
                np.outer(size, np.sqrt((labels**2).sum(axis=0))),
            ),
        ):
            assert np.abs((value - truth) / unit).max() < tolerance


@pytest.mark.parametrize(
    ("k", "mode", "limbs", "tolerance"),
    [
        *((2, "masked", 1, 1e-6), (2, "masked", 2, 1e-12), (3, "masked", 2, 1e-12)),
        *((5, "masked", 1, 1e-6), (5, "masked", 2, 1e-12), (3, "plain", 2, 1e-12)),
    ],
)
def test_moments_by_pattern_are_those_of_the_pooled_table(k, mode, limbs, tolerance):
    with Opened(tables(k), mode) as opened:
        labels = np.random.default_rng(1).normal(size=(len(opened.rows), 2)) * [50, 1]
        widths = np.array([frame.shape[1] for frame in tables(k).values()])
        products = opened.products(limbs)
        fewest = products.min_rows(int(widths.sum()), 2)
        groups = group_rows(opened.alignment.mask, widths, 2, fewest)
        assert len(groups.mask) > 1
        assert (groups.n_merged > 0) == (k == 5)
        before = opened.federation.ledger.rounds
        found = products.moments(groups.group, len(groups.mask), labels, groups.mask)
        assert opened.federation.ledger.rounds == before + 1
        withheld = np.repeat(groups.mask, widths, axis=1)
        check_moments(found, opened, groups.group, labels, withheld, tolerance)


def test_a_group_of_which_a_party_has_some_rows_is_refused():
    with Opened(tables(3)) as opened:
        products = opened.products()
        everything = np.zeros(len(opened.rows), dtype=int)
        with pytest.raises(PartyError, match=r"has \d+ of the 700 rows of group 0") as caught:
            products.moments(everything, 1)
        assert caught.value.party == "court"  # the bank has all of them
        found = products.moments(everything, 1, missing=np.array([[False, True, True]]))
        np.testing.assert_array_equal(found.withheld, [[False, True, True, True]])


def test_groups_too_small_vectors_too_many_and_atoms_are_refused_by_the_parties():
    with Opened(tables(2)) as opened:
        products = opened.products()
        n = len(opened.held_by_all)
        with pytest.raises(PartyError, match=r"tell of 40 of its rows alone.* at least 100"):
            products.moments(in_groups(opened, slice(0, 40), slice(40, n)), 2)
        products.moments(in_groups(opened, slice(0, n)), 1)
        # All rows but thirty: the difference of the two tells of the thirty.
        with pytest.raises(PartyError, match="tell of 30 of its rows alone"):
            products.moments(in_groups(opened, slice(30, n)), 1)
        halves = in_groups(opened, slice(0, n // 2), slice(n // 2, n))
        labels = np.random.default_rng(0).normal(size=(len(opened.rows), 40))
        with pytest.raises(PartyError, match=r"policy\.vectors.* 40 different vectors"):
            products.moments(halves, 2, labels)


def test_the_same_labels_again_cost_nothing_and_other_labels_are_refused():
    with Opened(tables(2)) as opened:
        products = opened.products()
        n = len(opened.held_by_all)
        labels = np.random.default_rng(0).normal(size=(len(opened.rows), 9))
        everything = in_groups(opened, slice(0, n))
        first = products.moments(everything, 1, labels)
        # Nine vectors are allowed over 100 rows; twice nine different ones would not be.
        tenth = in_groups(opened, slice(0, 100), slice(100, n))
        again = products.moments(tenth, 2, labels)
        np.testing.assert_allclose(
            again.with_vectors.sum(axis=0), first.with_vectors[0], rtol=0, atol=1e-6
        )
        with pytest.raises(DataError, match="differ from those that the server committed to"):
            products.moments(everything, 1, labels + 1e-9)
        # A server that does not keep to it is refused by the parties, of the same products or new.
        products.commitment.digest = b""
        with pytest.raises(PartyError, match=r"'bank'.*differ from those that it committed to"):
            products.moments(everything, 1, labels + 1e-9)
        with pytest.raises(PartyError, match=r"'bank'.*differ from those that it committed to"):
            PrivateProducts(opened.federation, products.group_key).send(labels + 1e-9)


def test_groups_and_vectors_that_do_not_fit_are_refused_before_anybody_is_asked():
    with Opened(tables(2)) as opened:
        products, n = opened.products(), len(opened.rows)
        before, everything = opened.federation.ledger.rounds, in_groups(opened, slice(None))
        infinite = np.full((n, 1), np.inf)
        for arguments, why in (
            ((np.full(n, -1), 0), r"no group of rows.* lower 'min-rows'"),
            ((everything[1:], 1), rf"shape \({n - 1},\).* expected shape \({n},\)"),
            ((everything + 1, 1), r"numbers from -1 to 1; expected .* from -1 to 0"),
            ((everything, 1, np.zeros((n - 1, 1))), rf"shape \({n - 1}, 1\), expected \({n}"),
            ((everything, 1, infinite), "vector 0 is inf in row 0"),
        ):
            with pytest.raises(DataError, match=why):
                products.moments(*arguments)
        assert opened.federation.ledger.rounds == before


def test_an_auditor_can_open_the_commitment():
    with Opened(tables(2)) as opened:
        products = PrivateProducts(opened.federation, GroupKey(opened.federation))
        labels = np.random.default_rng(0).normal(size=(len(opened.rows), 1))
        products.send(labels)
        kept = products.commitment
        assert digest_of(kept.nonce, labels) == kept.digest != digest_of(bytes(32), labels)
        with pytest.raises(DataError, match="differ from those"):
            products.moments(in_groups(opened, slice(None)), 1, -labels)


def encoded(columns):
    held = HeldColumns(np.nan_to_num(columns), np.arange(len(columns)), len(columns))
    return EncodedColumns(held, 1, "").rows(0, len(columns))


@pytest.mark.parametrize("same", [True, False])
def test_parties_that_are_asked_different_things_open_nothing(same):
    """Else ``X_l'X_k`` over common rows and ``X_l'U_k`` over the others, U known, would be left."""
    with Opened(tables(2)) as opened:
        products, told = opened.products(limbs=1), []
        n = len(opened.held_by_all)
        whole, less = in_groups(opened, slice(0, n)), in_groups(opened, slice(150, n))
        call = opened.federation.sum

        def asking(step, arguments, per_party):
            own = per_party if same else {**per_party, "court": {"group": less}}
            told.append(call(step, arguments, per_party=own))
            return told[0]

        opened.federation.sum = asking
        products.moments(whole, 1)
        x, z = encoded(opened.rows[:, :1]), encoded(opened.rows[:, 1:])
        u, w = products._masked["bank"], products._masked["court"]
        rows, common = whole == 0, whole == 0 if same else less == 0
        left = ring.product(w[rows], u[rows])
        left -= told[0]["corrections"].view(np.uint64)[0, 0, 1:, :1]
        apart = rows & ~common
        equation = ring.product(z[common], x[common]) + ring.product(z[apart], u[apart])
        assert (left == equation).all() == same


def flags(n_ones, n=N, seed=0):
    """Two parties that hold all rows, the first with a flag and a number."""
    rng = np.random.default_rng(seed)
    index = [f"s{i:03}" for i in range(n)]
    flag = np.zeros(n)
    flag[np.sort(rng.choice(n, size=n_ones, replace=False))] = 1.0
    return {
        "bank": pd.DataFrame({"flag": flag, "x": rng.normal(size=n)}, index=index),
        "court": pd.DataFrame({"z": rng.normal(size=n)}, index=index),
    }


@pytest.mark.parametrize(
    ("n_ones", "n_vectors", "min_rows", "withheld"),
    [
        *((0, 1, None, False), (9, 1, None, True), (12, 1, None, False), (695, 1, None, True)),
        *((4, 1, 5, True), (5, 1, 5, False)),  # who lowers the minimum lowers it for levels
        # Sixty-four bits a vector: what one vector leaves open, three give away.
        *((20, 1, None, False), (20, 3, None, True)),
    ],
)
def test_a_flag_that_few_rows_have_is_withheld_and_the_rest_is_exact(
    n_ones, n_vectors, min_rows, withheld
):
    config = {"bank": {"min-rows": min_rows}} if min_rows else None
    with Opened(flags(n_ones), config=config) as opened:
        group = np.zeros(N, dtype=int)
        labels = np.random.default_rng(1).normal(size=(N, n_vectors))
        found = opened.products().moments(group, 1, labels)
        check_moments(found, opened, group, labels, np.array([[withheld, False, False]]), 1e-12)


def test_what_is_withheld_the_server_cannot_open_from_what_it_was_sent():
    with Opened(flags(5)) as opened:
        labels = np.random.default_rng(1).normal(size=(N, 1))
        products, told = opened.products(limbs=1), opened.noted_sums()
        assert products.moments(np.zeros(N, dtype=int), 1, labels).withheld[0, 0]
        own = told[0].public["bank"]
        assert not own["sums"][0, 0]
        assert not own["products"][0, 0].any()
        assert not own["owner"][0, :, 0].any()
        assert own["scale"][0] == 1.0
        u, w = products._masked["bank"], products._masked["court"]
        left = ring.product(w, u) - told[0]["corrections"].view(np.uint64)[0, 0, 2:, :2]
        x, z = encoded(opened.rows[:, :2]), encoded(opened.rows[:, 2:])
        # The number is opened exactly, of the flag the same way gives a uniform one.
        assert (left == ring.product(z, x)).tolist() == [[False, True]]


def test_a_flag_is_not_had_by_subtracting_groups():
    """Told over all rows, a flag is withheld in a part if it would be too rare in the other."""
    with Opened(flags(40)) as opened:
        products = opened.products()
        flag = opened.rows[:, 0]
        after = int(np.flatnonzero(flag)[4]) + 1  # five before here, 35 behind
        if not 100 <= after <= N - 100:
            after = 100
        few = flag[:after].sum()
        assert 0 < few < 15
        labels = np.random.default_rng(1).normal(size=(N, 1))
        first = products.moments(np.zeros(N, dtype=int), 1, labels)
        assert not first.withheld.any()
        behind = np.where(np.arange(N) < after, -1, 0)
        second = products.moments(behind, 1, labels)
        # Behind `after` the flag is common enough: alone it would be told.
        np.testing.assert_array_equal(second.withheld, [[True, False, False]])
    with Opened(flags(40)) as opened:
        alone = opened.products().moments(behind, 1, labels)
        assert not alone.withheld.any()


def test_a_party_with_too_few_rows_tells_nothing():
    given = tables(3)
    given["court"] = given["court"].iloc[:60]
    with Opened(given) as opened:
        products = opened.products()
        held = ~opened.alignment.mask
        group = np.where(held[:, 1], 0, np.where(held[:, 2], 1, -1))
        labels = np.random.default_rng(1).normal(size=(len(group), 1))
        missing = np.array([[True, False, True], [False, True, False]])
        found = products.moments(group, 2, labels, missing)
        assert found.withheld[0].all()
        assert found.withheld[1].tolist() == [False, True, True, False]
        check_moments(found, opened, group, labels, found.withheld, 1e-12)


def test_a_column_that_no_number_fits_is_named():
    given = tables(2)
    given["court"].iloc[5, 1] = 1e300
    why = r"'court', column 'court1'.* absolute values are up to 1\.3\d*e\+300"
    with Opened(given) as opened, pytest.raises(PartyError, match=why):
        opened.products()


def test_a_helper_that_drops_out_is_asked_again_under_new_streams():
    class Dropping:
        """Loses the helper's answer to the first request for sums."""

        def __init__(self, grid):
            self.grid, self.lost, self.sent = grid, 0, []

        def __getattr__(self, name):
            return getattr(self.grid, name)

        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            self.sent += messages
            replies = list(self.grid.send_and_receive(messages, timeout=timeout))
            last = read_envelope(messages[0].content)["step"] == "open_products"
            if last and not self.lost:
                self.lost = messages[0].metadata.dst_node_id
                replies = [r for r in replies if r.metadata.src_node_id != self.lost]
            return replies

    grids = []

    def wrap(grid):
        grids.append(Dropping(grid))
        return grids[0]

    with Opened(tables(3), wrap=wrap) as opened:
        opened.federation.retries = 0
        products = opened.products()
        labels = np.random.default_rng(1).normal(size=(len(opened.rows), 1))
        group = in_groups(opened, slice(None))
        with pytest.raises(PartyError, match="no answer"):
            products.moments(group, 1, labels)
        found = products.moments(group, 1, labels)
        check_moments(found, opened, group, labels, np.zeros((1, 4), dtype=bool), 1e-12)
        asked = [
            decode(m.content, ARGUMENTS)
            for m in grids[0].sent
            if read_envelope(m.content)["step"] == "open_products"
        ]
        assert len(asked) == 6
        first, second = asked[:3], asked[3:]
        assert first[0]["attempt"] != second[0]["attempt"]
        for a, b in zip(first, second, strict=True):
            assert a.get("rho_seed") != b.get("rho_seed") or "rho_seed" not in a
            assert (a["masked_vectors"] != b["masked_vectors"]).all()


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
        found = simulate(AskMinimum(), given, min_rows=minimum).metrics
        assert found["asked"] == asked
        assert np.isclose(found["sum"], given["bank"].iloc[:asked, 0].sum())
    with Opened(given, config={"court": {"min-rows": 20}}) as opened:
        assert opened.products().min_rows(49, 1) == 150  # the bank has the default


@pytest.mark.parametrize("minimum", [0, 2.5])
def test_a_minimum_that_is_none_is_refused(minimum):
    expected = rf"min_rows must be an integer of at least 1 or none, got {minimum}"
    with pytest.raises(ConfigError, match=expected):
        simulate(AskMinimum(), tables(2), min_rows=minimum)


def test_the_scale_of_a_column_tells_its_size_to_a_power_of_two():
    """Exact, it would open the squares of rows in no group, by subtracting what is opened."""
    with Opened(tables(3)) as opened:
        products, told = opened.products(), opened.noted_sums()
        products.moments(in_groups(opened, slice(None)), 1)
        scale = np.concatenate([told[0].public[name]["scale"] for name in NAMES[:3]])
        size = np.sqrt(np.mean(np.nan_to_num(opened.rows) ** 2, axis=0))
        np.testing.assert_array_equal(np.log2(scale), np.ceil(np.log2(size)))


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
        products = opened.products()
        Restless.moved = 1.0
        with pytest.raises(PartyError, match="no longer those that it sent for 'test'"):
            products.moments(in_groups(opened, slice(None)), 1)


def test_an_attempt_is_used_once(monkeypatch):
    with Opened(tables(3)) as opened:
        products, group = opened.products(), in_groups(opened, slice(None))
        labels = np.ones((len(group), 1))
        monkeypatch.setattr(opened.federation, "random_bytes", lambda count: bytes(count))
        products.moments(group, 1, labels)
        with pytest.raises(PartyError, match="this one was used before"):
            products.moments(group, 1, labels)


def test_the_seed_is_erased_in_the_end():
    with Opened(tables(2)) as opened:
        products, everything = opened.products(), in_groups(opened, slice(None))
        products.moments(everything, 1)
        secrets = {"node.group.seed", "node.pairs.private-key"}
        states = [State(context) for context in opened.local.contexts.values()]
        assert all(secrets <= set(state) for state in states)
        products.close()
        # The sealed copies went through the server: with the key that opens them, so would U.
        assert not any(secrets & set(State(c)) for c in opened.local.contexts.values())
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
        everything = np.where(alignment.mask.any(axis=1), -1, 0)
        labels = np.nan_to_num(federation.labels)[:, None]
        first = products.moments(everything, 1, labels)
        second = products.moments(everything, 1, labels)
        products.close()
        result.model = np.stack([first.products[0], second.products[0]])
        result.metrics["with_labels"] = float(first.with_vectors.sum())


@pytest.mark.parametrize("n_parts", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_run_that_was_killed_goes_on_and_the_masked_columns_are_in_no_journal(
    tmp_path, monkeypatch, n_parts
):
    monkeypatch.setattr(sent_rows, "PART_ROWS", -(-N // n_parts))
    given = tables(3, seed=4)
    given["bank"]["flag"] = (given["bank"]["bank0"] > 0.5).astype(float)  # levels are kept, too
    index = given["bank"].index
    labels = pd.Series(np.random.default_rng(3).normal(size=len(index)), index=index)
    monkeypatch.setitem(resuming.METHODS, "moments", (MomentsOnly, lambda: (given, labels)))
    whole = resuming.Place(tmp_path / "whole", "moments").run()
    steps = whole.result.ledger.to_frame().groupby("round")["step"].first()
    first = int(steps.index[steps == "send_masked"][0])
    opened = int(steps.index[steps == "open_products"][0])
    assert (steps == "send_rows").sum() == n_parts - 1
    kills = [("die_after", first), ("die_before", opened), ("die_after", opened)]
    for fault, kill in [*kills, *[("die_after", first + 1)] * (n_parts > 1)]:
        place = resuming.Place(tmp_path / f"{fault}{kill}", "moments")
        with pytest.raises(resuming.ServerKilled):
            place.run(**{fault: kill})
        held = place.journal.read_bytes()
        for record in place.transcript:
            for name, found in record.content.items():
                if name == "values.arrays" and "masked" in found:
                    assert found["masked"].data[:64] not in held
        again = place.run(resume=True)
        np.testing.assert_array_equal(again.result.model, whole.result.model)
        assert again.result.metrics == whole.result.metrics


@pytest.mark.parametrize("n", [200, 400])
def test_columns_are_judged_one_by_one_as_anew_after_each_that_is_withheld(n, monkeypatch):
    rng = np.random.default_rng(n)
    x, far = rng.normal(size=(n, 3)), np.exp(1.5 * rng.normal(size=(n, 2)))
    trees = RandomTreesEmbedding(n // 20, max_leaf_nodes=4, max_depth=None, random_state=0)
    leaves = trees.fit_transform(x).toarray()
    values = np.hstack([x, x[:, :1] ** [2, 3, 4], far, leaves])
    cells = [frozenset(name) for name in "abcaaade"] + [OF_TREES] * leaves.shape[1]
    held = HeldColumns(values, np.arange(n), n, sources=tuple(cells))
    atoms = SimpleNamespace(
        group=np.zeros(1, dtype=int),
        of_row=np.zeros(n, dtype=int),
        unsafe_groups=lambda safe: set() if safe([0]) else {0},
    )

    def withheld():
        found = np.zeros((1, values.shape[1]), dtype=bool)
        lone_rows.withhold_lone_rows(held, np.arange(n), found, atoms, 3, {})
        return found

    at_once = withheld()
    monkeypatch.setattr(lone_rows, "_AT_ONCE", -1)
    np.testing.assert_array_equal(at_once, withheld())
    assert 10 < at_once.sum() < 0.6 * at_once.size
