"""Blind RSA: both roles get the same tags, and nothing malformed or forged passes."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from flwr_vertical.crypto import _numbers, rsa_key
from flwr_vertical.crypto.blind_rsa import blind, fdh, sign, tags, unblind
from flwr_vertical.crypto.rsa_key import RsaKey, RsaPublic, load_public
from flwr_vertical.errors import ConfigError, ProtocolError, VerticalError

SECRET = bytes(range(32))
SIGNER_IDS = [f"patient-{number}".encode() for number in range(20)]
IDS = [f"patient-{number}".encode() for number in range(15, 40)]


@pytest.fixture(scope="module")
def key():
    return RsaKey.generate(2048)


@pytest.fixture(scope="module")
def public(key):
    return load_public(key.public, "bank")


@pytest.fixture
def exchange(key, public):
    hashes = fdh(IDS, public.n, b"run", SECRET)
    blinded, factors = blind(hashes, public)
    return hashes, factors, sign(blinded, key, "court")


def integers(array):
    return [int.from_bytes(row.tobytes(), "big") for row in array]


def tag_set(array):
    return [row.tobytes() for row in array]


def test_tags_of_common_ids_agree_and_others_differ(key, public, exchange):
    hashes, factors, signed = exchange
    theirs = tag_set(tags(unblind(signed, factors, hashes, public, "bank")))
    own = tag_set(tags(sign(fdh(SIGNER_IDS, key.n, b"run", SECRET), key)))
    assert [i for i, tag in enumerate(theirs) if tag in own] == list(range(5))
    assert theirs[:5] == own[15:]
    assert len({*theirs, *own}) == 40


def test_signatures_are_textbook_roots(key, exchange, public):
    hashes, factors, signed = exchange
    d = pow(65537, -1, (key.p - 1) * (key.q - 1))
    expected = [pow(number, d, key.n) for number in integers(hashes)]
    assert integers(unblind(signed, factors, hashes, public, "bank")) == expected
    assert integers(sign(hashes, key)) == expected


def test_blinded_hashes_differ_from_run_to_run(public):
    hashes = fdh([*IDS, *IDS], public.n, b"run")
    runs = [blind(hashes, public) for _ in range(2)]
    rows = [
        row.tobytes() for blinded, factors in runs for row in (*blinded, *factors, *hashes[:25])
    ]
    assert len(set(rows)) == 2 * 100 + 25


def test_hashes_fill_the_domain_and_depend_on_all(public):
    n = public.n
    given = [(b"run",), (b"run2",), (b"run", SECRET), (b"run", SECRET[::-1])]
    kinds = [fdh(IDS, n, *rest) for rest in given]
    values = [number for kind in kinds for number in integers(kind)]
    assert len(set(values)) == 100
    assert all(0 < value < n for value in values)
    shares = np.array([value / n for value in values])
    assert abs(shares.mean() - 0.5) < 0.15
    assert shares.min() < 0.1
    assert shares.max() > 0.9
    np.testing.assert_array_equal(kinds[0], fdh(IDS, n, b"run"))


def test_no_ids_and_a_short_secret(key, public):
    hashes = fdh([], public.n, b"run")
    blinded, factors = blind(hashes, public)
    signatures = unblind(sign(blinded, key, "court"), factors, hashes, public, "bank")
    assert tags(signatures).shape == (0, 32)
    with pytest.raises(ConfigError, match="at least 16"):
        fdh(IDS, public.n, b"run", b"short")


def test_tampered_or_mixed_up_signatures_are_refused(exchange, public):
    hashes, factors, signed = exchange
    tampered = signed.copy()
    tampered[3, -1] ^= 1
    with pytest.raises(ProtocolError, match="1 of the 25 signatures of party 'bank'"):
        unblind(tampered, factors, hashes, public, "bank")
    with pytest.raises(ProtocolError, match="'bank' are wrong"):
        unblind(signed[::-1], factors, hashes, public, "bank")
    for wrong in (np.s_[:-1], np.s_[:, :-1], np.s_[0]):
        with pytest.raises(ProtocolError, match="party 'bank' answered 25"):
            unblind(signed[wrong], factors, hashes, public, "bank")


def test_blinded_hashes_out_of_range_are_refused(key, public):
    rows = fdh(IDS, public.n, b"run")
    rows[0], rows[1] = 0, 255
    with pytest.raises(ProtocolError, match=r"2 of the 25 rows .*'court' are not in 1 to n - 1"):
        sign(rows, key, "court")
    for wrong in (rows[2:, 1:], rows[2], rows[2:].astype(np.int64)):
        with pytest.raises(ProtocolError, match="'court' must be uint8 of shape"):
            sign(wrong, key, "court")


def test_a_fault_does_not_leave_the_signer(key, monkeypatch):
    def fails_once(base, exponent, modulus, power=rsa_key.power_secret):
        return power(base, exponent, modulus) ^ (modulus == key.p)

    monkeypatch.setattr(rsa_key, "power_secret", fails_once)
    with pytest.raises(VerticalError, match="nothing was sent"):
        sign(fdh(IDS[:1], key.n, b"run"), key)


def test_keys_travel_differ_and_have_their_size(key, public):
    again = RsaKey.from_bytes(key.to_bytes())
    assert (again, again.public) == (key, key.public)
    assert str(key.p) not in repr(key)
    assert key.n.bit_length() == 2048
    assert (public.n, public.width, len(key.public)) == (key.n, 256, 4 + 9 * 256)
    for bits in (1024, 2056, 32768):
        with pytest.raises(ConfigError, match=f"bits={bits}"):
            RsaKey.generate(bits)


def test_malformed_public_keys_are_refused(key):
    good = key.public

    short = rsa.generate_private_key(65537, 1024).private_numbers()
    for data, why in (
        (b"", "has 0 bytes"),
        (good[:4], "has 4 bytes"),
        (good[:-1], "has 2307 bytes"),
        ((3).to_bytes(4, "big") + good[4:], "has exponent 3"),
        (good[:259] + b"\0" + good[260:], "is even"),
        (good[:4] + bytes(9 * 256), "has 0 bits"),
        (good[:4] + bytes(7) + b"\1" + good[12:], "has 1985 bits"),
        (RsaKey(short.p, short.q).public, "has 1024 bits"),
        (good[:4] + bytes([255]) * 9 * 2049, "has 16392 bits"),
    ):
        with pytest.raises(ProtocolError, match=f"party 'bank' {why}"):
            load_public(data, "bank")


def test_a_public_key_without_its_proof_is_refused(key):
    good = key.public
    for index in range(8):
        bad = bytearray(good)
        bad[4 + 256 * (2 + index) - 1] ^= 1
        with pytest.raises(ProtocolError, match="'bank' comes without the proof"):
            load_public(bytes(bad), "bank")


def test_a_modulus_with_a_small_factor_betrays_no_id(key):
    public = RsaPublic(3 * key.n)
    with pytest.raises(ProtocolError, match="shares a factor"):
        blind(fdh(IDS, public.n, b"run"), public)


def test_what_shares_a_factor_has_no_inverse(key):
    with pytest.raises(ValueError, match="invertible"):
        _numbers.inverse(key.p, key.n)
