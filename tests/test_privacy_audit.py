"""Audit of the real transcript: every message between the server and the nodes of an FKNN run."""

import functools

import numpy as np
import pandas as pd
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from vfem_runs import recorded

from strategies.fknn import FKNN

NAMES = ["bank", "court", "shop"]
N = 60


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


@functools.cache
def run_of(mode, **settings):
    settings = {"n_neighbors": 3, "weighting": "exact", "standardize": False} | settings
    agreed = {name: {"exchanges": "distances"} for name in NAMES}
    run = recorded(make_tables(), None, mode, configs=agreed, strategy=FKNN(**settings))
    assert sum(m.up for m in run.messages) * 2 == len(run.messages)
    return run


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


def holds(content, secrets):
    data = b"|".join(pieces(content))
    return sum(secret in data for secret in secrets)


def test_no_part_of_the_arbiter_s_secret_travels():
    run = run_of("ckks")
    secret = run.states["arbiter"]["sum.ckks-secret"]
    public = run.states["bank"]["sum.ckks-public"]
    windows = [secret[i : i + 64] for i in range(0, len(secret) - 64, 512)]
    windows = [w for w in windows if len(set(w)) > 16 and w not in public]
    assert len(windows) > 50  # most of the serialised secret is the key itself
    assert not any(holds(m.content, windows) for m in run.messages)
    assert not any("sum.ckks-secret" in run.states[party] for party in NAMES)


def test_under_ckks_terms_are_ciphertexts_and_the_arbiter_has_no_table():
    for m in run_of("ckks").messages:
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
def test_the_arbiter_releases_ranks_and_no_distance(weights):
    run = run_of("ckks", weights=weights)
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


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_what_parties_say_openly_is_in_the_disclosure_table(mode):
    run = run_of(mode)
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
