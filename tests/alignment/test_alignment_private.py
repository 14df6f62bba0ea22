"""Private alignment against pandas, on hundreds of random cases; what the server gets to see."""

import hashlib
import itertools
import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flwr_vertical import (
    LocalGrid,
    MemoryStorage,
    Party,
    RecordingGrid,
    Strategy,
    Table,
    party_app,
    simulate,
    step,
)
from flwr_vertical.alignment.blind_rsa import BlindRsaAligner
from flwr_vertical.alignment.private_id import PrivateIdAligner
from flwr_vertical.alignment.registry import alignment_steps
from flwr_vertical.crypto import batched_oprf, blind_rsa, commutative, rsa_key
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.node.steps import NodeServices
from flwr_vertical.protocol.codec import decode, encode
from flwr_vertical.protocol.messages import ARGUMENTS, UPDATES, VALUES
from simulations.data import load_motor
from strategies.fknn import FKNN
from tests.kit.identities import identities, pins

NAMES = "abcdef"


class PositionsParty(Party):
    @step
    def where(self):
        return {"positions": np.asarray(self.positions), "n": self.n_samples}


class Positions(Strategy):
    """Finds out what alignment told whom."""

    uses_labels = True
    name = "positions"
    party = PositionsParty

    def run(self, federation, alignment, result, progress):
        replies = federation.call("where")
        result.model = (alignment, replies, federation.labels)


def frames(ids):
    return {
        name: pd.DataFrame({"x": np.arange(float(len(own)))}, index=pd.Index(list(own)))
        for name, own in zip(NAMES, ids, strict=False)
    }


def align(tables, labels=None, **settings):
    settings = {"alignment": "private-id", "progress": False} | settings
    return simulate(Positions(), tables, labels, "plain", **settings).model


def check(tables, model, kept):
    """Compare rows, mask and positions with what pandas says; ``kept`` are the wanted IDs."""
    alignment, replies, _ = model
    assert alignment.n_samples == len(kept)
    assert alignment.parties == list(tables)
    row_ids = {}
    for k, (name, table) in enumerate(tables.items()):
        positions = replies[name]["positions"]
        assert replies[name]["n"] == len(kept)
        inside = table.index.isin(kept)
        np.testing.assert_array_equal(positions >= 0, inside)
        rows = positions[inside]
        assert len(set(rows.tolist())) == len(rows)
        for row, own in zip(rows.tolist(), table.index[inside], strict=True):
            assert row_ids.setdefault(row, own) == own  # the same row, the same ID everywhere
        np.testing.assert_array_equal(np.flatnonzero(~alignment.mask[:, k]), np.sort(rows))
    assert len(set(row_ids.values())) == len(row_ids)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
ID_SETS = st.one_of(
    st.lists(st.lists(TEXT, min_size=1, max_size=9, unique=True), min_size=2, max_size=6),
    st.lists(
        st.lists(st.integers(-5, 12), min_size=1, max_size=12, unique=True), min_size=2, max_size=6
    ),
)


def overlapping(sets):
    """Whether every party shares a sample with another, without which a run stops."""
    return all(
        set(own) & set().union(*(set(other) for j, other in enumerate(sets) if j != k))
        for k, own in enumerate(sets)
    )


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(sets=ID_SETS.filter(overlapping), rows=st.sampled_from(["union", "intersection"]))
def test_private_id_equals_pandas_over_messages(sets, rows):
    tables = frames(sets)
    every = [set(own) for own in sets]
    kept = set.union(*every) if rows == "union" else set.intersection(*every)
    if not kept:
        with pytest.raises(DataError, match="no sample is left"):
            align(tables, align_rows=rows)
        return
    check(tables, align(tables, **({} if rows == "union" else {"align_rows": rows})), kept)


class Straight:
    """A federation without messages: hundreds of cases in seconds."""

    def __init__(self, tables):
        self.parties = sorted(tables)
        self.given = {name: {} for name in tables}
        self.nodes = {}
        for name, table in tables.items():
            services = NodeServices(name, {}, {}, {}, {}, None, None, None, None)
            self.nodes[name] = type(f"P{name}", (PositionsParty,), {"own_ids": table.index})(
                services, alignment_steps(None)
            )

    def call(self, step, arguments=None, *, per_party=None, parties=None):
        return {
            name: self.nodes[name].take(
                step, {**(arguments or {}), **(per_party or {}).get(name, {})}
            )
            for name in parties or self.parties
        }

    def random_bytes(self, count):
        return os.urandom(count)

    def update(self, party, values):
        self.nodes[party].state.update(values)


def straight(tables, aligner, label_ids=None):
    federation = Straight(tables)
    alignment = aligner.align(federation, label_ids)
    return alignment, federation.call("where"), None


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(sets=ID_SETS, data=st.data())
def test_private_id_equals_pandas_on_hundreds_of_cases(sets, data):
    tables = frames(sets)
    rows = data.draw(st.sampled_from(["union", "intersection", "labelled"]))
    every = [set(own) for own in sets]
    labels = None
    if rows == "labelled" or data.draw(st.booleans()):
        strangers = [99, 100] if isinstance(sets[0][0], int) else ["zzzzzzz"]
        pool = sorted(set.union(*every)) + strangers
        labels = pd.Index(data.draw(st.lists(st.sampled_from(pool), min_size=1, unique=True)))
    kept = {
        "union": set.union(*every),
        "intersection": set.intersection(*every),
        "labelled": set() if labels is None else set(labels),
    }[rows]
    model = straight(tables, PrivateIdAligner(rows=rows), labels)
    check(tables, model, kept)
    if labels is not None:
        label_rows = model[0].label_rows
        np.testing.assert_array_equal(label_rows >= 0, labels.isin(list(kept)))
        for name, table in tables.items():
            at = dict(zip(table.index, model[1][name]["positions"].tolist(), strict=True))
            for own, row in zip(labels, label_rows.tolist(), strict=True):
                if own in at:
                    assert at[own] == row


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(sets=ID_SETS, with_labels=st.booleans(), rows=st.sampled_from(["union", "intersection"]))
def test_blind_rsa_agrees_with_private_id(sets, with_labels, rows):
    tables = frames(sets)
    labels = pd.Index(list(sets[0])) if with_labels else None
    ours = straight(tables, BlindRsaAligner(rows=rows, bits=2048), labels)
    theirs = straight(tables, PrivateIdAligner(rows=rows), labels)
    every = [set(own) for own in sets]
    kept = set.union(*every) if rows == "union" else set.intersection(*every)
    check(tables, ours, kept)
    # Row order is secret in both; up to it the masks are the same.
    assert sorted(map(tuple, ours[0].mask)) == sorted(map(tuple, theirs[0].mask))


def test_disjoint_parties_stop_the_run():
    tables = frames([["u", "v"], ["w"]])
    check(tables, straight(tables, PrivateIdAligner()), {"u", "v", "w"})


ONE = [["u"], ["u"]]
UNUSABLE = [
    ([["u", "v"], ["w"]], {}, DataError, "party 'a' has no common sample"),
    ([["x1"], ["x01"]], {"alignment": "plain"}, DataError,
     r"party 'a' has no common sample with any of \['b'\]"),
    ([["x", "y"], ["y"], ["w"]], {"alignment": "plain"}, DataError,
     r"party 'c' has no common sample with any of \['a', 'b'\]"),
    ([["u", "v"], ["w"]], {"align_rows": "intersection"}, DataError, "no sample is left"),
    ([[1, 2], ["1", "2"]], {}, DataError, r"different types.*'a': 'integer'.*'b': 'text'"),
    ([[1, 2], ["1", "2"]], {"alignment": "plain"}, DataError,
     r"different types: \{'a': 'integer', 'b': 'text'\}.*store them all as text or all as int"),
    ([[1, 2], [1, 2]], {"labels": pd.Series([0.0], index=["1"])}, DataError,
     r"different types.*labels"),
    (ONE, {"normalise_ids": ["lower"]}, ConfigError, r"'lower'.*strip"),
    (ONE, {"align_rows": "all"}, ConfigError, r"'all'.*intersection"),
    (ONE, {"alignment": "psi"}, ConfigError, r"blind-rsa.*plain.*private-id"),
    (ONE, {"align_rows": "labelled"}, ConfigError, "needs labels"),
]  # fmt: skip


@pytest.mark.parametrize(("ids", "settings", "error", "why"), UNUSABLE)
def test_what_cannot_be_aligned(ids, settings, error, why):
    with pytest.raises(error, match=why):
        align(frames(ids), **settings)


@pytest.mark.parametrize("alignment", ["plain", "private-id", "kkrt", "blind-rsa"])
def test_normalisation_is_off_by_default_and_applied_where_asked(alignment):
    tables = frames([["Ann ", "BOB", "e\u0301va"], ["ann", "bob", "\u00e9va"]])
    aligner = BlindRsaAligner(bits=2048) if alignment == "blind-rsa" else alignment
    with pytest.raises(DataError, match="no common sample"):
        align(tables, alignment=aligner)
    if alignment == "blind-rsa":
        aligner = BlindRsaAligner(normalise="strip,casefold,nfc", bits=2048)
    found = align(tables, alignment=aligner, normalise_ids="strip,casefold,nfc")
    assert found[0].n_samples == 3
    np.testing.assert_array_equal(found[1]["a"]["positions"], found[1]["b"]["positions"])


def test_normalisation_that_makes_two_ids_equal_names_party_and_count_only():
    tables = frames([["Secret1", "secret1 ", "x"], ["x"]])
    with pytest.raises(DataError, match=r"party 'a'.*1 sample IDs equal another") as caught:
        align(tables, normalise_ids=["strip", "casefold"])
    assert "ecret1" not in str(caught.value)


def test_composite_ids():
    ids = {"a": [("a|b", "c"), ("a", "d")], "b": [("a", "b|c"), ("a", "d")]}
    alignment, replies, _ = align(
        {name: pd.DataFrame({"x": [1.0, 2.0]}, pd.MultiIndex.from_tuples(own))
         for name, own in ids.items()}
    )  # fmt: skip
    assert alignment.n_samples == 3  # only (a, d) is the same sample
    assert replies["a"]["positions"][1] == replies["b"]["positions"][1]


def test_labels_come_into_the_aligned_order():
    tables = frames([["u", "v", "w"], ["v", "w", "x"]])
    labels = pd.Series([1.0, 2.0, np.nan, 4.0], index=["x", "u", "v", "nobody"])
    for alignment in ("plain", "private-id", BlindRsaAligner(bits=2048)):
        _, replies, aligned = align(tables, labels, alignment=alignment)
        at = dict(zip(["u", "v", "w"], replies["a"]["positions"], strict=True))
        at["x"] = replies["b"]["positions"][2]
        assert aligned[at["x"]] == 1.0
        assert aligned[at["u"]] == 2.0
        assert np.isnan(aligned[[at["v"], at["w"]]]).all()
        found = align(tables, labels, alignment=alignment, align_rows="labelled")
        if isinstance(alignment, str):
            assert found[0].n_samples == 4  # nobody's sample is labelled, too


SECRET_IDS = [f"patient-{k:05d}" for k in range(50)]


def transcript_of(tables, **settings):
    messages = []
    align(tables, transcript=messages, **settings)
    return messages


def values_in(messages):
    for message in messages:
        for prefix in (ARGUMENTS, UPDATES, VALUES):
            yield from decode(message.content, prefix).items()


@pytest.mark.parametrize("alignment", ["private-id", "kkrt", "blind-rsa"])
def test_no_id_and_no_unblinded_hash_in_the_transcript(alignment):
    tables = frames([SECRET_IDS[:40], SECRET_IDS[10:]])
    aligner = BlindRsaAligner(bits=2048) if alignment == "blind-rsa" else alignment
    messages = transcript_of(tables, alignment=aligner)
    carried = b"\0".join(
        value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        for _, value in values_in(messages)
    )
    nonces = {value for name, value in values_in(messages) if name == "nonce"}
    (nonce,) = nonces
    ids = [own.encode() for own in SECRET_IDS]
    unblinded = [point.tobytes() for point in commutative.hash_ids(ids, nonce)]
    unblinded += [row.tobytes() for row in batched_oprf.codes(ids, nonce)[0]]
    publics = {value for name, value in values_in(messages) if name == "public"}
    for public in publics if alignment == "blind-rsa" else ():
        n = rsa_key.load_public(public, "test").n
        unblinded += [row.tobytes() for row in blind_rsa.fdh(ids, n, nonce)]
    assert len(publics) == {"private-id": 0, "kkrt": 2, "blind-rsa": 1}[alignment]
    for needle in [*ids, *unblinded, *(hashlib.sha256(own).digest() for own in ids)]:
        assert needle not in carried
    # The same search finds the IDs where they are public.
    plain = transcript_of(tables, alignment="plain")
    shown = "".join(str(value.tolist()) for name, value in values_in(plain) if name == "ids")
    assert SECRET_IDS[3] in shown


def test_two_runs_give_unlinkable_pseudonyms_in_another_order():
    tables = frames([SECRET_IDS, SECRET_IDS])
    seen = []
    for _ in range(2):
        points = [value for name, value in values_in(transcript_of(tables)) if name == "points"]
        seen.append({row.tobytes() for array in points for row in array})
    assert seen[0]
    assert not seen[0] & seen[1]
    positions = [align(tables)[1]["a"]["positions"].tolist() for _ in range(2)]
    assert positions[0] != positions[1]
    assert positions[0] != list(range(50))


@pytest.mark.parametrize("alignment", ["private-id", "kkrt", BlindRsaAligner(bits=2048)])
def test_positions_do_not_tell_which_samples_another_party_has(alignment):
    # In the order of first appearance the rows of "a" would come first, and "b" could read off
    # its positions which of its own samples "a" has.
    tables = frames([SECRET_IDS[:25], SECRET_IDS[:5] + SECRET_IDS[25:]])
    _, replies, _ = align(tables, alignment=alignment)
    assert sorted(replies["a"]["positions"].tolist()) != list(range(25))
    assert sorted(replies["b"]["positions"][5:].tolist()) != list(range(25, 50))


@pytest.mark.parametrize("alignment", ["private-id", "plain"])
def test_labels_of_a_party_come_without_the_order_of_its_rows(alignment):
    tables = frames([SECRET_IDS, SECRET_IDS[10:30]])
    run_config = {"label-holder": "a", "label-column": "x"}
    given = {name: Table.of(table) for name, table in tables.items()}
    tables["a"]["y"] = 0.0
    given["a"] = Table.of(tables["a"])
    app = party_app(PositionsParty, storage=MemoryStorage(given))
    with LocalGrid(app, [{"party": name} for name in given], run_config) as grid:
        recorder = RecordingGrid(grid)
        result = Positions().start(
            grid=recorder, alignment=alignment, align_rows="intersection", label_holder="a",
            retries=0,
        )  # fmt: skip
    said = [decode(m.content, VALUES) for m in recorder.transcript if m.direction == "up"]
    (labels,) = [values for values in said if "labels" in values]
    np.testing.assert_array_equal(labels["positions"], np.arange(20))  # none that is left out
    at = result.model[1]["a"]["positions"]
    np.testing.assert_array_equal(result.model[2][at[at >= 0]], tables["a"]["x"][at >= 0])


def test_rounds_are_as_many_as_parties():
    for count in (2, 4):
        tables = frames([["u", "v"]] * count)
        result, labelled = (
            simulate(Positions(), tables, labels, "plain", alignment="private-id")
            for labels in (None, pd.Series([1.0], index=["u"]))
        )
        summary = result.ledger.summary()
        assert summary.loc["blind_ids", "rounds"] + summary.loc["blind_for", "rounds"] == count
        assert labelled.ledger.rounds == result.ledger.rounds


def on_the_twist(points):
    points[0] = np.frombuffer((2).to_bytes(32, "little"), dtype=np.uint8)  # 2 is on the twist
    return points


TAMPERED = {
    "low order": lambda points: points * 0,
    "truncated": lambda points: points[:, :31],
    "wrong type": lambda points: points.astype(np.uint16),
    "not canonical": lambda points: np.full_like(points, 255),
    "twist": on_the_twist,
}


def relayed(monkeypatch, name, change, node=1):
    """Change each value of a name on its way from one node, the first."""
    original = LocalGrid.send_and_receive

    def relay(self, messages, *, timeout=None):
        received = list(original(self, messages, timeout=timeout))
        for message in received:
            if message.metadata.src_node_id == node and message.has_content():
                values = decode(message.content, VALUES)
                if name in values:
                    values[name] = change(values[name])
                    message.content.update(encode(values, VALUES))
        return received

    monkeypatch.setattr(LocalGrid, "send_and_receive", relay)


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED.keys())
@pytest.mark.parametrize("number", [1, 2])
def test_tampered_points_stop_the_run_and_name_the_sender(monkeypatch, change, number):
    calls = itertools.count(1)

    def once(points):
        return change(np.array(points)) if next(calls) == number else points

    relayed(monkeypatch, "points", once)
    with pytest.raises(Exception, match="party 'a'"):
        align(frames([["u", "v"], ["v", "w"]]))


def test_fewer_points_than_sent_stop_the_run(monkeypatch):
    original = commutative.blind
    monkeypatch.setattr(
        "flwr_vertical.alignment.private_id.PrivateIdSteps._blind_foreign",
        lambda self, points, sender: original(points, self.state["align.key"])[1:],
    )
    with pytest.raises(PartyError, match=r"returned values of shape \(1, 32\)"):
        align(frames([["u", "v"], ["v", "w"]]))


def test_fknn_imputes_the_same_after_private_alignment(sources_with):
    files = (f"motor/motor_hetero_{name}.csv" for name in ("guest", "host"))
    parties = dict(load_motor(sources_with(*files)).parties)
    rng = np.random.default_rng(0)
    parties["guest"] = parties["guest"].mask(rng.random(parties["guest"].shape) < 0.1)
    parties = {
        name: parties[name].sample(frac=0.9, random_state=k)
        for k, name in enumerate(("guest", "host"), start=1)
    }
    results = {
        alignment: simulate(FKNN(), parties, None, "masked", alignment=alignment)
        for alignment in ("plain", "private-id")
    }
    for name, table in parties.items():
        left, right = (results[a].tables[name] for a in ("plain", "private-id"))
        np.testing.assert_allclose(left.iloc[: len(table)], right.iloc[: len(table)], rtol=1e-9)
        rest = [t.iloc[len(table) :].sort_values(list(t.columns)).to_numpy() for t in (left, right)]
        assert len(rest[0]) > 0
        np.testing.assert_allclose(*rest, rtol=1e-9)


def aligned_with_pins(tmp_path, monkeypatch, *, swap, pin):
    """Align two parties by blind RSA over a relay that may swap the key holder's RSA key."""
    people = identities(tmp_path, "a")
    nodes = [{"party": "a", "identity-key": people["a"][0]}, {"party": "b"}]
    if pin:
        nodes[1] |= pins(people)
    tables = {name: Table.of(table) for name, table in frames([["u", "v"], ["v", "w"]]).items()}
    app = party_app(PositionsParty, storage=MemoryStorage(tables))
    with LocalGrid(app, nodes) as grid:
        if swap:
            relayed(monkeypatch, "public", lambda _: rsa_key.RsaKey.generate(2048).public)
        return Positions().start(grid=grid, alignment=BlindRsaAligner(bits=2048), retries=0)


def test_pinned_key_holder_is_honoured(tmp_path, monkeypatch):
    result = aligned_with_pins(tmp_path, monkeypatch, swap=False, pin=True)
    assert result.model[0].n_samples == 3


@pytest.mark.parametrize("pin", [True, False])
def test_swapped_rsa_key_is_noticed_before_anything_is_blinded(tmp_path, monkeypatch, pin):
    says = r"'b'.*'rsa_blind'.*party 'a' is not signed" if pin else "not signed by the identity"
    with pytest.raises(PartyError, match=says):
        aligned_with_pins(tmp_path, monkeypatch, swap=True, pin=pin)
