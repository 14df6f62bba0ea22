"""Published test vectors: Wycheproof's for X25519 and Ed25519, RFC 9474's for blind RSA."""

import json
import pathlib

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from oracles.aes import aes_block, aes_ctr_stream
from oracles.x25519 import hkdf_sha256, x25519

from flwr_vertical.crypto import blind_rsa
from flwr_vertical.crypto._x25519_worker import LowOrderError, multiply
from flwr_vertical.crypto.masks import PairwiseMasker
from flwr_vertical.crypto.rsa_key import EXPONENT, RsaKey, RsaPublic
from flwr_vertical.errors import ProtocolError


def vectors(name):
    return json.loads((pathlib.Path(__file__).parent / "vectors" / name).read_text())


def test_x25519_gives_wycheproof_s_points_and_refuses_those_of_low_order():
    groups = vectors("wycheproof_x25519.json")["testGroups"]
    cases = [case for group in groups for case in group["tests"]]
    refused = 0
    for case in cases:
        public, private = bytes.fromhex(case["public"]), bytes.fromhex(case["private"])
        if int(case["shared"], 16):
            assert multiply(public, private).hex() == case["shared"], case["tcId"]
            continue
        refused += 1
        with pytest.raises(LowOrderError):
            multiply(public, private)
        own = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
        with pytest.raises(ProtocolError, match="party 'mallory' is of low order"):
            PairwiseMasker(private, "bank", {"bank": own, "mallory": public}, b"n" * 32)
    assert len(cases) == 518
    assert refused > 20


def test_ed25519_verifies_wycheproof_s_signatures_and_no_others():
    groups = vectors("wycheproof_ed25519.json")["testGroups"]
    judged = {"valid": 0, "invalid": 0}
    for group in groups:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(group["publicKey"]["pk"]))
        for case in group["tests"]:
            try:
                key.verify(bytes.fromhex(case["sig"]), bytes.fromhex(case["msg"]))
                found = "valid"
            except InvalidSignature:
                found = "invalid"
            assert found == case["result"], case["tcId"]
            judged[found] += 1
    assert min(judged.values()) > 20


@pytest.mark.parametrize("case", [0, 1])
def test_blind_rsa_goes_through_the_steps_of_rfc_9474(case):
    """Its encoded messages stand for our hashes; blinding, signing and unblinding are the same."""
    known = {k: int(v, 16) for k, v in vectors("rfc9474.json")[case].items() if v}
    n, width = known["n"], RsaPublic(known["n"]).width
    assert known["e"] == EXPONENT

    def row(name):
        return np.frombuffer(known[name].to_bytes(width, "big"), dtype=np.uint8)[None]

    factor = pow(known["inv"], -1, n)  # the r of the standard
    drawn = (factor - 1).to_bytes(blind_rsa.blinding_bytes(RsaPublic(n)), "big")
    blinded, factors = blind_rsa.blind(row("encoded_msg"), RsaPublic(n), lambda count: drawn)
    np.testing.assert_array_equal(blinded, row("blinded_msg"))
    np.testing.assert_array_equal(factors, row("inv"))
    key = RsaKey(known["p"], known["q"])
    signed = blind_rsa.sign(blinded, key, "bank")
    np.testing.assert_array_equal(signed, row("blind_sig"))
    unblinded = blind_rsa.unblind(signed, factors, row("encoded_msg"), RsaPublic(n), "bank")
    np.testing.assert_array_equal(unblinded, row("sig"))
    np.testing.assert_array_equal(blind_rsa.sign_own(row("encoded_msg"), key), row("sig"))


def test_hkdf_rfc5869_case_1():
    key = hkdf_sha256(b"\x0b" * 22, bytes(range(13)), bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), 42)
    assert key.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_x25519_rfc7748_section_6_1():
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    base = (9).to_bytes(32, "little")
    public = x25519(alice, base)
    assert public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert x25519(bob, public).hex() == shared
    assert x25519(alice, x25519(bob, base)).hex() == shared


def test_aes_fips_197_appendix_c():
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    for length, expected in (
        (16, "69c4e0d86a7b0430d8cdb78070b4c55a"),
        (24, "dda97ca4864cdfe06eaf70a0ec0d7191"),
        (32, "8ea2b7ca516745bfeafc49904b496089"),
    ):
        assert aes_block(bytes(range(length)), block).hex() == expected


def test_aes_ctr_sp800_38a_section_f_5_5():
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    stream = aes_ctr_stream(key, counter, 64)
    assert bytes(a ^ b for a, b in zip(plain, cipher, strict=True)) == stream
