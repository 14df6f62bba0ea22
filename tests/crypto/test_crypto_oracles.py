"""The plain-Python oracles against the vectors of the standards they are written from."""

from oracles.aes import aes_block, aes_ctr_stream
from oracles.chacha20 import chacha20_block, hkdf_sha256, x25519


def test_chacha20_block_rfc8439_section_2_3_2():
    block = chacha20_block(bytes(range(32)), 1, bytes.fromhex("000000090000004a00000000"))
    assert block.hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


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
