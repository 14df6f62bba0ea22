"""Audit of the real transcript: every message between the server and the nodes of an FKNN run.

A detector looks for a party's own values in what passes the server. It is shown to fire where
there is something to find (``plain`` mode, where the terms are open), so its silence means
something.
"""

import numpy as np
import pandas as pd
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from vfem_runs import recorded

from flwr_vertical import Table
from flwr_vertical.crypto import FixedPoint
from flwr_vertical.protocol import encode
from strategies.fknn import FKNN
from strategies.fknn.blinding import Blinding, Units, secret_order
from strategies.fknn.distances import make_features, party_terms, squared_distances
from strategies.fknn.party import FKNNParty

NAMES = ["bank", "court", "shop"]
N = 60
# 60 x 60 pairs: the correlation of independent values has a standard deviation of 1/60, so 0.15
# is nine of them; the chi-square of uniform bytes has 255 degrees of freedom and a standard
# deviation of 22.6, so 450 is more than eight of them above its mean.
CORRELATION, CHI_SQUARE = 0.15, 450.0


def make_tables(seed=0):
    rng = np.random.default_rng(seed)
    tables = {}
    for name in NAMES:
        frame = pd.DataFrame(
            rng.normal(size=(N, 3)) * [1, 10, 0.1], index=[f"s{i}" for i in range(N)]
        ).add_prefix(name)
        tables[name] = frame.mask(rng.random(frame.shape) < 0.25)
    # Every row needs imputing somewhere, so all pairs travel.
    tables["bank"].loc[tables["bank"].notna().all(axis=1), "bank0"] = np.nan
    tables["shop"] = tables["shop"].drop(["s3", "s17"])
    return tables


def record_run(mode, **settings):
    """Run FKNN, its order of rows known; return messages, states and the seed of its blinding."""
    seeds = set()

    class Spied(FKNNParty):
        def finish(self, *args, **kwargs):
            seeds.add(self.group_key.seed)  # erased by this step
            return super().finish(*args, **kwargs)

    class Watched(FKNN):
        party = Spied

    settings = {"n_neighbors": 3, "weighting": "exact", "standardize": False} | settings
    agreed = {name: {"exchanges": "distances"} for name in NAMES}
    run = recorded(make_tables(), None, mode, configs=agreed, strategy=Watched(**settings))
    assert sum(m.up for m in run.messages) * 2 == len(run.messages)
    run.seed = seeds.pop()
    return run


@pytest.fixture(scope="module")
def runs():
    made = {}

    def get(mode, **settings):
        key = (mode, *sorted(settings.items()))
        if key not in made:
            made[key] = record_run(mode, **settings)
        return made[key]

    return get


def pieces(content):
    """Every piece of data in a message, as bytes."""
    for record in content.values():
        if isinstance(record, ArrayRecord):
            yield from (array.data for array in record.values())
        elif isinstance(record, ConfigRecord):
            for value in record.values():
                for item in value if isinstance(value, list) else [value]:
                    if isinstance(item, bytes):
                        yield item
                    elif isinstance(item, str):
                        yield item.encode()
                    else:
                        yield np.asarray(item).tobytes()


def secrets_of(table):
    """Eight bytes for every observed value of a table: as float64 and as fixed point."""
    values = table.to_numpy(dtype=float)
    values = values[~np.isnan(values)]
    fixed = FixedPoint().encode(values, 3)
    found = [v.tobytes() for v in values] + [v.tobytes() for v in fixed]
    return [secret for secret in found if len(set(secret)) > 3]


def holds(content, secrets):
    data = b"|".join(pieces(content))
    return sum(secret in data for secret in secrets)


def true_terms(run, party, places, units):
    """What a party's own blinded terms of a block are before they are protected, in its order."""
    table = Table.of(run.tables[party])
    aligned = table.frame.reindex([f"s{i}" for i in range(N)]).to_numpy(dtype=float)
    kinds = list(table.kinds.values())
    features = make_features(aligned, kinds, [0] * len(kinds), False, np.ones(N, dtype=bool))
    order = secret_order(run.seed, N)
    weighting = run.result.settings["weighting"]
    distance, weight = party_terms(
        *squared_distances(features, order[places], features.donors(order)), weighting
    )
    distance[np.arange(len(places)), places] = weight[np.arange(len(places)), places] = 0
    turn = len(NAMES), NAMES.index(party)
    blinding = Blinding(run.seed, N, N, 0, Units(units[0], units[2], units[1]), *turn)
    weight = np.hstack([np.zeros((len(places), 1), dtype=np.uint16), weight])
    shapes = {"distance": distance.shape, "weight": weight.shape}
    blinded = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
    for i, place in enumerate(places.tolist()):
        blinding.blind(place, distance[i], weight[i], blinded["distance"][i], blinded["weight"][i])
    return blinded


def correlations(array, truth):
    """Correlation with the truth of an array, read in each way that somebody may read it."""
    readings = [array.astype(float), array.view(f"i{array.itemsize}").astype(float)]
    if array.dtype == np.uint64:
        readings.append(FixedPoint().decode(array))
        # As float64, random bits span 600 orders of magnitude: their ranks can be correlated.
        raw = np.nan_to_num(array.view(np.float64)).reshape(-1)
        readings.append(raw.argsort().argsort().astype(float))
    flat = [reading.reshape(-1) for reading in readings]
    return np.abs([np.corrcoef(x, truth.reshape(-1))[0, 1] for x in flat if x.std() > 0])


def chi_square(array):
    counts = np.bincount(np.frombuffer(array.tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return ((counts - expected) ** 2 / expected).sum()


def terms_up(run):
    """Each party's summands with the true terms behind them, over all blocks of the run."""
    asked = {}
    for m in run.messages:
        if not m.up and m.step == "impute":
            asked[m.node] = m.arguments
        elif m.up and m.step == "impute" and "distance" in m.sums:
            arguments = asked[m.node]
            truth = true_terms(run, m.node, arguments["rows"], arguments["units"])
            for name in ("distance", "weight"):
                yield m.node, name, m.sums[name], truth[name]


def test_the_detector_of_terms_reads_fixed_point_and_counts():
    """What an encoding without masks, or masks of a few bits only, would show."""
    rng = np.random.default_rng(1)
    truth = rng.exponential(size=(N, N))
    fixed = FixedPoint().encode(truth, 3)
    for shift in (0, 5):  # the server may scale
        assert correlations(fixed << np.uint64(shift), truth).max() > 0.99
    weak = fixed + rng.integers(0, 2**32, size=fixed.shape, dtype=np.uint64)
    assert correlations(weak, truth).max() > CORRELATION
    assert chi_square(weak) > CHI_SQUARE
    uniform = rng.integers(0, 2**64, size=fixed.shape, dtype=np.uint64)
    assert correlations(fixed + uniform, truth).max() < CORRELATION
    assert chi_square(fixed + uniform) < CHI_SQUARE


def test_plain_terms_are_what_the_audit_takes_them_for(runs):
    """The contrast: without masks the detector finds every party's blinded distances."""
    seen = set()
    for party, name, array, truth in terms_up(runs("plain")):
        np.testing.assert_allclose(array, truth, rtol=1e-12)
        assert correlations(array, truth).max() > 0.999
        assert chi_square(array) > 2 * CHI_SQUARE
        seen.add((party, name))
    assert seen == {(party, name) for party in NAMES for name in ("distance", "weight")}


@pytest.mark.parametrize("weighting", ["exact", "party-mean"])
def test_masked_terms_tell_nothing(runs, weighting):
    run, count = runs("masked", weighting=weighting), 0
    for party, name, array, truth in terms_up(run):
        assert array.dtype == np.uint64
        assert array.shape == truth.shape
        assert correlations(array, truth).max() < CORRELATION, (party, name)
        assert chi_square(array) < CHI_SQUARE, (party, name)
        count += 1
    assert count == 6


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_no_message_holds_a_value_of_a_table(runs, mode):
    run = runs(mode)
    for party in NAMES:
        given, completed = run.tables[party], run.outputs[party]
        secrets = secrets_of(given) + secrets_of(completed)
        assert len(secrets) > 200
        for m in run.messages:
            assert holds(m.content, secrets) == 0, (party, m.node, m.step)


def test_the_detector_of_values_finds_one_value_in_a_message():
    table = make_tables()["bank"]
    value = float(table["bank1"].dropna().iloc[0])
    secrets = secrets_of(table)
    for payload in ({"x": np.array([0.5, value])}, {"x": [1.0, value]}, {"x": value}):
        assert holds(encode(payload, "p"), secrets) == 1
    assert holds(encode({"x": FixedPoint().encode([value], 3)}, "p"), secrets) == 1
    assert holds(encode({"x": np.array([0.5, 0.25])}, "p"), secrets) == 0


def test_private_keys_stay_where_they_are(runs):
    run = runs("masked")
    keys = [run.states[party]["sum.private-key"] for party in NAMES]
    assert len({*keys}) == 3
    for m in run.messages:
        assert holds(m.content, [*keys, *(key.hex().encode() for key in keys)]) == 0
    # The public ones do travel, so the search looks at the right place.
    public = run.states["bank"]["sum.public-keys"]
    assert any(holds(m.content, public) for m in run.messages)


def contexts_in(run, ts):
    """Every serialised TenSEAL context in the transcript."""
    for m in run.messages:
        for data in pieces(m.content):
            if len(data) > 10_000:
                try:
                    yield m, ts.context_from(data)
                except (ValueError, RuntimeError):
                    continue


def test_no_payload_holds_a_secret_key(runs):
    ts = pytest.importorskip("tenseal")
    run = runs("ckks")
    found = list(contexts_in(run, ts))
    assert {(m.up, m.node) for m, _ in found} == {
        (True, "arbiter"), *((False, party) for party in NAMES),
    }  # fmt: skip
    assert not any(context.is_private() for _, context in found)
    # The detector knows a secret key when it sees one.
    secret = run.states["arbiter"]["sum.ckks-secret"]
    assert ts.context_from(secret).is_private()


def test_no_part_of_the_arbiter_s_secret_travels(runs):
    run = runs("ckks")
    secret = run.states["arbiter"]["sum.ckks-secret"]
    public = run.states["bank"]["sum.ckks-public"]
    windows = [secret[i : i + 64] for i in range(0, len(secret) - 64, 512)]
    windows = [w for w in windows if len(set(w)) > 16 and w not in public]
    assert len(windows) > 50  # most of the serialised secret is the key itself
    assert not any(holds(m.content, windows) for m in run.messages)
    assert not any("sum.ckks-secret" in run.states[party] for party in NAMES)


def test_under_ckks_terms_are_ciphertexts_and_the_arbiter_has_no_table(runs):
    for m in runs("ckks").messages:
        if not m.up:
            if m.node == "arbiter" and m.step != "hello":
                assert set(m.arguments) <= {"width", "errors", "weighted"}
                assert not m.updates
            continue
        arrays = [v for v in (m.values | m.sums).values() if isinstance(v, np.ndarray)]
        assert all(array.dtype.kind != "f" for array in arrays), (m.node, m.step)
        terms = {k: v for k, v in m.sums.items() if not k.startswith("shape:")}
        for block in (block for blocks in terms.values() for block in blocks):
            assert m.node == "arbiter" or (isinstance(block, bytes) and len(block) > 10_000)
        if m.step == "reveal":  # sums of flags
            assert set(m.values) == {"needs", "donor", "magnitude"}
            for value in m.values.values():
                assert value.dtype == np.int64
                assert 0 <= value.min() <= value.max() <= len(NAMES)


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_the_arbiter_releases_ranks_and_no_distance(runs, weights):
    run = runs("ckks", weights=weights)
    released = [m for m in run.messages if m.up and m.node == "arbiter" and m.step == "rank"]
    # Distances of the one block; how short its lists were; the same of the whole lists.
    assert len(released) == 3
    names = set()
    for m in released:
        assert not m.sums
        for name, value in m.values.items():
            names.add(name)
            if name in ("neighbours", "ranks", "counts"):
                assert value.dtype == np.int32
                assert value.min() >= -1
                assert value.max() <= N - (name == "neighbours")
            elif name == "short":
                assert value.dtype == np.uint8
                assert set(np.unique(value)) <= {0, 1}
            else:
                assert name == "weights"
                # Relative to the farthest donor listed: 1 for it, and more for all others.
                first = np.cumsum(m.values["counts"]) - m.values["counts"]
                np.testing.assert_array_equal(np.minimum.reduceat(value, first), 1.0)
    weighted = {"weights"} if weights == "distance" else set()
    assert names == {"neighbours", "ranks", "counts", "short"} | weighted


SETTINGS = {"n_neighbors", "weighting", "weights", "standardize", "complete_blocks", "max_donors"}
PAIR_KEYS = {"nonce", "names", "publics", "identities", "signatures"}
KEYS = {
    "plain": set(),
    "masked": {"sum.peers", "sum.public-keys", "sum.nonce"},
    "ckks": {"sum.ckks-public"},
}


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_parties_get_what_the_disclosure_table_says(runs, mode, weights):
    """Keys, positions, settings, rows and donors with gaps, units, ranked donors; no distance."""
    run = runs(mode, weights=weights)
    got = {}
    for m in run.messages:
        if not m.up and m.node != "arbiter":
            got.setdefault(m.step, set()).update(m.arguments)
            got.setdefault(f"{m.step} updates", set()).update(m.updates)
            assert not m.sums
    ranked = {"done", "neighbours", "ranks", "counts", "width", "shown"}
    ranked |= {"weights"} if weights == "distance" else set()
    assert {name: told for name, told in got.items() if told} == {
        "share_ids": {"normalise"},
        "share_ids updates": KEYS[mode] | {"n-parties"},
        "pair_key": {"nonce"},
        "pair_key updates": {"positions", "n_samples", "ids"},
        "seal_group_seed": PAIR_KEYS,
        "prepare": SETTINGS | PAIR_KEYS | {"owner", "sealed"},
        "impute": {"rows", "units", "split", "n_listed", "planned", "lacking"} | ranked,
        "finish": {"units"},
    }
    # Only the party that lacks samples gets the IDs of all.
    assert {m.node for m in run.messages if "ids" in m.updates} == {"shop"}
    for m in run.messages:
        if "neighbours" in m.arguments:
            assert m.arguments["neighbours"].dtype == np.int32
            # A list, not a ranking of everybody
            assert m.arguments["counts"].max() < N
        if "units" in m.arguments:
            assert all(isinstance(exponent, int) for exponent in m.arguments["units"])


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_what_parties_say_openly_is_in_the_disclosure_table(runs, mode):
    run = runs(mode)
    said = {}
    for m in run.messages:
        if m.up and m.node != "arbiter":
            said.setdefault(m.step, set()).update(m.values)
    key = {"public-key"} if mode == "masked" else set()
    assert said == {
        "hello": {"party", "role", "version"} | key,
        "share_ids": {"ids"},
        "pair_key": {"public"},
        "seal_group_seed": {"court", "shop"},
        "prepare": {"fitted"},
        "impute": set(),
        "finish": {"cells_imputed", "cells_with_fewer_donors", "cells_without_neighbour"},
    }
