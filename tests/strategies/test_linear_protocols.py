"""A server that deviates: linear methods answer their protocol alone.

Nodes are unchanged; the server sends other arguments, other keys of the state, or more messages.
"""

import numpy as np
import pytest

from flwr_vertical.errors import PartyError
from flwr_vertical.server.federation import Federation
from strategies.linear.masked_means.evaluate import MaskedMeans
from tests.kit import cases

RIDGE = "glm ridge"


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


def at_one(**values):
    return lambda federation, arguments, own: own[federation.parties[0]].update(values)


def writes_rows(federation, arguments, own):
    federation.update(federation.parties[0], {"means.rows": np.array([1, 1], np.uint8)})


CHEATS = [
    ("open_means", put(times=0), "'times'"),
    ("open_means", put(times=2**62), "'times'"),
    ("open_means", at_one(times=3), "same for all"),
    ("place_fits", writes_rows, "'means.rows'"),
    ("open_means", writes_rows, "'means.rows'"),
    ("send_digits", put(group=np.array([7, -5])), "'group'"),
]


@pytest.mark.parametrize(
    ("step", "change", "says"), CHEATS, ids=[f"{c[0]}-{c[2]}-{i}" for i, c in enumerate(CHEATS)]
)
def test_other_arguments_and_keys_are_refused(monkeypatch, step, change, says):
    cheat(monkeypatch, step, change)
    with pytest.raises(PartyError, match=says):
        cases.run(RIDGE)


def test_coefficients_are_asked_for_as_often_as_the_protocol_has_it(monkeypatch):
    """Each tells how far fits reach, of which many would be corners of the cloud of rows."""
    real, asked = MaskedMeans.place, []

    def place(self, beta):
        while True:
            asked.append(1)
            real(self, np.zeros_like(beta))

    monkeypatch.setattr(MaskedMeans, "place", place)
    with pytest.raises(PartyError, match="refuses step 'place_fits'"):
        cases.run(RIDGE)
    assert len(asked) == 48 + 1
