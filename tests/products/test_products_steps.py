"""A strategy of somebody else has products of columns from step groups of the core alone."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from flwr_vertical.products.sketches import standard_error_of_products
from scipy.stats import spearmanr

from flwr_vertical import Arbiter, Party, StepGroup, Strategy, Uses, simulate, step
from flwr_vertical.crypto.identity import (
    generate_identity,
    identity_text,
    public_identity,
    write_identity,
)
from flwr_vertical.errors import PartyError, ProtocolError
from flwr_vertical.node.steps import NodeServices, steps_of
from flwr_vertical.products import (
    EncryptedProductSteps,
    HeldColumns,
    PairKeys,
    PairKeySteps,
    ProductKeySteps,
    RankSketchSteps,
    SketchSteps,
    encrypted_products,
    products_of_rotated,
    rotate_for_peers,
    sketched_products,
    sketched_rank_correlations,
)
from flwr_vertical.products.pair_keys import MODE, check_key, key_payload
from flwr_vertical.protocol import pins

N, SIZE = 300, 4000
PAIRS = list(combinations(range(3), 2))


class MyParty(Party):
    pair_keys = Uses(PairKeySteps)
    rank_sketches = Uses(RankSketchSteps, purpose="my ranks")
    sketches = Uses(SketchSteps, purpose="my rows")
    encrypted = Uses(EncryptedProductSteps)

    def columns_to_multiply(self):
        order = np.argsort(self.positions)
        values = self.table.frame.to_numpy()[order]
        return HeldColumns(values, self.positions[order], self.n_samples)

    columns_to_rank = columns_to_multiply

    @step
    def rotate_rows(self, nonce):
        rows = self.columns_to_multiply().filled
        return rotate_for_peers(rows, self.pair_keys.seeds(nonce, "my rotation"))


class MyArbiter(Arbiter):
    products = Uses(ProductKeySteps)


class MyProducts(Strategy):
    """Products of all parties' columns, by one of three ways."""

    name = "my-products"
    party = MyParty
    arbiter = MyArbiter
    disclosure = (("server", "products of the parties' columns"),)

    def __init__(self, way="sketched"):
        self.way = way

    @property
    def needs_arbiter(self):
        return "encrypted products" if self.way == "encrypted" else None

    def run(self, federation, alignment, result, progress):
        held, self.ids = ~alignment.mask, alignment.ids
        weight = {
            name: self.weight(alignment.n_samples)[held[:, k]]
            for k, name in enumerate(federation.parties)
        }
        keys = PairKeys(federation)
        if self.way == "ranks":
            result.model = sketched_rank_correlations(federation, held, keys, SIZE)
        elif self.way == "sketched":
            result.model = sketched_products(federation, weight, keys, SIZE)
        elif self.way == "both":
            sketched_rank_correlations(federation, held, keys, SIZE)
            result.model = sketched_products(federation, weight, keys, SIZE)
        elif self.way == "rotated":
            keys.hand_out()
            told = federation.call("rotate_rows", {"nonce": keys.nonce})
            result.model = products_of_rotated(told, federation.parties)
        elif self.way == "encrypted":
            n_columns = {name: len(table.columns) for name, table in self.tables.items()}
            result.model = encrypted_products(federation, weight, n_columns)

    @staticmethod
    def weight(n_samples):
        return np.linspace(0.5, 2.0, n_samples)


def make_tables(parties=3):
    rng = np.random.default_rng(5)
    common = rng.normal(size=N)
    return {
        f"p{k}": pd.DataFrame(
            {f"x{k}{j}": common + rng.normal(size=N) for j in range(k + 1)},
            index=[f"s{i:03}" for i in range(N)],
        ).sample(frac=0.8, random_state=k).sort_index()
        for k in range(parties)
    }  # fmt: skip


def run(way, tables):
    strategy = MyProducts(way)
    strategy.tables = tables
    result = simulate(strategy, tables, aggregation="plain", progress=False)
    return result, [table.reindex(strategy.ids).fillna(0.0).to_numpy() for table in tables.values()]


def true_products(columns, weighted=True):
    weight = MyProducts.weight(len(columns[0])) if weighted else np.ones(len(columns[0]))
    return {(j, k): columns[j].T @ (columns[k] * weight[:, None]) for j, k in PAIRS}


def test_sketched_products_are_within_their_standard_errors():
    result, columns = run("sketched", make_tables())
    truth = true_products(columns)
    assert sorted(result.model) == PAIRS
    weight = MyProducts.weight(len(columns[0]))[:, None]
    squares = [(x**2 * weight).sum(axis=0) for x in columns]
    for j, k in PAIRS:
        spread = standard_error_of_products(squares[j], squares[k], truth[j, k], SIZE)
        assert (np.abs(result.model[j, k] - truth[j, k]) < 5 * spread).all()
        assert (np.abs(truth[j, k]) > 10 * spread).any()  # so zeros would be noticed


def test_sketched_rank_correlations_are_those_of_the_shared_samples():
    tables = make_tables()
    by_pair, noise = run("ranks", tables)[0].model
    for one, other in combinations(tables, 2):
        shared = tables[one].index.intersection(tables[other].index)
        for i, a in enumerate(tables[one]):
            for j, b in enumerate(tables[other]):
                expected = spearmanr(tables[one].loc[shared, a], tables[other].loc[shared, b])[0]
                assert expected > 0.3
                assert abs(by_pair[one, other][i, j] - expected) < 5 * noise[one, other] < 0.5


def test_rotated_products_are_exact():
    result, columns = run("rotated", make_tables())
    truth = true_products(columns, weighted=False)
    for pair in PAIRS:
        np.testing.assert_allclose(result.model[pair], truth[pair], rtol=1e-10)


def test_encrypted_products_are_exact_to_the_noise_of_ciphertexts():
    pytest.importorskip("tenseal")
    result, columns = run("encrypted", make_tables())
    truth = true_products(columns)
    for pair in PAIRS:
        np.testing.assert_allclose(result.model[pair], truth[pair], atol=1e-4)


@pytest.mark.parametrize("way", ["sketched", "encrypted"])
def test_one_party_has_no_products(way):
    if way == "encrypted":
        pytest.importorskip("tenseal")
    assert run(way, make_tables(1))[0].model == {}


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        ("sketched", ["pair_key", "keep_pair_keys", "sketch_rows"]),
        ("both", ["pair_key", "sketch_ranks", "sketch_rows"]),
    ],
)
def test_keys_are_made_and_handed_out_once(way, steps):
    ledger = run(way, make_tables())[0].ledger
    taken = ledger.to_frame()["step"].drop_duplicates().to_list()
    assert taken[-len(steps) :] == steps
    assert "keep_pair_keys" not in taken[: -len(steps)]


# -- composition -----------------------------------------------------------------------------


def node(cls, name="p0", config=None):
    def refuse(*_):
        raise AssertionError

    services = NodeServices(name, {}, config or {}, {}, {}, refuse, refuse, refuse, refuse)
    return cls(services)


def test_a_party_offers_its_own_steps_and_those_of_its_groups():
    assert set(steps_of(MyParty)) == {
        "labels", "rotate_rows", "pair_key", "keep_pair_keys", "sketch_ranks", "sketch_rows",
        "encrypt_rows", "multiply_rows",
    }  # fmt: skip
    assert set(steps_of(MyArbiter)) == {
        "reveal", "product_keys", "open_products", "open_blinded", "forget_product_key",
    }  # fmt: skip


def test_a_group_names_the_group_that_it_needs():
    class Keyless(Party):
        sketches = Uses(SketchSteps, purpose="mine")

        def columns_to_multiply(self):
            return HeldColumns(np.ones((3, 1)), np.arange(3), 3)

    arguments = {"nonce": bytes(32), "weight": np.ones(3), "size": 10}
    with pytest.raises(ProtocolError, match=r"Keyless uses no PairKeySteps.*Uses\(PairKeySteps\)"):
        node(Keyless).take("sketch_rows", arguments)


def test_a_group_is_found_by_its_class_or_one_above_it():
    class Own(PairKeySteps):
        pass

    class WithOwn(Party):
        keys = Uses(Own)

    party = node(WithOwn)
    assert party.find_group(PairKeySteps) is party.keys
    assert party.keys.other(Own) is party.keys
    assert party.find_group(StepGroup) is not None
    with pytest.raises(ProtocolError, match="uses no SketchSteps"):
        party.find_group(SketchSteps)


def test_two_groups_with_a_step_of_one_name_are_refused():
    class Other(StepGroup):
        @step
        def pair_key(self):
            return {}

    class Both(Party):
        keys = Uses(PairKeySteps)
        other = Uses(Other)

    with pytest.raises(
        ProtocolError, match="Both uses two step groups that have a step 'pair_key'"
    ):
        steps_of(Both)


def test_a_party_s_own_step_replaces_a_group_s_and_may_call_it():
    class Own(Party):
        keys = Uses(PairKeySteps)

        @step
        def pair_key(self, nonce):
            return self.keys.pair_key(nonce) | {"mine": True}

    told = node(Own).take("pair_key", {"nonce": bytes(32)})
    assert told["mine"]
    assert len(told["public"]) == 32


# -- keys ------------------------------------------------------------------------------------


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


def test_products_before_the_arbiter_s_keys_are_refused():
    arbiter = node(MyArbiter)
    with pytest.raises(ProtocolError, match="'product_keys' comes first"):
        arbiter.take("open_products", {"shapes": np.zeros((0, 2), dtype=np.int64)})


def test_an_arbiter_without_product_keys_ends_the_run():
    pytest.importorskip("tenseal")

    class Plain(MyProducts):
        arbiter = Arbiter

    strategy, tables = Plain("encrypted"), make_tables(2)
    strategy.tables = tables
    with pytest.raises(PartyError, match="has no step 'product_keys'"):
        simulate(strategy, tables, aggregation="plain", progress=False)
