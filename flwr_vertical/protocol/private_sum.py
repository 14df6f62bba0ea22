"""The private sum: what parties send so that the server learns the total and no term.

=========  ===================================================  =================================
mode       what a party sends                                   who can open a single term
=========  ===================================================  =================================
plain      the array                                            the server
masked     fixed point in Z/2^64 plus pairwise one-time masks   nobody alone (K = 2: each party
                                                                 can subtract its own)
ckks       CKKS ciphertexts under the arbiter's public key      arbiter and server together
=========  ===================================================  =================================

This module joins the arrays of a round with the crypto layer; it knows records but no messages.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flwr_vertical.crypto import (
    CkksDecryptor,
    CkksEncryptor,
    FixedPoint,
    PairwiseMasker,
    add_ciphertexts,
    decode_integers,
    encode_integers,
    unmask_sum,
    value_limit,
)
from flwr_vertical.errors import ConfigError, PartyError, ProtocolError

MODES = ("plain", "masked", "ckks")

# State keys of a node; the two secrets stay in its own context.
MODE = "sum.mode"
PRIVATE_KEY = "sum.private-key"
PUBLIC_KEYS = "sum.public-keys"
PEERS = "sum.peers"
NONCE = "sum.nonce"
CKKS_PUBLIC = "sum.ckks-public"
CKKS_SECRET = "sum.ckks-secret"
MASK_SEQUENCE = "sum.last-sequence"

_FLOATS = "names:floats"


def check_mode(aggregation: str) -> str:
    """Return the mode, or raise `ConfigError` listing the valid ones."""
    if aggregation not in MODES:
        raise ConfigError(f"unknown aggregation {aggregation!r}; expected one of {list(MODES)}")
    return aggregation


def protect(
    values: Mapping[str, Any],
    *,
    mode: str,
    party: str,
    sequence: int,
    n_parties: int,
    fraction_bits: int,
    state: Any,
    cache: dict[str, Any],
) -> dict[str, Any]:
    """Turn a party's summands into what travels.

    Parameters
    ----------
    values : Mapping[str, numpy.ndarray]
        The summands, floating or integer arrays of any shape.
    mode : {"plain", "masked", "ckks"}
        How they are protected.
    party : str
        The party's own name.
    sequence : int
        Number of the message; each number masks once.
    n_parties : int
        How many terms the sum has, for the overflow check.
    fraction_bits : int
        Fixed-point resolution is ``2**-fraction_bits``.
    state, cache : MutableMapping
        The node's state (keys, last mask used) and process cache.

    Returns
    -------
    dict[str, Any]
        A payload; in ``ckks`` mode lists of ciphertexts, with ``shape:<name>`` beside them.
    """
    arrays = {name: np.asarray(value) for name, value in values.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise ProtocolError(f"summand {name!r} has dtype {array.dtype}; it must be numeric")
    if mode == "plain":
        return dict(arrays)
    if mode == "ckks":
        return _encrypt(arrays, party, n_parties, state, cache)

    n_peers = len(_peers(party, state))
    if n_parties != n_peers:  # one who is told that it is alone would send its values as they are
        raise ProtocolError(
            f"party {party!r} was told of {n_parties} parties in the sum, but got the keys of "
            f"{n_peers}"
        )
    fixed_point = FixedPoint(fraction_bits)
    names = sorted(arrays)
    rings = [
        fixed_point.encode(arrays[name], n_parties, name=name, party=party)
        if arrays[name].dtype.kind == "f"
        else encode_integers(arrays[name], n_parties, name=name, party=party)
        for name in names
    ]
    if n_parties > 1:
        _masker(party, state, cache).mask(rings, sequence)
        state[MASK_SEQUENCE] = sequence
    # The names of floating summands tell the server which totals to decode as fixed point.
    floats = [name for name in names if arrays[name].dtype.kind == "f"]
    return {**dict(zip(names, rings, strict=True)), _FLOATS: floats}


def combine(
    replies: Sequence[Mapping[str, Any]],
    mode: str,
    fraction_bits: int,
    ckks_public: bytes | None = None,
) -> dict[str, Any]:
    """Add up what the parties sent, in the order given.

    Parameters
    ----------
    replies : Sequence[Mapping[str, Any]]
        What `protect` made at each party.
    mode, fraction_bits
        As in `protect`.
    ckks_public : bytes, optional
        The arbiter's public key, in ``ckks`` mode.

    Returns
    -------
    dict[str, Any]
        Totals by name (float64, or int64 for integer summands); in ``ckks`` mode the summed
        ciphertexts, which only the arbiter can open.
    """
    if mode == "ckks":
        return _add_encrypted(replies, ckks_public)
    if mode == "plain" or not replies[0]:
        return {name: _plain_sum([reply[name] for reply in replies]) for name in replies[0]}
    fixed_point = FixedPoint(fraction_bits)
    totals: dict[str, Any] = {}
    for name in (key for key in replies[0] if key != _FLOATS):
        ring = unmask_sum([reply[name] for reply in replies])
        is_float = name in replies[0][_FLOATS]
        totals[name] = fixed_point.decode(ring) if is_float else decode_integers(ring)
    return totals


def limit(mode: str, n_parties: int, fraction_bits: int) -> float:
    """Largest absolute value that one party may send into a sum over ``n_parties`` parties."""
    if mode == "masked":
        return FixedPoint(fraction_bits).limit(n_parties)
    return value_limit(n_parties) if mode == "ckks" else math.inf


def open_ciphertexts(
    payload: Mapping[str, Any], state: Any, cache: dict[str, Any]
) -> dict[str, Any]:
    """Decrypt summed ciphertexts; only the arbiter has the key."""
    if CKKS_SECRET not in state:
        raise ProtocolError("this node holds no CKKS secret key; only the arbiter opens sums")
    if "decryptor" not in cache:
        cache["decryptor"] = CkksDecryptor(state[CKKS_SECRET])
    opened = {}
    for name in (key for key in payload if not key.startswith("shape:")):
        *shape, integer = payload[f"shape:{name}"]
        array = cache["decryptor"].decrypt(payload[name], tuple(shape))
        opened[name] = np.rint(array).astype(np.int64) if integer else array
    return opened


def check_terms(
    step: str,
    terms: Mapping[str, Mapping[str, Any]],
    expected: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Compare what the parties sent with what was asked for, and with the first of them.

    Parameters
    ----------
    step : str
        Name of the step, for errors.
    terms : Mapping[str, Mapping[str, Any]]
        By party, what `protect` made.
    expected : Mapping[str, tuple[int, ...]], optional
        Shapes asked for (default: those of the first party).

    Raises
    ------
    PartyError
        If a party sent other names, shapes or types of numbers.
    """
    first = next(iter(terms))
    wanted = dict(expected) if expected is not None else shapes(terms[first])
    source = "expected" if expected is not None else f"party {first!r} returned"
    types = number_types(terms[first])
    for name, term in terms.items():
        if (found := shapes(term)) != wanted:
            raise PartyError(name, step, f"returned summands {found}; {source} {wanted}")
        # A fixed-point number and a whole one would add up to something wrong, without any error.
        for summand, kind in number_types(term).items():
            if kind != types[summand]:
                raise PartyError(
                    name,
                    step,
                    f"returned summand {summand!r} as {kind}, party {first!r} as "
                    f"{types[summand]}; every party must send the same type of numbers",
                )


def shapes(reply: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the summands in a party's reply, whatever the mode."""
    found = {name: value.shape for name, value in reply.items() if isinstance(value, np.ndarray)}
    for key, value in reply.items():
        if key.startswith("shape:"):
            found[key.removeprefix("shape:")] = tuple(value[:-1])
    return found


def number_types(reply: Mapping[str, Any]) -> dict[str, str]:
    """Types of the summands in a party's reply that must agree between parties, in any mode."""
    floats = reply.get(_FLOATS)
    found = {}
    for name, value in reply.items():
        if name.startswith("shape:"):
            found[name.removeprefix("shape:")] = "integers" if value[-1] else "floats"
        elif isinstance(value, np.ndarray):
            ring = "" if floats is None else f" in a ring of {8 * value.itemsize} bits"
            is_float = value.dtype.kind == "f" or name in (floats or ())
            found[name] = "floats" if is_float else f"integers{ring}"
    return found


def _peers(party: str, state: Any) -> list[str]:
    if PEERS not in state:
        raise ProtocolError(
            f"party {party!r} has no public keys of the other parties; the server must open "
            "the federation before it asks for a masked sum"
        )
    peers: list[str] = state[PEERS]
    return peers


def _masker(party: str, state: Any, cache: dict[str, Any]) -> PairwiseMasker:
    if "masker" not in cache:
        cache["masker"] = PairwiseMasker(
            state[PRIVATE_KEY],
            party,
            dict(zip(state[PEERS], state[PUBLIC_KEYS], strict=True)),
            state[NONCE],
            last_sequence=int(state.get(MASK_SEQUENCE, -1)),
        )
    masker: PairwiseMasker = cache["masker"]
    # Another process may have taken the last step: the state, not the process, decides.
    masker.last_sequence = max(masker.last_sequence, int(state.get(MASK_SEQUENCE, -1)))
    return masker


def _encrypt(
    arrays: dict[str, Any], party: str, n_parties: int, state: Any, cache: dict[str, Any]
) -> dict[str, Any]:
    if "encryptor" not in cache:
        if CKKS_PUBLIC not in state:
            raise ProtocolError(
                "no CKKS public key here; the server must open the federation first"
            )
        cache["encryptor"] = CkksEncryptor(state[CKKS_PUBLIC])
    payload: dict[str, Any] = {}
    for name, array in arrays.items():
        payload[name] = cache["encryptor"].encrypt(
            array.astype(float, copy=False), n_parties, name=name, party=party
        )
        payload[f"shape:{name}"] = [*array.shape, int(array.dtype.kind != "f")]
    return payload


def _add_encrypted(
    replies: Sequence[Mapping[str, Any]], ckks_public: bytes | None
) -> dict[str, Any]:
    if ckks_public is None:
        raise ProtocolError("adding ciphertexts needs the arbiter's public key")
    totals: dict[str, Any] = {}
    for name in (key for key in replies[0] if not key.startswith("shape:")):
        totals[name] = add_ciphertexts(ckks_public, [reply[name] for reply in replies])
        totals[f"shape:{name}"] = replies[0][f"shape:{name}"]
    return totals


def _plain_sum(terms: Sequence[Any]) -> Any:
    dtype = np.float64 if terms[0].dtype.kind == "f" else np.int64
    total = terms[0].astype(dtype)
    for term in terms[1:]:
        np.add(total, term, out=total)
    return total
