"""Numbers of a private sum: types, rings, scales, and what all parties share of a request."""

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
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.protocol import decode
from flwr_vertical.protocol.codec import encode, override
from flwr_vertical.protocol.disk import digest
from flwr_vertical.protocol.messages import ARGUMENTS, SCALES, SUMS, VALUES, make_request

MODES = ["plain", "masked", "ckks"]
N = 3


def terms(k, size=500, spread=1.0):
    rng = np.random.default_rng([11, k])
    return {
        "wide": rng.normal(scale=spread, size=size),
        "narrow": rng.normal(scale=spread, size=(size // 5, 5)).astype(np.float32),
        "half": rng.normal(size=7).astype(np.float16),
        "single": np.float32(rng.normal()),
        "counts": rng.integers(0, 9, size=11).astype(np.uint32),
    }


class Sender(Party):
    @step
    def send(self, spread=1.0, only=""):
        own = terms(int(self.name[1]), spread=spread)
        return Summands({only: own[only]} if only else own)

    @step
    def types(self, first, others):
        dtype = first if self.name == "p1" else others
        return Summands({"x": np.ones(4, dtype=dtype)})

    @step
    def value(self, value, dtype="f4"):
        return Summands({"x": np.full(3, value, dtype=dtype)})

    @step
    def mine(self, numbers, names, own=0.0):
        names.append(self.name)  # a list is the party's own, whoever shares the message
        return Summands({"x": numbers * (own or 1.0)}, {"names": names})


@pytest.fixture
def federation(request):
    mode = getattr(request, "param", "masked")
    if mode == "ckks":
        pytest.importorskip("tenseal")
    nodes = [{"party": f"p{k}"} for k in range(1, N + 1)]
    nodes += [{"role": "arbiter"}] * (mode == "ckks")
    with LocalGrid(party_app(Sender, storage=MemoryStorage({})), nodes) as grid:
        found = Federation(RecordingGrid(grid), aggregation=mode, retries=0, timeout=30)
        found.open()
        yield found


every_mode = pytest.mark.parametrize("federation", MODES, indirect=True)


def exact(name, **how):
    own = [np.asarray(terms(k, **how)[name], dtype=np.longdouble) for k in range(1, N + 1)]
    return np.sum(own, axis=0)


@every_mode
def test_totals_come_back_in_the_type_that_was_sent(federation):
    total = federation.sum("send")
    assert total["wide"].dtype == np.float64
    assert total["narrow"].dtype == total["single"].dtype == np.float32
    assert total["half"].dtype == np.float32  # a sum may leave the range of float16
    assert total["counts"].dtype.kind in "iu"
    np.testing.assert_array_equal(total["counts"], exact("counts"))
    for name, dtype in (("wide", "f8"), ("narrow", "f4"), ("half", "f2"), ("single", "f4")):
        assert total[name].shape == np.shape(terms(1)[name])
        n = 1 if federation.aggregation == "ckks" else N / 2
        noise = 1e-7 if federation.aggregation == "ckks" else 1e-12
        tolerance = n * federation.resolution_of(dtype) + noise
        tolerance += np.finfo(total[name].dtype).eps * np.abs(exact(name)) / 2
        assert np.all(np.abs(total[name] - exact(name)) <= tolerance)


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize("federation", ["masked", "ckks"], indirect=True)
def test_a_scale_fits_the_range_to_the_values(federation, spread):
    largest = max(float(np.abs(terms(k, spread=spread)["wide"]).max()) for k in range(1, N + 1))
    largest = max(
        largest, *(float(np.abs(terms(k, spread=spread)["narrow"]).max()) for k in range(1, N + 1))
    )
    scale = {"wide": largest, "narrow": largest}
    total = federation.sum("send", {"spread": spread}, scale=scale)
    for name, dtype in (("wide", "f8"), ("narrow", "f4")):
        error = np.abs(total[name] - exact(name, spread=spread))
        masked = federation.aggregation == "masked"
        tolerance = federation.resolution_of(dtype, largest) * (N / 2 if masked else 1)
        tolerance += np.finfo(total[name].dtype).eps * np.abs(exact(name, spread=spread))
        tolerance += 0.0 if masked else 1e-12 * largest  # noise of the ciphertexts
        assert np.all(error <= tolerance)
        # Relative to the values: what 2^-32, or 2^-24, would have lost.
        assert np.max(error) < 1e-6 * largest
    # One scale for all: then for those too that are not named.
    again = federation.sum("send", {"spread": spread, "only": "narrow"}, scale=largest)
    np.testing.assert_allclose(again["narrow"], total["narrow"], rtol=0, atol=1e-6 * largest)


def test_float32_travels_in_half_the_bytes(federation):
    sizes = {}
    for dtype in ("f4", "f8"):
        federation.sum("value", {"value": 1.0, "dtype": dtype})
        up = [r.content for r in federation.grid.transcript if r.direction == "up"][-N:]
        assert all(decode(content, SUMS)["x"].dtype == f"u{dtype[1]}" for content in up)
        sizes[dtype] = decode(up[0], SUMS)["x"].nbytes
        # Masked: no party's number shows.
        assert all(len(set(decode(content, SUMS)["x"])) == 3 for content in up)
    assert sizes == {"f4": 12, "f8": 24}


def test_limits_and_resolutions(federation):
    assert federation.limit_of() == federation.limit_of("f8", None)
    assert federation.resolution_of() == 2.0**-32
    assert federation.resolution_of(np.float32) == 256 * 2.0**-29
    assert 256 < federation.limit_of(np.float32) < 512
    assert federation.resolution_of("f4", 1.0) == 2.0**-29
    assert federation.resolution_of("f8", 1.0) == 2.0**-61
    for scale in (1e-9, 0.7, 3e10):
        assert scale <= federation.limit_of("f4", scale) < 4 * scale
        assert scale <= federation.limit_of("f8", scale) < 4 * scale


@pytest.mark.parametrize("federation", ["plain", "ckks"], indirect=True)
def test_limits_and_resolutions_of_the_other_modes(federation):
    if federation.aggregation == "plain":
        assert federation.limit_of("f4", 1.0) == np.inf
        assert federation.resolution_of("f4", 1.0) == 0.0
    else:
        assert federation.limit_of("f4") == federation.limit_of()
        assert federation.resolution_of() == 2.0**-24
        assert 1.0 <= federation.limit_of("f4", 1.0) < 2.0
        assert federation.resolution_of("f8", 1.0) == 2.0**-40


@pytest.mark.parametrize("federation", ["masked", "ckks"], indirect=True)
@pytest.mark.parametrize(
    ("dtype", "scale"), [("f4", 1.0), ("f4", None), ("f8", 0.125), ("f8", None)]
)
def test_an_overflow_names_summand_and_party(federation, dtype, scale):
    limit = federation.limit_of(dtype, scale)
    with pytest.raises(PartyError) as caught:
        federation.sum(
            "value",
            {"value": 0.0, "dtype": dtype},
            per_party={"p2": {"value": 1.01 * limit}},
            scale=scale,
        )
    message = str(caught.value)
    assert caught.value.party == "p2"
    assert "array 'x' of party 'p2' has values too large" in message
    assert f"{1.01 * limit:.6g}" not in message  # it would be a number of the party's
    assert f"the limit per party is {limit:.6g}" in message
    if federation.aggregation == "masked":
        remedy = "let the server ask for the sum with scale"
        if (dtype, scale) == ("f8", None):
            remedy = "standardise the columns, or lower fraction_bits from 32 to 31"
        assert remedy in message
    below = float(np.nextafter(np.dtype(dtype).type(limit), np.dtype(dtype).type(0)))
    total = federation.sum("value", {"value": below, "dtype": dtype}, scale=scale)["x"]
    np.testing.assert_allclose(total, N * below, rtol=1e-6)


@every_mode
@pytest.mark.parametrize(
    ("first", "others"),
    [("f4", "f8"), ("f8", "f4"), ("f4", "u4"), ("u4", "f4"), ("f4", "i8"), ("f8", "i8"),
     ("i8", "f8")],
)  # fmt: skip
def test_parties_must_send_the_same_type(federation, first, others):
    with pytest.raises(PartyError, match=r"summand 'x' as .*-bit floats|as .*32-bit floats") as e:
        federation.sum("types", {"first": first, "others": others})
    assert (e.value.party, e.value.step) == ("p2", "types")


@every_mode
def test_a_scale_of_no_floating_summand_is_refused(federation):
    for scale in ({"narow": 1.0}, {"counts": 1.0}):
        with pytest.raises(PartyError, match=r"asks for scales of \['narow'\]|\['counts'\]"):
            federation.sum("send", scale=scale)


def test_a_scale_that_is_no_positive_number_is_refused_before_anything_is_sent(federation):
    rounds = federation.ledger.rounds
    for scale in (0.0, -1.0, np.nan, {"narrow": np.inf}, {"narrow": "1"}):
        with pytest.raises(ConfigError, match="scale of a summand"):
            federation.sum("send", scale=scale)
    assert federation.ledger.rounds == rounds


def test_all_parties_get_the_same_scales_and_none_without(federation):
    federation.sum("send", scale={"narrow": 10.0})
    down = [r.content for r in federation.grid.transcript if r.direction == "down"]
    assert [dict(content[SCALES]) for content in down[-N:]] == [{"narrow": 16.0}] * N
    federation.sum("send")
    down = [r.content for r in federation.grid.transcript if r.direction == "down"]
    assert not any(SCALES in content for content in down[-N:])


def test_common_arguments_are_encoded_once_and_stay_each_party_s_own(federation):
    numbers = np.arange(50.0)
    total = federation.sum(
        "mine", {"numbers": numbers, "names": ["start"]}, per_party={"p2": {"own": 10.0}}
    )
    np.testing.assert_allclose(total["x"], 12 * numbers, atol=1e-8)
    assert {name: public["names"] for name, public in total.public.items()} == {
        name: ["start", name] for name in ("p1", "p2", "p3")
    }
    down = [r.content for r in federation.grid.transcript if r.direction == "down"][-N:]
    first, *rest = (content[f"{ARGUMENTS}.arrays"]["numbers"] for content in down)
    assert all(array is first for array in rest)
    assert "own" not in decode(down[0], ARGUMENTS)
    assert decode(down[1], ARGUMENTS)["own"] == 10.0


def test_an_argument_of_one_party_replaces_the_common_one_whatever_its_kind():
    common = encode({"a": np.arange(3), "b": 1, "c": "x"}, ARGUMENTS)
    joined = override(common, encode({"a": 5, "b": np.ones(2)}, ARGUMENTS), ARGUMENTS)
    found = decode(joined, ARGUMENTS)
    assert set(found) == {"a", "b", "c"}
    assert (found["a"], found["c"]) == (5, "x")
    np.testing.assert_array_equal(found["b"], np.ones(2))
    assert set(decode(common, ARGUMENTS)) == {"a", "b", "c"}  # as it was
    np.testing.assert_array_equal(decode(common, ARGUMENTS)["a"], np.arange(3))


def test_digests_of_shared_and_of_separate_requests_are_the_same():
    """A run that is resumed asks again, and must be found to ask for the same."""
    arguments = {"big": np.arange(1000.0), "name": "x"}
    common, known = encode(arguments, ARGUMENTS), {}
    shared = [make_request("s", n, common, mode="call") for n in (1, 2)]
    alone = [make_request("s", n, arguments, mode="call") for n in (3, 4)]
    found = {digest("s", request, known) for request in shared} | {digest("s", r) for r in alone}
    assert len(found) == 1
    assert len(known) == 1
    others = [
        make_request("s", 1, arguments | {"big": np.arange(1000.0) + 1e-9}, mode="call"),
        make_request("s", 1, arguments | {"big": np.arange(1000.0).reshape(10, 100)}, mode="call"),
        make_request("s", 1, arguments, scales={"x": 1.0}, mode="sum"),
        make_request("s", 1, arguments, scales={"x": 2.0}, mode="sum"),
        make_request("t", 1, arguments, mode="call"),
    ]
    steps = ["s"] * 4 + ["t"]
    found |= {digest(s, r, known) for s, r in zip(steps, others, strict=True)}
    assert len(found) == 6


def test_terms_are_decoded_once(federation, monkeypatch):
    from flwr_vertical.server import federation as rounds
    from flwr_vertical.server import nodes

    decoded = []

    def counting(records, prefix):
        decoded.append(prefix)
        return decode(records, prefix)

    for module in (rounds, nodes):
        monkeypatch.setattr(module, "decode", counting)
    federation.sum("send")
    assert (decoded.count(SUMS), decoded.count(VALUES)) == (N, N)
    last = federation.ledger.to_frame().iloc[-1]
    assert last["values_up"] == sum(np.size(term) for term in terms(1).values())
