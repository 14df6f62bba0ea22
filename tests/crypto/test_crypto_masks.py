import hashlib
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_vertical.crypto import masks
from flwr_vertical.crypto.fixed_point import FixedPoint, decode_integers, encode_integers
from flwr_vertical.crypto.masks import PairwiseMasker, generate_keypair, unmask_sum
from flwr_vertical.crypto.pair_seeds import pair_seed
from flwr_vertical.errors import ProtocolError

NONCE = bytes(range(16))


def fixed_keys(*names):
    private = {name: hashlib.sha256(name.encode()).digest() for name in names}
    public = {
        name: X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
        for name, key in private.items()
    }
    return private, public


def derived(private, public, info):
    """Return 32 bytes from what two parties share, by HKDF."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    return HKDF(SHA256(), 32, NONCE, info).derive(shared)


def maskers(*names, nonce=NONCE):
    private, public = fixed_keys(*names)
    return {name: PairwiseMasker(private[name], name, public, nonce) for name in names}


def mask_of(masker, sequence, n=1000, dtype=np.uint64):
    array = np.zeros(n, dtype)
    masker.mask([array], sequence)
    return array


def test_generated_keys_agree():
    keys = {name: generate_keypair() for name in "ab"}
    public = {name: pair[1] for name, pair in keys.items()}
    assert all(len(key) == 32 for pair in keys.values() for key in pair)
    masked = [mask_of(PairwiseMasker(keys[name][0], name, public, NONCE), 0) for name in "ab"]
    assert masked[0].any()
    assert not unmask_sum(masked).any()


@settings(max_examples=40, deadline=None)
@given(
    n_parties=st.integers(1, 7),
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=4),
    data=st.data(),
)
def test_masked_sum_equals_plain_sum(n_parties, shapes, data):
    codec = FixedPoint()
    seed = data.draw(st.integers(0, 2**32 - 1))
    kinds = [data.draw(st.sampled_from(["real", "uint16", "uint32", "int64"])) for _ in shapes]
    rng = np.random.default_rng(seed)
    parties = maskers(*(f"p{index}" for index in range(n_parties)))
    plain, masked = [], []
    for masker in parties.values():
        terms, ring = [], []
        for shape, kind in zip(shapes, kinds, strict=True):
            if kind == "real":
                terms.append(rng.normal(size=shape) * 1e4)
                ring.append(codec.encode(terms[-1], n_parties))
            else:
                low = -1000 if kind == "int64" else 0
                terms.append(rng.integers(low, 9000, size=shape).astype(kind))
                ring.append(encode_integers(terms[-1], n_parties))
        masker.mask(ring, 5)
        plain.append(terms)
        masked.append(ring)
    for index, kind in enumerate(kinds):
        total = unmask_sum([ring[index] for ring in masked])
        expected = sum(np.asarray(terms[index], np.float64) for terms in plain)
        if kind == "real":
            error = np.abs(codec.decode(total) - expected)
            assert np.all(error <= n_parties * codec.resolution)
        else:
            np.testing.assert_array_equal(decode_integers(total), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_masks_cancel_over_many_chunks(dtype):
    n = 700_001 // np.dtype(dtype).itemsize
    total = unmask_sum([mask_of(masker, 3, n, dtype) for masker in maskers("a", "b", "c").values()])
    assert total.dtype == dtype
    assert not total.any()


def test_one_masked_term_looks_uniform():
    ring = FixedPoint().encode(np.ones(1 << 17), 3)
    maskers("a", "b", "c")["b"].mask([ring], 0)
    counts = np.bincount(ring.view(np.uint8), minlength=256)
    expected = ring.nbytes / 256
    # 255 degrees of freedom: mean 255, standard deviation 22.6. The keys are fixed, so is the
    # outcome.
    assert 160 < np.sum((counts - expected) ** 2 / expected) < 350
    assert len(np.unique(ring)) == ring.size


def test_every_sequence_has_its_own_masks():
    masker = maskers("a", "b")["a"]
    seen = [mask_of(masker, sequence) for sequence in (0, 1, 2**32, 2**64 - 1)]
    # Not even a stretch of one stream reappears in another.
    assert len(np.unique(np.concatenate(seen))) == 4000


def test_masks_are_bound_to_nonce_names_and_keys():
    def first_mask(own, peer, nonce=NONCE, own_key="own", peer_key="peer"):
        private, public = fixed_keys(own_key, peer_key)
        keys = {own: public[own_key], peer: public[peer_key]}
        return mask_of(PairwiseMasker(private[own_key], own, keys, nonce), 0, 4).tobytes()

    variants = {
        first_mask("a", "b"),
        first_mask("a", "b", nonce=bytes(16)),
        first_mask("a", "c"),
        first_mask("b", "c"),
        first_mask("ab", "c"),
        first_mask("a", "bc"),
        first_mask("a", "b", peer_key="other"),
    }
    assert len(variants) == 7
    assert first_mask("a", "b") in variants


def test_known_answer_from_the_standards():
    names = ("bank", "shop", "été")
    private, public = fixed_keys(*names)
    arrays = [np.arange(3, dtype=np.uint16), np.arange(40, dtype=np.uint64).reshape(5, 8)]
    expected = [array.copy() for array in arrays]
    PairwiseMasker(private["shop"], "shop", public, NONCE).mask(arrays, 7, b"asked")

    for peer, adds in (("bank", False), ("été", True)):
        info = b""
        low, high = sorted(("shop", peer))
        for part in (
            b"flwr-vertical pairwise mask v3",
            *(low.encode(), public[low], high.encode(), public[high]),
        ):
            info += len(part).to_bytes(4, "big") + part
        key = derived(private["shop"], public[peer], info)
        number = (7).to_bytes(8, "big")
        counter = hashlib.blake2b(number + b"asked", key=key[16:], digest_size=16).digest()
        cipher = Cipher(algorithms.AES(key[:16]), modes.CTR(counter)).encryptor()
        stream = cipher.update(bytes(6 + 320))
        masks_of_arrays = [
            np.frombuffer(stream[:6], "<u2"),
            np.frombuffer(stream[6:], "<u8").reshape(5, 8),
        ]
        for array, mask in zip(expected, masks_of_arrays, strict=True):
            array += mask if adds else -mask
    for array, want in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, want)


def test_a_masker_that_travelled_goes_on_with_the_same_streams():
    one, other = maskers("a", "b")["a"], maskers("a", "b")["a"]
    mask_of(one, 0)
    one = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(mask_of(one, 1), mask_of(other, 1))
    np.testing.assert_array_equal(mask_of(one, 9), mask_of(other, 9))


def test_sequence_numbers_only_grow():
    masker = maskers("a", "b")["a"]
    assert masker.last_sequence == -1
    mask_of(masker, 4)
    assert masker.last_sequence == 4
    array = np.zeros(3, np.uint64)
    for sequence in (4, 3, -1, 2**64):
        with pytest.raises(ProtocolError, match=f"'a'.* {sequence}, .*last was 4"):
            masker.mask([array], sequence)
    assert not array.any()
    assert pickle.loads(pickle.dumps(masker)).last_sequence == 4


def test_what_a_masker_shows_and_restores():
    """The order of names is irrelevant; one party alone is not hidden."""
    private, public = fixed_keys("a", "b", "c")
    backwards = dict(reversed(list(public.items())))
    one, other = (PairwiseMasker(private["b"], "b", k, NONCE) for k in (public, backwards))
    np.testing.assert_array_equal(mask_of(one, 1), mask_of(other, 1))
    assert repr(one) == "PairwiseMasker(own_name='b', n_peers=2, last_sequence=1)"
    assert not mask_of(maskers("a")["a"], 0).any()
    masker = PairwiseMasker(private["a"], "a", public, NONCE, last_sequence=9)
    with pytest.raises(ProtocolError, match="last was 9"):
        mask_of(masker, 9)
    mask_of(masker, 10)


def test_arrays_that_cannot_be_masked_leave_the_sequence_unused(monkeypatch):
    masker = maskers("a", "b")["a"]
    frozen = np.zeros(3, np.uint64)
    frozen.flags.writeable = False
    strided = np.zeros((4, 4), np.uint64)[:, ::2]
    bad = [np.zeros(3), np.zeros(3, np.int64), np.zeros(3, ">u8"), strided, frozen]
    good = np.zeros(3, np.uint64)
    for array in bad:
        with pytest.raises(ProtocolError, match="array 1 to mask"):
            masker.mask([good, array], 0)
    monkeypatch.setattr(masks, "MAX_STREAM_BYTES", 16)
    with pytest.raises(ProtocolError, match="at most 16 bytes, got 24"):
        masker.mask([good], 0)
    assert not good.any()
    assert masker.last_sequence == -1


def test_the_stated_bound_is_below_the_counter():
    assert masks.MAX_STREAM_BYTES < 16 * 2**64
    # So that nobody tells 2^34 distinct blocks from random ones (which could repeat).
    assert (masks.MAX_STREAM_BYTES / 16) ** 2 / 2**129 <= 2.0**-61


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"b": bytes(31)}, "party 'b' must be 32 bytes, got 31"),
        ({"b": bytes(32)}, "party 'b' is of low order"),
        ({"b": (1).to_bytes(32, "little")}, "party 'b' is of low order"),
        ({"a": bytes(32)}, "party 'a' is not that of its private"),
        ({"a": None}, "'a' is not among the parties"),
        ({"b": "own"}, "party 'b' announced this party's own"),
    ],
)
def test_bad_public_keys(change, match):
    private, public = fixed_keys("a", "b", "c")
    for name, key in change.items():
        if key is None:
            del public[name]
        else:
            public[name] = public["a"] if key == "own" else key
    with pytest.raises(ProtocolError, match=match):
        PairwiseMasker(private["a"], "a", public, NONCE)


def test_bad_own_key_and_nonce():
    private, public = fixed_keys("a", "b")
    with pytest.raises(ProtocolError, match="private key of party 'a'"):
        PairwiseMasker(b"short", "a", public, NONCE)
    with pytest.raises(ProtocolError, match="nonce"):
        PairwiseMasker(private["a"], "a", public, b"short")


def test_terms_that_do_not_fit():
    term = np.zeros(3, np.uint64)
    for terms, match in (
        ([], "got none"),
        ([np.zeros(3)], "unsigned"),
        ([term, np.zeros(4, np.uint64)], "term 1 has shape"),
        ([term, np.zeros(3, np.uint32)], "term 1 .*uint32"),
    ):
        with pytest.raises(ProtocolError, match=match):
            unmask_sum(terms)


# -- seeds that two parties share ------------------------------------------------------------


def seed_of(
    own="a", peer="b", own_key="own", peer_key="peer", nonce=NONCE, purpose="products", **change
):
    private, public = fixed_keys(own_key, peer_key)
    private, public, other = private[own_key], public[own_key], public[peer_key]
    keys = {"private": private, "own_public": public, "peer_public": other} | change
    return pair_seed(own_name=own, peer_name=peer, nonce=nonce, purpose=purpose, **keys)


def test_both_parties_get_the_same_seed():
    mine = seed_of()
    assert len(mine) == 32
    assert seed_of("b", "a", "peer", "own") == mine


def test_known_seed_from_the_rfcs():
    seed = seed_of("shop", "bank", purpose="ranks")
    (private, _), (public, other) = map(dict.values, fixed_keys("own", "peer"))
    info = b""
    for part in (b"flwr-vertical pair seed v1", b"ranks", b"bank", other, b"shop", public):
        info += len(part).to_bytes(4, "big") + part
    assert seed == derived(private, other, info)


def test_seeds_are_bound_to_purpose_nonce_names_and_keys():
    variants = [
        {}, {"purpose": "ranks"}, {"purpose": ""}, {"nonce": bytes(16)}, {"peer": "c"},
        {"own": "b", "peer": "c"}, {"own": "ab", "peer": "c"}, {"own": "a", "peer": "bc"},
        {"own_key": "other"}, {"peer_key": "other"},
        {"own": "b", "peer": "a"},  # names swapped between the same two keys
    ]  # fmt: skip
    seeds = {seed_of(**variant) for variant in variants}
    assert len(seeds) == len(variants)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"peer_public": bytes(32)}, "party 'b' is of low order"),
        ({"peer_public": (1).to_bytes(32, "little")}, "party 'b' is of low order"),
        ({"peer_public": bytes(31)}, "public key of party 'b' must be 32 bytes, got 31"),
        ({"peer_public": fixed_keys("own")[1]["own"]}, "party 'b' announced this party's own"),
        ({"own_public": bytes(33)}, "public key of party 'a' must be 32 bytes, got 33"),
        ({"own_public": fixed_keys("peer")[1]["peer"]}, "party 'a' is not that of its private"),
        ({"private": b"short"}, "private key of party 'a' must be 32 bytes, got 5"),
        ({"nonce": b"short"}, "nonce must be at least 16 bytes"),
        ({"peer": "a"}, "needs two parties, got 'a' twice"),
    ],
)
def test_bad_keys_of_seeds(change, match):
    with pytest.raises(ProtocolError, match=match):
        seed_of(**change)


def test_many_parties_have_masks_with_64_others_that_their_keys_choose():
    names = [f"p{index:02d}" for index in range(70)]
    parties = maskers(*names)
    assert all("n_peers=64," in repr(masker) for masker in parties.values())
    terms = [mask_of(masker, 0, n=50) for masker in parties.values()]
    assert not unmask_sum(terms).any()
    # No term is open to fewer than its 64 peers, and with them it is.
    public = fixed_keys(*names)[1]
    peers = {name: masks._neighbours(name, public, NONCE) for name in names}
    assert all(name in peers[peer] for name in names for peer in peers[name])
    assert all(len(set(peers[name]) - {name}) == 64 for name in names)
    others = {name: masks._neighbours(name, public, NONCE[::-1]) for name in names}
    assert sum(peers[name] != others[name] for name in names) > 35
    keys = {**public, "p00": generate_keypair()[1]}
    assert sum(peers[n] != masks._neighbours(n, keys, NONCE) for n in names) > 35
    assert len(masks._neighbours("p00", dict(list(public.items())[:65]), NONCE)) == 64
