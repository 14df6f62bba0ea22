"""Step groups of products: how a party is put together of them, and whose keys they use."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import rankdata

from flwr_vertical import Arbiter, Party, StepGroup, Uses, step
from flwr_vertical.crypto.identity import (
    generate_identity,
    identity_text,
    public_identity,
    write_identity,
)
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node.steps import NodeServices, steps_of
from flwr_vertical.products import (
    GroupKeySteps,
    HeldColumns,
    PairKeySteps,
    PrivateProductSteps,
    ProductKeySteps,
)
from flwr_vertical.products.columns import EncodedColumns, ScaledRows, rank_scores
from flwr_vertical.products.pair_keys import MODE, check_key, key_payload
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.codec import encode


class MyParty(Party):
    pair_keys = Uses(PairKeySteps)

    def columns_to_multiply(self):
        order = np.argsort(self.positions)
        values = self.table.frame.to_numpy()[order]
        return HeldColumns(values, self.positions[order], self.n_samples)

    @step
    def count_rows(self):
        return {"n_rows": len(self.positions)}


class MyArbiter(Arbiter):
    products = Uses(ProductKeySteps)


def test_columns_are_scaled_and_masked_without_a_copy_of_them():
    n, p = 100_000, 20
    raw = np.asfortranarray(np.random.default_rng(0).normal(size=(n, p)))
    center, unit = np.arange(p) / 4.0, 2.0 ** np.arange(p)
    values, whole = ScaledRows(raw, center, unit), (raw - center) / unit
    for at in (slice(5, 9), np.array([7, 3]), (slice(None), 2), (slice(4), np.array([1, 6]))):
        np.testing.assert_array_equal(values[at], whole[at])
    assert values[:50].flags.c_contiguous  # whatever the table is, so that sums have the same bits
    encoded = EncodedColumns(HeldColumns(values, np.arange(n), n), 1, "")
    masks = KeyStream(bytes(32), "columns", encoded.shape)
    expected = encoded.rows(0, n) + masks.rows(0, n)
    tracemalloc.start()
    try:
        masked = masks.mask(encoded.blocks())
        record = encode({"masked": masked}, "sent")["sent.arrays"]["masked"]
        assert tracemalloc.get_traced_memory()[1] < 1.6 * raw.nbytes
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(masked, expected)
    assert record.data == expected.tobytes()


def test_rank_scores_are_standardised_ranks():
    rng = np.random.default_rng(0)
    table = np.round(rng.normal(size=(50, 3)), 1)
    table[rng.random((50, 3)) < 0.2] = np.nan
    scores = rank_scores(table)
    for j in range(3):
        known = ~np.isnan(table[:, j])
        ranks = rankdata(table[known, j])
        expected = (ranks - ranks.mean()) / ranks.std()
        np.testing.assert_allclose(scores[known, j], expected)
        assert (scores[~known, j] == 0.0).all()
    np.testing.assert_array_equal(rank_scores(1e9 * table + 5), scores)
    assert (rank_scores(np.full((5, 1), 7.0)) == 0.0).all()
    assert rank_scores(np.zeros((0, 2))).shape == (0, 2)


def node(cls, name="p0", config=None):
    def refuse(*_):
        raise AssertionError

    services = NodeServices(name, {}, config or {}, {}, {}, refuse, refuse, refuse, refuse)
    return cls(services)


def test_a_party_offers_its_own_steps_and_those_of_its_groups():
    assert set(steps_of(MyParty)) == {"labels", "count_rows", "pair_key", "keep_pair_keys"}
    names = {"reveal", "product_keys", "open_blinded", "forget_product_key"}
    assert set(steps_of(MyArbiter)) == names


def test_a_group_names_the_group_that_it_needs():
    class Keyless(Party):
        group_key = Uses(GroupKeySteps)

    arguments = {"nonce": bytes(32), "names": [], "publics": [], "identities": [], "signatures": []}
    with pytest.raises(ProtocolError, match=r"Keyless uses no PairKeySteps.*Uses\(PairKeySteps\)"):
        node(Keyless).take("seal_group_seed", arguments)


def test_a_group_is_found_by_its_class_or_one_above_it():
    class Own(PairKeySteps):
        pass

    class WithOwn(Party):
        keys = Uses(Own)

    party = node(WithOwn)
    assert party.find_group(PairKeySteps) is party.keys
    assert party.keys.other(Own) is party.keys
    assert party.find_group(StepGroup) is not None
    with pytest.raises(ProtocolError, match="uses no PrivateProductSteps"):
        party.find_group(PrivateProductSteps)


def test_two_groups_with_a_step_of_one_name_are_refused_and_an_own_step_replaces_one():
    class Other(StepGroup):
        @step
        def pair_key(self):
            return {}

    class Both(Party):
        keys = Uses(PairKeySteps)
        other = Uses(Other)

    with pytest.raises(ProtocolError, match=r"Both uses two step groups .* a step 'pair_key'"):
        steps_of(Both)

    class Own(Party):
        keys = Uses(PairKeySteps)

        @step
        def pair_key(self, nonce):
            return self.keys.pair_key(nonce) | {"mine": True}

    told = node(Own).take("pair_key", {"nonce": bytes(32)})
    assert told["mine"]
    assert len(told["public"]) == 32


def exchanged(*names):
    """Parties that hold each other's keys."""
    parties = [node(MyParty, name) for name in names]
    nonce = bytes(range(32))
    publics = [party.take("pair_key", {"nonce": nonce})["public"] for party in parties]
    none = [b""] * len(names)
    for party in parties:
        party.take("keep_pair_keys", {"nonce": nonce, "names": list(names), "publics": publics,
                                      "identities": none, "signatures": none})  # fmt: skip
    return parties, nonce


def test_two_parties_share_a_seed_for_each_purpose_and_no_third_has_it():
    (a, b, c), nonce = exchanged("a", "b", "c")
    one = a.pair_keys.seeds(nonce, "this")
    assert set(one) == {"b", "c"}
    assert one["b"] == b.pair_keys.seeds(nonce, "this")["a"]
    others = [
        one["c"],
        b.pair_keys.seeds(nonce, "this")["c"],
        c.pair_keys.seeds(nonce, "this")["b"],
        a.pair_keys.seeds(nonce, "that")["b"],
        a.pair_keys.seeds(bytes(32), "this")["b"],
    ]
    assert one["b"] not in others


def test_seeds_before_the_keys_are_refused():
    party = node(MyParty)
    with pytest.raises(ProtocolError, match="'p0' shares no seeds with other parties yet"):
        party.pair_keys.seeds(bytes(32), "this")
    party.take("pair_key", {"nonce": bytes(32)})
    with pytest.raises(ProtocolError, match="'keep_pair_keys' come first"):
        party.pair_keys.seeds(bytes(32), "this")
    with pytest.raises(ProtocolError, match="'product_keys' comes first"):
        node(MyArbiter).take("open_blinded", {"products": []})


def test_a_signature_covers_purpose_key_and_run(tmp_path):
    private = generate_identity()
    path = str(write_identity(tmp_path / "b.pem", private))
    owner = pins.NodeIdentity("b", "party", MODE, 0, {"identity-key": path})
    user = pins.NodeIdentity(
        "a", "party", MODE, 0, {"pin.b": identity_text(public_identity(private))}
    )
    signed = pins.endorse(owner, key_payload("pair key", b"key", bytes(32)))
    for payload, valid in (
        (key_payload("pair key", b"key", bytes(32)), True),
        (key_payload("product key", b"key", bytes(32)), False),
        (key_payload("pair key", b"another", bytes(32)), False),
        (key_payload("pair key", b"key", bytes(31) + b"1"), False),
    ):
        arguments = (user, "b", payload, signed["identity"], signed["signature"])
        if valid:
            check_key(*arguments, sends="it", without="nothing")
            continue
        with pytest.raises(ProtocolError, match="a relay swapped keys"):
            check_key(*arguments, sends="it", without="nothing")


def test_a_party_with_pins_says_what_it_would_have_sent_under_another_s_key(tmp_path):
    class Telling(Party):
        pair_keys = Uses(PairKeySteps, sends="rotated columns", without="products='none'")

    pinned = identity_text(public_identity(generate_identity()))
    party = node(Telling, "a", {"pin.b": pinned})
    party.take("pair_key", {"nonce": bytes(32)})
    keys = {"names": ["a", "c"], "publics": [b"", bytes(32)],
            "identities": [b""] * 2, "signatures": [b""] * 2}  # fmt: skip
    with pytest.raises(ProtocolError) as caught:
        party.take("keep_pair_keys", {"nonce": bytes(32), **keys})
    text = str(caught.value)
    assert "party 'a' pins others, but not party 'c'" in text
    assert "send rotated columns" in text
    assert text.endswith("add 'pin.c', or use products='none'")
