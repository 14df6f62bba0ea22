"""Rules on rows, vectors and levels over runs: over real messages, each run in new processes."""

import itertools
import os
import signal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import FileStorage
from flwr_vertical.errors import PartyError, ProtocolError
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.row_identities import OwnRows, secrets_of
from flwr_vertical.privacy_ledger.run_ledger import run_ledger_in_memory
from flwr_vertical.products import HeldColumns
from flwr_vertical.products.labels import _Z, BoundVectors, LabelSketch, sketched
from flwr_vertical.products.masked import PrivateProducts, PrivateProductSteps
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.products.told_rows import ToldRows
from flwr_vertical.server.label_memory import LabelMemory
from strategies.least_squares import CompleteCase
from strategies.vfem import VFEM
from tests.kit import ledgered

# More rows each than the values up to which a column counts as one of levels.
A, B, LONE = set(range(25)), set(range(25, 50)), {55}
ONE = np.uint64(1)


class Nodes(ledgered.Nodes):
    """Two organisations; the server recognises labels, and each run has new processes."""

    def __init__(self, folder, tables, **keys):
        folder.mkdir(exist_ok=True)
        super().__init__(folder, tables, FileStorage())
        self.tables = tables
        self.state(**keys)

    @classmethod
    def of(cls, folder, n=60, seed=0, **keys):
        """Numbers at both, of the same people."""
        rng = np.random.default_rng(seed)
        ids = pd.Index([f"c{i:03}" for i in range(n)], name="id")
        bank = pd.DataFrame({"income": rng.normal(size=n), "age": rng.normal(size=n)}, ids)
        court = pd.DataFrame({"debt": rng.normal(size=n)}, ids)
        return cls(folder, {"bank": bank, "court": court}, **keys)

    def labels(self, rows=None, seed=0):
        """Labels of some rows, those of a seed; the others have none."""
        ids = self.tables["bank"].index
        found = pd.Series(np.random.default_rng(100 + seed).normal(size=len(ids)), ids)
        return found if rows is None else found.iloc[sorted(rows)]

    def fit(self, labels, strategy=None, config=None, **start):
        strategy = strategy or CompleteCase()
        with self.grid(strategy, **(config or {})) as grid:
            secret = {"label_secret": self.folder / "server" / "label-secret"}
            return strategy.start(
                grid=grid, labels=labels, parties=list(self.tables), retries=0,
                **secret | start,
            )  # fmt: skip


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(order, marks=[] if order in ((0, 1, 2), (2, 0, 1)) else pytest.mark.slow)
        for order in itertools.permutations(range(3))
    ],
)
def test_three_runs_that_isolate_a_row_are_refused_in_any_order(tmp_path, order):
    """Whatever the order, the run that would complete the equation for one row is refused."""
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    sets = [A | B, A | LONE, B]
    refused = []
    for number, which in enumerate(order):
        if number:  # a cell of a row in none of the sets was corrected
            nodes.tables["bank"].iloc[52, 0] += 1.0
            nodes.write(nodes.tables)
        try:
            nodes.fit(nodes.labels(sets[which]))
        except PartyError as error:
            refused.append((number, str(error)))
    ((number, error),) = refused
    assert number > 0
    assert "refuses by policy.min-rows" in error
    assert "tell of 1 of its rows alone" in error


def n_vectors(nodes, party="bank"):
    return nodes.ledger(party).state["vectors"]


def test_the_same_labels_again_cost_nothing_in_another_order_and_method(tmp_path):
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    first, other = nodes.labels(), nodes.labels(seed=1)
    runs = (first, None, 1), (first, VFEM(), 1), (first[::-1], None, 1), (other, None, 2)
    for labels, strategy, counted in (*runs, (first, None, 2)):
        nodes.fit(labels, strategy)
        assert [n_vectors(nodes, party) for party in nodes.tables] == [counted] * 2
    assert nodes.entries("rows")[-1]["what"].endswith("(again)")
    # Without its secret the server cannot make them look the same, nor with another one.
    nodes.fit(first, label_secret=None)
    assert n_vectors(nodes) == 3
    nodes.fit(first, label_secret=tmp_path / "another")
    assert n_vectors(nodes) == 4


def test_labels_of_a_party_are_recognised_too(tmp_path):
    nodes = Nodes.of(tmp_path, policy_min_rows=20, policy_labels="y")
    nodes.tables["court"]["y"] = nodes.labels().to_numpy()
    for counted in (1, 1, 2):
        nodes.tables["court"] = nodes.tables["court"].sample(frac=1.0, random_state=counted)
        nodes.write(nodes.tables)
        nodes.fit(None, label_holder="court", config={"label-holder": "court", "label-column": "y"})
        assert n_vectors(nodes) == counted
        if counted == 1 and nodes.n_runs == 2:
            nodes.tables["court"]["y"] *= np.linspace(1.5, 2.0, len(nodes.tables["bank"]))


def test_levels_are_withheld_once_all_runs_together_have_too_many_vectors(tmp_path):
    """160 rows, 40 of which have the flag: 126 bits, more than 64 + 20 and less than 128 + 20."""
    nodes = Nodes.of(tmp_path, n=160)
    nodes.tables["bank"]["flag"] = np.repeat([1.0, 0.0], [40, 120])
    nodes.write(nodes.tables)

    def told(seed):
        result = nodes.fit(nodes.labels(seed=seed))
        return ("bank", "flag") in result.coefficients.dropna().index

    assert told(0)
    assert told(0)
    assert not told(1)
    assert told(0)  # told before, with these labels


def test_other_labels_under_the_mark_of_earlier_ones_count_as_new(tmp_path, monkeypatch):
    monkeypatch.setattr(LabelMemory, "mark", lambda *_: bytes(32))
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    for seed, counted in ((0, 1), (0, 1), (1, 2), (2, 3)):
        nodes.fit(nodes.labels(seed=seed))
        assert n_vectors(nodes) == counted


def test_vectors_other_than_those_recognised_are_not_multiplied(tmp_path, monkeypatch):
    mask = PrivateProducts._mask_vectors
    changes = {
        "masked_vectors": lambda told: {**told, "masked_vectors": told["masked_vectors"] + ONE},
        "rho_seed": lambda told: {**told, "rho_seed": bytes(32)},
        "helper": lambda told: {**told, "helper": "nobody"},
    }
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    for change in changes.values():

        def lying(self, encoded, common, own, change=change):
            rho = mask(self, encoded, common, own)
            own["bank"] = change(own["bank"])
            return rho

        monkeypatch.setattr(PrivateProducts, "_mask_vectors", lying)
        with pytest.raises(PartyError, match=r"'bank'.*(not those that|differs from that)"):
            nodes.fit(nodes.labels())


def test_two_vectors_under_one_pad_are_refused(tmp_path, monkeypatch):
    """Their difference, of the server's choice, would open the secret number of a row."""
    monkeypatch.setattr(BoundVectors, "width", 1)
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    with pytest.raises(PartyError, match=r"has shape \(60, 2\), expected \(None, 1\)"):
        nodes.fit(nodes.labels())


def test_what_the_server_and_a_party_see_of_the_comparison_is_uniform(tmp_path, monkeypatch):
    """The server sees no row secret; the party sees other numbers for labels that differ in one."""
    seen = []
    collect, commitment = BoundVectors.collect, LabelSketch.commitment

    def collecting(self, replies):
        collect(self, replies)
        seen.append((replies["bank"]["sketch"], self.sketched["bank"]))

    def committing(self, *arguments):
        found = commitment(self, *arguments)
        if self._name == "bank":
            seen.append(np.asarray(arguments[0]) + np.asarray(self._state[_Z]))
        return found

    monkeypatch.setattr(BoundVectors, "collect", collecting)
    monkeypatch.setattr(LabelSketch, "commitment", committing)
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    labels = nodes.labels()
    nodes.fit(labels)
    nodes.fit(labels)
    labels.iloc[7] += 1e-6
    nodes.fit(labels)
    (first, one), known, (second, two), again, _, other = seen
    assert (known == again).all()
    assert not (known == other).any()
    assert not np.isin(first, second).any()  # under key streams of their runs
    assert not np.isin(one, two).any()


def test_kill_9_between_entry_and_answer_costs_nothing_when_the_run_goes_on(tmp_path):
    """The whole run dies as soon as the ledgers have the entry; nothing was sent yet."""
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    start = {
        "checkpoint": tmp_path / "server" / "night",
        "config": {"run_name": "night", "run_id": 7},
    }
    child = os.fork()
    if not child:
        try:
            PrivateProductSteps._blind = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            nodes.fit(nodes.labels(), **start)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    entered = [party for party in nodes.tables if nodes.entries("rows", party)]
    assert entered
    before = {party: nodes.ledger(party).state for party in entered}
    resumed = nodes.fit(nodes.labels(), resume=True, **start)
    for party, state in before.items():
        again = [entry["what"].endswith("(again)") for entry in nodes.entries("rows", party)]
        assert again == [False, True]
        assert nodes.ledger(party).state == state
        assert [run["greetings"] for run in nodes.ledger(party).runs] == [1]
    fresh = Nodes.of(tmp_path / "fresh", policy_min_rows=20).fit(nodes.labels())
    pd.testing.assert_series_equal(
        resumed.coefficients["estimate"], fresh.coefficients["estimate"], rtol=1e-9
    )


def test_a_second_greeting_resets_nothing(tmp_path):
    """Runs of Flower have numbers; nodes that come again under the same number are in one run."""
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    nodes.fit(nodes.labels(A | B), config={"run_name": "night", "run_id": 7})
    (tmp_path / "out" / "bank" / "night").rename(tmp_path / "moved")
    (tmp_path / "out" / "court" / "night").rename(tmp_path / "moved-too")
    with pytest.raises(PartyError, match=r"policy\.min-rows.* tell of 1 of its rows alone"):
        nodes.fit(nodes.labels(A | B | LONE), config={"run_name": "night", "run_id": 7})
    assert [run["greetings"] for run in nodes.ledger().runs] == [2]
    assert nodes.ledger().entries[-1]["kind"] == "refused"


def test_of_one_party_alone_labels_are_the_same_by_the_server_s_word(tmp_path):
    """Its products come from ciphertexts, which it cannot compare."""
    tables = {"bank": Nodes.of(tmp_path).tables["bank"]}
    nodes = Nodes(tmp_path, tables, policy_min_rows=20, policy_min_parties=1)
    for seed, counted in ((0, 1), (0, 1), (1, 2)):
        nodes.fit(nodes.labels(seed=seed))
        assert n_vectors(nodes) == counted


def test_a_table_is_read_once_a_process_and_hashed_once_a_version(tmp_path, monkeypatch):
    read, hashed = [], []
    load, of = FileStorage.load, OwnRows.of.__func__

    def loading(self, context):
        read.append(context.node_config["party"])
        return load(self, context)

    def hashing(cls, *arguments):
        hashed.append(len(arguments[0]))
        return of(cls, *arguments)

    monkeypatch.setattr(FileStorage, "load", loading)
    monkeypatch.setattr(OwnRows, "of", classmethod(hashing))
    nodes = Nodes.of(tmp_path, policy_min_rows=20)
    for n_hashed in (2, 0, 1):
        read.clear(), hashed.clear()
        nodes.fit(nodes.labels())
        assert sorted(read) == ["bank", "court"]
        assert len(hashed) == n_hashed
        if n_hashed == 0:
            nodes.tables["bank"].iloc[sorted(A), 0] += 1.0
            nodes.write(nodes.tables)


N, SEED, ATTEMPT, RHO = 50, bytes(range(32)), b"a" * 16, b"r" * 32
HELD = np.array([0, 3, 4, 11, 49])
AT = np.array([4, 0, 2, 1, 3])
KEYS = np.random.default_rng(1).integers(0, 2**64, 5, dtype=np.uint64)
VECTORS = np.random.default_rng(2).integers(0, 2**64, (N, 2), dtype=np.uint64)


class NotingLedger:
    def __init__(self):
        self.streams = {}

    def row_secrets(self, rows, at):
        return secrets_of(rows[at], "secret of a ledger")

    def note_streams(self, streams):
        self.streams |= streams


def party(name, ledger=None):
    return SimpleNamespace(
        name=name, state={}, privacy_ledger=ledger, remembers=ledger is not None,
        rows_in_ledger=lambda: KEYS,
        secret_bytes=lambda purpose: (name + purpose).encode().ljust(32, b"."),
    )  # fmt: skip


def answers(rho_seed=RHO, attempt=ATTEMPT, vectors=VECTORS, bank=None, court=None):
    """Owner and helper answer, as the server asks them in one round."""
    bank, court = bank or party("bank", NotingLedger()), court or party("court")
    held = HeldColumns(np.zeros((len(HELD), 0)), HELD, N)
    rho = KeyStream(RHO, "rho", vectors.shape).rows(0, N)
    owner = LabelSketch(bank).answer(
        SEED, attempt, 2, held, AT, helper="court", masked_vectors=vectors + rho
    )
    helper = LabelSketch(court).answer(
        SEED, attempt, 2, held, AT, helps=["bank"], rho_seed=rho_seed
    )
    return bank, court, owner, helper, rho


def test_what_opens_is_the_product_with_the_row_secrets_less_the_party_s_own_secret():
    bank, _, owner, helper, rho = answers()
    opened = sketched(owner, helper, "bank", rho)
    secret = secrets_of(KEYS, "secret of a ledger")[0][AT]
    for j in range(2):
        truth = sum(int(r) * int(v) for r, v in zip(secret, VECTORS[HELD, j], strict=True))
        assert (int(opened[j]) + int(bank.state[_Z][j])) % 2**64 == truth % 2**64
        assert int(opened[j]) != truth % 2**64
    assert not np.isin(owner["sketch"], secret).any()


def test_row_secrets_follow_from_rows_and_ledger_in_any_order():
    found, name = secrets_of(KEYS, "secret of a ledger")
    shuffled, same = secrets_of(KEYS[::-1], "secret of a ledger")
    np.testing.assert_array_equal(shuffled[::-1], found)
    assert same == name
    assert secrets_of(KEYS[1:], "secret of a ledger")[1] != name
    other, other_name = secrets_of(KEYS, "secret of another")
    assert not np.isin(other, found).any()
    assert other_name != name
    assert len(np.unique(found)) == len(found)


def test_a_pad_hides_one_content_at_the_helper_too():
    _, court, *_ = answers()
    answers(court=court)  # the same again
    with pytest.raises(ProtocolError, match="a pad hides one content only"):
        answers(rho_seed=b"q" * 32, court=court)


def test_pads_are_noted_with_what_they_hide():
    ledger = NotingLedger()
    answers(bank=party("bank", ledger))
    before = dict(ledger.streams)
    answers(bank=party("bank", ledger))
    assert ledger.streams == before
    answers(bank=party("bank", ledger), vectors=VECTORS + np.uint64(1))
    assert [k for k, v in ledger.streams.items() if before[k] != v] == [
        f"pad of labels {ATTEMPT.hex()}"
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attempt": b"short"}, "at least 16 random bytes, got 5"),
        ({"vectors": np.zeros((N, 3), dtype=np.uint64)}, r"expected \(50, 2\) and uint64"),
    ],
)
def test_what_pads_are_not_made_for_is_refused(change, why):
    with pytest.raises(ProtocolError, match=why):
        answers(**change)


@pytest.mark.parametrize("private", [True, False])
def test_what_was_told_under_noise_or_by_another_column_is_judged_again(private):
    """Of the same rows, under the same name: once by noise, once by ranks of the column."""
    state, policy, rows = {}, Policy(), np.arange(300)
    ledger = run_ledger_in_memory(state, "bank", policy, pd.Index(rows))
    party = SimpleNamespace(
        name="bank", state=state, cache={}, policy=policy, n_samples=300, privacy_ledger=ledger,
        rows_in_ledger=lambda: ledger.rows,
    )  # fmt: skip
    told, group = ToldRows(party, "test"), np.zeros(300, dtype=np.int64)
    far = np.where(rows == 3, 1e4, np.sin(rows))[:, None]
    before = far if private else far.argsort(axis=0).argsort(axis=0).astype(float)
    for column, noise, withheld in ((before, private, False), (far, False, True)):
        held = HeldColumns(column, rows, 300, ("a",), rows, squares=(column**2).sum(axis=0))
        assert told.admit(held, group, 1, private=noise).all() == withheld
