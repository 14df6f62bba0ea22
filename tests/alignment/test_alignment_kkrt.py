"""Alignment by oblivious transfers: against plain alignment, and relays and nodes that deviate."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flwr_vertical import LocalGrid, MemoryStorage, Table, party_app, simulate
from flwr_vertical.alignment import kkrt
from flwr_vertical.alignment.kkrt import KkrtAligner
from flwr_vertical.alignment.private_id import PrivateIdAligner
from flwr_vertical.crypto import base_ot, batched_oprf
from flwr_vertical.crypto.masks import generate_keypair
from flwr_vertical.errors import ConfigError, DataError, PartyError
from simulations.attacks.deviating import ANSWERED, OTHERWISE, RAW, deviate
from simulations.attacks.mutations import ARGUMENT, EARLIER, NUMBER, STATE, STEP
from tests.alignment.test_alignment_private import (
    Positions,
    PositionsParty,
    align,
    check,
    frames,
    relayed,
    straight,
    transcript_of,
    values_in,
)
from tests.kit import cases
from tests.kit.identities import identities, pins
from tests.kit.ledgered import Nodes
from tests.kit.resuming import Place

IDS = [f"patient-{k:05d}" for k in range(60)]
PAIRS = {
    "no overlap": (IDS[:20], IDS[30:]),
    "full overlap": (IDS, IDS[::-1]),
    "one row": (IDS[:1], IDS[:1]),
    "unequal": (IDS[:12], IDS),
    "numbers": ([5, -3, 10**12], [10**12, 7]),
}


class Dealt:
    """Base transfers by a dealer: many tables in little time; real ones have tests of their own."""

    POINT_BYTES = base_ot.POINT_BYTES
    pairs = tuple((bytes([0, k % 256] * 8), bytes([1, k // 2] * 8)) for k in range(448))

    @staticmethod
    def choose(choices, context):
        return np.zeros((448, 2, 33), dtype=np.uint8), [0] * 448

    @classmethod
    def send(cls, *_):
        return bytes(33), cls.pairs

    @classmethod
    def chosen_seeds(cls, _, choices, *rest):
        return [pair[choice] for pair, choice in zip(cls.pairs, choices.astype(int), strict=True)]


@pytest.fixture
def dealt(monkeypatch):
    monkeypatch.setattr(kkrt, "base_ot", Dealt)


def kept_of(sets, rows):
    sets = [set(own) for own in sets]
    return set.union(*sets) if rows == "union" else set.intersection(*sets)


@pytest.mark.parametrize("rows", ["union", "intersection"])
@pytest.mark.parametrize("pair", PAIRS)
def test_it_equals_private_id(dealt, pair, rows):
    tables = frames(PAIRS[pair])
    ours = straight(tables, KkrtAligner(rows=rows))
    theirs = straight(tables, PrivateIdAligner(rows=rows))
    check(tables, ours, kept_of(PAIRS[pair], rows))
    assert sorted(map(tuple, ours[0].mask)) == sorted(map(tuple, theirs[0].mask))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sets=st.lists(st.lists(st.integers(0, 40), min_size=1, unique=True), min_size=2, max_size=2),
    rows=st.sampled_from(["union", "intersection"]),
)
def test_it_equals_pandas_on_random_tables(dealt, sets, rows):
    tables = frames(sets)
    check(tables, straight(tables, KkrtAligner(rows=rows)), kept_of(sets, rows))


def test_it_equals_plain_alignment_in_three_rounds():
    tables = frames([IDS[:40], IDS[20:]])
    ours, theirs = (
        simulate(Positions(), tables, None, "plain", alignment=alignment)
        for alignment in ("kkrt", "plain")
    )
    for result in (ours, theirs):
        check(tables, result.model, set(IDS))
    assert ours.ledger.rounds == theirs.ledger.rounds + 2
    asked = [name for name in ours.ledger.to_frame()["step"] if name.startswith("ot_")]
    assert asked == ["ot_choose", "ot_extend", "ot_tags"]


def test_values_are_new_in_each_run_and_do_not_tell_the_bin():
    tables = frames([IDS, IDS])
    seen = []
    for _ in range(2):
        said = [value for name, value in values_in(transcript_of(tables, alignment="kkrt"))
                if name == "tags"]  # fmt: skip
        (own,) = [tags for tags in said if tags.ndim == 2]
        (three,) = [tags for tags in said if tags.ndim == 3]
        assert {row.tobytes() for row in own} <= {row.tobytes() for row in three.reshape(-1, 16)}
        first = np.ascontiguousarray(three[:, :, :8]).view("<u8")[:, :, 0]
        assert (np.diff(first.astype(object), axis=1) > 0).all()
        seen.append({row.tobytes() for row in three.reshape(-1, 16)})
    assert not seen[0] & seen[1]


UNUSABLE = [
    ([["u"], ["u"], ["u"]], {}, ConfigError, r"for two parties.*has 3: \['a', 'b', 'c'\].*private"),
    ([["u"]], {}, ConfigError, r"for two parties, this run has 1"),
    ([["u"], ["u"]], {"labels": pd.Series([1.0], ["u"])}, ConfigError, "no labels of the server"),
    ([["u"], ["w"]], {}, DataError, "party 'a' has no common sample"),
    ([[1, 2], ["1", "2"]], {}, DataError, "different types.*'a': 'integer'.*'b': 'text'"),
    ([IDS[:2], IDS], {}, PartyError,
     r"'a' refuses by policy\.foreign-ids: asked: 111 IDs that are not its own"),
]  # fmt: skip


@pytest.mark.parametrize(("ids", "settings", "error", "why"), UNUSABLE)
def test_what_cannot_be_aligned(dealt, ids, settings, error, why):
    with pytest.raises(error, match=why):
        align(frames(ids), alignment="kkrt", **settings)


def test_a_party_may_hold_the_labels(dealt):
    tables = frames([IDS[:40], IDS[20:]])
    found = align(tables, alignment="kkrt", align_rows="labelled", label_holder="b",
                  label_column="x")  # fmt: skip
    assert found[0].n_samples == 40


TAMPERED = {
    "offers": (
        lambda v: v[:, :1],
        r"'b'.*'ot_extend'.*offers of party 'a' must be uint8 of shape \(n, 2, 33\)",
    ),
    "offers ": (lambda v: np.full_like(v, 255), r"party 'a' sent 33 bytes that are no compressed"),
    "public": (
        lambda v: v[:-1],
        r"'b'.*'ot_extend'.*public key of party 'a' must be 32 bytes, got 31",
    ),
    "public ": (lambda v: bytes(32), "public key of party 'a' is of low order"),
    # Who keeps the seeds from being shared cannot read or forge what is sealed.
    "public  ": (lambda v: generate_keypair()[1], r"'a'.*'ot_tags'.*is not that of|not sealed"),
    "tags": (lambda v: v[:, :2], r"'a'.*'ot_tags'.*shape \(2, 2, 16\).*expected \(n, 3, 16\)"),
    "tags ": (lambda v: np.repeat(v[:1], 2, axis=0), "that make two samples one"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_a_relay_changes_of_the_holder_stops_the_run(monkeypatch, name):
    change, why = TAMPERED[name]
    relayed(monkeypatch, name.strip(), change)
    with pytest.raises(PartyError, match=why):
        align(frames([["u", "v"], ["u", "v"]]), alignment="kkrt")


def flipped(values):
    changed = np.array(values)
    changed[100] ^= 1
    return changed


TAMPERED_SECOND = {
    "sealed": (flipped, r"'a'.*'ot_tags'.*secret of party 'b' was not sealed by it"),
    "sealed ": (lambda v: v[:5], r"'a'.*'ot_tags'.*secret of party 'b' was not sealed by it"),
    "tags": (lambda v: v.astype(np.int64), r"'b'.*'ot_extend'.*expected \(n, 16\) of uint8"),
    "tags ": (lambda v: np.repeat(v[:1], 2, axis=0), "'b'.*the same value for two samples"),
}


@pytest.mark.parametrize("name", TAMPERED_SECOND)
def test_what_a_relay_changes_of_the_receiver_stops_the_run(monkeypatch, name):
    change, why = TAMPERED_SECOND[name]
    relayed(monkeypatch, name.strip(), change, node=2)
    with pytest.raises(PartyError, match=why):
        align(frames([["u", "v"], ["u", "v"]]), alignment="kkrt")


def test_bins_of_another_length_are_refused(monkeypatch):
    original = kkrt.batched_oprf.extend

    def shorter(*arguments):
        message, tags = original(*arguments)
        return message[:-1], tags

    monkeypatch.setattr(kkrt.batched_oprf, "extend", shorter)
    with pytest.raises(PartyError, match=r"'a'.*'ot_tags'.*party 'b' sealed .* no bins"):
        align(frames([["u", "v"], ["u", "v"]]), alignment="kkrt")


def run_with_pins(tmp_path, *, pinned=("a", "b"), **relay):
    """Align two parties that have identities; each pins those it is told of."""
    people = identities(tmp_path, "ab")
    told = {name: people[name] for name in pinned}
    nodes = [{"party": n, "identity-key": people[n][0], **pins(told, n)} for n in "ab"]
    tables = {name: Table.of(table) for name, table in frames([["u", "v"], ["v", "w"]]).items()}
    with LocalGrid(party_app(PositionsParty, storage=MemoryStorage(tables)), nodes) as grid:
        return Positions().start(grid=grid, alignment="kkrt", retries=0)


def test_pinned_parties_are_aligned(tmp_path):
    assert run_with_pins(tmp_path).model[0].n_samples == 3


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_server_in_the_middle_is_noticed(tmp_path, monkeypatch, who):
    """It puts in keys of its own, as if it were the other party."""
    other = "b" if who == "a" else "a"

    def own_offers(offers):
        return base_ot.choose(np.zeros(len(offers), dtype=bool), b"n" * 32)[0]

    if who == "a":
        relayed(monkeypatch, "offers", own_offers)
    else:
        relayed(monkeypatch, "public", lambda _: generate_keypair()[1], node=2)
    with pytest.raises(PartyError, match=rf"'{other}'.*key .* of party '{who}' is not signed"):
        run_with_pins(tmp_path, pinned=(who,))


def test_who_pins_others_uses_no_key_of_a_node_that_it_does_not_pin(tmp_path):
    people = identities(tmp_path, ["arbiter"])
    arbiter = {"role": "arbiter", "identity-key": people["arbiter"][0]}
    nodes = [{"party": "a"}, {"party": "b", **pins(people)}]
    tables = {name: Table.of(table) for name, table in frames([["u", "v"], ["v", "w"]]).items()}
    app = party_app(PositionsParty, storage=MemoryStorage(tables))
    with (
        LocalGrid(app, [*nodes, arbiter]) as grid,
        pytest.raises(PartyError, match=r"party 'b' pins others, but not party 'a'.*pin\.a"),
    ):
        Positions().start(grid=grid, alignment="kkrt", aggregation="ckks", retries=0)


def test_other_messages_are_refused_at_every_place():
    tables = dict(list(cases.tables_of("mean").items())[:2])
    tries = deviate(cases.made("mean"), tables, alignment="kkrt", min_rows=1, seed=1)
    print(tries.count().to_string())
    assert {one.step for one in tries.made} >= {"ot_choose", "ot_extend", "ot_tags"}
    assert tries.count()["cells found"].sum() == 0
    for kind in (STEP, STATE):
        assert tries.of(kind, ANSWERED, OTHERWISE, RAW) == []
    for kind in (ARGUMENT, EARLIER, NUMBER):
        assert tries.of(kind, RAW) == []
    answered = {one.what.removesuffix(" missing") for one in tries.of(ARGUMENT, ANSWERED)}
    assert answered <= {"identity", "signature"}


def test_it_goes_on_after_the_server_ends_and_answers_are_lost(tmp_path):
    place = Place(tmp_path, "fknn", alignment="kkrt")
    expected = place.run()
    place.broken(die_after=2)
    place.broken(resume=True, die_before=2)
    resumed = place.run(resume=True, lose={3: "lost"})
    for name, own in place.tables.items():  # the rows it lacked come after, in a random order
        one, other = (found.tables[name][: len(own)] for found in (resumed, expected))
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_ledger_counts_bins_as_ids_of_others(tmp_path):
    nodes = Nodes(tmp_path, dict(list(cases.tables_of("mean").items())[:2]))
    found = nodes.run(cases.made("mean"), alignment="kkrt")
    holder, receiver = found.parties
    bins = batched_oprf.n_bins(len(cases.tables_of("mean")[receiver]))
    assert [entry["n_rows"] for entry in nodes.entries("ids", holder)] == [bins]
    assert nodes.entries("ids", receiver) == []
    nodes.state(policy_foreign_ids=0.5)
    said = nodes.refused("foreign-ids", cases.made("mean"), alignment="kkrt")
    assert f"{bins} IDs that are not its own" in said
