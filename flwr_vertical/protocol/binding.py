"""What all parties of a round were asked, as one digest: it enters every mask and pad.

A server that tells parties different things gets masks that do not cancel. Arguments are common,
or a party's own; of the latter each message carries the digests of all parties', so that each
party checks its own, and all bind the same list.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from flwr.app import RecordDict

from flwr_vertical.errors import ProtocolError
from flwr_vertical.protocol import private_sum
from flwr_vertical.protocol.disk import digest
from flwr_vertical.protocol.messages import ARGUMENTS, SCALES
from flwr_vertical.version import __version__

# In the envelope: names of arguments that differ between parties, who was asked, and by each of
# these the digest of its own arguments.
NAMES, ASKED, DIGESTS = "own.names", "own.asked", "own.digests"


def announce_own(
    step: str, requests: Mapping[str, RecordDict], names: Iterable[str]
) -> dict[str, list[Any]]:
    """Return what the envelope of every message of a round says of arguments that differ."""
    own = sorted(name for name in set(names) if not _same(list(requests.values()), name))
    known: dict[int, bytes] = {}
    digests = [_digest(step, content, own, True, known) for content in requests.values()]
    return {NAMES: own, ASKED: list(requests), DIGESTS: digests}


def context_of_run(protocol: str, state: Mapping[str, Any]) -> bytes:
    """Return a digest of what does not change in a run: protocol, settings, names and keys."""
    peers, keys = (tuple(state.get(k) or ()) for k in (private_sum.PEERS, private_sum.PUBLIC_KEYS))
    return _context(protocol, peers, keys, state.get(private_sum.NONCE))


@lru_cache(maxsize=8)  # with a thousand parties it takes a millisecond
def _context(
    protocol: str, peers: tuple[str, ...], keys: tuple[bytes, ...], nonce: bytes | None
) -> bytes:
    text = repr([__version__, protocol, peers, keys, nonce])
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def binding_of(
    step: str, request: RecordDict, envelope: Mapping[str, Any], party: str, context: bytes
) -> bytes:
    """Return a digest of what all were asked, or refuse a message that does not fit it."""
    own = list(envelope.get(NAMES, []))
    asked, digests = list(envelope.get(ASKED, [])), list(envelope.get(DIGESTS, []))
    if own:
        mine = own_digest(step, request, own)
        if len(asked) != len(digests) or dict(zip(asked, digests, strict=True)).get(party) != mine:
            raise ProtocolError(
                f"step {step!r}: what party {party!r} was asked for is not what the others were "
                "told that it would be asked for; who runs the server?"
            )
    found = hashlib.blake2b(context, digest_size=32, person=b"fvp binding")
    found.update(_digest(step, request, own, False, {}))
    found.update(json.dumps([own, asked]).encode())
    for one in digests:
        found.update(len(one).to_bytes(4, "big") + one)
    numbers = [envelope.get(key) for key in ("mode", "n-parties", "fraction-bits")]
    found.update(json.dumps(numbers).encode())
    return found.digest()


def _same(requests: list[RecordDict], name: str) -> bool:
    """Whether all parties are told the same by an argument."""
    found: list[Any] = []
    for request in requests:
        records: Any = [request[f"{ARGUMENTS}.{kind}"] for kind in ("arrays", "values")]
        found.append(next((record[name] for record in records if name in record), None))
    first = found[0]
    return first is not None and all(one is first or one == first for one in found[1:])


def digest_of_arguments(step: str, request: RecordDict) -> bytes:
    """Return a digest of a message's arguments, without what rides along."""
    return _digest(step, request, [], False, {})


def own_digest(step: str, request: RecordDict, own: list[str]) -> bytes:
    """Return the digest of a party's own arguments, as the envelopes of a round list it."""
    return _digest(step, request, own, True, {})


def names_of(request: RecordDict, prefix: str) -> list[str]:
    """Return the names in a payload, without decoding it."""
    records: Any = [request.get(f"{prefix}.{kind}", {}) for kind in ("arrays", "values")]
    return [name for record in records for name in record]


def _digest(
    step: str, request: RecordDict, own: list[str], which: bool, known: dict[int, bytes]
) -> bytes:
    """Digest the own arguments of a message, or all others and the scales."""
    parts: dict[str, Any] = {}
    for kind in ("arrays", "values"):
        name = f"{ARGUMENTS}.{kind}"
        record: Any = request.get(name)
        if record is not None:
            parts[name] = {k: v for k, v in record.items() if (k in own) == which}
    if not which and SCALES in request:
        parts[SCALES] = request[SCALES]
    return digest(step, parts, known)
