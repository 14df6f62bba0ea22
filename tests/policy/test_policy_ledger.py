"""The privacy ledger: what may be told after all that was told before."""

import itertools
import os
import re
import signal
import stat
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import DataError, PolicyError, ProtocolError
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger import row_identities, row_sets
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.row_identities import OwnRows, places
from flwr_vertical.privacy_ledger.row_sets import refine
from flwr_vertical.privacy_ledger.run_ledger import run_ledger_in_memory
from flwr_vertical.privacy_ledger.summary import LedgerSummary

N = 60
IDS = pd.Index([f"customer-{i}" for i in range(N)], name="id")


def frame_of(ids=IDS, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"income": rng.normal(size=len(ids)), "flag": rng.integers(0, 2, len(ids))},
                        index=ids)  # fmt: skip


class Node:
    """A ledger as a node has it: opened anew for each step, as in a process of its own."""

    def __init__(self, folder, policy=None, frame=None, clock=None):
        self.path, self.policy = folder / "bank.privacy-ledger.sqlite", policy or Policy(min_rows=5)
        self.frame, self.clock = frame_of() if frame is None else frame, clock
        self.n_runs = 0

    @property
    def ledger(self):
        extra = {"clock": self.clock} if self.clock else {}
        return PrivacyLedger(self.path, "bank", self.policy, **extra)

    @property
    def rows(self):
        return self.ledger.rows(self.frame.index, self.frame)

    def run(self):
        self.n_runs += 1
        token = f"run-{self.n_runs}"
        self.ledger.begin(token, token, "vfem", {"penalty": "none"}, self.rows)
        return token

    def tell(self, *sets, run=None, **more):
        """Open sums over sets of row numbers of the first table, each a group, in a new run."""
        group = pd.Series(-1, index=self.frame.index)
        for g, one in enumerate(sets):
            group[IDS[list(one)].intersection(self.frame.index)] = g
        return self.ledger.check_and_note_rows(run or self.run(), self.rows, group, 100, **more)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


A, B, LONE = set(range(20)), set(range(20, 40)), {45}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("corrected", [False, True])
def test_three_runs_that_isolate_a_row_are_refused_in_any_order(node, order, corrected):
    """Pairwise, A+B, A+i and B differ by many rows; together they give row i."""
    sets = [A | B, A | LONE, B]
    refused = {}
    for number, which in enumerate(order):
        if number and corrected:  # a cell of a row in none of the sets
            node.frame.loc[IDS[50], "income"] += 1.0
        try:
            node.tell(sets[which])
        except PolicyError as error:
            refused[number] = str(error)
    assert len(refused) == 1
    ((number, error),) = refused.items()
    assert number > 0
    assert "policy.min-rows" in error
    assert "tell of 1 of its rows alone" in error


def test_one_row_fewer_is_refused_also_if_it_left_the_table(node):
    node.tell(A)
    with pytest.raises(PolicyError, match="tell of 1 of its rows"):
        node.tell(A - {3})
    node.frame = node.frame.drop(index=IDS[3])
    with pytest.raises(PolicyError, match="tell of 1 of its rows"):
        node.tell(A)
    node.frame = pd.concat([node.frame, frame_of(pd.Index(["new"], name="id"))])
    group = np.where(np.arange(len(node.frame)) < 19, 0, -1)
    group[-1] = 0  # another one in the place of who left
    with pytest.raises(PolicyError, match="tell of 1 of its rows"):
        node.ledger.check_and_note_rows(node.run(), node.rows, group, 100)


def test_a_corrected_cell_is_not_told_by_the_difference_of_sums(node):
    node.tell(A, B)
    node.frame.loc[IDS[3], "income"] += 1000.0
    with pytest.raises(
        PolicyError, match=r"tell of 1 of its rows alone, as their cells have changed"
    ):
        node.tell(A, B)
    assert node.tell(B).smallest == 0  # nobody in it has changed
    changed = IDS[list(range(3, 9))]
    node.frame.loc[changed, "income"] += 1000.0
    assert node.tell(A).smallest == 6
    assert node.tell(A).smallest == 0
    node.frame["income"] += 1.0  # of all rows
    assert node.tell(A).smallest == len(A)


def test_equal_sets_are_free_in_another_order_of_rows_and_of_groups(node):
    first = node.tell(A, B)
    assert first.smallest == 20
    assert set(np.bincount(first.atom)[1:]) == {20}
    node.frame = node.frame.sample(frac=1.0, random_state=1)
    assert node.tell(B, A).smallest == 0
    assert node.tell(A | B).smallest == 0


def test_random_requests_are_decided_as_by_signatures(tmp_path):
    """Independent form of the rule: rows that were in the same sets, each set of them large.

    It holds over runs in a file, and within a run whose ledger is in its state.
    """
    rng = np.random.default_rng(5)
    n_allowed = n_refused = 0
    for trial in range(4):
        folder = tmp_path / str(trial)
        folder.mkdir()
        node, state = Node(folder, Policy(min_rows=4)), {}
        signature = dict.fromkeys(IDS, ())
        for _ in range(6):
            width = rng.integers(1, 4)
            blocks = rng.integers(-1, width, 6)  # sets mostly of whole blocks of ten rows
            group = np.repeat(blocks, 10)
            group[rng.integers(0, N, rng.integers(0, 2))] = -1
            after = {name: (*signature[name], int(g)) for name, g in zip(IDS, group, strict=True)}
            before_classes = classes(signature)
            fresh = [c for c in classes(after) if c not in before_classes]
            allowed = all(len(c) >= 4 for c in fresh)
            within = run_ledger_in_memory(state, "bank", node.policy, IDS)  # anew at each step
            try:
                told = node.ledger.check_and_note_rows(node.run(), node.rows, group, 100)
            except PolicyError as error:
                assert not allowed
                with pytest.raises(PolicyError, match=re.escape(str(error))):
                    within.check_and_note_rows(group, 100)
                n_refused += 1
            else:
                assert allowed
                assert told.smallest == min(map(len, fresh), default=0)
                same = within.check_and_note_rows(group, 100)
                assert (same.smallest, same.atom.tolist()) == (told.smallest, told.atom.tolist())
                signature, n_allowed = after, n_allowed + 1
    assert n_allowed > 5
    assert n_refused > 2


def classes(signature):
    """Sets of rows that were in the same groups each time; not those that were in none."""
    found = {}
    for name, where in signature.items():
        if any(g >= 0 for g in where):
            found.setdefault(where, set()).add(name)
    return [frozenset(c) for c in found.values()]


def test_atoms_by_counting_and_by_sorting_are_the_same():
    rng = np.random.default_rng(2)
    group, many = rng.integers(-1, 3, 500), rng.integers(0, 100_000, 500)
    atoms = refine(np.zeros(500, dtype=int), many).atom
    few = refine(atoms, group)
    coarse = refine(refine(np.zeros(500, dtype=int), group).atom, many)
    assert len(few.size) - 1 == len(np.unique(np.stack([many, group]), axis=1).T)
    assert sorted(few.size) == sorted(coarse.size)


@pytest.mark.parametrize("block", [1, 7, 100])
@pytest.mark.parametrize("n_groups", [1, 3, 90])
def test_atoms_are_the_same_however_many_rows_are_looked_at_at_a_time(monkeypatch, block, n_groups):
    monkeypatch.setattr(row_sets, "_BLOCK", block)
    rng, numbers = np.random.default_rng(5), {}
    atoms = np.zeros(90, dtype=np.int64)
    for _ in range(3):
        group, changed = rng.integers(-1, n_groups, 90), rng.random(90) < 0.2
        found = refine(atoms, group, changed)
        # A row that is told of as it is now leaves its atom; one that is not stays as it was.
        again = changed & (group >= 0) & (atoms > 0)
        pairs = [*zip(np.where(again, 0, atoms).tolist(), group.tolist(), strict=True)]
        numbers = {pair: k for k, pair in enumerate(sorted({(0, -1), *pairs}))}
        assert found.atom.tolist() == [numbers[pair] for pair in pairs]
        sizes = [pairs.count(pair) for pair in numbers]
        left = [int((again & (atoms == a)).sum()) * (a > 0 and g < 0) for a, g in numbers]
        assert found.size.tolist() == [a + b for a, b in zip(sizes, left, strict=True)]
        atoms = found.atom


def test_judging_a_request_takes_few_bytes_a_row(tmp_path):
    n_rows = 400_000
    ledger = PrivacyLedger(tmp_path / "ledger.sqlite", "a", Policy(min_rows=30))
    ledger.begin("run", "run", "glm", {}, rows := OwnRows(
        np.random.default_rng(0).permutation(n_rows).astype(np.uint64),
        np.arange(n_rows, dtype=np.uint32),
    ))  # fmt: skip
    everyone = np.zeros(n_rows, dtype=np.int64)
    ledger.check_and_note_rows("run", rows, everyone, 30)
    everyone[: n_rows // 2] = 1
    tracemalloc.start()
    ledger.check_and_note_rows("run", rows, everyone, 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * n_rows


def test_labels_count_once_and_nine_sets_of_them_on_sixty_rows_are_refused(tmp_path):
    node = Node(tmp_path, Policy(min_rows=30))
    everyone = set(range(N))
    for _ in range(3):  # the same labels again, in other runs, cost nothing
        told = node.tell(everyone, n_vectors=1, commitment=b"first")
    assert told.smallest == 0
    for number in range(5):
        told = node.tell(everyone, n_vectors=1, commitment=b"labels %d" % number)
        assert told.n_vectors.max() == number + 2
    with pytest.raises(PolicyError, match=r"policy\.vectors: asked: 7 different .* 60 of its rows"):
        node.tell(everyone, n_vectors=1, commitment=b"labels 6")
    node.tell(everyone, n_vectors=1, commitment=b"first")
    other = Node(tmp_path / "other", Policy(min_rows=30))
    with pytest.raises(PolicyError, match="9 different vectors"):
        other.tell(everyone, n_vectors=9, commitment=b"nine")
    assert Node(tmp_path / "b", Policy(min_rows=30, vectors=9)).tell(
        everyone, n_vectors=9, commitment=b"nine"
    ).n_vectors.max() == 9  # fmt: skip


def test_labels_without_commitment_count_each_time(tmp_path):
    node = Node(tmp_path, Policy(min_rows=30, vectors=2))
    node.tell(A | B, n_vectors=1)
    node.tell(A | B, n_vectors=1)
    with pytest.raises(PolicyError, match=r"policy\.vectors: asked: 3 "):
        node.tell(A | B, n_vectors=1)


def test_a_set_that_is_split_has_the_vectors_of_the_whole(node):
    for number in range(4):
        node.tell(A | B, n_vectors=1, commitment=b"%d" % number)  # 40 rows: 4 are allowed
    with pytest.raises(PolicyError, match=r"policy\.vectors: asked: 4 .* 20 of its rows; .*: 2 "):
        node.tell(A)
    with pytest.raises(ProtocolError, match="committed to 1 vector"):
        node.tell(A | B, n_vectors=2, commitment=b"0")


def test_scopes_are_counted_apart(node, tmp_path):
    node.tell(A | B, scope="flag")
    node.tell(A | B | LONE, scope="income")
    with pytest.raises(PolicyError):
        node.tell(A | B | LONE, scope="flag")
    assert node.tell(A | B, scope="flag").smallest == 0  # the refused request changed nothing
    # Where the policy states no minimum that of the method holds.
    with pytest.raises(PolicyError, match="at least 100 rows"):
        Node(tmp_path / "default", Policy()).tell(A)


def test_bits_of_rows_add_up_over_runs_and_repeats_are_free(tmp_path):
    node = Node(tmp_path, Policy(predictions=20.0, openings=3.0, grid=12))

    def predict(rows, bits, content, predictions=True):
        mask = np.isin(np.arange(N), list(rows))
        node.ledger.open_bits(
            node.run(), node.rows, mask, bits, content=content, predictions=predictions, what="x"
        )

    for _ in range(3):
        predict(A, 12, b"model 1")
    predict(B, 12, b"model 1")
    with pytest.raises(PolicyError, match=r"policy\.predictions.*of some of which 12 were told"):
        predict(A | LONE, 12, b"model 2")
    predict(LONE, 12, b"model 2")
    predict(A, 8, b"model 3")
    with pytest.raises(PolicyError, match=r"policy\.grid"):
        predict({50}, 13, b"model 4")
    predict(A, 3, b"routing", predictions=False)
    with pytest.raises(PolicyError, match=r"policy\.openings"):
        predict(A, 0.5, b"more routing", predictions=False)
    careful = Node(tmp_path / "default", Policy())
    careful.run()
    with pytest.raises(PolicyError, match=r"policy\.openings.*: 0 bits"):
        careful.ledger.open_bits(
            "run-1", careful.rows, np.ones(N, bool), 1, content=b"", what="routing"
        )
    with pytest.raises(ProtocolError, match="bits of at least 0"):
        predict(A, float("nan"), b"")


def test_a_ledger_in_memory_counts_bits_epsilon_and_ids_within_its_run():
    state, everyone = {}, np.full(N, True)

    def ledger():
        policy = Policy(predictions=20.0, epsilon_total=1.0, foreign_ids=2.0, grid=12)
        return run_ledger_in_memory(state, "bank", policy, IDS)

    for _ in range(2):  # asked again: free
        ledger().open_bits(everyone, 12, content=b"a", predictions=True, what="x")
        ledger().spend_epsilon(0.8, release=b"a", what="ranks")
        ledger().note_foreign_ids(100, N, content=b"a")
    with pytest.raises(PolicyError, match="of some of which 12 were told before"):
        ledger().open_bits(everyone, 9, content=b"b", predictions=True, what="x")
    with pytest.raises(PolicyError, match=r"after 0\.8 in 1 release"):
        ledger().spend_epsilon(0.4, release=b"b", what="ranks")
    with pytest.raises(PolicyError, match="asked: 121 IDs"):
        ledger().note_foreign_ids(21, N, content=b"b")


def test_epsilon_adds_up_over_runs_and_greetings_reset_nothing(tmp_path):
    node = Node(tmp_path, Policy(epsilon_total=1.0))
    run = node.run()
    for release in (b"a", b"b", b"b", b"a"):
        node.ledger.spend_epsilon(run, 0.4, release=release, what="ranks")
        node.ledger.begin(run, run, "vcds", {}, node.rows)  # greeted again
    with pytest.raises(PolicyError, match=r"policy\.epsilon-total.*0\.4 \(ranks\), after 0\.8"):
        node.ledger.spend_epsilon(node.run(), 0.4, release=b"c", what="ranks")
    node.ledger.spend_epsilon(node.run(), 0.2, release=b"d", what="ranks")
    with pytest.raises(ProtocolError, match="epsilon must be above 0"):
        node.ledger.spend_epsilon(run, -1.0, release=b"e", what="ranks")


def test_a_stream_hides_one_content(node):
    run = node.run()
    node.ledger.note_stream(run, "columns of bank", b"tag 1")
    node.ledger.note_stream(run, "columns of bank", b"tag 1")
    node.ledger.note_stream(run, "columns of court", b"tag 2")
    with pytest.raises(ProtocolError, match="one content only"):
        node.ledger.note_stream(node.run(), "columns of bank", b"tag 2")


def in_child(act):
    """Run something in a child process that is killed by the system at its end."""
    child = os.fork()
    if not child:
        try:
            act()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


def test_an_entry_outlives_kill_9_before_the_answer(node):
    run = node.run()
    in_child(lambda: node.tell(A, run=run, n_vectors=1, commitment=b"y"))
    with pytest.raises(PolicyError, match="tell of 1 of its rows"):
        node.tell(A | LONE)
    assert node.tell(A, run=run, n_vectors=1, commitment=b"y").smallest == 0  # asked again: free


def test_kill_9_within_an_entry_leaves_the_one_before(node):
    """Half of the entry is in the file, beside SQLite's journal: the next reader rolls it back."""
    node.tell(A)
    before = LedgerSummary.of(node.path)
    run, ledger = node.run(), node.ledger

    def act():
        with ledger._entry(run) as (connection, _, arrays):
            connection.execute("PRAGMA cache_size = 1")
            arrays.put("atoms ", np.random.default_rng(0).integers(0, 2**62, 50_000), hashes=True)
            connection.execute("DELETE FROM entries")
            os.kill(os.getpid(), signal.SIGKILL)

    in_child(act)
    assert node.path.with_name(f"{node.path.name}-journal").stat().st_size > 0
    after = LedgerSummary.of(node.path)
    assert (after.entries, after.state) == (before.entries, before.state)
    assert node.tell(A, run=run).smallest == 0
    with pytest.raises(PolicyError):
        node.tell(A | LONE)


def test_of_two_runs_at_once_one_is_refused(node):
    """Both may be told by itself; an entry is made of what is read under the lock."""
    node.tell(B)
    runs = [node.run(), node.run()]
    children = []
    for run, rows in zip(runs, (A, A | LONE), strict=True):
        child = os.fork()
        if not child:
            code = 1
            try:
                node.tell(rows, run=run)
                code = 0
            except PolicyError:
                code = 2
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, 2]


def test_the_file_is_its_owner_s_and_holds_no_id(node):
    node.tell(A)
    assert stat.S_IMODE(node.path.stat().st_mode) == 0o600
    data = node.path.read_bytes()
    assert b"customer-7" not in data
    other = PrivacyLedger(node.path.with_name("court.privacy-ledger.sqlite"), "court")
    assert not np.isin(other.rows(IDS).keys, node.rows.keys).any()


def test_rows_are_known_by_their_ids():
    secret = "0123456789abcdef"
    rows = OwnRows.of(IDS, secret, frame_of())
    reordered = OwnRows.of(IDS, secret, frame_of()[["flag", "income"]])
    assert (reordered.contents == rows.contents).all()
    numbers = OwnRows.of(pd.Index([5, 6]), secret), OwnRows.of(pd.Index(["6", "5"]), secret)
    assert places(numbers[0].keys, numbers[1].keys).tolist() == [1, 0]
    assert places(rows.keys, numbers[0].keys).tolist() == [-1, -1]
    assert places(rows.keys[:0], numbers[0].keys).tolist() == [-1, -1]
    with pytest.raises(DataError, match="1 sample IDs come twice"):
        OwnRows.of(pd.Index(["a", "a"]), secret, who="party 'bank'")


def test_rows_have_one_digest_however_many_are_hashed_at_a_time(monkeypatch):
    """And whatever the order of columns: a ledger of an earlier version knows its rows again."""
    n = 50
    frame = pd.DataFrame({
        "x10": np.where(np.arange(n) % 7, np.arange(n) / 3, np.nan),
        "x2": [None if i % 5 == 0 else f"level {i % 3}" for i in range(n)],
        "c": pd.Categorical([f"level {i % 4}" for i in range(n)]),
    })  # fmt: skip
    ids = pd.Index([f"customer-{i}" for i in range(n)])
    monkeypatch.setattr(row_identities, "_BLOCK", 7)
    found = OwnRows.of(ids, "0" * 16, frame[["x2", "c", "x10"]]).contents
    whole = pd.util.hash_pandas_object(frame[["c", "x10", "x2"]], index=False).to_numpy()
    np.testing.assert_array_equal(found, (whole >> np.uint64(32)).astype(np.uint32))
