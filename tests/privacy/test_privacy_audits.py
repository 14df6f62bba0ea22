"""Every mechanism with noise spends what it states and no more, by many runs and by replays.

A replay gives the noise of one table such values on a neighbouring table that what is told is the
same. So the loss of privacy is exact, whatever follows from noisy numbers, and all else that is
told must be equal.
"""

from dataclasses import dataclass, field
from functools import partial
from math import ceil

import numpy as np
import pytest

from flwr_vertical.errors import DataError
from flwr_vertical.grading.audit import audit_epsilon
from flwr_vertical.privacy import Keystream
from flwr_vertical.privacy import gaussian_integers as gaussian
from flwr_vertical.privacy import laplace_integers as laplace
from flwr_vertical.products import noise as noise_module
from flwr_vertical.tables import Kind
from simulations.audits import counts, releases
from simulations.audits.mechanism import audit
from simulations.audits.study import all_by_name
from strategies.copula import margins, ranks, tree
from strategies.copula.margins import Domain
from strategies.copula.ranks import Flip
from strategies.copula.release import ReleaseBudget, make_release
from strategies.marginals import domain
from strategies.marginals import tables as pair_tables

pytestmark = pytest.mark.slow

RUNS = 4000
SEEN_BY_A_PARTY = "mst, aim: a table of two parties, seen by one that takes its own noise off"
MECHANISMS = all_by_name()
# Replayed below, which says more and costs less; `python -m simulations audits` runs all.
REPLAYED_ONLY = {*(name for name, *_ in counts.MARGINS)} | {
    name for name in MECHANISMS if name.startswith("make_release")
}


@pytest.mark.parametrize(
    "name", [n for n, m in MECHANISMS.items() if m.holds and n not in REPLAYED_ONLY]
)
def test_no_more_is_spent_than_stated(name):
    mechanism = MECHANISMS[name]
    found = audit(mechanism, RUNS, seed=0).epsilon
    assert found <= mechanism.epsilon
    if mechanism.tight:
        assert found > mechanism.epsilon / 2


@pytest.mark.parametrize("name", [n for n, m in MECHANISMS.items() if not m.holds])
def test_what_promises_nothing_is_found_out(name):
    """Fits lie in the span of the party's columns, and their noise does: known rows tell others."""
    mechanism = MECHANISMS[name]
    assert audit(mechanism, RUNS, seed=0).epsilon > 2 * mechanism.epsilon


def half_laplace(scale, count, stream):
    return laplace(scale / 2, count, stream)


def half_gaussian(sigma, count, stream):
    return gaussian(max(ceil(sigma / 2), 1), count, stream)


@pytest.mark.parametrize(
    ("name", "module", "function", "broken"),
    [
        ("a count with integer Laplace noise", counts, "laplace_integers", half_laplace),
        ("a sum with integer Gaussian noise", counts, "gaussian_integers", half_gaussian),
        ("counts of a Bernstein margin, increments", margins, "laplace_integers", half_laplace),
        ("noisy sums: one party's noise", noise_module, "gaussian_integers", half_gaussian),
        ("ranks of four rows", releases, "_OF_FOUR", Flip.of(1.0)),
        ("mst, aim: counts of a column's levels", domain, "gaussian_integers", half_gaussian),
        (SEEN_BY_A_PARTY, pair_tables, "gaussian_integers", half_gaussian),
    ],
)
def test_half_the_noise_is_found_out(name, module, function, broken, monkeypatch):
    monkeypatch.setattr(module, function, broken)
    mechanism = MECHANISMS[name]
    assert audit(mechanism, RUNS, seed=0).epsilon > mechanism.epsilon


@dataclass
class Replay:
    """Noise of one table, then of its neighbour with the same outcome; ``loss`` is the ratio's log.

    The loss is the largest of any outcome on the way that the first table's noise has chosen.
    """

    told: list = field(default_factory=list)
    again: bool = False
    deciding: bool = False
    decided: float = 0.0
    spent: float = 0.0

    @property
    def loss(self):
        return self.spent + abs(self.decided)

    def decompose(self, *args):
        """Choose the cells of a tree: all that is told of noisy counts is whether they are cut."""
        self.deciding = True
        found = _decomposition(*args)
        self.deciding = False
        return found

    def laplace(self, scale, count, stream):
        return _Added(self, scale, count, stream)

    def ranks(self, values, flip, stream):
        return self.compared(_ranks, flip.epsilon, values, flip, stream)

    def indicators(self, held, flip, stream):
        """Equal rows win by a fair coin: a comparison changes between that and the flip."""
        return self.compared(_indicator_ranks, -np.log(2 * flip.theta), held, flip, stream)

    def compared(self, rank, cost, values, flip, stream):
        given = np.asarray(values, dtype=float)
        order = np.sign(given[:, None] - given[None, :])
        if not self.again:
            self.told.append((order, made := rank(values, flip, stream)))
            return made
        before, made = self.told.pop(0)
        self.spent += cost * (before != order).sum() / 2
        return made


_ranks, _decomposition = ranks.perturbed_ranks, tree.decomposition
_indicator_ranks = ranks.indicator_ranks


def chance(cut, x, scale):
    """Log of the chance that x plus integer Laplace noise is above 0, or that it is not."""
    a = np.exp(-1 / float(scale))
    above = np.where(
        x >= 1, 1 - a ** np.maximum(x, 0) / (1 + a), a ** (1.0 - np.minimum(x, 1)) / (1 + a)
    )
    return np.log(np.where(cut, above, 1 - above))


@dataclass
class _Added:
    replay: Replay
    scale: object
    count: int
    stream: Keystream

    def __array_ufunc__(self, ufunc, method, exact, _, out=()):
        """Comes from ``counts + noise`` and ``counts += noise``."""
        assert ufunc is np.add
        noisy = self.to(exact)
        for array in out:
            array[...] = noisy
        return noisy

    def to(self, exact):
        replay = self.replay
        if not replay.again:
            noisy = exact + laplace(self.scale, self.count, self.stream)
            replay.told.append((exact.copy(), noisy.copy(), self.scale))
            return noisy
        before, noisy, scale = replay.told.pop(0)
        assert scale == self.scale  # neither the noise nor the number of counts follows the values
        assert len(before) == len(exact) == self.count
        if replay.deciding:
            chances = [chance(noisy > 0, counted, scale) for counted in (before, exact)]
            replay.decided += float(np.sum(chances[0] - chances[1]))
        else:
            replay.spent += float(np.abs(before - exact).sum() / scale)
        return noisy


@pytest.fixture
def replayed(monkeypatch):
    """Run a function on both tables; return the loss and what it told of each."""

    def run(function, table, neighbour, seed=0):
        replay, stream = Replay(), Keystream(seed.to_bytes(16, "little"))
        for module in (margins, tree):
            monkeypatch.setattr(module, "laplace_integers", replay.laplace)
        monkeypatch.setattr(ranks, "perturbed_ranks", replay.ranks)
        monkeypatch.setattr(ranks, "indicator_ranks", replay.indicators)
        monkeypatch.setattr(tree, "decomposition", replay.decompose)
        one = function(table, stream=stream)
        replay.again = True
        two = function(neighbour, stream=stream)
        assert not replay.told
        return replay.loss, one, two

    return run


def continuous(values, low, high, noise, epsilon, stream):
    return margins.continuous_margin(values, low, high, epsilon, stream, noise=noise)


REPLAYED = {
    "tree": partial(tree.tree_margin, domain=Domain(), epsilon=1.0),
    "tree, whole numbers": partial(tree.tree_margin, domain=Domain(0, 1e8, 1.0), epsilon=1.0),
    "tree, bounds": partial(tree.tree_margin, domain=Domain(-5.0, 50.0), epsilon=20.0),
    "increments": partial(continuous, low=0.0, high=9.0, noise="increments", epsilon=1.0),
    "coefficients": partial(continuous, low=0.0, high=9.0, noise="coefficients", epsilon=1.0),
    "discrete": partial(margins.discrete_margin, first=0, n_levels=9, epsilon=1.0),
    "levels": partial(margins.level_margin, n_levels=9, epsilon=1.0, least=5, other=None),
    "nominal levels": partial(margins.level_margin, n_levels=9, epsilon=1.0, least=5, other=3),
}


@pytest.mark.parametrize("name", REPLAYED)
def test_a_margin_spends_its_epsilon_whatever_is_replaced(name, replayed):
    """A margin of the same noisy counts is the same, and these cost what is stated."""
    estimate, epsilon = REPLAYED[name], REPLAYED[name].keywords["epsilon"]
    rng, losses = np.random.default_rng(0), []
    for seed in range(6):
        table = rng.integers(0, 9, size=300).astype(float)
        table[: 50 * seed] = 3.0  # a point mass, which the tree cuts
        table[seed] = 0.0
        neighbour = table.copy()
        neighbour[seed] = [8.0, 3.0, 7.0, 1e6, -2.0, 2.5][seed] if "tree" in name else 8.0 - seed
        loss, one, two = replayed(estimate, table, neighbour, seed)
        one, two = (getattr(made, "margin", made) for made in (one, two))
        for part in ("values", "cumulative", "atoms"):
            np.testing.assert_array_equal(getattr(one, part), getattr(two, part))
        losses.append(loss)
    rounding = 1 + 1e-9
    assert max(losses) <= epsilon * rounding
    assert max(losses) > 0.65 * epsilon  # PrivTree leaves some unspent


KINDS = {"amount": Kind.CONTINUOUS, "count": Kind.COUNT, "town": Kind.CATEGORICAL}


def whole_release(codes, budget, fill, stream):
    return make_release(
        codes, KINDS, [0, 0, 4], {"amount": (-9.0, 9.0), "count": (0.0, 30.0)}, {"count": 1.0},
        [None, None, 3], budget, stream, "a party", fill,
    )  # fmt: skip


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize(
    ("margin", "nominal"), [("tree", "indicators"), ("tree", "order"), ("bernstein", "indicators")]
)
def test_a_release_spends_what_the_ledger_counts(margin, nominal, fill, replayed):
    """Replacing a row at all columns, wherever cells are missing, and whatever fills them."""
    rng, losses = np.random.default_rng(1), []
    n = 40
    for seed in range(6):
        budget = ReleaseBudget(
            1.0 + seed, margin=margin, min_level=3, rank_share=0.3, nominal=nominal
        )
        codes = np.column_stack(
            [rng.normal(size=n), rng.poisson(2.0, size=n), rng.integers(0, 3, size=n)]
        ).astype(float)
        codes[0] = [-9.0, 0.0, 0.0]
        codes[n // 2 :][rng.random((n // 2, 3)) < 0.8] = np.nan
        neighbour = codes.copy()
        neighbour[0] = [9.0, 30.0, 3.0]
        compared = [n] * 3 if fill else (~np.isnan(codes)).sum(axis=0).tolist()
        run = partial(whole_release, budget=budget, fill=fill)
        loss, one, two = replayed(run, codes, neighbour, seed)
        np.testing.assert_array_equal(one.ranks, two.ranks)
        for ours, other in zip(one.margins, two.margins, strict=True):
            np.testing.assert_array_equal(ours.cumulative, other.cumulative)
            np.testing.assert_array_equal(ours.values, other.values)
        for name in ("flips", "epsilon_margins", "exact_range", "rare", "name_chance"):
            assert getattr(one, name) == getattr(two, name)
        losses.append(loss / budget.spent(compared))
    assert max(losses) <= 1 + 1e-9
    assert max(losses) > 0.7


def test_replays_find_cells_filled_by_the_mean(replayed):
    """The mean, and with it all filled cells, follows one value: much more than is counted."""

    def by_the_mean(codes, stream):
        filled = np.where(np.isnan(codes), np.nanmean(codes, axis=0), codes)
        return make_release(
            filled, {"x": Kind.CONTINUOUS}, [0], {"x": (0.0, 100.0)}, {}, [None], budget, stream,
            "a party",
        )  # fmt: skip

    budget = ReleaseBudget(1.0)
    codes = np.concatenate([np.arange(20.0), np.full(20, np.nan)])[:, None]
    neighbour = codes.copy()
    neighbour[0] = 100.0
    loss, _, _ = replayed(by_the_mean, codes, neighbour)
    assert loss > 2 * budget.spent([len(codes)])


def test_the_bound_is_clopper_and_pearsons():
    from scipy.stats import binomtest

    one = np.repeat([0.0, 1.0], [100, 300])[np.random.default_rng(0).permutation(400)]
    two = 1 - one[::-1]
    found = audit_epsilon(one, two, confidence=0.9)
    hits, others = ((s[200:] >= 1).sum() for s in (one, two))
    if found.threshold < 0.5 and hits < 100:  # the outcome may be the other value
        hits, others = 200 - hits, 200 - others
    low, high = (
        getattr(binomtest(int(k), 200).proportion_ci(0.9, "exact"), side)
        for k, side in ((max(hits, others), "low"), (min(hits, others), "high"))
    )
    assert found.epsilon == pytest.approx(np.log(low / high), abs=0.2)
    with pytest.raises(DataError, match="100 runs on each table or more, got 99"):
        audit_epsilon(one[:99], two)
