"""A server that deviates: networks, copulas, FedPSG-AR, linear methods answer their protocol alone.

Nodes are unchanged; the server sends other arguments, other keys of the state, or more messages.
"""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from flwr_vertical.errors import PartyError
from flwr_vertical.server.federation import Federation
from strategies.fedpsg.blinding import BlindingSteps
from strategies.linear.masked_means.evaluate import MaskedMeans
from tests.kit import cases


def cheat(monkeypatch, step, change):
    """Have the server change what it sends with a step; `change` gets arguments and a party's."""
    real = Federation._requests

    def requests(self, name, arguments, per_party, *more, **options):
        if name == step:
            arguments = dict(arguments or {})
            per_party = {party: dict(own) for party, own in (per_party or {}).items()}
            change(self, arguments, per_party)
        return real(self, name, arguments, per_party, *more, **options)

    monkeypatch.setattr(Federation, "_requests", requests)


def put(**values):
    return lambda federation, arguments, own: arguments.update(values)


def at_one(key, make):
    """Tell one party something else than the others."""

    def change(federation, arguments, own):
        mine = own.setdefault(federation.parties[0], {})
        mine[key] = make(arguments.get(key, mine.get(key)))

    return change


def at_all(**values):
    return lambda federation, arguments, own: [given.update(values) for given in own.values()]


def scaled(key, factor):
    return lambda federation, arguments, own: [
        given.update({key: given[key] * factor}) for given in own.values()
    ]


def written(**values):
    return lambda federation, arguments, own: federation.update(federation.parties[0], values)


def twice(federation, arguments, own):
    arguments["batch"] = np.append(arguments["batch"], arguments["batch"][:1])


def finite_no_more(federation, arguments, own):
    for given in own.values():
        for key in {"gradient", "in_mean", "mean"} & set(given):
            given[key] = np.full_like(given[key], np.nan)


OTHER_ROWS, ROWS = np.array([0, 10**6]), np.array([1, 1], np.uint8)

CHEATS = [
    ("false-vfl", "prepare", put(networks='{"party_layers": 1}'), "'networks' is"),
    ("false-vfl", "prepare", put(n_draws=1000), "'n_draws' is '1000'"),
    ("false-vfl", "encode", twice, "'batch' has a number twice"),
    ("false-vfl", "encode", put(batch=OTHER_ROWS), "'batch' has numbers"),
    ("false-vfl", "encode", at_one("batch", lambda rows: rows[::-1].copy()), "same for all"),
    ("false-vfl", "log_terms", finite_no_more, "not finite"),
    ("false-vfl", "score", put(n_draws=10**9), "'n_draws' is"),
    ("false-vfl", "score", put(seeds=[]), "'seeds' has length 0"),
    ("vanilla-vfl", "prepare", put(training="{}"), "'training' is"),
    ("vanilla-vfl", "prepare", put(n_parties=9), "'n_parties' is '9'"),
    ("vanilla-vfl", "embed", put(batch=OTHER_ROWS), "'batch' has numbers"),
    ("vanilla-vfl", "embed", finite_no_more, "not finite"),
    ("vanilla-vfl", "embed", written(parties=1), "may not write 'parties'"),
    ("laser-vfl", "embed", at_one("takes", lambda flags: np.vstack([flags] * 9)), "sums of a"),
    ("fedhssl", "project", put(epoch=10**6), "'epoch' is"),
    ("vertigan", "start", put(rows=np.array([3, 3])), "'rows' has a number twice"),
    ("vertigan", "train", put(hidden=np.zeros((6, 9, 128), np.float32)), "'hidden' has shape"),
    ("vcds", "perturb", put(epsilon=1e9), "'epsilon' is"),
    ("vcds", "perturb", put(rearrange=True), "'rearrange' is"),
    ("vcds", "perturb", at_one("rows", lambda _: np.arange(3)), "same for all"),
    ("fedpsg-ar", "open_products", written(**{"fedpsg.minimum": 7}), "wrote 'fedpsg.minimum'"),
    ("fedpsg-ar", "complete", written(**{"fedpsg.codes": 1}), "may not write 'fedpsg.codes'"),
    ("fedpsg-ar", "complete", put(imputer="forest"), "'imputer' is"),
    ("fedpsg-ar mice", "predict", at_one("rows:0", lambda rows: rows[1:]), "same for all"),
    ("fedpsg-ar mice", "predict", at_all(**{"rows:0": np.array([1, 1])}), "has a number twice"),
    ("fedpsg-ar mice", "predict", at_all(**{"weights:0": np.ones((1, 1))}), "what the party has"),
    ("fedpsg-ar mice", "predict", at_all(**{"rows:0": np.array([])}), "'rows:0'"),
    ("fedpsg-ar mice", "predict", scaled("weights:0", 1e200), "values that are not finite, or"),
    ("fedpsg-ar mice", "fill", at_all(**{"columns:0": np.array([99])}), "what the party has"),
    ("fedpsg-ar mice", "take_up", put(trees=50), "'trees' is '50'"),
    ("fedpsg-ar joint", "receive", put(n_labels=3), "'n_labels' is 3"),
    ("fedpsg-ar joint", "forward", at_one("seed", lambda seed: seed + 1), "same for all"),
    ("fedpsg-ar joint", "update", put(by_loss=np.full(8, np.inf, np.float32)), "not finite"),
    ("glm ridge", "open_means", put(times=0), "'times'"),
    ("glm ridge", "open_means", put(times=2**62), "'times'"),
    ("glm ridge", "open_means", at_one("times", lambda _: 3), "same for all"),
    ("glm ridge", "place_fits", written(**{"means.rows": ROWS}), "'means.rows'"),
    ("glm ridge", "open_means", written(**{"means.rows": ROWS}), "'means.rows'"),
    ("glm ridge", "send_digits", put(group=np.array([7, -5])), "'group'"),
]


@pytest.mark.parametrize(
    ("case", "step", "change", "says"), CHEATS, ids=[f"{c[0]}-{c[1]}-{c[3]}" for c in CHEATS]
)
def test_other_arguments_and_keys_are_refused(monkeypatch, case, step, change, says):
    cheat(monkeypatch, step, change)
    with pytest.raises(PartyError, match=says):
        cases.run(case)


@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("false-vfl", "go_backward"),
        ("vanilla-vfl", "keep"),
        ("vertigan", "finish"),
        ("vcds", "synthesise"),
        ("fedpsg-ar", "complete"),
        ("fedpsg-ar joint", "update"),
    ],
)
def test_a_step_more_than_the_protocol_has_is_refused(monkeypatch, case, step):
    real = Federation.call, Federation.sum

    def again(which):
        def ask(self, name, *arguments, **options):
            answer = real[which](self, name, *arguments, **options)
            return real[which](self, name, *arguments, **options) if name == step else answer

        return ask

    monkeypatch.setattr(Federation, "call", again(0))
    monkeypatch.setattr(Federation, "sum", again(1))
    with pytest.raises(PartyError, match=f"refuses step '{step}'"):
        cases.run(case)


def test_coefficients_are_asked_for_as_often_as_the_protocol_has_it(monkeypatch):
    """Each tells how far fits reach, of which many would be corners of the cloud of rows."""
    real, asked = MaskedMeans.place, []

    def place(self, beta):
        while True:
            asked.append(1)
            real(self, np.zeros_like(beta))

    monkeypatch.setattr(MaskedMeans, "place", place)
    with pytest.raises(PartyError, match="refuses step 'place_fits'"):
        cases.run("glm ridge", policy={"vectors": 100})  # of which nothing opened is one, too
    assert len(asked) == 48 + 1


class _Blinding(BlindingSteps):
    """Of a party that shares a group seed."""

    name = "bank"

    def __init__(self, sequence, asked):
        self.party = SimpleNamespace(
            services=SimpleNamespace(sequence=sequence, binding=lambda: asked), name="bank"
        )

    def other(self, kind):
        return SimpleNamespace(seed=bytes(32))


def test_streams_follow_from_all_that_was_asked():
    """Else two answers under one number of a message are a difference of values."""
    first, second = np.arange(6.0).reshape(3, 2), np.zeros((3, 2))

    def sent(values, sequence, asked):
        answer = _Blinding(sequence, asked).blinded({"term": values})
        return answer.values["term"], answer.public["pad"]

    (one, pad), (same, _) = sent(first, 4, b"a"), sent(first, 4, b"a")
    np.testing.assert_array_equal(one, same)
    for number, asked in ((4, b"b"), (5, b"a")):
        other, _ = sent(second, number, asked)
        difference = (one - other).view(np.int64) * 2.0**-24
        assert np.abs(difference - first).min() > 1.0
    np.testing.assert_allclose(_Blinding(4, b"").unblinded("term", one, pad, ["bank"]), first)
