import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_vertical.crypto.fixed_point import (
    FixedPoint,
    check_scale,
    decode_integers,
    encode_integers,
)
from flwr_vertical.errors import ConfigError, DataError, FixedPointOverflowError, ProtocolError


@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
        elements=st.floats(-1e6, 1e6),
    ),
    bits=st.integers(0, 42),
)
def test_round_trip_is_within_half_a_resolution(values, bits):
    codec = FixedPoint(bits)
    ring = codec.encode(values, 1)
    assert ring.shape == values.shape
    assert ring.dtype == np.uint64
    assert np.all(np.abs(codec.decode(ring) - values) <= codec.resolution / 2)


@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 32769, 100_000])
def test_chunks_equal_one_pass(size):
    values = np.random.default_rng(size).normal(size=size) * 1e3
    narrow = values.astype(np.float32)
    wide, fitted = FixedPoint(), FixedPoint.fitting(8192.0, 5, 32)
    for codec, terms, bits in ((wide, values, 64), (fitted, narrow, 32)):
        expected = np.rint(terms.astype(np.float64) / codec.resolution).astype(f"i{bits // 8}")
        for array in (terms, terms.astype(np.float64)):
            ring = codec.encode(array, 3)
            np.testing.assert_array_equal(ring, expected.view(f"u{bits // 8}"))
        decoded = (expected * codec.resolution).astype(terms.dtype)
        np.testing.assert_array_equal(codec.decode(ring), decoded)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.int64, np.uint16, np.bool_])
def test_other_real_types(dtype):
    values = np.array([[0, 1], [1, 0]], dtype=dtype)
    np.testing.assert_array_equal(FixedPoint().decode(FixedPoint().encode(values, 2)), values)


def test_input_is_untouched_and_may_be_strided():
    values = np.arange(24.0).reshape(4, 6)
    before = values.copy()
    codec = FixedPoint()
    for view in (values.T, values[:, ::2], values[::-1], np.broadcast_to(values[0], (3, 6))):
        np.testing.assert_array_equal(codec.decode(codec.encode(view, 1)), view)
    np.testing.assert_array_equal(values, before)


def test_overflow_says_what_and_how_to_rescale():
    values = np.zeros(50_000)
    values[[3, 49_000]] = [-5e12, 1e12]
    with pytest.raises(FixedPointOverflowError) as caught:
        FixedPoint().encode(values, 4, name="fit", party="bank")
    message = str(caught.value)
    for part in ("'fit'", "'bank'", "up to 8.79609e+12", "5.36871e+08", "standardise", "to 18 "):
        assert part in message
    assert "5e+12" not in message  # a value, which the message would carry out of the node
    # The advice works, and is the finest that does.
    FixedPoint(18).encode(values, 4)
    with pytest.raises(FixedPointOverflowError):
        FixedPoint(19).encode(values, 4)
    with pytest.raises(FixedPointOverflowError, match="no number of fraction bits"):
        FixedPoint().encode([1e300], 4)
    with pytest.raises(FixedPointOverflowError, match="up to inf"):  # the largest power is 2^1023
        FixedPoint().encode(np.array([1.7e308]), 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad):
    values = np.ones((200, 300))
    values[5, 5] = values[199, 299] = bad
    with pytest.raises(DataError, match=r"'distances' of party 'shop'.* some of its values"):
        FixedPoint().encode(values, 2, name="distances", party="shop")


def test_settings_and_types():
    for call, error, why in (
        (lambda: FixedPoint(-1), ConfigError, "fraction_bits"),
        (lambda: FixedPoint(63), ConfigError, "fraction_bits"),
        (lambda: FixedPoint().limit(0), ConfigError, "n_parties=0"),
        (lambda: encode_integers([1], 0), ConfigError, "n_parties=0"),
        (lambda: FixedPoint().encode([1j], 1), DataError, "complex"),
        (lambda: FixedPoint().encode(["a"], 1), DataError, "real numbers"),
        (lambda: FixedPoint().decode(np.zeros(2, np.int64)), ProtocolError, "uint64"),
        (lambda: FixedPoint(scale=0.3), ConfigError, "power of two"),
        (lambda: FixedPoint(ring_bits=16), ConfigError, "ring_bits must be 32 or 64"),
        (lambda: FixedPoint(31, ring_bits=32), ConfigError, "fraction_bits must be 0 to 30, got 3"),
        (lambda: FixedPoint(8, ring_bits=32).decode(np.zeros(2, np.uint64)), ProtocolError,
         "uint32, got uint64"),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            call()


RINGS = {
    "bool": "uint16", "uint8": "uint16", "uint16": "uint16", "uint32": "uint32",
    "uint64": "uint64", "int8": "uint64", "int32": "uint64", "int64": "uint64",
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "ring"), RINGS.items())
def test_integer_rings(dtype, ring):
    values = np.array([[1, 0, 1]], dtype=dtype)
    if dtype.startswith("int"):
        values -= 1
    encoded = encode_integers(values, 5)
    assert encoded.dtype == ring
    assert not np.shares_memory(encoded, values)
    np.testing.assert_array_equal(decode_integers(encoded), values)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n_parties=st.integers(1, 7))
def test_integer_sums_are_exact(data, n_parties):
    names = ["bool", "uint8", "uint16", "uint32", "int32", "int64"]
    dtype = np.dtype(data.draw(st.sampled_from(names)))
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if dtype.itemsize > 1:
        low, high = max(low, -(high // n_parties)), high // n_parties
    numbers = st.integers(low, high) if dtype.kind != "b" else st.booleans()
    terms = [data.draw(hnp.arrays(dtype, 4, elements=numbers)) for _ in range(n_parties)]
    total = sum(encode_integers(term, n_parties) for term in terms)
    assert decode_integers(total).tolist() == [sum(int(t[i]) for t in terms) for i in range(4)]


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (np.array([40_000], np.uint16), "uint32"),
        (np.array([2**31], np.uint32), "int64"),
        (np.array([2**62], np.int64), "float64"),
        (np.array([-(2**63)], np.int64), "float64"),
        (np.array([2**63], np.uint64), "float64"),
    ],
)
def test_integer_overflow(values, advice):
    with pytest.raises(FixedPointOverflowError, match=f"'counts'.*too large.*{advice}"):
        encode_integers(values, 2, name="counts")


def test_integer_types_and_signedness():
    ring = np.array([2**16 - 1], np.uint16)
    assert decode_integers(ring)[0] == 2**16 - 1
    assert decode_integers(ring.astype(np.int16).astype(np.uint64))[0] == -1
    with pytest.raises(DataError, match="float64"):
        encode_integers([0.5], 2)
    with pytest.raises(ProtocolError, match="int64"):
        decode_integers(np.zeros(1, np.int64))
    assert encode_integers(np.zeros((0, 3), np.uint8), 2).shape == (0, 3)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    n_parties=st.integers(1, 40),
    exponent=st.integers(-80, 80),
    ring_bits=st.sampled_from([32, 64]),
)
def test_a_fitted_sum_is_within_half_a_resolution_per_party(data, n_parties, exponent, ring_bits):
    dtype = np.dtype(f"f{ring_bits // 8}")
    scale = data.draw(st.floats(0.6, 1.0)) * 2.0**exponent
    codec = FixedPoint.fitting(scale, n_parties, ring_bits)
    assert codec.resolution <= 4 * n_parties * check_scale(scale) / 2**ring_bits
    limit = codec.limit(n_parties)
    assert scale <= limit < 4 * scale
    fractions = hnp.arrays(dtype, 5, elements=st.floats(-1, 1, width=ring_bits))
    terms = [data.draw(fractions) * dtype.type(limit) * dtype.type(0.999) for _ in range(n_parties)]
    rings = [codec.encode(term, n_parties) for term in terms]
    assert all(ring.dtype == f"u{ring_bits // 8}" for ring in rings)
    total = codec.decode(np.sum(rings, axis=0, dtype=rings[0].dtype))
    assert total.dtype == dtype
    exact = np.sum([term.astype(np.longdouble) for term in terms], axis=0)
    # And the rounding of the total to its own type.
    own = np.finfo(dtype).eps * np.abs(exact)
    assert np.all(np.abs(total - exact) <= n_parties * codec.resolution / 2 + own)


CODECS = st.one_of(
    st.builds(lambda bits: (lambda n: FixedPoint(bits), 64), st.integers(0, 62)),
    st.builds(
        lambda exponent, bits: (lambda n: FixedPoint.fitting(2.0**exponent, n, bits), bits),
        st.integers(-90, 90), st.sampled_from([32, 64]),
    ),
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(n_parties=st.integers(1, 5000), made=CODECS, sign=st.sampled_from([-1, 1]))
def test_a_sum_at_the_limit_does_not_wrap(n_parties, made, sign):
    codec, ring_bits = made[0](n_parties), made[1]
    limit, top = codec.limit(n_parties), 2 ** (ring_bits - 1)
    term = int(codec.encode(sign * limit, n_parties).view(f"i{ring_bits // 8}")[()])
    assert -top <= n_parties * term < top
    # It is the largest: one float more would wrap, or is refused.
    with pytest.raises(FixedPointOverflowError):
        codec.encode(np.nextafter(limit, np.inf), n_parties)
    assert n_parties * limit / codec.resolution >= top * (1 - 2**-50) - n_parties


def test_narrow_floats_do_not_round_the_limit_of_the_narrow_ring():
    """float32 has no number between 512 and the limit of 511.99999809 below it, nor below 2**29."""
    with pytest.raises(FixedPointOverflowError, match="values too large"):
        FixedPoint().encode(np.array([2.0**29], np.float32), 4)
    FixedPoint().encode(np.array([2.0**29], np.float32), 3)
    codec = FixedPoint.fitting(256.0, 8, 32)
    assert codec.limit(8) < 512.0 == float(np.float32(codec.limit(8)))
    with pytest.raises(FixedPointOverflowError, match="values too large"):
        codec.encode(np.array([512], np.float32), 8)
    below = np.nextafter(np.float32(512), np.float32(0))
    assert codec.decode(codec.encode(np.array([below], np.float32), 8))[0] == below


def test_an_overflow_of_a_scale_says_which_scale_would_do():
    values = np.array([0.5, -3.0], np.float32)
    with pytest.raises(FixedPointOverflowError) as caught:
        FixedPoint.fitting(1.0, 4, 32).encode(values, 4, name="grad", party="bank")
    message = str(caught.value)
    for part in ("'grad'", "'bank'", "up to 4 in", "scale 4 instead of 1", "send float64"):
        assert part in message
    FixedPoint.fitting(4.0, 4, 32).encode(values, 4)
    with pytest.raises(FixedPointOverflowError, match="no scale carries"):
        FixedPoint.fitting(1.0, 4, 64).encode([1e300], 4)


def test_scales_are_powers_of_two_at_or_above():
    for scale, expected in ((1, 1.0), (1.0, 1.0), (0.3, 0.5), (1000, 1024.0), (2.0**-90, 2.0**-90)):
        assert check_scale(scale) == expected
    for scale in (0, -1.0, np.nan, np.inf, 1e-30, 1e30, True, "1", None):
        with pytest.raises(ConfigError, match="largest absolute value that a party"):
            check_scale(scale)
