"""A step that draws numbers of a third kind is noticed when it is asked twice.

`test_contract.py` asks every built-in strategy twice; a test that cannot fail shows nothing.
"""

import os
import secrets

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Party, Strategy, Summands, simulate, step
from tests.kit.repeating import SecondAnswerError, every_sum_twice


def count_in_process(party):
    party.cache["n"] = party.cache.get("n", 0) + 1
    return np.full(3, party.cache["n"])


def some(draw):
    return np.frombuffer(draw(24), dtype="<u8") >> np.uint64(40)


DRAWS = {
    "numpy": lambda party: np.random.default_rng().normal(size=3),
    "numpy's old one": lambda party: np.random.normal(size=3),  # noqa: NPY002
    "secrets": lambda party: some(secrets.token_bytes),
    "the system": lambda party: some(os.urandom),
    "what the process remembers": count_in_process,
}


def strategy_of(party_class):
    class Drawing(Strategy):
        name = "drawing"
        party = party_class

        def run(self, federation, alignment, result, progress):
            for _ in range(3):
                federation.sum("draw")

    return Drawing()


def run_twice(party_class):
    table = pd.DataFrame({"x": np.arange(20.0)})
    with every_sum_twice() as repetition:
        simulate(strategy_of(party_class), {"bank": table, "court": table}, progress=False)
    return repetition


@pytest.mark.parametrize("source", DRAWS)
def test_random_numbers_of_a_third_kind_are_noticed(source):
    class Undeclared(Party):
        @step
        def draw(self):
            return Summands({"noise": np.asarray(DRAWS[source](self), dtype=float)})

    with pytest.raises(SecondAnswerError, match="'draw'"):
        run_twice(Undeclared)


def test_declared_steps_and_own_random_numbers_are_not():
    class Declared(Party):
        @step(repeatable=False)
        def draw(self):
            return Summands({"noise": np.random.default_rng().normal(size=3)})

    class Own(Party):
        @step
        def draw(self):
            key = some(lambda count: self.secret_bytes("noise", count))
            return Summands({"noise": self.rng.normal(size=3) + key})

    assert run_twice(Declared).declared == {"draw"}
    assert run_twice(Own).steps == {"draw"}
