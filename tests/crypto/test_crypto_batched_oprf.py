"""Base transfers and the function on top of them: against their definitions, and refused inputs."""

import hashlib
import itertools
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_vertical.crypto import base_ot, batched_oprf
from flwr_vertical.errors import ProtocolError

CONTEXT = b"n" * 32
CHOICES = np.random.default_rng(0).random(batched_oprf.N_TRANSFERS) < 0.5
DEALT = [
    tuple(
        hashlib.sha256(bytes([side]) + number.to_bytes(2, "big")).digest()[:16] for side in (0, 1)
    )
    for number in range(batched_oprf.N_TRANSFERS)
]


def bits(rows):
    return np.unpackbits(np.ascontiguousarray(rows), axis=-1, bitorder="little")


@pytest.fixture(scope="module")
def transfers():
    offers, keys = base_ot.choose(CHOICES, CONTEXT)
    public, pairs = base_ot.send(offers, CONTEXT, "a")
    return offers, keys, public, pairs


def test_the_chooser_has_one_seed_of_each_pair(transfers):
    offers, keys, public, pairs = transfers
    seeds = base_ot.chosen_seeds(offers, CHOICES, keys, public, "b")
    assert seeds == [pair[choice] for pair, choice in zip(pairs, CHOICES.astype(int), strict=True)]
    assert len({seed for pair in pairs for seed in pair}) == 2 * len(pairs)
    others = base_ot.chosen_seeds(offers, ~CHOICES, keys, public, "b")
    assert not set(others) & {seed for pair in pairs for seed in pair}


def test_offers_are_sums_with_the_hash_of_the_other(transfers):
    """The equation of the paper: r_c + H_c(r_(1-c)) is the key of the chooser, for its choice."""
    offers, keys, *_ = transfers
    for number in range(4):
        choice = int(CHOICES[number])
        own, other = offers[number, choice].tobytes(), offers[number, 1 - choice].tobytes()
        hashed = base_ot._hashed(other, choice, number, CONTEXT)
        total = base_ot._sum(base_ot._decoded(own, "b"), hashed)
        private = base_ot.ec.derive_private_key(keys[number], base_ot.ec.SECP256R1())
        assert base_ot._point(private.public_key()) == total


def test_what_is_no_offer_names_its_sender(transfers):
    offers, keys, public, _ = transfers
    bad = offers.copy()
    bad[3, 1] = 255
    with pytest.raises(
        ProtocolError, match=r"party 'a' sent 33 bytes that are no compressed point"
    ):
        base_ot.send(bad, CONTEXT, "a")
    with pytest.raises(ProtocolError, match=r"offers of party 'a' must be uint8 of shape"):
        base_ot.send(offers[:, :1], CONTEXT, "a")
    with pytest.raises(ProtocolError, match=r"party 'b' sent 32 bytes"):
        base_ot.chosen_seeds(offers, CHOICES, keys, public[1:], "b")


def evaluated(ids, others):
    """Both ends with dealt seeds: values of the receiver, of the holder, and what they follow."""
    code, numbers = batched_oprf.codes(ids, CONTEXT)
    bins = batched_oprf.n_bins(len(ids))
    places = batched_oprf.place(batched_oprf.bins_of(numbers, bins), bins)
    message, tags = batched_oprf.extend(DEALT, code, places, bins, CONTEXT)
    seeds = [pair[choice] for pair, choice in zip(DEALT, CHOICES.astype(int), strict=True)]
    holder = batched_oprf.Holder.of(seeds, CHOICES, message)
    other_code, other_numbers = batched_oprf.codes(others, CONTEXT)
    other_bins = batched_oprf.bins_of(other_numbers, bins)
    return (code, places, bins, tags), (other_code, other_bins), holder, message


IDS = st.lists(st.integers(0, 40).map(lambda k: f"id{k}".encode()), unique=True)


@settings(max_examples=25)
@given(ids=IDS, others=IDS)
def test_values_are_equal_where_ids_are(ids, others):
    (*_, tags), (code, bins), holder, _ = evaluated(ids, others)
    values = holder.tags(code, bins, CONTEXT)
    received = [tag.tobytes() for tag in tags]
    for other, three in zip(others, values, strict=True):
        hits = [ids[received.index(v)] for v in map(bytes, three) if v in received]
        assert hits == ([other] if other in ids else [])


def test_rows_follow_their_equations():
    """Bit by bit: message = t_0 + t_1 + C(r); q = t_0 + C(r) s; values hash q + C(y) s."""
    ids = [f"person-{k}".encode() for k in range(70)]
    (code, places, bins, tags), (other, candidates), holder, message = evaluated(ids, ids[::-1])
    stream = [
        [
            np.unpackbits(
                np.frombuffer(
                    Cipher(algorithms.AES(seed), modes.CTR(bytes(16)))
                    .encryptor()
                    .update(bytes(-(-bins // 8))),
                    dtype=np.uint8,
                ),
                bitorder="little",
            )[:bins]
            for seed in pair
        ]
        for pair in DEALT
    ]
    left, right = (np.array([pair[side] for pair in stream]).T for side in (0, 1))
    words = np.zeros((bins, batched_oprf.N_TRANSFERS), dtype=np.uint8)
    words[places] = bits(code)
    np.testing.assert_array_equal(bits(message), left ^ right ^ words)
    np.testing.assert_array_equal(bits(holder.rows), left ^ (words & CHOICES))
    person = b"fv-kkrt-tag-v1"

    def value(number, row):
        data = len(CONTEXT).to_bytes(8, "big") + CONTEXT + int(number).to_bytes(8, "little")
        packed = np.packbits(row, bitorder="little").tobytes()
        return hashlib.blake2b(data + packed, digest_size=16, person=person).digest()

    assert [value(p, left[p]) for p in places] == [bytes(tag) for tag in tags]
    for word, three, at in zip(
        bits(other), holder.tags(other, candidates, CONTEXT), candidates, strict=True
    ):
        expected = {value(j, bits(holder.rows[j]) ^ (word & CHOICES)) for j in at}
        assert {bytes(one) for one in three} == expected


def test_streams_go_on_over_blocks(monkeypatch):
    whole = np.concatenate(list(batched_oprf._rows([pair[0] for pair in DEALT], 1000)))
    monkeypatch.setattr(batched_oprf, "_BLOCK", 128)
    parts = np.concatenate(list(batched_oprf._rows([pair[0] for pair in DEALT], 1000)))
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 300, 40_000])
def test_each_id_gets_one_of_its_bins_alone(count):
    _, numbers = batched_oprf.codes([f"{k}".encode() for k in range(count)], CONTEXT)
    bins = batched_oprf.n_bins(count)
    candidates = batched_oprf.bins_of(numbers, bins)
    thirds = np.arange(3) * (bins // 3)
    assert ((candidates >= thirds) & (candidates < thirds + bins // 3)).all()
    places = batched_oprf.place(candidates, bins)
    assert len(np.unique(places)) == count
    assert (candidates == places[:, None]).any(axis=1).all()
    assert bins <= 1.27 * count + 36


def test_ids_without_a_place_stop_the_run():
    with pytest.raises(ProtocolError, match=r"no place by cuckoo hashing.*run again"):
        batched_oprf.place(np.tile([0, 3, 6], (4, 1)), 9)


def test_code_words_are_as_far_apart_as_the_text_says():
    """The chance that one of 3 * 2^20 pairs is less than 128 of 448 bits apart."""
    close = sum(math.comb(batched_oprf.N_TRANSFERS, d) for d in range(128))
    assert 3 * 2**20 * close <= 2 ** (batched_oprf.N_TRANSFERS - 40)
    code, _ = batched_oprf.codes([bytes([k]) for k in range(40)], CONTEXT)
    apart = [(bits(a) ^ bits(b)).sum() for a, b in itertools.combinations(code, 2)]
    assert min(apart) > 150
    assert abs(np.mean(apart) - 224) < 3


def test_contexts_and_secrets_change_every_word():
    words = [
        batched_oprf.codes([b"a"], context, secret)[0].tobytes()
        for context, secret in ((CONTEXT, None), (b"m" * 32, None), (CONTEXT, bytes(16)))
    ]
    assert len(set(words)) == 3
