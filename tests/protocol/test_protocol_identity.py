"""Pinned identities: what a dishonest relay could do, and that a node with pins notices it."""

import logging
import pathlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from flwr_vertical import (
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    RecordingGrid,
    Summands,
    party_app,
    step,
)
from flwr_vertical.crypto.ckks import CkksDecryptor, CkksEncryptor
from flwr_vertical.crypto.ckks_context import generate_keys
from flwr_vertical.crypto.fixed_point import FixedPoint
from flwr_vertical.crypto.identity import load_identity, public_identity, sign_greeting
from flwr_vertical.crypto.masks import PairwiseMasker, generate_keypair
from flwr_vertical.errors import PartyError
from flwr_vertical.grids.proxy import WrappingGrid
from flwr_vertical.node.state import State
from flwr_vertical.protocol import decode, encode
from flwr_vertical.protocol.binding import binding_of, context_of_run
from flwr_vertical.protocol.messages import ARBITER, SUMS, UPDATES, VALUES, read_envelope
from tests.kit.identities import identities

TERMS = {"bank": [1.5, -2.0, 1e3], "court": [0.25, 4.0, -7.0], "hospital": [2.0, 2.0, 2.0]}
NAMES = sorted(TERMS)
ASKED = []  # names of the parties that took the step


class Giver(Party):
    """Gives its term."""

    @step
    def give(self):
        ASKED.append(self.name)
        return Summands({"x": np.array(TERMS[self.name])})

    @step
    def ask(self):
        return {"name": self.name}


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return identities(tmp_path_factory.mktemp("identities"), [*NAMES, "arbiter", "stranger"])


def config(people, mode="masked", names=NAMES, pins=True, keys=True, **extra):
    """Node configs in which everybody has a key and pins everybody else."""
    everybody = [*names, *(["arbiter"] if mode == "ckks" else [])]
    nodes = {}
    for name in everybody:
        nodes[name] = {"role": "arbiter"} if name == "arbiter" else {"party": name}
        if keys:
            nodes[name]["identity-key"] = people[name][0]
        if pins and name != "arbiter":
            nodes[name] |= {f"pin.{n}": people[n][1] for n in everybody if n != name}
    for name, more in extra.items():
        nodes[name] |= more
    return nodes


@contextmanager
def federated(nodes, mode="masked", relay=None):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    ASKED.clear()
    app = party_app(Giver, storage=MemoryStorage({}))
    with LocalGrid(app, list(nodes.values())) as grid:
        carrier = relay(grid) if relay else grid
        yield Federation(carrier, aggregation=mode, retries=0, timeout=30.0, patience=0.05), grid


def total(nodes, mode="masked", relay=None):
    with federated(nodes, mode, relay) as (federation, _):
        federation.open()
        return federation.sum("give")["x"]


def stopped(nodes, mode="masked", relay=None):
    """Run into the error; no party may have given anything under wrong keys."""
    with pytest.raises(PartyError) as caught:
        total(nodes, mode, relay)
    return caught.value


def expected(names=NAMES):
    return np.sum([TERMS[name] for name in names], axis=0)


class Relay(WrappingGrid):
    """Carries the messages of a grid, and changes them on the way."""

    def __init__(self, grid):
        super().__init__(grid)
        self.grid = grid
        self.names = {
            node_id: context.node_config.get("party", ARBITER)
            for node_id, context in grid.contexts.items()
        }

    def push_messages(self, messages):
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids):
        return self.grid.pull_messages(message_ids)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        for message in messages:
            self.down(self.names[message.metadata.dst_node_id], message.content)
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        for reply in replies:
            self.up(self.names[reply.metadata.src_node_id], reply.content)
        return replies

    def down(self, name, content):
        updates = decode(content, UPDATES)
        changed = self.hand_on(name, dict(updates))
        if changed is not None:
            for record in [key for key in content if key.startswith(f"{UPDATES}")]:
                del content[record]
            content.update(encode(changed, UPDATES))

    def up(self, name, content):
        values = decode(content, VALUES)
        if "role" in values:
            changed = self.greet(name, dict(values))
            for record in [key for key in content if key.startswith(f"{VALUES}")]:
                del content[record]
            content.update(encode(changed, VALUES))
        elif "x" in decode(content, SUMS):
            self.give(name, content)

    def greet(self, name, values):
        """Change a greeting on its way up."""
        return values

    def hand_on(self, name, updates):
        """Change the updates of a message on its way down, or leave it (None)."""

    def give(self, name, content):
        """See a term on its way up."""


def relay_of(**methods):
    return type("SomeRelay", (Relay,), methods)


class ManInTheMiddle(Relay):
    """Between the bank and everybody else: knows every key pair of the bank, opens its term."""

    def __init__(self, grid):
        super().__init__(grid)
        self.pairs = {name: generate_keypair() for name in NAMES}
        self.real, self.told, self.asked, self.opened = {}, {}, {}, None

    def greet(self, name, values):
        self.real[name] = values["public-key"]
        return values

    def hand_on(self, name, updates):
        if "sum.peers" not in updates:
            return None
        peers = updates["sum.peers"]
        false = {
            peer: self.pairs[peer][1]
            if peer != name and "bank" in (name, peer)
            else self.real[peer]
            for peer in peers
        }
        said = updates | {"sum.public-keys": [false[peer] for peer in peers]}
        self.told[name] = context_of_run("", said), updates["sum.nonce"]
        return said

    def down(self, name, content):
        super().down(name, content)
        self.asked[name] = content

    def give(self, name, content):
        """Take the masks off every pair with the bank; the sum stays what it was."""
        sequence = 1
        ring = decode(content, SUMS)["x"].copy()
        context, nonce = self.told[name]
        asked = self.asked[name]
        binding = binding_of("give", asked, read_envelope(asked), name, context)
        for peer in NAMES:
            if peer == name or "bank" not in (name, peer):
                continue
            mask = np.zeros_like(ring)  # what this node added because of the false peer
            PairwiseMasker(
                self.pairs[peer][0], peer, {peer: self.pairs[peer][1], name: self.real[name]}, nonce
            ).mask([mask], sequence, binding)
            ring += mask
        if name == "bank":
            self.opened = FixedPoint(32).decode(ring)
        content.update(encode({"x": ring, "names:floats": ["x"]}, SUMS))


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_an_honest_run_with_pins_gives_the_same_result(people, mode, every):
    more = {name: {"pin-all": every} for name in NAMES}
    pinned = total(config(people, mode, **more), mode)
    plain = total(config(people, mode, pins=False, keys=False), mode)
    np.testing.assert_allclose(pinned, expected(), atol=1e-7)
    if mode == "masked":
        np.testing.assert_array_equal(pinned, plain)


def test_nodes_may_pin_some_or_themselves_or_an_arbiter_without_a_task(people):
    some = config(people, pins=False, keys=False)
    some["court"]["identity-key"] = people["court"][0]
    some["bank"]["pin.court"] = people["court"][1]
    everybody = {f"pin.{name}": people[name][1] for name in [*NAMES, "arbiter"]}
    same = config(people, **dict.fromkeys(NAMES, everybody | {"pin-all": True}))
    for nodes in (some, same):
        np.testing.assert_allclose(total(nodes), expected(), atol=1e-8)


def test_a_party_checks_across_processes(people):
    """Every message in a new process: pins come from the node config, keys from the state."""

    def fresh(message, context):
        return party_app(Giver, storage=MemoryStorage({}))(message, context)

    with LocalGrid(fresh, list(config(people).values())) as grid:
        federation = Federation(grid, retries=0, patience=0.05)
        federation.open()
        for _ in range(2):
            np.testing.assert_allclose(federation.sum("give")["x"], expected(), atol=1e-8)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_the_private_identity_key_stays_in_its_file(people, mode, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "propagate", True)
    nodes = config(people, mode)
    with (
        caplog.at_level(logging.DEBUG),
        federated(nodes, mode, RecordingGrid) as (federation, grid),
    ):
        federation.open()
        federation.sum("give")
        travelled = [record.content for record in federation.grid.transcript]
        kept = [context.state for context in grid.contexts.values()]
        states = [dict(State(context)) for context in grid.contexts.values()]
    haystack = b"".join(repr(record).encode() + carried(record) for record in [*travelled, *kept])
    haystack += repr(states).encode() + caplog.text.encode()
    for name in nodes:
        path, _ = people[name]
        private = load_identity(path)
        # The public key is there, so the search would find what there is to find.
        assert public_identity(private) in haystack
        assert private.private_bytes_raw() not in haystack
        assert repr(private.private_bytes_raw()).encode()[2:-1] not in haystack
        assert pathlib.Path(path).read_bytes().splitlines()[1] not in haystack
        assert path.encode() not in haystack


def carried(record):
    """All bytes in a RecordDict, as they are."""
    found = b""
    for part in record.values():
        for value in part.values():
            items = value if isinstance(value, list) else [value]
            found += b"".join(item for item in items if isinstance(item, bytes))
            found += getattr(value, "data", b"") if not isinstance(value, memoryview) else b""
    return found


@pytest.mark.parametrize("names", [["bank", "court"], NAMES], ids=len)
def test_without_pins_a_relay_opens_a_term_and_nobody_notices(people, names, monkeypatch):
    monkeypatch.setitem(globals(), "NAMES", names)
    relays = []
    nodes = config(people, names=names, pins=False, keys=False)
    found = total(nodes, relay=lambda grid: relays.append(ManInTheMiddle(grid)) or relays[0])
    np.testing.assert_allclose(found, expected(names), atol=1e-8)  # all as ever
    np.testing.assert_allclose(relays[0].opened, TERMS["bank"], atol=1e-8)  # and yet


def test_with_pins_a_swapped_key_stops_the_run(people):
    relays = []
    error = stopped(
        config(people), relay=lambda grid: relays.append(ManInTheMiddle(grid)) or relays[0]
    )
    assert "the key handed to party 'bank' as that of party 'court' is not signed" in str(error)
    assert "a relay swapped keys" in str(error)
    assert error.step == "give"
    assert relays[0].opened is None
    assert ASKED == []


def test_the_error_comes_with_the_first_message_after_the_greeting(people):
    with federated(config(people), relay=ManInTheMiddle) as (federation, grid):
        federation.open()
        with pytest.raises(PartyError, match="swapped keys"):
            federation.call("ask", parties=["bank"])
        # and the keys were not kept, so that asking again without them leads nowhere either
        state = State(grid.contexts[1])
        assert not {"sum.peers", "sum.public-keys", "identity.names"} & set(state)
        with pytest.raises(PartyError, match="no public keys of the other parties"):
            federation.sum("give")


def test_keys_that_come_later_are_checked_as_well(people):
    class Later(ManInTheMiddle):
        swap = False

        def hand_on(self, name, updates):
            if not self.swap:
                return None
            state = State(next(c for i, c in self.grid.contexts.items() if self.names[i] == name))
            names = ("sum.peers", "sum.nonce")
            return super().hand_on(name, {key: state[key] for key in names})

    with federated(config(people), relay=Later) as (federation, _):
        federation.open()
        federation.call("ask")
        federation.grid.swap = True
        with pytest.raises(PartyError, match="swapped keys"):
            federation.sum("give")
        assert ASKED == []


def test_only_the_one_who_pins_is_protected(people):
    """The bank pins nobody: its term is open, though the court notices."""
    nodes = config(people)
    del nodes["bank"]["pin.court"], nodes["bank"]["pin.hospital"], nodes["bank"]["identity-key"]
    del nodes["court"]["pin.bank"], nodes["hospital"]["pin.bank"]
    nodes["court"]["pin-all"] = True
    error = stopped(nodes)
    assert "party 'court' has pin-all = true" in str(error)
    assert "does not pin party 'bank'" in str(error)


def swap_identity(people, who, **changes):
    """A relay that presents a party with the stranger's identity, correctly signed."""

    def greet(self, name, values):
        if name != who:
            return values
        private = load_identity(people["stranger"][0])
        label = "arbiter" if who == ARBITER else who
        run = str(self.grid.run.run_id).encode()
        payload = {"role": b"party", "mode": b"masked", "run": run}
        payload["public-key"] = values["public-key"]
        signature = sign_greeting(private, label, payload)
        return values | {"identity": public_identity(private), "signature": signature} | changes

    return relay_of(greet=greet)


def test_another_identity_stops_the_run_and_both_are_shown(people):
    relay = swap_identity(people, "court")
    error = stopped(config(people), relay=relay)
    text = str(error)
    assert error.party == "bank"
    assert f"party 'court' presented the identity {people['stranger'][1]}" in text
    assert f"pins {people['court'][1]}" in text
    assert "by another way and only then change 'pin.court'" in text
    # One that nobody pins may be new.
    unpinned = total(config(people, pins=False), relay=relay)
    np.testing.assert_allclose(unpinned, expected(), atol=1e-8)


@pytest.mark.parametrize("pins", [True, False], ids=["pinned", "unpinned"])
@pytest.mark.parametrize("signature", [bytes(64), b"", b"short"])
def test_a_signature_must_be_valid_pinned_or_not(people, pins, signature):
    def greet(self, name, values):
        return values | {"signature": signature} if name == "court" else values

    error = stopped(config(people, pins=pins), relay=relay_of(greet=greet))
    assert "as that of party 'court' is not signed by the identity of party 'court'" in str(error)


def test_the_signature_of_another_party_does_not_do(people):
    seen = {}

    def hand_on(self, name, updates):
        if "identity.names" not in updates:
            return None
        signatures = list(updates["identity.signatures"])
        bank, court = (updates["identity.names"].index(n) for n in ("bank", "court"))
        signatures[court] = signatures[bank]
        seen[name] = True
        return updates | {"identity.signatures": signatures}

    assert "swapped keys" in str(stopped(config(people), relay=relay_of(hand_on=hand_on)))
    assert set(seen) == set(NAMES)


def test_a_greeting_of_another_run_does_not_do(people):
    """The relay plays back to the bank what the court said, correctly signed, in an earlier run."""
    old = {}

    def keep(self, name, values):
        old[name] = values
        return values

    def hand_on(self, name, updates):
        if name != "bank" or "sum.peers" not in updates:
            return None
        court = updates["sum.peers"].index("court")
        for key, field in [("sum.public-keys", "public-key"), ("identity.signatures", "signature")]:
            updates[key] = [*updates[key][:court], old["court"][field], *updates[key][court + 1 :]]
        return updates

    total(config(people), relay=relay_of(greet=keep))
    error = stopped(config(people), relay=relay_of(hand_on=hand_on))
    assert "the key handed to party 'bank' as that of party 'court' is not signed" in str(error)
    assert "for this run: a relay swapped keys" in str(error)


def test_a_pinned_party_without_identity_stops_the_run(people):
    def greet(self, name, values):
        if name == "court":
            del values["identity"], values["signature"]
        return values

    def hand_on(self, name, updates):
        return {key: v for key, v in updates.items() if not key.startswith("identity.")} or None

    error = str(stopped(config(people), relay=relay_of(greet=greet)))
    assert "party 'court' presented no identity, but party 'bank' pins it" in error
    assert "without 'identity-key'" in error
    assert "presented no identity" in str(stopped(config(people), relay=relay_of(hand_on=hand_on)))


def test_a_pinned_party_cannot_be_left_out(people):
    """Masked with a party of the relay's own instead, the term would be open."""
    nodes = config(people, names=["bank", "hospital"])
    nodes["bank"]["pin.court"] = people["court"][1]
    error = stopped(nodes)
    assert error.party == "bank"
    assert "pins party 'court', which has no part in this run" in str(error)
    assert "remove 'pin.court'" in str(error)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_party_cannot_be_told_that_it_is_alone(people, pinned):
    """It would send its term without masks."""

    def down(self, name, content):
        if name == "bank" and "n-parties" in read_envelope(content):
            read_envelope(content)["n-parties"] = 1

    error = stopped(config(people, pins=pinned, keys=pinned), relay=relay_of(down=down))
    assert "party 'bank' was told of 1 parties in the sum, but got the keys of 3" in str(error)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_party_does_not_send_in_the_open_what_was_to_be_masked(people, pinned):
    def down(self, name, content):
        if read_envelope(content)["step"] == "give":
            read_envelope(content)["mode"] = "plain"

    error = stopped(config(people, pins=pinned, keys=pinned), relay=relay_of(down=down))
    assert "called for a 'plain' sum, but the sums of this run are 'masked'" in str(error)


def test_the_server_cannot_set_what_is_the_nodes_own(people):
    """With a private key of its own choosing at the bank, a relay would know all its masks."""
    for key, value in {
        "sum.private-key": bytes(32),
        "sum.ckks-secret": b"x",
        "sum.last-sequence": -1,
        "sum.mode": "plain",
        "protocol.last-sequence": -1,
        "node.name": "court",
        "identity.anything": 1,
        "align.key": bytes(32),
    }.items():
        with federated(config(people, pins=False, keys=False)) as (federation, grid):
            federation.open()
            before = State(grid.contexts[1]).get(key)
            federation.update("bank", {key: value})
            with pytest.raises(PartyError, match=r"the server may not set .* in a node's state"):
                federation.sum("give")
            assert State(grid.contexts[1]).get(key) == before


def test_a_greeting_carries_no_keys(people):
    """They would be kept before there is anything to compare them with."""
    keys = {"sum.peers": ["bank"], "sum.public-keys": [bytes(32)], "sum.nonce": bytes(32)}

    def down(self, name, content):
        if read_envelope(content)["step"] == "hello":
            content.update(encode(keys, UPDATES))

    error = stopped(config(people), relay=relay_of(down=down))
    assert error.step == "hello"
    assert "before the greeting" in str(error)


def test_a_name_handed_on_twice_is_refused(people):
    def hand_on(self, name, updates):
        if "sum.peers" not in updates:
            return None
        return updates | {
            "sum.peers": [*updates["sum.peers"], "court"],
            "sum.public-keys": [*updates["sum.public-keys"], generate_keypair()[1]],
        }

    assert "handed on a name twice" in str(stopped(config(people), relay=relay_of(hand_on=hand_on)))


@pytest.mark.parametrize(
    ("mode", "pins", "why"),
    [
        ("plain", ["court", "arbiter"], "in 'plain' sums its terms travel as they are"),
        ("masked", ["arbiter"], "'masked', and it pins no other party: add pin.<party>"),
        ("ckks", ["court"], "('ckks'), which it does not pin: add pin.arbiter"),
    ],
)
def test_a_relay_cannot_choose_a_mode_that_the_pins_do_not_protect(people, mode, pins, why):
    nodes = config(people, mode, pins=False)
    nodes["bank"] |= {f"pin.{name}": people[name][1] for name in pins}
    error = stopped(nodes, mode)
    assert (error.party, error.step) == ("bank", "hello")
    assert "party 'bank' has pins in its node config, but they would not protect" in str(error)
    assert why in str(error)
    assert ASKED == []


class FalseArbiter(Relay):
    """Hands out a CKKS key of its own, opens every term and encrypts it again as it should be."""

    def __init__(self, grid):
        super().__init__(grid)
        self.keys, self.real, self.opened = generate_keys(), b"", {}

    def greet(self, name, values):
        self.real = values.get("ckks-public", self.real)
        return values

    def hand_on(self, name, updates):
        if "sum.ckks-public" not in updates:
            return None
        return updates | {"sum.ckks-public": self.keys.public}

    def give(self, name, content):
        sums = decode(content, SUMS)
        opened = CkksDecryptor(self.keys.secret).decrypt(sums["x"], (3,))
        self.opened[name] = opened
        again = CkksEncryptor(self.real).encrypt(opened, len(NAMES), name="x", party=name)
        content.update(encode({"x": again, "shape:x": sums["shape:x"]}, SUMS))


def test_without_pins_a_relay_that_swaps_the_arbiters_key_opens_every_term(people):
    relays = []
    found = total(
        config(people, "ckks", pins=False, keys=False),
        "ckks",
        lambda grid: relays.append(FalseArbiter(grid)) or relays[0],
    )
    np.testing.assert_allclose(found, expected(), atol=1e-6)  # all as ever
    for name in NAMES:  # and yet
        np.testing.assert_allclose(relays[0].opened[name], TERMS[name], atol=1e-6)


def test_a_swapped_ckks_key_stops_the_run_where_the_arbiter_is_pinned(people):
    relays = []
    error = stopped(
        config(people, "ckks"), "ckks", lambda grid: relays.append(FalseArbiter(grid)) or relays[0]
    )
    assert "as that of the arbiter is not signed by the identity of the arbiter" in str(error)
    assert relays[0].opened == {}
    assert ASKED == []


def test_a_party_does_not_pass_for_the_arbiter(people):
    """The role is signed: the stranger as an arbiter has another identity, a party another role."""
    nodes = config(people, "ckks")
    nodes["arbiter"]["identity-key"] = people["stranger"][0]
    error = stopped(nodes, "ckks")
    assert f"the arbiter presented the identity {people['stranger'][1]}" in str(error)
    assert "change 'pin.arbiter'" in str(error)

    nodes = config(people, "ckks")
    del nodes["arbiter"]["identity-key"]
    assert "the arbiter presented no identity" in str(stopped(nodes, "ckks"))

    nodes = config(people, "ckks")
    nodes["court"]["identity-key"] = people["stranger"][0]
    assert "party 'court' presented the identity" in str(stopped(nodes, "ckks"))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"identity-key": "/nowhere/bank.pem"}, "'identity-key' in its node config: there is no "
         "identity key at /nowhere/bank.pem; make an identity key with"),
        ({"identity-key": __file__},
         f"'identity-key' in its node config: the file at {Path(__file__)} is no private key"),
        ({"pin.court": "abc"}, "'pin.court' in its node config: 'abc' is no public"),
        ({"pin.court": 7}, "'pin.court' in its node config: 7 is no public"),
        ({"pin-all": "true"}, "node config pin-all = 'true'; expected true or false"),
    ],
)  # fmt: skip
def test_bad_node_configs_name_the_party_and_the_key(people, more, why):
    error = stopped(config(people, bank=more))
    assert error.step == "hello"
    assert "party 'bank'" in str(error)
    assert why in str(error)


def test_a_node_that_pins_itself_with_another_key_is_told(people):
    error = stopped(config(people, bank={"pin.bank": people["stranger"][1]}))
    assert f"pins itself as {people['stranger'][1]}" in str(error)
    assert f"its 'identity-key' is {people['bank'][1]}" in str(error)


def test_pin_all_alone_refuses_everybody(people):
    error = stopped(config(people, pins=False, bank={"pin-all": True}))
    assert "it pins no other party: add pin.<party> for each of them" in str(error)


def test_an_arbiter_pins_nobody(people):
    nodes = config(people, "ckks", arbiter={"pin.bank": people["bank"][1]})
    assert "the arbiter uses no other node's key and so pins none" in str(stopped(nodes, "ckks"))


def test_a_party_named_arbiter_has_no_identity(people):
    nodes = config(people, names=["bank", "court"], pins=False)
    nodes["court"]["party"] = "arbiter"
    assert "a party named 'arbiter' cannot have an identity" in str(stopped(nodes))
