"""Where privacy noise comes from, and its distribution."""

import numpy as np
import pytest

from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import (
    Keystream,
    fresh_keystream,
    laplace_integers,
    noise_is_seeded,
    rational,
    seeded_noise,
)


def test_streams_are_fresh_unless_a_test_asks_for_a_seed():
    def draw(label="a"):
        return fresh_keystream(label).words(np.empty(8, dtype=np.uint64)).tolist()

    assert draw() != draw()
    assert not noise_is_seeded()
    with seeded_noise(1):
        assert noise_is_seeded()
        one, again, other = draw(), draw(), draw("b")
    assert one == again != other
    with seeded_noise(2):
        assert draw() != one
    assert draw() != one


def test_the_simulation_generator_has_no_say():
    np.random.seed(0)  # noqa: NPY002
    first = fresh_keystream("a").below(2**60)
    np.random.seed(0)  # noqa: NPY002
    assert fresh_keystream("a").below(2**60) != first


def test_words_are_uniform_and_one_stream():
    words = Keystream(bytes(16)).words(np.empty(100_000, dtype=np.uint64))
    ones = np.bitwise_count(words).mean()
    assert abs(ones - 32) < 5 * 4 / np.sqrt(len(words))  # a word's count has the deviation 4
    parts = Keystream(bytes(16))
    np.testing.assert_array_equal(
        words[:50], np.concatenate([parts.words(np.empty(25, dtype=np.uint64)) for _ in range(2)])
    )


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 256, 257, 10**12])
def test_below_is_uniform(bound):
    stream = Keystream(b"0123456789abcdef")
    drawn = np.array([stream.below(bound) for _ in range(3000)])
    assert drawn.min() >= 0
    assert drawn.max() < bound
    spread = bound * np.sqrt(1 / 12 / len(drawn))
    assert abs(drawn.mean() - (bound - 1) / 2) <= 5 * spread


def test_shuffled_gives_every_order():
    stream = Keystream(bytes(16))
    seen = {tuple(stream.shuffled(3).tolist()) for _ in range(200)}
    assert len(seen) == 6


@pytest.mark.parametrize(("numerator", "epsilon"), [(2, 0.5), (2, 4.0), (21, 0.5), (1, 0.9)])
def test_laplace_noise_has_the_stated_scale(numerator, epsilon):
    scale = numerator / rational(epsilon)
    drawn = laplace_integers(scale, 20_000, Keystream(bytes(16)))
    a = np.exp(-epsilon / numerator)
    variance = 2 * a / (1 - a) ** 2
    fourth = (drawn.astype(float) ** 4).mean()
    assert abs(drawn.mean()) < 5 * np.sqrt(variance / len(drawn))
    assert abs((drawn.astype(float) ** 2).mean() - variance) < 5 * np.sqrt(fourth / len(drawn))
    # Each step outwards is less likely by the factor a: this is what gives the privacy.
    counts = np.array([(np.abs(drawn) == k).sum() for k in range(4)])
    expected = (1 - a) / (1 + a) * a ** np.arange(4) * np.array([1, 2, 2, 2]) * len(drawn)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()


def test_epsilon_is_rounded_down():
    assert rational(0.1) <= 0.1
    assert rational(0.1) == pytest.approx(0.1, rel=1e-4)
    with pytest.raises(ConfigError, match="epsilon must be at least"):
        rational(1e-9)
