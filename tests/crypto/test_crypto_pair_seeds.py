import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from oracles.chacha20 import chacha20_stream, hkdf_sha256, x25519

from flwr_vertical.crypto import PairwiseMasker
from flwr_vertical.crypto.pair_seeds import pair_seed
from flwr_vertical.errors import ProtocolError

NONCE = bytes(range(16))


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


def test_both_parties_get_the_same_seed():
    mine = seed_of()
    assert len(mine) == 32
    assert seed_of("b", "a", "peer", "own") == mine


def test_known_answer_from_the_rfcs():
    seed = seed_of("shop", "bank", purpose="ranks")
    (private, public), (_, other) = key_of("own"), key_of("peer")
    info = b""
    for part in (b"flwr-vertical pair seed v1", b"ranks", b"bank", other, b"shop", public):
        info += len(part).to_bytes(4, "big") + part
    assert seed == hkdf_sha256(x25519(private, other), NONCE, info, 32)


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
    assert mask.tobytes() != chacha20_stream(seed_of(), bytes(12), 64)


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
