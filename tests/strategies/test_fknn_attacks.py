"""What the server of an FKNN run could make of what it sees: attacks on recorded transcripts.

Each attack is first run where it is known to succeed: on the plain sums of distances, or on a run
with ``weights="distance"``, whose distances are scaled and permuted but not shifted.
"""

import functools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from oracles.fknn_unblinded import summed_distances

from flwr_vertical import simulate
from flwr_vertical.protocol import decode, private_sum
from flwr_vertical.protocol.messages import ARGUMENTS, SUMS, read_envelope
from strategies.fknn import FKNN
from strategies.fknn.blinding import Blinding, Units, secret_order
from strategies.fknn.party import FKNNParty

N = 60


def make_tables(n=N):
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


def watch(tables, **settings):
    """Run in masked mode; return what the server sees, and what only the parties know."""
    seeds, transcript, finish = set(), [], FKNNParty.finish

    @functools.wraps(finish)  # a step, too
    def spy(self, *args, **kwargs):
        seeds.add(self.group_key.seed)
        return finish(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FKNNParty, "finish", spy)
        simulate(
            FKNN(n_neighbors=3, weighting="exact", standardize=False, **settings),
            tables,
            progress=False,
            transcript=transcript,
        )
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
        weight=np.vstack([weight for _, _, weight in seen]),
        order=secret_order(seed, N),
        orders=Blinding(seed, N, N, Units(0, 0, 0), 0),
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
    return make_tables()


@pytest.fixture(scope="module")
def truth(tables):
    _, total, weights = summed_distances(tables, "exact")
    np.fill_diagonal(total, np.nan)
    return SimpleNamespace(distance=total / weights, weight=weights)


@pytest.fixture(scope="module")
def default(tables):
    return watch(tables)


@pytest.fixture(scope="module")
def unshifted(tables):
    return watch(tables, weights="distance")


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
    assert 0 < min(shifts) < mean < max(shifts)
    assert np.isnan(found.diagonal()).all()  # no row is a donor to itself


# -- double centring: the span of all parties' columns --------------------------------------


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
    # Nor what a row's own distances are like: their mean in units of their spread.
    shape = np.nanmean(view, axis=1) / np.nanstd(view, axis=1)
    outlying = np.nanmean(truth.distance, axis=1)[default.order[default.places]]
    assert abs(np.corrcoef(shape, outlying)[0, 1]) < 0.6  # 4.6 standard errors


# -- triples: rows that are donors of each other tell their scales --------------------------


def ratios_from_triples(rows, tolerance=1e-8):
    """Candidates for ``log c_0/c_1`` that a third row confirms, of three rows of ``c D``."""
    logs = [np.log(row[~np.isnan(row)]) for row in rows]
    first, second = logs[0][:, None] - logs[1], logs[1][:, None] - logs[2]
    third = np.sort((logs[0][:, None] - logs[2]).reshape(-1))
    sums = first[:, :, None, None] + second[None, None]
    hit = np.searchsorted(third, sums - tolerance) < np.searchsorted(third, sums + tolerance)
    for b in range(len(logs[1])):
        hit[:, b, b, :] = False  # the same number twice confirms nothing
    found = np.argwhere(hit)
    return first[found[:, 0], found[:, 1]]


@pytest.mark.parametrize("start", [0, 3])
def test_triples_find_no_scale(tables, unshifted, start):
    """Among 60 donors each: without shifts the true ratio is found, with shifts it is not."""
    small = 24  # of each row's donors, those that the attack is about, so that it is fast

    def attack(run):
        values = undone(run, seen_distances(run))
        mine = np.arange(start, start + 3)
        rows = [np.sort(values[i, start : start + small]) for i in mine]
        found = ratios_from_triples(rows)
        distance = summed_distances(tables, "exact")
        plain = distance[1] / distance[2]
        c = [np.polyfit(np.delete(plain[i], i), np.delete(values[i], i), 1)[0] for i in mine]
        return np.abs(found - np.log(c[0] / c[1])).min(initial=np.inf), len(np.unique(found))

    assert attack(unshifted)[0] < 1e-6
    for run in (watch(tables), watch(tables)):
        nearest, _ = attack(run)
        assert nearest > 1e-6


# -- weights --------------------------------------------------------------------------------


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
