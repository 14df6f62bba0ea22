"""Identity keys: files, texts, signatures."""

import base64
import logging
import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from apps.cli.main import main
from flwr_vertical.crypto.identity import (
    generate_identity,
    identity_text,
    load_identity,
    parse_identity,
    public_identity,
    sign_greeting,
    verify_greeting,
    write_identity,
)
from flwr_vertical.errors import CodecError, ConfigError
from flwr_vertical.protocol import encode

PAYLOAD = {"role": b"party", "public-key": bytes(range(32))}


def test_a_written_key_is_the_loaded_key_and_only_its_owner_can_read_it(tmp_path):
    private = generate_identity()
    previous = os.umask(0)  # however open the umask is
    try:
        path = write_identity(tmp_path / "bank.pem", private)
    finally:
        os.umask(previous)
    assert load_identity(path).private_bytes_raw() == private.private_bytes_raw()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["bank.pem"]  # nothing temporary is left


def test_a_key_is_never_overwritten(tmp_path):
    path = write_identity(tmp_path / "bank.pem", generate_identity())
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"bank\.pem exists and is not overwritten"):
        write_identity(path, generate_identity())
    dangling = tmp_path / "link.pem"
    dangling.symlink_to(tmp_path / "elsewhere.pem")
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        write_identity(dangling, generate_identity())
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["bank.pem", "link.pem"]


def pem(private, encryption=None):
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


def bad_files():
    key = generate_identity()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    yield "empty", b"", "is no private key in PEM form"
    yield "text", b"hello", "is no private key in PEM form"
    yield "truncated", pem(key)[:60], "is no private key in PEM form"
    yield "public", public, "is no private key in PEM form"
    yield "encrypted", pem(key, BestAvailableEncryption(b"x")), "is encrypted, and no node asks"
    yield "x25519", pem(x25519.X25519PrivateKey.generate()), "is of type X25519, expected Ed25519"
    yield "rsa", pem(rsa.generate_private_key(65537, 1024)), "is of type RSA, expected Ed25519"


@pytest.mark.parametrize(
    ("name", "content", "why"), list(bad_files()), ids=lambda value: str(value)[:9]
)
def test_files_that_are_no_identity_key(tmp_path, name, content, why):
    path = tmp_path / f"{name}.pem"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as error:
        load_identity(path)
    assert str(path) in str(error.value)
    assert "flwr-vertical keygen" in str(error.value)


def test_paths_that_cannot_be_read_or_written_are_named(tmp_path):
    for use, why in (
        (lambda: load_identity(tmp_path / "none.pem"), r"there is no identity key at .*none\.pem"),
        (lambda: load_identity(tmp_path), r"cannot read the identity key at .*Is a directory"),
        (lambda: write_identity(tmp_path / "no" / "bank.pem", generate_identity()),
         r"cannot write an identity key to .*no/bank\.pem: No such"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            use()


def test_a_file_that_others_can_read_is_warned_about(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "propagate", True)
    path = write_identity(tmp_path / "bank.pem", generate_identity())
    with caplog.at_level(logging.WARNING, logger="flwr_vertical"):
        load_identity(path)
        assert not caplog.records
        path.chmod(0o640)
        load_identity(path)
    assert "can be read by others; run chmod 600" in caplog.text


def test_texts_fit_a_node_config_and_come_back():
    for _ in range(50):
        public = public_identity(generate_identity())
        text = identity_text(public)
        assert len(text) == 43
        assert set(text) <= set(base64.urlsafe_b64encode(bytes(range(256))).decode()) | {"-", "_"}
        assert parse_identity(text) == parse_identity(text + "=") == public


@pytest.mark.parametrize(
    "text",
    [
        *["", "A" * 42, "A" * 44, "A" * 43 + "==", "A" * 42 + "B", "A" * 42 + "ä"],
        *["+" * 43, " " * 43, "A" * 20 + "\n" + "A" * 22, 43, True, None],
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError, match="is no public identity key; expected the 43 characters"):
        parse_identity(text)


def test_a_signature_holds_for_this_greeting_only():
    private = generate_identity()
    public = public_identity(private)
    signature = sign_greeting(private, "bank", PAYLOAD)
    assert verify_greeting(public, "bank", dict(reversed(PAYLOAD.items())), signature)

    other = public_identity(generate_identity())
    for key, name, payload, signed in (
        (other, "bank", PAYLOAD, signature),
        (public, "court", PAYLOAD, signature),
        (public, "bank", PAYLOAD | {"public-key": bytes(32)}, signature),
        (public, "bank", PAYLOAD | {"role": b"arbiter"}, signature),
        (public, "bank", PAYLOAD | {"more": b""}, signature),
        (public, "bank", {"role": b"party"}, signature),
        (public, "bank", PAYLOAD, signature[:-1]),
        (public, "bank", PAYLOAD, b""),
        (b"", "bank", PAYLOAD, signature),
        (b"\xff" * 32, "bank", PAYLOAD, signature),
    ):
        assert not verify_greeting(key, name, payload, signed)


def test_bytes_cannot_move_from_one_field_to_the_next():
    private = generate_identity()
    public = public_identity(private)
    signature = sign_greeting(private, "ab", {"c": b"de"})
    for name, payload in [("a", {"bc": b"de"}), ("ab", {"cd": b"e"}), ("abc", {"": b"de"})]:
        assert not verify_greeting(public, name, payload, signature)


def test_the_signed_bytes_are_these():
    """Two versions of the library must understand each other: the format is fixed."""
    private = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))

    def field(value):
        return len(value).to_bytes(8, "big") + value

    message = b"".join(
        map(field, [b"flwr-vertical greeting v1", "bänk".encode(), b"a", b"1", b"b", b""])
    )
    assert sign_greeting(private, "bänk", {"b": b"", "a": b"1"}) == private.sign(message)


def test_a_private_key_can_neither_be_shown_nor_sent():
    private = generate_identity()
    assert private.private_bytes_raw().hex() not in repr(private)
    with pytest.raises(CodecError):
        encode({"key": private}, "state")


def test_keygen_writes_the_key_and_prints_what_to_configure(tmp_path, capsys):
    path = tmp_path / "bank.pem"
    assert main(["keygen", str(path), "--party", "bank"]) == 0
    out = capsys.readouterr().out
    private = load_identity(path)
    text = identity_text(public_identity(private))
    assert f"identity-key='{path}'" in out
    assert f"pin.bank='{text}'" in out
    assert path.read_text().splitlines()[1] not in out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    assert main(["keygen", str(path)]) == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert load_identity(path).private_bytes_raw() == private.private_bytes_raw()

    assert main(["keygen", str(path), "--show", "--party", "A+B"]) == 0
    assert f"pin.\"A+B\"='{text}'" in capsys.readouterr().out
    assert main(["keygen", str(tmp_path / "none.pem"), "--show"]) == 2
    assert "there is no identity key at" in capsys.readouterr().err


@pytest.mark.parametrize("party", ["bank", "arbiter", "A+B", "Ärzte", "a.b"])
def test_flower_reads_what_keygen_prints(tmp_path, capsys, party):
    from flwr.common.config import parse_config_args

    assert main(["keygen", str(tmp_path / "a key.pem"), "--party", party]) == 0
    lines = [line.split(": ", 1)[1].strip() for line in capsys.readouterr().out.splitlines()]
    config = parse_config_args([" ".join(lines[2:])])
    assert set(config) == {"identity-key", f"pin.{party}"}
    private = load_identity(config["identity-key"])
    assert parse_identity(config[f"pin.{party}"]) == public_identity(private)
