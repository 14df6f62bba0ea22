import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_vertical.crypto.ckks import CkksDecryptor, CkksEncryptor, add_ciphertexts, value_limit
from flwr_vertical.crypto.ckks_context import SLOTS, VALUE_LIMIT, generate_keys
from flwr_vertical.crypto.ckks_products import generate_product_keys
from flwr_vertical.errors import ConfigError, DataError, FixedPointOverflowError, ProtocolError

ts = pytest.importorskip("tenseal")


@pytest.fixture(scope="module")
def keys():
    return generate_keys()


@pytest.fixture(scope="module")
def encryptor(keys):
    return CkksEncryptor(keys.public)


@pytest.mark.parametrize("n_parties", [1, 2, 7])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (SLOTS,), (SLOTS + 1,), (2, 3, 1000)])
def test_sum_of_parties(keys, encryptor, n_parties, shape):
    rng = np.random.default_rng(n_parties)
    terms = [rng.uniform(-1e4, 1e4, size=shape) for _ in range(n_parties)]
    blocks = [encryptor.encrypt(term, n_parties) for term in terms]
    assert all(len(term) == -(-int(np.prod(shape)) // SLOTS) for term in blocks)
    total = CkksDecryptor(keys.secret).decrypt(add_ciphertexts(keys.public, blocks), shape)
    assert total.shape == shape
    np.testing.assert_allclose(total, sum(terms), rtol=0, atol=1e-7)


@settings(max_examples=15, deadline=None)
@given(values=st.lists(st.floats(-VALUE_LIMIT / 2, VALUE_LIMIT / 2), min_size=1, max_size=20))
def test_any_values_in_range(keys, encryptor, values):
    blocks = [encryptor.encrypt(values, 2) for _ in range(2)]
    total = CkksDecryptor(keys.secret).decrypt(add_ciphertexts(keys.public, blocks), (len(values),))
    np.testing.assert_allclose(total, 2 * np.array(values), rtol=0, atol=1e-7)


@pytest.mark.parametrize("n_parties", [1, 2, 5])
def test_all_parties_at_the_limit(keys, encryptor, n_parties):
    """The worst polynomial is the one of equal values: all of it sits in one coefficient."""
    term = np.full(SLOTS, -value_limit(n_parties))
    blocks = [encryptor.encrypt(term, n_parties)] * n_parties
    total = CkksDecryptor(keys.secret).decrypt(add_ciphertexts(keys.public, blocks), (SLOTS,))
    np.testing.assert_allclose(total, -VALUE_LIMIT, rtol=0, atol=1e-7)


def test_integers_and_bools_round_to_exact_counts(keys, encryptor):
    terms = [np.arange(100, dtype=np.uint8), np.arange(100) % 2 == 0]
    blocks = [encryptor.encrypt(term, 2) for term in terms]
    total = CkksDecryptor(keys.secret).decrypt(add_ciphertexts(keys.public, blocks), (100,))
    np.testing.assert_array_equal(np.rint(total), terms[0] + terms[1].astype(int))


def test_error_without_rounding_is_as_documented(keys, encryptor):
    rng = np.random.default_rng(0)
    terms = [rng.uniform(-1e4, 1e4, size=SLOTS) for _ in range(5)]
    blocks = add_ciphertexts(keys.public, [encryptor.encrypt(term, 5) for term in terms])
    error = CkksDecryptor(keys.secret, release_bits=None).decrypt(blocks, (SLOTS,)) - sum(terms)
    assert np.sqrt(np.mean(error**2)) < 3e-9
    assert np.max(np.abs(error)) < 2e-8


def test_release_is_rounded(keys, encryptor):
    blocks = encryptor.encrypt(np.linspace(-3, 3, 50), 1)
    for bits in (24, 10):
        released = CkksDecryptor(keys.secret, release_bits=bits).decrypt(blocks, (50,))
        np.testing.assert_array_equal(released * 2.0**bits, np.rint(released * 2.0**bits))
    np.testing.assert_allclose(released, np.linspace(-3, 3, 50), rtol=0, atol=2.0**-11 + 1e-7)


def test_size_per_value(encryptor):
    (block,) = encryptor.encrypt(np.random.default_rng(0).normal(size=SLOTS), 2)
    assert len(block) / SLOTS < 32.2


def test_public_bytes_hold_no_secret(keys):
    public = ts.context_from(keys.public)
    assert not public.is_private()
    assert not public.has_secret_key()
    assert not public.has_galois_keys()
    assert not public.has_relin_keys()
    assert len(keys.public) < 130_000
    with pytest.raises(ValueError, match="secret_key"):
        ts.ckks_vector(public, [1.0]).decrypt()
    with pytest.raises(ProtocolError, match="no secret key"):
        CkksDecryptor(keys.public)
    assert repr(keys) == "CkksKeys()"


def test_equal_values_have_different_ciphertexts(encryptor):
    assert encryptor.encrypt([1.0], 2) != encryptor.encrypt([1.0], 2)


def test_secret_is_refused_outside_the_arbiter(keys):
    for use in (CkksEncryptor, lambda key: add_ciphertexts(key, [[b""]])):
        with pytest.raises(ProtocolError, match="must not leave the arbiter"):
            use(keys.secret)


def test_out_of_range(encryptor):
    values = np.zeros((100, 100))
    values[3, 4] = -1.7 * VALUE_LIMIT
    with pytest.raises(FixedPointOverflowError) as caught:
        encryptor.encrypt(values, 2, name="fit", party="bank")
    for part in ("'fit'", "'bank'", "up to 524288", "131072", "divide them by 4 "):
        assert part in str(caught.value)
    with pytest.raises(DataError, match=r"'values' .*some of its values"):
        encryptor.encrypt([np.nan, 1.0], 2)
    with pytest.raises(ConfigError, match="n_parties"):
        encryptor.encrypt([1.0], 0)


def test_terms_that_do_not_fit(keys, encryptor):
    one, two = encryptor.encrypt(np.ones(3), 2), encryptor.encrypt(np.ones(SLOTS + 3), 2)
    for terms, match in (
        ([], "got none"),
        ([two, two[:1]], "term 1 .*before block 1"),
        ([one, two], "block 0 of term 1 holds 2048"),
        ([two[:1], two], "term 0 .*before block 1"),
        ([one, encryptor.encrypt([1.0], 2)], "block 0 of term 1 holds 1 values, that of term 0 3"),
        ([one, [b"junk"]], "block 0 of term 1 is not a CKKS ciphertext"),
        ([[b""], one], "block 0 of term 0 is not a CKKS ciphertext"),
        ([one, [one[0][:1000]]], "block 0 of term 1 is not a CKKS ciphertext"),
    ):
        with pytest.raises(ProtocolError, match=match):
            add_ciphertexts(keys.public, terms)


def test_blocks_and_shape_that_do_not_fit(keys, encryptor):
    decryptor = CkksDecryptor(keys.secret)
    block = encryptor.encrypt(np.ones(3), 1)
    for blocks, shape, match in (
        (block, (4,), "must hold 4 values, got 3"),
        (block * 2, (3,), "block 1 .*must hold 0 values"),
        (block, (SLOTS + 3,), "must hold 2048"),
        ([], (2,), "hold 0 values"),
        ([b"junk"], (2,), "block 0 is not"),
    ):
        with pytest.raises(ProtocolError, match=match):
            decryptor.decrypt(blocks, shape)


def test_other_keys_are_noticed(keys, encryptor):
    """Of single values that another key opens one in sixty is as large as a sum can be."""
    other = generate_keys()
    block, decryptor = encryptor.encrypt([1.0], 1), CkksDecryptor(other.secret)
    for _ in range(100):
        with pytest.raises(ProtocolError, match=r"block 0 is not .*another key"):
            decryptor.decrypt(encryptor.encrypt([1.0], 1), (1,))
    for terms, where in (([block], 0), ([CkksEncryptor(other.public).encrypt([1.0], 1), block], 1)):
        with pytest.raises(ProtocolError, match=rf"block 0 of term {where} .*another key"):
            add_ciphertexts(other.public, terms)
    bare = ts.context_from(keys.secret).serialize(save_public_key=False, save_secret_key=True)
    with pytest.raises(ProtocolError, match="no public key"):
        CkksDecryptor(bare)


def test_what_is_larger_than_any_sum_is_refused(keys, encryptor):
    half = encryptor.encrypt([VALUE_LIMIT], 1)
    total = add_ciphertexts(keys.public, [half, half])
    with pytest.raises(ProtocolError, match="sums over more parties than they were checked for"):
        CkksDecryptor(keys.secret).decrypt(total, (1,))


def test_contexts_with_other_parameters_are_refused():
    for junk in (b"", b"junk", bytes(1000)):
        with pytest.raises(ProtocolError, match="not a CKKS context"):
            CkksEncryptor(junk)
    context = ts.context(ts.SCHEME_TYPE.CKKS, 4096, coeff_mod_bit_sizes=[54, 55])
    context.global_scale = 2.0**30
    with pytest.raises(ProtocolError, match="expected"):
        CkksDecryptor(context.serialize(save_secret_key=True))
    with pytest.raises(ConfigError, match="release_bits"):
        CkksDecryptor(b"", release_bits=-1)


def test_missing_tenseal(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    for generate in (generate_keys, generate_product_keys):
        with pytest.raises(ConfigError, match=r"pip install 'flwr-vertical\[ckks\]'"):
            generate()
