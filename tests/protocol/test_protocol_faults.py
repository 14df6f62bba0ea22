"""Who dies, when, in which mode, with a journal or with snapshots: the numbers stay the same."""

import numpy as np
import pytest
from resuming import Place, ServerKilled, assert_same
from training import TorchTrainer, Trainer, TrainingPlace, assert_same_model

STEPS = 7  # a snapshot after three and six, and an end between two


def make_place(folder, kind, mode):
    if kind == "journal":
        return Place(folder, mode=mode)
    method = TorchTrainer if kind == "torch" else Trainer
    return TrainingPlace(folder, mode, lambda: method(steps=STEPS), every=3)


def assert_equal(found, expected, kind, mode):
    """Compare to the bit; the noise of ckks is new in each run."""
    if kind == "journal":
        assert_same(found, expected, exact=mode != "ckks")
    elif mode == "ckks":
        np.testing.assert_allclose(found.result.model, expected.result.model, atol=1e-4)
    else:
        assert_same_model(found, expected)


# By who dies: the lives of a server, each with what is lost in it, if it happens at a round.
FATES = {
    "server before sending": lambda at: [{"die_before": at}, {}],
    "server after answers": lambda at: [{"die_after": at}, {}],
    "server thrice": lambda at: [{"die_after": at}, {"die_before": 3}, {"die_after": 2}, {}],
    "party before its step": lambda at: [{"lose": {at: "before"}}],
    "party after its step": lambda at: [{"lose": {at: "after"}}],
    "party that moves, twice": lambda at: [{"lose": {at: "moved", at + 2: "moved"}}],
    "an answer alone": lambda at: [{"lose": {at: "lost"}}],
    "party and server": lambda at: [
        {"lose": {at: "moved"}, "die_after": at + 1}, {"lose": {4: "after"}}
    ],
}  # fmt: skip
# By what is kept: the mode, and how many rounds the places at which somebody dies are apart.
PLACES = [("journal", "masked", 5), ("snapshots", "masked", 5)] + [
    pytest.param(*place, marks=pytest.mark.slow)
    for place in (
        ("journal", "masked", 2), ("journal", "plain", 5), ("journal", "ckks", 9),
        ("snapshots", "plain", 5), ("snapshots", "ckks", 9), ("torch", "masked", 5),
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Unbroken runs by place, made once: what they give, and in how many rounds."""
    found = {}

    def run(kind, mode):
        if (kind, mode) not in found:
            if kind == "torch":
                pytest.importorskip("torch")
            place = make_place(tmp_path_factory.mktemp("unbroken"), kind, mode)
            found[kind, mode] = place.run(), place.rounds
            assert place.files() == []
        return found[kind, mode]

    return run


@pytest.mark.parametrize("who", FATES)
@pytest.mark.parametrize(("kind", "mode", "every"), PLACES)
def test_whoever_dies_the_numbers_stay_the_same(tmp_path, unbroken, kind, mode, every, who):
    expected, rounds = unbroken(kind, mode)
    first = 2 + (len(who) + len(mode)) % every  # another one for each fate and mode
    for at in range(first, rounds - 2, every):
        place = make_place(tmp_path / str(at), kind, mode)
        place.start["timeout"] = 0.8 if who == "an answer alone" else 5
        lives = FATES[who](at)
        for number, faults in enumerate(lives):
            try:
                found = place.run(resume=number > 0, run_id=1 + number, **faults)
                break
            except ServerKilled:
                assert number < len(lives) - 1
        assert_equal(found, expected, kind, mode)
        assert place.files() == []
        greeted = (found.result.ledger.to_frame()["step"] == "resume").sum()
        if kind == "journal" and mode != "ckks" and len(lives) == 1:
            # A node that is silent is asked again, and greeted only if that does not help.
            assert greeted == (0 if who == "an answer alone" else len(lives[0]["lose"]))
