"""Private products: exact, uniform to the server, and safe only under the rules they state."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_vertical.errors import ConfigError, FixedPointOverflowError, ProtocolError
from flwr_vertical.policy.defaults import max_vectors, min_rows
from flwr_vertical.products import arithmetic as ring
from flwr_vertical.products.arithmetic import Layout, corrections, helpers, owner_share
from flwr_vertical.products.row_groups import group_rows, levels_are_safe
from flwr_vertical.products.streams import KeyStream, content_tag, stream, tag_of_blocks

SEED = bytes(range(32))
RNG = np.random.default_rng(12)


def unit(x):
    return x / np.sqrt((x**2).mean(axis=0))


def random_ring(*shape):
    return RNG.integers(0, 2**64, size=shape, dtype=np.uint64)


def tables(n, widths):
    return {f"p{k}": unit(RNG.normal(size=(n, width))) for k, width in enumerate(widths)}


def masked(tables, limbs):
    n = len(next(iter(tables.values())))
    bits = ring.fraction_bits(n)
    encoded = {name: ring.encode(x, bits, limbs) for name, x in tables.items()}
    streams = {
        name: stream(SEED, f"run {name}", e.shape, content_tag(SEED, e))
        for name, e in encoded.items()
    }
    layout = Layout({name: x.shape[1] for name, x in tables.items()}, limbs)
    return bits, encoded, streams, layout, {name: encoded[name] + streams[name] for name in tables}


def test_what_the_server_gets_follows_from_uniform_numbers_and_the_product():
    """C = U'U - X'X: a simulator that has the product alone makes the same view."""
    own = tables(300, (2, 2))
    _, encoded, streams, layout, sent = masked(own, 1)
    groups = [np.arange(300)]
    total = np.sum(
        [corrections(name, encoded[name], streams, layout, groups, name == "p0") for name in own],
        axis=0,
        dtype=np.uint64,
    )[0, 0]
    left, right = layout.slices["p1"], layout.slices["p0"]
    simulated = ring.product(sent["p1"], sent["p0"]) - ring.product(encoded["p1"], encoded["p0"])
    np.testing.assert_array_equal(total[left, right], simulated)
    # U itself: bits are fair, and say nothing of the columns.
    bits = np.unpackbits(np.ascontiguousarray(sent["p0"]).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(bits))
    top = sent["p0"][:, 0].astype(np.float64)
    assert abs(np.corrcoef(top, own["p0"][:, 0])[0, 1]) < 4 / np.sqrt(300)


def test_the_same_content_has_the_same_stream_and_another_content_another_one():
    encoded = random_ring(50, 3)
    again = stream(SEED, "run p0", (50, 3), content_tag(SEED, encoded))
    np.testing.assert_array_equal(
        again, stream(SEED, "run p0", (50, 3), content_tag(SEED, encoded.copy()))
    )
    corrected = encoded.copy()
    corrected[7, 1] += np.uint64(1)
    other = stream(SEED, "run p0", (50, 3), content_tag(SEED, corrected))
    difference = (corrected + other) - (encoded + again)
    # One stream for both would have shown the change, and zeros elsewhere.
    assert np.count_nonzero(difference) == difference.size
    shown = (corrected + again) - (encoded + again)
    assert np.count_nonzero(shown) == 1
    others = ("run p1", (50, 3), SEED), ("run p0", (3, 50), SEED), ("run p0", (50, 3), bytes(32))
    for label, shape, seed in others:
        different = stream(seed, label, shape, content_tag(SEED, encoded))
        assert not (different.reshape(-1) == again.reshape(-1)).any()
    assert content_tag(SEED, encoded) != content_tag(bytes(32), encoded)
    assert content_tag(SEED, encoded) != content_tag(SEED, encoded.reshape(3, 50))


def test_one_pad_for_two_masks_opens_an_equation():
    """Why a repeated attempt takes a fresh pad: the rule is not idle."""
    n = 100
    own, v = random_ring(n, 2), random_ring(n, 1)
    first, second, pad = random_ring(n, 1), random_ring(n, 1), random_ring(2, 1)
    difference = owner_share(own, v + first, pad) - owner_share(own, v + second, pad)
    np.testing.assert_array_equal(difference, ring.product(own, first - second))
    fresh = random_ring(2, 1)
    safe = owner_share(own, v + first, pad) - owner_share(own, v + second, fresh)
    assert (safe != ring.product(own, first - second)).all()


def test_no_node_gets_a_masked_vector_and_its_mask():
    for parties in (["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d", "e"]):
        chosen = helpers(parties)
        assert set(chosen) == set(parties)
        for helper in set(chosen.values()):
            # One rho for each helper: whoever it serves gets v + rho, and it has the seed.
            assert helper not in {owner for owner, other in chosen.items() if other == helper}
        assert len(set(chosen.values())) == 2
    with pytest.raises(ConfigError, match="second party as helper"):
        helpers(["a"])


def test_fraction_bits_leave_room_for_any_two_columns_of_unit_mean_square():
    for n in (10, 1_000, 166_207, 524_288, 1_000_000, 10_000_000):
        bits = ring.fraction_bits(n)
        assert n * 4.0**bits <= 2.0**62 < 2 * n * 4.0 ** (bits + 1)
        # 22 bits, which serve below 524,288 rows, do not serve there.
        assert (bits >= 22) == (n <= 2**18)


def test_a_column_too_long_for_the_ring_is_named():
    x = unit(RNG.normal(size=(100, 2)))
    x[:, 1] *= 30.0
    with pytest.raises(FixedPointOverflowError, match=r"'bank', column 'income'.* is 30") as caught:
        ring.encode(x, ring.fraction_bits(100), 1, ["age", "income"], "bank")
    assert "divide" in str(caught.value)
    x[3, 1] = np.nan
    with pytest.raises(FixedPointOverflowError, match="income"):
        ring.encode(x, 20, 1, ["age", "income"], "bank")


def test_the_longest_columns_that_pass_do_not_overflow():
    n = 4096
    bits = ring.fraction_bits(n)
    spike = np.zeros((n, 1))
    spike[5] = np.sqrt(n)  # all of the norm in one row: the largest single product
    for a, b in ((spike, spike), (spike, -spike), (np.ones((n, 1)), np.ones((n, 1)))):
        found = ring.decode(
            ring.product(ring.encode(a, bits, 1), ring.encode(b, bits, 1))[None], bits
        )
        np.testing.assert_allclose(found, a.T @ b, rtol=1e-6)


def test_any_rows_of_a_stream_are_those_of_the_whole():
    for width in (1, 3):  # rows of 8 and 24 bytes begin within a block of the cipher
        whole = stream(SEED, "x", (1000, width))
        source = KeyStream(SEED, "x", (1000, width))
        for start, stop in ((0, 1000), (1, 8), (7, 7), (333, 1000)):
            np.testing.assert_array_equal(source.rows(start, stop), whole[start:stop])
        for few in ([0, 1, 2, 500, 999], [7], []):
            rows = np.array(few, dtype=np.int64)
            np.testing.assert_array_equal(source.rows_at(rows), whole[rows])
    content = random_ring(100, 3)
    in_blocks = tag_of_blocks(SEED, content.shape, [content[:30], content[30:]])
    assert in_blocks == content_tag(SEED, content)


def test_integer_products_equal_python_s():
    a, b = random_ring(9000, 2), random_ring(9000, 3)
    found = ring.product(a, b)
    for i in range(2):
        for j in range(3):
            exact = sum(int(x) * int(y) for x, y in zip(a[:, i], b[:, j], strict=True)) % 2**64
            assert int(found[i, j]) == exact


def test_a_seed_of_another_length_is_refused():
    for wrong in (b"", bytes(16)):
        with pytest.raises(ProtocolError, match="32 bytes"):
            stream(wrong, "x", (2, 2))
        with pytest.raises(ProtocolError, match="32 bytes"):
            content_tag(wrong, random_ring(2, 2))


def mask_of(counts, n_parties):
    rows = [np.tile(np.array(kind, dtype=bool), (n, 1)) for kind, n in counts.items()]
    return np.vstack(rows) if rows else np.zeros((0, n_parties), dtype=bool)


def test_large_groups_stay_as_they_are():
    mask = mask_of({(0, 0): 300, (0, 1): 200, (1, 0): 150}, 2)
    found = group_rows(mask, np.array([3, 4]), 1)
    assert len(found.mask) == 3
    np.testing.assert_array_equal(found.mask[found.group], mask)
    assert (found.n_merged, found.n_left_out) == (0, 0)


def test_a_small_group_gives_up_the_narrower_block():
    mask = mask_of({(0, 0): 20, (0, 1): 200, (1, 0): 200}, 2)
    found = group_rows(mask, np.array([3, 9]), 1)
    assert len(found.mask) == 2
    np.testing.assert_array_equal(found.mask[found.group[:20]], [[True, False]] * 20)
    assert (found.n_merged, found.n_left_out) == (20, 0)


def test_small_groups_join_each_other_before_they_are_left_out():
    mask = mask_of({(0, 0, 1): 60, (0, 1, 0): 60}, 3)
    found = group_rows(mask, np.array([2, 2, 2]), 1)
    np.testing.assert_array_equal(found.mask, [[False, True, True]])
    assert (found.n_merged, found.n_left_out) == (120, 0)
    alone = group_rows(mask_of({(0, 1): 60, (1, 0): 200}, 2), np.array([2, 2]), 1)
    assert alone.n_left_out == 60
    assert set(alone.group[:60]) == {-1}


def test_a_row_that_nobody_holds_is_in_no_group_and_is_not_counted():
    found = group_rows(mask_of({(0, 0): 200, (1, 1): 5}, 2), np.array([1, 1]), 1)
    assert set(found.group[200:]) == {-1}
    assert found.n_left_out == 0


@settings(deadline=None)
@given(
    st.dictionaries(
        st.tuples(*[st.integers(0, 1)] * 3), st.integers(1, 400), min_size=1, max_size=8
    ),
    st.tuples(*[st.integers(1, 60)] * 3),
    st.integers(0, 5),
)
def test_whatever_is_missing_no_group_is_too_small_and_nothing_is_invented(counts, widths, t):
    mask, widths = mask_of(counts, 3), np.array(widths)
    found = group_rows(mask, widths, t)
    for g, blocks in enumerate(found.mask):
        assert (found.group == g).sum() >= min_rows(int(widths[~blocks].sum()), t)
        assert not blocks.all()
    kept = found.group >= 0
    # A block that a party lacks stays missing; only existing ones are given up.
    assert (found.mask[found.group[kept]] >= mask[kept]).all()
    assert len({tuple(blocks) for blocks in found.mask}) == len(found.mask)
    changed = (found.mask[found.group[kept]] != mask[kept]).any(axis=1)
    assert found.n_merged == changed.sum()
    assert found.n_left_out == (~kept & ~mask.all(axis=1)).sum()


def test_the_minimum_of_a_group_may_be_lowered():
    mask = mask_of({(0, 0): 30, (0, 1): 200}, 2)
    assert group_rows(mask, np.array([1, 1]), 1, at_least=30).n_merged == 0
    assert group_rows(mask, np.array([1, 1]), 1).n_merged == 30


@pytest.mark.parametrize(("n_rows", "fewest"), [(100, 30), (200, 19), (1_000, 11), (10_000, 8)])
def test_flags_need_as_many_rare_ones_as_the_notes_say(n_rows, fewest):
    assert not levels_are_safe(np.array([n_rows - fewest + 1, fewest - 1]), 1)
    assert levels_are_safe(np.array([n_rows - fewest, fewest]), 1)
    assert math.log2(math.comb(n_rows, fewest)) >= 84 > math.log2(math.comb(n_rows, fewest - 1))


def test_limits():
    assert levels_are_safe(np.array([50, 0]), 3)
    assert not levels_are_safe(np.array([30, 30]), 1)  # a balanced flag over few rows is not safe
    assert max_vectors(99) == 9
    assert min_rows(5, 1) == 100
    assert min_rows(50, 10) == 180


def test_with_many_parties_large_sets_are_found_and_complete_rows_stay_whole():
    """Ten parties, of which hardly any two rows share a pattern."""
    rng = np.random.default_rng(0)
    widths = np.full(10, 2)
    half = group_rows(rng.random((2000, 10)) < 0.5, widths, 1)
    parties = np.sort((~half.mask).sum(axis=1))
    assert (parties >= 3).sum() >= 7
    assert parties[-1] == 4
    assert half.n_left_out < 200
    mask = rng.random((2000, 10)) < 0.2
    fewer = group_rows(mask, widths, 1)
    complete = ~mask.any(axis=1)
    whole = np.flatnonzero(~fewer.mask.any(axis=1))
    np.testing.assert_array_equal(np.isin(fewer.group, whole), complete)


def test_with_a_minimum_of_one_row_every_pattern_is_a_group():
    mask = np.random.default_rng(1).random((3000, 10)) < 0.4
    found = group_rows(mask, np.full(10, 2), 1, at_least=1)
    held = ~mask.all(axis=1)
    np.testing.assert_array_equal(found.mask[found.group[held]], mask[held])
    assert found.n_merged == found.n_left_out == 0
