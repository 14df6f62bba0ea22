"""policy.blur: noise on each number that a node helps to open, whatever the method asks for."""

import logging
import threading

import numpy as np
import pandas as pd
import pytest
from repeating import every_sum_twice

from flwr_vertical import simulate
from flwr_vertical.errors import PartyError
from flwr_vertical.products import opened as opened_module
from flwr_vertical.products.noise import Blur, PrivateRows, room_for
from simulations.attacks.recording import record
from simulations.attacks.suite import attack_run
from strategies.glm import VerticalGLM
from strategies.least_squares import CompleteCase, MeanImpute
from strategies.vfem import VFEM

N = 900
KNOWN = {"alignments": "plain"}  # private alignment takes long, and has no say here
IDS = [f"s{i:04}" for i in range(N)]


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


def tables(width=6, seed=0):
    rng = np.random.default_rng(seed)
    made = {}
    for j, name in enumerate(("bank", "court", "tax")):
        columns = [f"{name}{c}" for c in range(width)]
        made[name] = pd.DataFrame(rng.normal(size=(N, width)) * 10.0**j, IDS, columns)
    y = made["bank"].sum(axis=1) + 0.1 * made["court"]["court0"] + 3 * rng.normal(size=N)
    return made, y.rename("y")


def blurred(size, *names):
    """Policies by party."""
    parties = ("bank", "court", "tax")
    return {name: KNOWN | ({"blur": size} if name in names else {}) for name in parties}


def run(strategy, size=0.0, names=("bank", "court", "tax"), given=None, **options):
    made, y = given or tables()
    given = {"policy": blurred(size, *names), "alignment": "plain", "progress": False}
    return simulate(strategy, made, y, **given, **options)


@pytest.fixture(scope="module")
def opened():
    """Moments as the server has them: exact, and with one party's blur of 2."""
    found, lock, assemble = [], threading.Lock(), opened_module.assemble

    def watching(*args):
        moments = assemble(*args)
        with lock:
            found.append((args[0], moments))
        return moments

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened_module, "assemble", watching)
        for size in (0.0, 2.0):
            run(CompleteCase(), size, ("court",))
    return found


def test_each_number_has_the_noise_that_the_owner_states_and_no_other(opened):
    (_, exact), (told, noisy) = opened
    scale = {name: np.asarray(told[name]["scale"]) for name in told}
    court, others = slice(6, 12), np.r_[0:6, 12:18]
    every = np.concatenate([scale[name] for name in ("bank", "court", "tax")])
    gap = (noisy["products"] - exact["products"])[0] / np.outer(every, every)
    assert np.abs(gap[np.ix_(others, others)]).max() < 1e-5
    blocks = [
        gap[court, court][np.triu_indices(6)],
        gap[court, :6].ravel(),
        gap[court, 12:].ravel(),
    ]
    blocks.append((noisy["sums"] - exact["sums"])[0, court] / scale["court"])
    unit = np.sqrt(np.mean(noisy["vectors_variance"][0, court, 0] / (2 * scale["court"]) ** 2))
    blocks.append(
        (noisy["with_vectors"] - exact["with_vectors"])[0, court, 0] / scale["court"] / unit
    )
    values = np.concatenate(blocks) / 2.0
    assert len(values) == 21 + 36 + 36 + 6 + 6
    assert 0.7 < values.std() < 1.35
    assert np.abs(values).min() > 1e-6
    # A row's size is at most the scale, and above half of it.
    rms = np.sqrt(np.diag(exact["products"][0])[court] / N)
    assert (rms <= scale["court"]).all()
    assert (scale["court"] < 2 * rms).all()
    # What the server is told of its size is what it is.
    variance = noisy["products_variance"][0] / np.outer(every, every) ** 2
    np.testing.assert_allclose(variance[court, court], 4.0)
    np.testing.assert_allclose(variance[court, :6], 4.0)
    assert (variance[np.ix_(others, others)] == 0.0).all()


@pytest.mark.parametrize("strategy", [CompleteCase(), MeanImpute(), VerticalGLM(), VFEM()])
def test_estimates_hardly_change_and_the_result_says_so(strategy):
    plain, soft = run(strategy), run(strategy, 1.0)
    gap = (soft.coefficients["estimate"] - plain.coefficients["estimate"]).abs()
    share = (gap / plain.coefficients["std_error"]).max()
    assert 1e-6 < share < 1.0
    (said,) = (note for note in soft.notes if "policy.blur): 'bank' 1, 'court' 1, 'tax' 1" in note)
    assert "in the smallest group, of 900 rows, its standard deviation is 3.3 % of" in said
    assert any(
        "the standard errors" in note and "noise of policy.blur" in note for note in soft.notes
    )
    assert soft.ledger.rounds == plain.ledger.rounds


def test_standard_errors_of_least_squares_grow_by_the_noise():
    plain, some, much = (run(CompleteCase(), size) for size in (0.0, 1.0, 8.0))
    ratio = (much.coefficients["std_error"] / plain.coefficients["std_error"])[1:]
    assert (ratio > 1.02).all()
    assert ((some.coefficients["std_error"] / plain.coefficients["std_error"])[1:] < 1.02).all()


def test_the_same_again_has_the_same_bytes():
    made, y = tables(width=1)
    with every_sum_twice() as seen:
        run(CompleteCase(), 1.0, given=(made, y))
    assert "open_products" in seen.steps
    assert seen.differences == []


@pytest.mark.parametrize(
    ("strategy", "options", "positive"),
    [
        (VerticalGLM(family="binomial"), {}, True),
        (CompleteCase(), {"aggregation": "ckks"}, False),
    ],
)
def test_what_has_no_noise_is_refused_by_name(strategy, options, positive):
    if options:
        pytest.importorskip("tenseal")
    made, y = tables(width=1)
    y = (y > 0).astype(float) if positive else y
    match = r"'court' refuses by policy\.blur: .* allowed: noise of 0\.5 row sizes"
    with pytest.raises(PartyError, match=match):
        run(strategy, 0.5, ("court",), (made, y), **options)


def test_a_blurred_subset_sum_names_nobody():
    """One row of a flag, and honest labels: exact sums single it out, blurred ones do not."""
    rng = np.random.default_rng(2)
    flag = (np.arange(N) == 77).astype(float)
    made = {
        "bank": pd.DataFrame({"flag": flag, "x": rng.normal(size=N)}, IDS),
        "court": pd.DataFrame({"z": rng.normal(size=N)}, IDS),
    }
    y = pd.Series(rng.normal(size=N), IDS, name="y")

    def found(blur):
        # The owner has lowered its minimum, so that the flag is told of at all.
        policy = {**KNOWN, "min-rows": 1, "blur": blur}
        run_ = record(CompleteCase(), made, y, "masked", policy=policy, alignment="plain")
        return [f.cells for f in attack_run(run_, ["subset sums"]) if f.view == "server"]

    assert max(found(0.0)) > 0.0
    assert max(found(1.0)) == 0.0


def test_room_for_noise_follows_from_its_size():
    present = np.ones((1, 2), dtype=bool)
    assert room_for(Blur(1.0).levels([2, 2], present, 1), 1000) == 0
    assert room_for(Blur(200.0).levels([2, 2], present, 1), 1000) == 2
    floor = PrivateRows(1e6, 1e-3, at_least=5.0).levels([1, 1], present, 1)
    np.testing.assert_array_equal(floor, 5.0)
