"""Published test vectors: Wycheproof's for X25519 and Ed25519, RFC 9474's for blind RSA."""

import json
import pathlib

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

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
    np.testing.assert_array_equal(blind_rsa.sign(row("encoded_msg"), key), row("sig"))
