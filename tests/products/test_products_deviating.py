"""A server that asks parties for other products than the honest one meets refusals, or noise."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Federation, simulate
from flwr_vertical.errors import PartyError, VerticalError
from flwr_vertical.products import EncryptedProducts
from flwr_vertical.products import arithmetic as ring
from flwr_vertical.products.columns import EncodedColumns, HeldColumns
from flwr_vertical.products.masked import PrivateProducts
from flwr_vertical.products.rare_levels import repeated_codes
from flwr_vertical.products.streams import KeyStream
from strategies.least_squares import CompleteCase
from tests.kit.ledgered import Nodes
from tests.products.test_products_encrypted import LABELS, OpenMoments, patterns
from tests.products.test_products_encrypted import tables as encrypted_tables
from tests.products.test_products_private import Opened, in_groups, tables


@pytest.mark.parametrize("row_less", [False, True], ids=["honest", "the helper has one row less"])
def test_owner_and_helper_that_are_asked_for_different_rows_open_noise(monkeypatch, row_less):
    """The difference of two answers would be one row's columns, times what the server drew."""
    with Opened(tables(3)) as opened:
        products, group = opened.products(limbs=1), in_groups(opened, slice(None))
        labels = np.random.default_rng(0).normal(size=(len(group), 1))
        fewer, seen = group.copy(), {}
        fewer[opened.held_by_all[0]] = -1 if row_less else 0
        once = Federation.sum

        def equivocate(self, step, common, per_party):
            asked = common.pop("group")
            helper = per_party["bank"]["helper"]
            own = {
                name: more | {"group": fewer if name == helper else asked}
                for name, more in per_party.items()
            }
            total = once(self, step, common, per_party=own)
            seen.update(own=own, told=total.public, helper=helper)
            return total

        monkeypatch.setattr(Federation, "sum", equivocate)
        products.moments(group, 1, labels)
        own, told, helper = seen["own"], seen["told"], seen["helper"]
        values = opened.rows[:, :1]
        held = HeldColumns(values, np.arange(len(values)), len(values))
        encoded = EncodedColumns(held, 1, "bank")
        x, u = encoded.rows(0, len(values)), products._masked["bank"]
        seed = own[helper]["rho_seed"]
        rho = KeyStream(seed, "rho", (len(group), 1)).rows(0, len(group))
        mine, its = group == 0, fewer == 0
        masked = own["bank"]["masked_vectors"]
        shares = told["bank"]["owner"] + told[helper]["helper:bank"]
        found = shares[0] - ring.limb_shares(u[its], rho[its], 1)
        expected = ring.limb_shares(x[mine], masked[mine], 1) - ring.limb_shares(
            x[its], rho[its], 1
        )
        assert np.array_equal(found, expected) is not row_less


def test_parties_named_twice_and_groups_without_a_row_are_refused(monkeypatch):
    with Opened(tables(3)) as opened:
        products, group = opened.products(), in_groups(opened, slice(None))
        with pytest.raises(PartyError, match="group 1 of 2 has no row"):
            products.moments(group, 2)
        once = Federation.sum

        def twice(self, step, common, per_party):
            common["names"] = ["bank", "bank", "court"]
            return once(self, step, common, per_party=per_party)

        monkeypatch.setattr(Federation, "sum", twice)
        with pytest.raises(PartyError, match="products are of different parties"):
            products.moments(group, 1)


@pytest.mark.parametrize("nonce", [b"", bytes(32)], ids=["no nonce", "a nonce"])
def test_ciphertexts_under_the_server_s_key_are_refused_where_sums_are_masked(nonce):
    pytest.importorskip("tenseal")
    from flwr_vertical.crypto.ckks_products import encrypt_columns, generate_product_keys

    keys = generate_product_keys()
    with Opened(tables(3)) as opened:
        group = in_groups(opened, slice(None))
        opened.federation.call("encrypt_groups", {"group": group, "n_groups": 1})
        ones = np.zeros((int((group == 0).sum()), 1))
        ones[0] = 1.0
        (blocks,) = encrypt_columns(keys.public, ones, "vectors", "the server")
        key = {"public": keys.public, "nonce": nonce}
        with pytest.raises(PartyError, match="in aggregation 'ckks' or of one party alone"):
            opened.federation.call("multiply_groups", {"group": group, **key, "0:0": blocks})
        with pytest.raises(PartyError, match="in aggregation 'ckks' or of one party alone"):
            opened.federation.call("encrypt_groups", {"group": group, "n_groups": 1, **key})


@pytest.mark.parametrize(
    ("change", "says"),
    [("more vectors", "are counted in its privacy ledger"), ("no nonce", "nobody vouches for it")],
)
def test_an_arbiter_s_key_multiplies_what_was_counted(monkeypatch, change, says):
    pytest.importorskip("tenseal")
    encrypt = EncryptedProducts._encrypted

    def more(self, rows, vectors):
        if change == "no nonce":
            self._key.pop("nonce")
        return [blocks + blocks[:1] for blocks in encrypt(self, rows, vectors)]

    monkeypatch.setattr(EncryptedProducts, "_encrypted", more)
    with pytest.raises(PartyError, match=says):
        simulate(OpenMoments(patterns, LABELS), encrypted_tables(3), aggregation="ckks")


N, AT_ONCE = 400, 40


def test_powers_of_two_as_labels_read_few_flags(tmp_path, monkeypatch):
    """Each bit of a product with such labels is a person's flag: later runs withhold the column."""
    rng = np.random.default_rng(2)
    ids = pd.Index([f"c{i:03}" for i in range(N)], name="id")
    flag = (rng.random(N) < 0.4).astype(float)
    own = {
        "bank": pd.DataFrame({"flag": flag, "income": rng.normal(size=N)}, ids),
        "court": pd.DataFrame({"debts": rng.normal(size=N)}, ids),
    }
    nodes, withheld = Nodes(tmp_path, own), []
    once = PrivateProducts.moments

    def watch(self, *arguments, **more):
        found = once(self, *arguments, **more)
        withheld.append(bool(found.withheld[0, 0]))
        return found

    monkeypatch.setattr(PrivateProducts, "moments", watch)
    n_vectors = 0
    for first in range(0, N, AT_ONCE):
        labels = pd.Series(0.0, ids, name="y")
        labels.iloc[first : first + AT_ONCE] = 2.0 ** np.arange(AT_ONCE)
        n_vectors += 1
        try:
            nodes.run(CompleteCase(), labels)
        except VerticalError:
            break
    read = AT_ONCE * withheld.count(False) / N
    print(f"{n_vectors} vectors of labels 2^i: {read:.0%} of all flags read")
    assert read <= 0.1


def test_ages_repeat_and_real_numbers_do_not():
    rng = np.random.default_rng(0)
    ages = rng.integers(18, 95, size=400) / 16.0 - 3.0  # in rough units
    assert len(np.unique(repeated_codes(ages))) > 20
    assert repeated_codes(rng.normal(size=400)) is None
    assert repeated_codes(np.ones(400)) is None


def test_the_public_scale_is_of_the_whole_table(monkeypatch):
    """Whether a person with a very large value takes part does not show in it."""
    rng, once, scales = np.random.default_rng(3), Federation.sum, []
    ids = pd.Index([f"c{i:03}" for i in range(N)], name="id")
    bank = pd.DataFrame({"income": rng.normal(size=N)}, ids)
    bank.iloc[0, 0] = 1e4
    own = {"bank": bank, "court": pd.DataFrame({"debts": rng.normal(size=N)}, ids)}

    def watch(self, step, *arguments, **more):
        total = once(self, step, *arguments, **more)
        if step == "open_products":
            scales.append(total.public["bank"]["scale"].tolist())
        return total

    monkeypatch.setattr(Federation, "sum", watch)
    for left_out in (0, 1):
        labels = pd.Series(rng.normal(size=N), ids, name="y")
        labels.iloc[left_out] = np.nan
        simulate(CompleteCase(), own, labels)
    assert scales[0] == scales[1]
