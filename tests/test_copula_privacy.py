"""Audit of the transcript of VCDS, EVCDS and IEVCDS: what travels, and what does not."""

import numpy as np
import pandas as pd
import pytest
from test_privacy_audit import holds

from flwr_vertical import simulate
from flwr_vertical.protocol import decode, encode
from flwr_vertical.protocol.messages import ARGUMENTS, VALUES, read_envelope
from strategies.copula import EVCDS, IEVCDS, VCDS

N = 300
STRATEGIES = [VCDS(1.0), EVCDS(1.0, rearrange=True), IEVCDS(1.0, iterations=2)]


def make_tables():
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in range(N)]
    bank = pd.DataFrame(rng.normal(size=(N, 2)) * 10, index=ids, columns=["salary", "wealth"])
    court = pd.DataFrame(rng.normal(size=(N, 1)), index=ids, columns=["debt"])
    court["town"] = rng.choice(["Delft", "Atlantis"], size=N)
    labels = pd.Series(rng.normal(size=N), index=ids)
    return {"bank": bank.iloc[20:], "court": court}, labels


def recorded(strategy):
    """The run's messages after alignment, as (direction, step, content)."""
    tables, labels = make_tables()
    records = []
    result = simulate(strategy, tables, labels, progress=False, transcript=records)
    asked, messages = {}, []
    for record in records:
        if record.direction == "down":
            asked[record.node_id] = str(read_envelope(record.content)["step"])
        messages.append((record.direction, asked[record.node_id], record.content))
    return tables, labels, result, messages


def secrets(values):
    """Eight bytes for every value that are not those of a small whole number."""
    found = [np.float64(value).tobytes() for value in values]
    return [secret for secret in found if len(set(secret)) > 3]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_messages_hold_ranks_and_probabilities_only(strategy):
    tables, labels, result, messages = recorded(strategy)
    real = secrets(np.concatenate([tables["bank"].to_numpy().ravel(), tables["court"]["debt"]]))
    label_bytes, made = secrets(labels), secrets(result.tables["bank"].to_numpy().ravel())
    assert len(real) > 800
    words = [name.encode() for name in ("Delft", "Atlantis", "salary", "wealth", "debt", "town")]
    for direction, step, content in messages:
        if step in ("hello", "share_ids"):
            continue
        assert holds(content, real + label_bytes + made + words) == 0, (direction, step)
    seen = {(d, s): decode(c, VALUES if d == "up" else ARGUMENTS) for d, s, c in messages}
    up = seen["up", "perturb"]
    assert set(up) == {
        "ranks", "widths", "flips", "epsilon_margins", "cuts", "n_cuts", "exact_range", "rare",
        "seeded", "n_bounded", "atoms", "n_atoms", "n_resolved", "n_recast", "n_like_ids",
        "name_chance", "least_epsilon",
    }  # fmt: skip
    assert up["ranks"].dtype == np.int32
    assert set(seen["up", "synthesise"]) == set()
    assert set(seen["down", "synthesise"]) == {"levels"}
    assert set(seen["down", "perturb"]) == {
        "epsilon", "budget", "rank_share", "margin_noise", "bounds", "impute", "margin",
        "resolution", "min_level", "rearrange", "nominal",
    }  # fmt: skip


def test_the_detector_finds_what_it_looks_for():
    value = make_tables()[0]["bank"]["salary"].iloc[0]
    assert holds(encode({"x": np.array([value])}, "p"), secrets([value])) == 1
    assert holds(encode({"x": ["salary"]}, "p"), [b"salary"]) == 1


def test_each_party_gets_its_own_columns_only():
    *_, messages = recorded(VCDS(1.0))
    sizes = [
        decode(content, ARGUMENTS)["levels"].shape
        for direction, step, content in messages
        if (direction, step) == ("down", "synthesise")
    ]
    assert sizes == [(N, 2), (N, 2)]


def test_ranks_that_travel_are_perturbed_as_stated():
    tables, _, result, messages = recorded(VCDS(1.0))
    replies = [
        decode(content, VALUES)["ranks"]
        for direction, step, content in messages
        if (direction, step) == ("up", "perturb")
    ]
    ranks = next(found for found in replies if (found == 0).any())  # the bank lacks samples
    exact = tables["bank"].rank().to_numpy()
    n = len(exact)
    sent = ranks[(ranks > 0).all(axis=1)]
    assert sent.shape == exact.shape
    theta = 1 / (1 + np.exp(0.25))
    shrunk = (n + 1) / 2 + (1 - 2 * theta) * (np.sort(exact[:, 0]) - (n + 1) / 2)
    off = np.sort(sent[:, 0]) - shrunk
    assert np.std(off) < 3 * np.sqrt(n * theta * (1 - theta))
    assert len(np.unique(sent[:, 0])) < n  # exact ranks are all different
    sd = np.sqrt((n - 1) * theta * (1 - theta)) / (1 - 2 * theta)
    bank = next(column for column in result.privacy.columns if column.party == "bank")
    assert bank.quantile_error == pytest.approx(sd / n, rel=1e-3)
