"""The private sum: what parties send so that the server learns the total and no term.

=========  ===================================================  =================================
mode       what a party sends                                   who can open a single term
=========  ===================================================  =================================
plain      the array                                            the server
masked     fixed point in Z/2^64 plus pairwise one-time masks   nobody alone (K = 2: each party
                                                                 can subtract its own)
ckks       CKKS ciphertexts under the arbiter's public key      arbiter and server together
=========  ===================================================  =================================

float32 (and float16) summands come back as float32 in every mode, other floats as float64. In
``masked`` mode float32 travels in Z/2^32, whose range is fitted to a scale that the server asks
for: the largest absolute value that each party shall be able to send.

This module joins the arrays of a round with the crypto layer; it knows records but no messages.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from flwr_vertical.crypto import ckks, fixed_point
from flwr_vertical.crypto.masks import PairwiseMasker, unmask_sum
from flwr_vertical.errors import PartyError, ProtocolError

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

# The last number but one of a ciphertext's shape.
_FLOAT64, _INTEGER, _FLOAT32 = 0, 1, 2

EVERY = ""
"""Stands in scales for all floating summands that are not named."""


def check_scales(scale: float | Mapping[str, float] | None) -> dict[str, float]:
    """Return scales by summand, powers of two; one number stands for all (`EVERY`)."""
    if scale is None:
        return {}
    named = scale if isinstance(scale, Mapping) else {EVERY: scale}
    return {name: fixed_point.check_scale(value) for name, value in named.items()}


def is_narrow(dtype: Any) -> bool:
    """Whether floats of this type are summed as float32."""
    return bool(np.dtype(dtype).kind == "f" and np.dtype(dtype).itemsize <= 4)


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
    scales: Mapping[str, float] | None = None,
    modular: Collection[str] = (),
    binding: Callable[[], bytes] = bytes,
) -> dict[str, Any]:
    """Turn a party's summands into what travels; `binding` is what masks are bound to."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise ProtocolError(f"summand {name!r} has dtype {array.dtype}; it must be numeric")
    scales = scales or {}
    floats = [name for name in sorted(arrays) if arrays[name].dtype.kind == "f"]
    if unknown := sorted(set(scales) - {EVERY, *floats}):
        raise ProtocolError(
            f"the server asks for scales of {unknown}, but the floating summands of this step are "
            f"{floats}; integers are summed exactly and take no scale"
        )
    for name in modular:
        if arrays[name].dtype != np.uint64:
            raise ProtocolError(f"summand {name!r} modulo 2^64 has dtype {arrays[name].dtype}")
        if mode == "ckks":
            raise ProtocolError(f"summand {name!r} is a sum modulo 2^64, which 'ckks' cannot carry")
    if mode == "plain":
        return dict(arrays)
    if mode == "ckks":
        return _encrypt(arrays, party, n_parties, state, cache, scales)

    n_peers = len(_peers(party, state))
    if n_parties != n_peers:  # one who is told that it is alone would send its values as they are
        raise ProtocolError(
            f"party {party!r} was told of {n_parties} parties in the sum, but got the keys of "
            f"{n_peers}"
        )
    names = sorted(arrays)
    rings = []
    for name in names:
        array, where = arrays[name], {"name": name, "party": party}
        if array.dtype.kind == "f":
            scale = scales.get(name, scales.get(EVERY))
            codec = _codec(is_narrow(array.dtype), n_parties, fraction_bits, scale)
            rings.append(codec.encode(array, n_parties, **where))
        elif name in modular:
            rings.append(np.array(array, order="C"))  # a copy, which is masked in place
        else:
            rings.append(fixed_point.encode_integers(array, n_parties, **where))
    if n_parties > 1:
        _masker(party, state, cache).mask(rings, sequence, binding())
        state[MASK_SEQUENCE] = sequence
    # The names of floating summands tell the server which totals to decode as fixed point.
    return {**dict(zip(names, rings, strict=True)), _FLOATS: floats}


def combine(
    replies: Sequence[Mapping[str, Any]],
    mode: str,
    fraction_bits: int,
    ckks_public: bytes | None = None,
    scales: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Add up what the parties sent, in the order given."""
    if mode == "ckks":
        return _add_encrypted(replies, ckks_public)
    if mode == "plain" or not replies[0]:
        return {name: _plain_sum([reply[name] for reply in replies]) for name in replies[0]}
    scales, floats = scales or {}, set(replies[0][_FLOATS])
    totals: dict[str, Any] = {}
    for name in (key for key in replies[0] if key != _FLOATS):
        ring = unmask_sum([reply[name] for reply in replies])
        if name in floats:
            scale = scales.get(name, scales.get(EVERY))
            codec = _codec(ring.itemsize == 4, len(replies), fraction_bits, scale)
            totals[name] = codec.decode(ring)
        else:
            totals[name] = fixed_point.decode_integers(ring)
    return totals


def limit(
    mode: str,
    n_parties: int,
    fraction_bits: int,
    dtype: Any = np.float64,
    scale: float | None = None,
) -> float:
    """Largest absolute value that one party may send into a sum over ``n_parties`` parties."""
    if mode == "masked":
        return _codec(is_narrow(dtype), n_parties, fraction_bits, scale).limit(n_parties)
    if mode == "ckks":
        return ckks.value_limit(n_parties) * 2.0 ** -_exponent(n_parties, scale)
    return math.inf


def resolution(
    mode: str,
    n_parties: int,
    fraction_bits: int,
    dtype: Any = np.float64,
    scale: float | None = None,
) -> float:
    """Step to which a party's value is rounded; parameters as of `limit`.

    Half of it per party is the error of a ``masked`` sum. A ``ckks`` sum is rounded once, when it
    is opened. 0 in ``plain`` mode.
    """
    if mode == "masked":
        return _codec(is_narrow(dtype), n_parties, fraction_bits, scale).resolution
    if mode == "ckks":
        return 2.0 ** -(ckks.RELEASE_BITS + _exponent(n_parties, scale))
    return 0.0


def open_ciphertexts(
    payload: Mapping[str, Any], state: Any, cache: dict[str, Any]
) -> dict[str, Any]:
    """Decrypt summed ciphertexts; only the arbiter has the key."""
    if CKKS_SECRET not in state:
        raise ProtocolError("this node holds no CKKS secret key; only the arbiter opens sums")
    if "decryptor" not in cache:
        cache["decryptor"] = ckks.CkksDecryptor(state[CKKS_SECRET])
    opened = {}
    for name in (key for key in payload if not key.startswith("shape:")):
        *shape, kind, exponent = payload[f"shape:{name}"]
        array = cache["decryptor"].decrypt(payload[name], tuple(shape))
        if kind == _INTEGER:
            opened[name] = np.rint(array).astype(np.int64)
        else:
            array = np.ldexp(array, -exponent) if exponent else array
            opened[name] = array.astype(np.float32) if kind == _FLOAT32 else array
    return opened


def check_terms(
    step: str,
    terms: Mapping[str, Mapping[str, Any]],
    expected: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Compare what the parties sent with what was asked for, and with the first of them."""
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
            found[key.removeprefix("shape:")] = tuple(value[:-2])
    return found


def number_types(reply: Mapping[str, Any]) -> dict[str, str]:
    """Types of the summands in a party's reply that must agree between parties, in any mode."""
    floats = reply.get(_FLOATS)
    kinds = {_FLOAT64: "64-bit floats", _INTEGER: "integers", _FLOAT32: "32-bit floats"}
    found = {}
    for name, value in reply.items():
        if name.startswith("shape:"):
            times = f" times 2^{value[-1]}" if value[-1] else ""
            found[name.removeprefix("shape:")] = kinds[value[-2]] + times
        elif isinstance(value, np.ndarray):
            ring = "" if floats is None else f" in a ring of {8 * value.itemsize} bits"
            if value.dtype.kind == "f" or name in (floats or ()):
                found[name] = f"{32 if value.itemsize <= 4 else 64}-bit floats"
            else:
                found[name] = f"integers{ring}"
    return found


def count_values(reply: Mapping[str, Any]) -> int:
    """Count the values that a party sent into a sum, whatever the mode."""
    return sum(math.prod(shape) for shape in shapes(reply).values())


@functools.lru_cache(maxsize=256)
def _codec(
    narrow: bool, n_parties: int, fraction_bits: int, scale: float | None
) -> fixed_point.FixedPoint:
    """Return how floats travel in ``masked`` mode."""
    if narrow:
        return fixed_point.FixedPoint.fitting(scale or fixed_point.DEFAULT_SCALE, n_parties, 32)
    if scale is not None:
        return fixed_point.FixedPoint.fitting(scale, n_parties, 64)
    return fixed_point.FixedPoint(fraction_bits)


def _exponent(n_parties: int, scale: float | None) -> int:
    """Return the power of two by which values are multiplied in ``ckks`` mode to fill its range."""
    if scale is None:
        return 0
    return (
        math.frexp(ckks.value_limit(n_parties))[1] - math.frexp(fixed_point.check_scale(scale))[1]
    )


def _peers(party: str, state: Any) -> list[str]:
    if PEERS not in state:
        raise ProtocolError(
            f"party {party!r} has no public keys of the other parties; the server must open "
            "the federation before it asks for a masked sum"
        )
    peers: list[str] = state[PEERS]
    # A name that comes twice counts as two parties, but has one mask.
    if len(set(peers)) != len(peers):
        raise ProtocolError(
            f"party {party!r} was given keys of the parties {peers}, of which some have one name; "
            "every party needs a name of its own ('party' in its node config)"
        )
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
    arrays: dict[str, Any],
    party: str,
    n_parties: int,
    state: Any,
    cache: dict[str, Any],
    scales: Mapping[str, float],
) -> dict[str, Any]:
    if "encryptor" not in cache:
        if CKKS_PUBLIC not in state:
            raise ProtocolError(
                "no CKKS public key here; the server must open the federation first"
            )
        cache["encryptor"] = ckks.CkksEncryptor(state[CKKS_PUBLIC])
    payload: dict[str, Any] = {}
    for name, array in arrays.items():
        kind, exponent = _INTEGER, 0
        if array.dtype.kind == "f":
            kind = _FLOAT32 if is_narrow(array.dtype) else _FLOAT64
            exponent = _exponent(n_parties, scales.get(name, scales.get(EVERY)))
        payload[name] = cache["encryptor"].encrypt(
            array.astype(float, copy=False), n_parties, name=name, party=party, exponent=exponent
        )
        payload[f"shape:{name}"] = [*array.shape, kind, exponent]
    return payload


def _add_encrypted(
    replies: Sequence[Mapping[str, Any]], ckks_public: bytes | None
) -> dict[str, Any]:
    if ckks_public is None:
        raise ProtocolError("adding ciphertexts needs the arbiter's public key")
    totals: dict[str, Any] = {}
    for name in (key for key in replies[0] if not key.startswith("shape:")):
        totals[name] = ckks.add_ciphertexts(ckks_public, [reply[name] for reply in replies])
        totals[f"shape:{name}"] = replies[0][f"shape:{name}"]
    return totals


def _plain_sum(terms: Sequence[Any]) -> Any:
    dtype = np.float64 if terms[0].dtype.kind == "f" else np.int64
    total = terms[0].astype(dtype)
    for term in terms[1:]:
        np.add(total, term.astype(dtype, copy=False), out=total)
    return total.astype(np.float32) if is_narrow(terms[0].dtype) else total
