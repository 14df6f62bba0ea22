"""Pinned identities: a relay that swaps the keys of a run is noticed before they are used.

The keys that protect a sum travel through the server. A node may name in its node config its own
private identity key (``identity-key``) and the public ones of others (``pin.<party>``,
``pin.arbiter``). Its greeting is then signed, the server hands on all signatures together with
the keys, and each party compares them with its pins when they arrive.

A node that comes back into a run signs its resuming greeting. The server hands on who came back
with the next messages, and each party compares it with its pins before it takes the step.

A node with pins also refuses what would go round them: a sum whose mode its pins do not protect,
or a pinned party that is left out.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr_vertical.crypto.identity import (
    identity_text,
    load_identity,
    parse_identity,
    public_identity,
    sign_greeting,
    verify_greeting,
)
from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.log import logger
from flwr_vertical.protocol import private_sum
from flwr_vertical.protocol.messages import ARBITER

# What the server hands on: who is here, and by name each node's identity and signature (empty
# where a node has none).
NAMES = "identity.names"
IDENTITIES = "identity.public-keys"
SIGNATURES = "identity.signatures"

# In the envelope of messages after a return: names, message numbers, identities and signatures.
RETURNED = tuple(f"returned.{what}" for what in ("names", "last", "identities", "signatures"))

# A node's own state has these prefixes; of it, the server sets the keys of the run and no more.
_OWN = ("sum.", "identity.", "node.", "protocol.", "align.")
HANDED_ON = {
    "n-parties",
    private_sum.PEERS,
    private_sum.PUBLIC_KEYS,
    private_sum.NONCE,
    private_sum.CKKS_PUBLIC,
    NAMES,
    IDENTITIES,
    SIGNATURES,
}


@dataclass(frozen=True)
class NodeIdentity:
    """A node as far as identities go."""

    name: str  # Its name (``"arbiter"`` for the arbiter) and role
    role: str  # Its name (``"arbiter"`` for the arbiter) and role
    mode: str  # Mode of the private sums of this run
    run_id: int  # Number of the run
    config: Mapping[str, Any] = field(repr=False)  # Its node config

    def __str__(self) -> str:
        return f"party {self.name!r}" if self.role == "party" else "the arbiter"


@dataclass(frozen=True)
class Pins:
    """Whom a node pins."""

    # Public identity keys of the other nodes by name, the arbiter's under `ARBITER`
    keys: dict[str, bytes]
    every: bool  # Whether every other node whose keys are used must be pinned (``pin-all``)

    def __bool__(self) -> bool:
        return self.every or bool(self.keys)

    def protect(self, mode: str) -> bool:
        """Whether a relay that swaps keys is kept from a term of a sum in this mode."""
        if mode == "ckks":
            return ARBITER in self.keys
        return mode == "masked" and bool(set(self.keys) - {ARBITER})


def introduce(node: NodeIdentity, keys: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what a node adds to its greeting: its identity and a signature, if it has a key."""
    greeting = endorse(node, _signed(node, node.role, keys))
    pins = read_pins(node, greeting.get("identity"))
    if pins and node.role == "arbiter":
        raise ConfigError(
            "the arbiter uses no other node's key and so pins none; remove the pins from its "
            "node config"
        )
    if pins and not pins.protect(node.mode):
        why = {
            "masked": "the sums of this run are 'masked', and it pins no other party: add "
            "pin.<party> for each of them",
            "ckks": "the sums of this run are encrypted under the arbiter's key ('ckks'), which "
            "it does not pin: add pin.arbiter",
        }.get(node.mode, f"in {node.mode!r} sums its terms travel as they are: use 'masked'")
        raise ConfigError(
            f"{node} has pins in its node config, but they would not protect its data: {why}; or "
            "remove its pins, and with them this protection"
        )
    return greeting


def endorse(node: NodeIdentity, payload: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return ``identity`` and ``signature`` of a payload; nothing if the node has no key."""
    path = node.config.get("identity-key")
    if path is None:
        return {}
    try:
        private = load_identity(str(path))
    except ConfigError as error:
        raise ConfigError(f"{node}, 'identity-key' in its node config: {error}") from error
    if node.role == "party" and node.name == "arbiter":
        raise ConfigError(
            "a party named 'arbiter' cannot have an identity: pin.arbiter means the node with "
            "the role 'arbiter'; rename the party"
        )
    return {
        "identity": public_identity(private),
        "signature": sign_greeting(private, node.name, payload),
    }


def introduce_again(node: NodeIdentity, token: bytes, last: int) -> dict[str, bytes]:
    """Return what a node adds to its resuming greeting: identity and signature, if any."""
    greeting = endorse(node, _back(node, node.role, token, last))
    read_pins(node, greeting.get("identity"))
    return greeting


def verify_returned(node: NodeIdentity, envelope: Mapping[str, Any], token: bytes) -> None:
    """Check, on behalf of a node, who came back into the run."""
    pins = read_pins(node, None)
    own = ARBITER if node.role == "arbiter" else node.name
    for name, last, *shown in zip(*(envelope[key] for key in RETURNED), strict=True):
        # The arbiter has no key in a masked sum: as at first, nobody need pin it there.
        if name == own or (name == ARBITER and node.mode != "ckks"):
            continue
        role = "arbiter" if name == ARBITER else "party"
        check_endorsement(node, pins, name, _back(node, role, token, last), *shown)


def _back(node: NodeIdentity, role: str, token: bytes, last: int) -> dict[str, bytes]:
    """Return what the signature of a node that comes back covers beside the name."""
    return {
        "role": role.encode(),
        "mode": node.mode.encode(),
        "token": token,
        "returned": str(last).encode(),
    }


def read_pins(node: NodeIdentity, own: bytes | None) -> Pins:
    """Read a node's pins; one of the node itself, as in a list for all, must be its identity."""
    every = node.config.get("pin-all", False)
    if not isinstance(every, bool):
        raise ConfigError(f"{node}: node config pin-all = {every!r}; expected true or false")
    keys: dict[str, bytes] = {}
    for key, text in node.config.items():
        if not key.startswith("pin."):
            continue
        try:
            public = parse_identity(text)
        except ConfigError as error:
            raise ConfigError(f"{node}, {key!r} in its node config: {error}") from error
        name = key.removeprefix("pin.")
        if name != node.name:
            keys[ARBITER if name == "arbiter" else name] = public
        elif own is not None and own != public:
            raise ConfigError(
                f"{node} pins itself as {identity_text(public)}, but its 'identity-key' is "
                f"{identity_text(own)}; correct {key!r} at every node or use the right key"
            )
    return Pins(keys, every)


def hand_on(greetings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return, for the state of every party, the identities and signatures in the greetings."""
    if not any("identity" in greeting for greeting in greetings.values()):
        return {}
    return {
        NAMES: list(greetings),
        IDENTITIES: [greeting.get("identity", b"") for greeting in greetings.values()],
        SIGNATURES: [greeting.get("signature", b"") for greeting in greetings.values()],
    }


def check_updates(updates: Mapping[str, Any]) -> bool:
    """Return whether the server hands on keys of the run."""
    wrong = sorted(key for key in updates if key.startswith(_OWN) and key not in HANDED_ON)
    if wrong:
        raise ProtocolError(f"the server may not set {wrong} in a node's state; who sent this?")
    return not (HANDED_ON - {"n-parties"}).isdisjoint(updates)


def verify(node: NodeIdentity, handed_on: Mapping[str, Any]) -> None:
    """Check the keys that were handed to a party, before it keeps or uses them."""
    # A signature must be valid whether its owner is pinned or not.
    pins = read_pins(node, None)
    if not pins and NAMES not in handed_on:
        return
    presented = _by_name(
        handed_on.get(NAMES, []),
        zip(handed_on.get(IDENTITIES, []), handed_on.get(SIGNATURES, []), strict=True),
    )
    keys = _keys_in_use(node, handed_on, list(presented))
    pinned = set(pins.keys) if node.mode == "ckks" else set(pins.keys) - {ARBITER}
    absent = sorted(pinned - set(keys))
    if absent:
        raise ProtocolError(
            f"{node} pins {_who(absent[0])}, which has no part in this run: the server left it "
            f"out, or it is not connected; if it has left for good, remove {_pin(absent[0])!r} "
            "from the node config"
        )
    for name, payload in keys.items():
        identity, signature = presented.get(name, (b"", b""))
        check_endorsement(node, pins, name, payload, bytes(identity), bytes(signature))
    if pinned:
        logger.info("%s: the keys of %s are those of their pinned identities", node, sorted(pinned))


def check_endorsement(
    node: NodeIdentity,
    pins: Pins,
    name: str,
    payload: Mapping[str, bytes],
    identity: bytes,
    signature: bytes,
) -> None:
    """Check, on behalf of a node, that a key is that of the node in whose name it came."""
    who, pin = _who(name), _pin(name)
    expected = pins.keys.get(name)
    if expected is None:
        if pins.every:
            raise ProtocolError(
                f"{node} has pin-all = true in its node config, but does not pin {who}: get its "
                f"public identity key by a way you trust and add {pin!r}"
            )
        if not identity and not signature:
            return
    elif not identity:
        raise ProtocolError(
            f"{who} presented no identity, but {node} pins it: a relay removed it, or {who} runs "
            f"without 'identity-key'; ask whoever runs it, and remove {pin!r} only if they say so"
        )
    elif identity != expected:
        raise ProtocolError(
            f"{who} presented the identity {identity_text(identity)}, but {node} pins "
            f"{identity_text(expected)}: a relay swapped keys, or {who} has a new identity; "
            f"compare the two with whoever runs it by another way and only then change {pin!r}"
        )
    label = "arbiter" if name == ARBITER else name
    if not verify_greeting(identity, label, payload, signature):
        raise ProtocolError(
            f"the key handed to {node} as that of {who} is not signed by the identity of {who} "
            "for this run: a relay swapped keys on the way; nothing was sent under them. Find out "
            "who runs the server before you start again"
        )


def _keys_in_use(
    node: NodeIdentity, handed_on: Mapping[str, Any], presented: list[str]
) -> dict[str, dict[str, bytes]]:
    """Return, by name of each other node of the run, what its signature must cover."""
    if node.mode == "ckks":
        context = bytes(handed_on.get(private_sum.CKKS_PUBLIC, b""))
        keys = {name: _signed(node, "party", {}) for name in presented}
        keys[ARBITER] = _signed(node, "arbiter", {"ckks-public": context})
    else:
        public = _by_name(
            handed_on.get(private_sum.PEERS, []), handed_on.get(private_sum.PUBLIC_KEYS, [])
        )
        keys = {name: _signed(node, "party", {"public-key": key}) for name, key in public.items()}
    keys.pop(node.name, None)  # the masks are refused if the own key is not the own key
    return keys


def _signed(node: NodeIdentity, role: str, keys: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what a signature covers beside the name; a large CKKS context by its hash."""
    covered = {
        "role": role.encode(),
        "mode": node.mode.encode(),
        "run": str(node.run_id).encode(),
        **keys,
    }
    if "ckks-public" in covered:
        covered["ckks-public"] = hashlib.sha256(covered["ckks-public"]).digest()
    return covered


def _by_name(names: Any, values: Any) -> dict[str, Any]:
    found = dict(zip(names, values, strict=True))
    if len(found) != len(names):
        raise ProtocolError(f"the server handed on a name twice: {list(names)}")
    return found


def _who(name: str) -> str:
    return "the arbiter" if name == ARBITER else f"party {name!r}"


def _pin(name: str) -> str:
    return "pin.arbiter" if name == ARBITER else f"pin.{name}"
