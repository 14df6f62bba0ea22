import hashlib
import tracemalloc

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from oracles.chacha20 import chacha20_stream, hkdf_sha256, x25519

from flwr_vertical.crypto import PairwiseMasker
from flwr_vertical.crypto.pair_seeds import packed_signs, pair_seed, random_signs, unpack_signs
from flwr_vertical.errors import ProtocolError

NONCE = bytes(range(16))
SEED = hashlib.sha256(b"seed").digest()


def key_of(word):
    private = hashlib.sha256(word.encode()).digest()
    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return private, public


def seed_of(
    own="a", peer="b", own_key="own", peer_key="peer", nonce=NONCE, purpose="products", **change
):
    (private, public), (_, other) = key_of(own_key), key_of(peer_key)
    keys = {"private": private, "own_public": public, "peer_public": other} | change
    return pair_seed(own_name=own, peer_name=peer, nonce=nonce, purpose=purpose, **keys)


def signs_of(seed, n, size, first=0):
    return np.concatenate(list(random_signs(seed, n, size, first)))


def test_both_parties_get_the_same_seed():
    mine = seed_of()
    assert len(mine) == 32
    assert seed_of("b", "a", "peer", "own") == mine
    np.testing.assert_array_equal(
        signs_of(mine, 50, 33), signs_of(seed_of("b", "a", "peer", "own"), 50, 33)
    )


def test_known_answer_from_the_rfcs():
    seed = seed_of("shop", "bank", purpose="ranks")
    (private, public), (_, other) = key_of("own"), key_of("peer")
    info = b""
    for part in (b"flwr-vertical pair seed v1", b"ranks", b"bank", other, b"shop", public):
        info += len(part).to_bytes(4, "big") + part
    assert seed == hkdf_sha256(x25519(private, other), NONCE, info, 32)

    stream = chacha20_stream(seed, bytes(12), 3 * 30)
    bits = np.unpackbits(np.frombuffer(stream, np.uint8).reshape(30, 3), axis=1, bitorder="little")
    np.testing.assert_array_equal(signs_of(seed, 30, 21), 2 * bits[:, :21].astype(int) - 1)


def test_seeds_are_bound_to_purpose_nonce_names_and_keys():
    variants = [
        {},
        {"purpose": "ranks"},
        {"purpose": ""},
        {"nonce": bytes(16)},
        {"peer": "c"},
        {"own": "b", "peer": "c"},
        {"own": "ab", "peer": "c"},
        {"own": "a", "peer": "bc"},
        {"own_key": "other"},
        {"peer_key": "other"},
        # Names swapped between the same two keys.
        {"own": "b", "peer": "a"},
    ]
    seeds = {seed_of(**variant) for variant in variants}
    assert len(seeds) == len(variants)


def test_seeds_are_not_the_keys_of_the_masks():
    (private, public), (_, other) = key_of("own"), key_of("peer")
    mask = np.zeros(64, np.uint8)
    PairwiseMasker(private, "a", {"a": public, "b": other}, NONCE).mask([mask], 0)
    stream = next(packed_signs(seed_of(), 8, 64)).reshape(-1)
    assert not np.array_equal(mask, stream)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"peer_public": bytes(32)}, "party 'b' is of low order"),
        ({"peer_public": (1).to_bytes(32, "little")}, "party 'b' is of low order"),
        ({"peer_public": bytes(31)}, "public key of party 'b' must be 32 bytes, got 31"),
        ({"peer_public": key_of("own")[1]}, "party 'b' announced this party's own"),
        ({"own_public": bytes(33)}, "public key of party 'a' must be 32 bytes, got 33"),
        ({"own_public": key_of("peer")[1]}, "party 'a' is not that of its private"),
        ({"private": b"short"}, "private key of party 'a' must be 32 bytes, got 5"),
        ({"nonce": b"short"}, "nonce must be at least 16 bytes"),
        ({"peer": "a"}, "needs two parties, got 'a' twice"),
    ],
)
def test_bad_keys(change, match):
    with pytest.raises(ProtocolError, match=match):
        seed_of(**change)


@pytest.mark.parametrize("size", [1, 7, 8, 400, 1001])
def test_columns_are_the_same_wherever_one_starts(size):
    whole = signs_of(SEED, 3000, size)
    assert whole.shape == (3000, size)
    assert whole.dtype == np.int8
    for first in (1, 63, 64, 2500):
        np.testing.assert_array_equal(signs_of(SEED, 3000 - first, size, first), whole[first:])
    np.testing.assert_array_equal(signs_of(SEED, 17, size, 5), whole[5:22])


def test_signs_are_balanced_and_uncorrelated():
    signs = signs_of(SEED, 20_000, 100).astype(float)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    # 2e6 fair signs: mean 0 +- 0.0007. The seed is fixed, so is the outcome.
    assert abs(signs.mean()) < 0.003
    for table in (signs, signs[:100].T):
        n = len(table)
        z = table.sum(axis=0) / np.sqrt(n)
        assert 0.6 < np.mean(z**2) < 1.6
        products = np.corrcoef(table.T)[np.triu_indices(table.shape[1], 1)] * np.sqrt(n)
        assert 0.9 < np.std(products) < 1.1
        assert np.abs(products).max() < 6
    # Neither do neighbours along the stream follow each other.
    for lag in (1, 8, 100):
        flat = signs.reshape(-1)
        assert abs(np.mean(flat[lag:] * flat[:-lag])) < 0.003


def test_memory_stays_bounded():
    tracemalloc.start()
    count, columns = 0, 0
    for block in random_signs(SEED, 20_000, 1000):
        count, columns = count + 1, columns + len(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert columns == 20_000
    assert count > 10
    assert peak < 10e6  # of 20 MB of signs


def test_selected_columns_unpack_to_any_type():
    packed = next(packed_signs(SEED, 40, 12))
    whole = unpack_signs(packed, 12, np.int8)
    for dtype in (np.float32, np.float64):
        some = unpack_signs(packed[[7, 3]], 12, dtype)
        assert some.dtype == dtype
        np.testing.assert_array_equal(some, whole[[7, 3]])
    assert unpack_signs(packed[:0], 12, np.float64).shape == (0, 12)


def test_bad_requests():
    for arguments, match in (
        ((b"short", 4, 4), "seed must be 32 bytes, got 5"),
        ((SEED, -1, 4), "n_columns >= 0"),
        ((SEED, 4, 0), "size >= 1"),
        ((SEED, 4, 4, -1), "first >= 0"),
        ((SEED, 2**38, 1), "at most"),
        ((SEED, 1, 1, 2**38), "at most"),
    ):
        with pytest.raises(ProtocolError, match=match):
            packed_signs(*arguments)
    assert list(random_signs(SEED, 0, 4)) == []


def test_the_last_column_of_the_stream_can_be_drawn():
    last = 2**38 - 65
    assert signs_of(SEED, 1, 8, last).shape == (1, 8)
