"""FKNN's blinding: it changes no imputed value, and what the server sees gives nothing away."""

import functools
import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from oracles.fknn_unblinded import impute, summed_distances
from vfem_runs import recorded

from flwr_vertical import Kind, simulate
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol import decode, private_sum
from flwr_vertical.protocol.messages import ARGUMENTS, SUMS, read_envelope
from strategies.fknn import FKNN
from strategies.fknn.blinding import Blinding, Units, halves, kinds_of_donors, secret_order
from strategies.fknn.distances import check_units, common_units, magnitude, make_features
from strategies.fknn.party import FKNNParty

IDS = np.array([f"s{i:03}" for i in range(90)])


def continuous(rng, n):
    return {name: pd.DataFrame(rng.normal(size=(n, 3))).add_prefix(name) for name in "abc"}


def whole_numbers(rng, n):
    """Few values: many donors are at the same distance, and some rows are duplicates."""
    made = {name: pd.DataFrame(rng.integers(0, 3, (n, 2)) * 1.0).add_prefix(name) for name in "ab"}
    for table in made.values():
        table.iloc[n // 2 : n // 2 + 20] = table.iloc[:20].to_numpy()
    return made


def tenths(rng, n):
    """Sums of the same tenths in another order differ by rounding errors."""
    return {
        name: pd.DataFrame(rng.integers(0, 4, (n, 3)) / 10).add_prefix(name) for name in "abcde"
    }


def all_kinds(rng, n):
    size = pd.CategoricalDtype(["small", "mid", "large"], ordered=True)
    bank = pd.DataFrame(
        {
            "income": rng.normal(5e4, 1e4, n),
            "rating": pd.Categorical(rng.choice(list("ABC"), n)),
            "size": pd.Categorical(rng.choice(size.categories, n), dtype=size),
        }
    )
    court = pd.DataFrame({"cases": rng.poisson(1, n) * 1.0, "town": rng.choice(list("uvw"), n)})
    return {"bank": bank, "court": court}


def one_party(rng, n):
    return {"alone": pd.DataFrame(rng.normal(size=(n, 4))).add_prefix("x")}


def heavy_tails(rng, n):
    return {name: pd.DataFrame(rng.standard_t(2, (n, 3))).add_prefix(name) for name in "ab"}


KINDS = [continuous, whole_numbers, tenths, all_kinds, one_party, heavy_tails]


def make(kind, missing=0.15, blocks=0.15):
    """A party misses cells at random, and whole rows."""
    rng = np.random.default_rng(KINDS.index(kind))
    n, tables = len(IDS), {}
    for name, table in kind(rng, n).items():
        table = table.set_axis(IDS, axis=0)
        table = table.mask(rng.random(table.shape) < missing)
        kept = rng.random(n) >= (blocks if kind is not one_party else 0.0)
        tables[name] = table[kept]
    return tables


CIPHERTEXTS = [(continuous, "party-mean"), (whole_numbers, "party-mean")]  # they take a second


@pytest.mark.parametrize("weighting", ["party-mean", pytest.param("exact", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_imputed_values_are_those_of_an_unblinded_run_to_the_bit(kind, weighting):
    tables = make(kind)
    standardize = kind is all_kinds
    expected = impute(tables, 4, weighting, standardize)
    strategy = FKNN(n_neighbors=4, weighting=weighting, standardize=standardize)
    ciphertexts = (kind, weighting) in CIPHERTEXTS and importlib.util.find_spec("tenseal")
    for mode in ("plain", "masked", *(["ckks"] if ciphertexts else [])):
        got = simulate(strategy, tables, aggregation=mode).tables
        for name, table in got.items():
            pd.testing.assert_frame_equal(
                table, expected[name].loc[table.index], check_exact=True, check_names=False
            )


# -- rules that parties keep, whatever the server asks for -----------------------------------


def start(strategy, tables, mode="masked", exchanges=""):
    """Run on nodes that agree to what is stated."""
    configs = {name: {"exchanges": exchanges} for name in tables}
    return recorded(tables, None, mode, configs=configs, strategy=strategy)


def test_weights_by_distance_need_each_node_s_consent():
    strategy = FKNN(n_neighbors=2, weights="distance")
    with pytest.raises(PartyError, match=r"exchange 'distances'.*allowed: 'sums'") as caught:
        start(strategy, make(continuous), exchanges="sums")
    assert caught.value.step == "prepare"
    start(strategy, make(continuous), exchanges="sums, distances")
    start(FKNN(n_neighbors=2), make(continuous))  # the default needs none


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_nobody_keeps_the_seed_and_the_arbiter_never_has_it(mode):
    run = start(FKNN(n_neighbors=2), make(continuous), mode)
    for name, state in run.states.items():
        assert "node.group.seed" not in state, name
    asked = {m.step for m in run.messages if not m.up and m.node == "arbiter"}
    if mode == "ckks":
        assert asked == {"hello", "reveal", "rank"}


def asking(other):
    """A server that asks a second time, for something else."""

    class Asking(FKNN):
        def _round(self, federation, plan, block, ranked):
            super()._round(federation, plan, block, ranked)
            return super()._round(federation, replace(plan, **other(plan)), block, ranked)

    return Asking


class OtherSettings(FKNN):
    def _prepare(self, federation, n_samples):
        plan = super()._prepare(federation, n_samples)
        FKNN(n_neighbors=2, weighting="exact")._prepare(federation, n_samples)
        return plan


class NoShift(FKNN):
    def _prepare(self, federation, n_samples):
        plan = super()._prepare(federation, n_samples)
        return replace(plan, units=replace(plan.units, shift=None))


class CallsAllComplete(FKNN):
    """One weight for all donors would be a wrong one for some."""

    def _prepare(self, federation, n_samples):
        plan = super()._prepare(federation, n_samples)
        return replace(plan, lacking=plan.lacking[:0], n_complete=plan.n_donors)


class TellsFewApart(FKNN):
    def _prepare(self, federation, n_samples):
        plan = super()._prepare(federation, n_samples)
        few = plan.lacking[: len(plan.lacking) // 2]
        return replace(plan, lacking=few, n_complete=plan.n_donors - len(few))


OtherLacking = asking(lambda plan: {"lacking": plan.lacking[1:]})
OtherUnits = asking(lambda plan: {"units": replace(plan.units, shift=plan.units.shift + 1)})
OtherDonors = asking(lambda plan: {"donors": plan.donors[1:], "all_donate": False})


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (OtherUnits, "units and donors cannot change within a run"),
        (OtherDonors, "units and donors cannot change within a run"),
        (OtherLacking, "units and donors cannot change within a run"),
        (CallsAllComplete, "of donors that the server says are complete, some lack cells here"),
        (TellsFewApart, "each kind has 100 or none"),
        (OtherSettings, "settings cannot change within a run"),
        (NoShift, "distances were to be shifted by up to"),
    ],
)
def test_servers_that_ask_for_more_are_refused(server, why):
    with pytest.raises(PartyError, match=why):
        start(server(n_neighbors=2), make(continuous))


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        ((500, 0, 1000), (500, 500)),
        ((0, 500, 300), (0, 300)),
        ((500, 500, 1000), (500, 1000)),
        ((500, 99, 1000), (0, 599)),
        ((99, 500, 1000), (0, 599)),
        ((500, 500, 599), (500, 500)),  # 99 of those that lack cells
        ((500, 500, 600), (500, 600)),
        ((20, 5, 10), (10, 10)),
        ((20, 50, 30), (0, 30)),
    ],
)
def test_donors_of_a_kind_are_many_or_none(offered, expected):
    assert kinds_of_donors(*offered) == expected


def features(values):
    kinds = [Kind.CONTINUOUS] * values.shape[1]
    return make_features(values, kinds, [0] * len(kinds), False, np.ones(len(values), dtype=bool))


def test_units_that_hide_too_little_are_refused():
    told = magnitude(features(np.random.default_rng(0).normal(size=(50, 3))), "exact")
    units = common_units(told, 2, True)
    check_units(units, told, True, "bank")
    with pytest.raises(DataError, match=r"'bank': distances were to be shifted by up to 2\^"):
        check_units(Units(units.distance, units.shift - 1, units.weight), told, True, "bank")
    with pytest.raises(DataError, match="'bank': weights were to be sent in units of"):
        check_units(Units(units.distance, units.shift, units.weight + 1), told, True, "bank")


def test_columns_that_reach_too_far_are_named():
    values = np.random.default_rng(0).normal(size=(50, 3)) * [1, 1e200, 1]
    with pytest.raises(DataError, match="party 'bank', column 'b': values reach so far"):
        magnitude(features(values), "party-mean", ["a", "b", "c"], "bank")


# -- the numbers -----------------------------------------------------------------------------

SEED = bytes(range(32))


@pytest.mark.parametrize(
    ("n_donors", "n_complete"), [(7, 0), (5000, 5000), (70_000, 69_990), (140_003, 70_001)]
)
def test_orders_are_permutations_and_another_for_each_row(n_donors, n_complete):
    blinding = Blinding(SEED, 100, n_donors, n_complete, Units(0, 0, 0))
    orders = [blinding.order(place) for place in (0, 1, 99)]
    for order in orders:
        for part in (slice(0, n_complete), slice(n_complete, None)):
            expected = np.arange(n_donors)[part]
            np.testing.assert_array_equal(np.sort(order[part]), expected)
    np.testing.assert_array_equal(blinding.order(1), orders[1])  # the same when it comes again
    if n_donors > 100:
        # Above 2^16 donors, tiles of 256 stand in the same 2^16 of a row: as many draws as tiles.
        draws = n_complete / (256 if n_complete > 2**16 else 1)
        for one in range(3):
            ranks = np.corrcoef(orders[one][:n_complete], orders[one - 1][:n_complete])[0, 1]
            assert abs(ranks) < 6 / np.sqrt(draws)
    assert not np.array_equal(secret_order(SEED, 100), secret_order(SEED[::-1], 100))


@pytest.mark.parametrize("n_complete", [0, 400])
def test_blinded_terms_are_those_of_the_formula(n_complete):
    """Against the same numbers drawn from the stream by hand, in extended steps."""
    n, units = 1000, Units(30, 3, 40)
    rng = np.random.default_rng(0)
    others = n - n_complete
    distance, weight = rng.random(n) * 10, rng.integers(0, 4, 1 + others).astype(np.uint16)
    terms, weights = np.empty(n, dtype=np.int64), np.empty(1 + others, dtype=np.int64)
    blinding = Blinding(SEED, 20, n, n_complete, units)
    order = blinding.blind(5, distance, weight, terms, weights)
    width = 3 + others + -(-(2 * n + n // 256) // 4)
    raw = stream(SEED, "fknn rows", (20, width))[5]
    u = (raw[: 3 + others] >> np.uint64(12)).astype(float) / 2.0**52
    c, a, t = 2 ** (8 * u[0] - 4), u[1] * 2.0**3, 2 ** (8 * u[2:])
    of_donor = np.maximum(np.arange(n) - n_complete + 1, 0)  # the weight and factor of each
    own = np.concatenate([weight[:1], weight[1 + order[n_complete:] - n_complete]])
    expected = t[of_donor] * c * (distance[order] + a * own[of_donor]) * 2.0**30
    np.testing.assert_allclose(terms, np.floor(expected), rtol=1e-12, atol=1)
    np.testing.assert_allclose(weights, np.floor(t * own * 2.0**40), rtol=1e-12, atol=1)
    if not n_complete:
        assert 1 <= t.min() < 1.05
        assert 245 < t.max() < 256
        # Logarithms are uniform: mean 4 and variance 64/12, each to four standard errors.
        assert abs(np.log2(t).mean() - 4) < 4 * np.sqrt(64 / 12 / n)
    # The party whose turn it is fills low bits, and changes nothing else.
    for number, most in ((5 % 3, 5), (0, 0)):
        again, low = np.empty_like(terms), np.empty_like(weights)
        Blinding(SEED, 20, n, n_complete, units, 3, number).blind(5, distance, weight, again, low)
        assert 0 <= (low - weights).min() <= (low - weights).max() == most
        assert 0 <= (again - terms).min() <= (again - terms).max() < (2**11 if most else 1)


def test_halves_make_up_the_whole():
    terms = np.array([0, 1, 2**31 - 1, 2**31, 2**62 - 1, -1, -(2**40) - 5])
    high, low = halves(terms)
    np.testing.assert_array_equal(high.astype(np.int64) * 2**31 + low.astype(np.int64), terms)
    assert 0 <= low.min() <= low.max() < 2**31


N = 60


def all_lack_a_cell(n=N):
    """Three parties, every row lacks a cell somewhere, so all are imputed and all are donors."""
    rng = np.random.default_rng(4)
    factor = rng.normal(size=(n, 2))
    tables = {
        name: pd.DataFrame(factor @ rng.normal(size=(2, 3)) + rng.normal(size=(n, 3)))
        for name in ("bank", "court", "shop")
    }
    tables["shop"][2] = (tables["shop"][2] > 0) * 1.0
    holes = rng.random((n, 3)) < 0.3
    holes[~holes.any(axis=1), 0] = True
    tables["bank"] = tables["bank"].mask(holes)
    return {name: table.add_prefix(name) for name, table in tables.items()}


def watch(tables):
    """Run in masked mode; return what the server sees, and what only the parties know."""
    seeds, transcript, finish = set(), [], FKNNParty.finish

    @functools.wraps(finish)  # a step, too
    def spy(self, *args, **kwargs):
        seeds.add(self.group_key.seed)
        return finish(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FKNNParty, "finish", spy)
        strategy = FKNN(n_neighbors=3, weighting="exact", standardize=False)
        simulate(strategy, tables, transcript=transcript)
    (seed,) = seeds
    seen, asked, terms = [], None, []
    for record in transcript:
        if record.direction == "down":
            asked = decode(record.content, ARGUMENTS)
            step = str(read_envelope(record.content)["step"])
        elif step == "impute":
            terms.append(decode(record.content, SUMS))
            if len(terms) == len(tables):
                if "distance" in terms[0]:
                    total = private_sum.combine(terms, "masked", 32)
                    seen.append((np.asarray(asked["rows"]), total["distance"], total["weight"]))
                terms = []
    return SimpleNamespace(
        places=np.concatenate([places for places, _, _ in seen]),
        distance=np.vstack([distance for _, distance, _ in seen]),
        weight=np.vstack([weight for _, _, weight in seen])[:, 1:],  # no donor is complete
        order=secret_order(seed, N),
        orders=Blinding(seed, N, N, 0, Units(0, 0, 0)),
    )


def seen_distances(run):
    return np.where(run.weight > 2**20, run.distance / np.maximum(run.weight, 1), np.nan)


def undone(run, values):
    """What was seen, with the parties' secrets: by aligned row and donor."""
    found = np.full((N, N), np.nan)
    for place, row in zip(run.places, values, strict=True):
        found[run.order[place], run.order[run.orders.order(int(place))]] = row
    return found


@pytest.fixture(scope="module")
def tables():
    return all_lack_a_cell()


@pytest.fixture(scope="module")
def truth(tables):
    _, total, weights = summed_distances(tables, "exact")
    np.fill_diagonal(total, np.nan)
    return SimpleNamespace(distance=total / weights, weight=weights)


@pytest.fixture(scope="module")
def default(tables):
    return watch(tables)


def test_what_is_seen_is_affine_in_the_distances(default, truth):
    """The view is read rightly: with the parties' secrets undone, each row is ``c (D/W + a)``."""
    found = undone(default, seen_distances(default))
    scales, shifts = [], []
    for i in range(N):
        other = np.arange(N) != i
        c, shifted = np.polyfit(truth.distance[i, other], found[i, other], 1)
        fitted = c * truth.distance[i, other] + shifted
        np.testing.assert_allclose(found[i, other], fitted, rtol=1e-9)
        scales.append(c)
        shifts.append(shifted / c)
    assert np.ptp(np.log2(scales)) > 5  # of 8 possible
    mean = np.nanmean(truth.distance)
    assert 0 < min(shifts) < 4 * mean < max(shifts)  # drawn: the smallest of 60 is rarely above
    assert np.isnan(found.diagonal()).all()  # no row is a donor to itself


def r_squared_of_span(distances, columns, rank):
    """R2 of each column on the leading directions of double-centred distances, by row."""
    filled = np.where(np.isnan(distances), np.nanmean(distances), distances)
    centred = filled - filled.mean(axis=0) - filled.mean(axis=1, keepdims=True) + filled.mean()
    directions = np.linalg.svd(centred)[2][:rank].T
    values = columns - columns.mean(axis=0)
    fitted = directions @ (directions.T @ values)
    return 1 - ((values - fitted) ** 2).sum(axis=0) / (values**2).sum(axis=0)


def test_double_centring_finds_no_column(tables, truth, default):
    columns = np.hstack([tables[name].to_numpy() for name in ("court", "shop")])
    assert r_squared_of_span(truth.distance, columns, 9)[:5].min() > 0.8  # the last one is 0 or 1
    view = seen_distances(default)
    by_place = columns[default.order]
    chance = 9 / N
    for guess in (view, np.sort(view, axis=1)):
        for values in (columns, by_place):
            assert r_squared_of_span(guess, values, 9).max() < chance + 0.35
    # Hardly what a row's own distances are like: their mean in units of their spread. Blinded ones
    # keep a correlation of -0.4 with it on average, 0.1 more or less from run to run.
    shape = np.nanmean(view, axis=1) / np.nanstd(view, axis=1)
    outlying = np.nanmean(truth.distance, axis=1)[default.order[default.places]]
    assert abs(np.corrcoef(shape, outlying)[0, 1]) < 0.8


def test_blinded_weights_are_no_fingerprint(truth, default):
    found = undone(default, default.weight.astype(float))
    other = ~np.eye(N, dtype=bool)
    weights, blinded = np.log2(truth.weight[other]), np.log2(found[other])
    assert len(np.unique(truth.weight[other])) > 2
    assert np.corrcoef(weights, blinded)[0, 1] ** 2 < 0.05
    # Open ones would be: most rows are the only ones with their weights.
    rows = {tuple(np.sort(row)) for row in truth.weight}
    assert len(rows) > 3
    # Equal terms of two parties would add up to even numbers.
    sums = [values[default.weight > 2**20] for values in (default.weight, default.distance)]
    for total in sums:
        for factor in (2, 3, 4):
            assert abs(np.mean(total % factor == 0) - 1 / factor) < 0.05  # 6 standard errors
    # Large terms would leave zeros behind them.
    large = sums[1][sums[1] > 2**56]
    assert len(large) > 40
    assert abs(np.mean(large % 4 == 0) - 1 / 4) < 0.35
