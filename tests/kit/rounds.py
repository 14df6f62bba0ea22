"""A small method with everything a run can lose: state of parties, private sums, rounds, consent.

It fits labels by gradient steps: each round adds up what every party's columns predict, and the
next one tells all parties the residuals. Tests of resuming, policies and channels run it instead
of a method that somebody would use.
"""

import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from flwr_vertical import Party, Strategy, Summands, setting, step
from flwr_vertical.protocol.declaration import BITS, FACTS, Protocol, Repeat, Round

EXCHANGE = "sums"


class RoundsParty(Party):
    """Holds the coefficients of its own columns."""

    @step
    def prepare(self):
        self.open_exchange(EXCHANGE, "fits of each sample, summed over parties")
        self.state["beta"] = np.zeros(self.table.frame.shape[1])
        return {}

    @step
    def fit(self, residuals: np.ndarray, rate: float):
        """Take a gradient step, and tell what the own columns predict; state and sum belong
        together: who takes a step twice, or not at all, has other numbers.
        """
        held = self._held()
        self.state["beta"] = np.asarray(self.state["beta"]) + rate * held.T @ residuals
        return Summands({"fits": held @ self.state["beta"]})

    @step
    def coefficients(self):
        return {"columns": [*map(str, self.table.frame)], "beta": self.state["beta"]}

    def _held(self):
        return self.to_aligned(self.table.frame.to_numpy(dtype=float), 0.0)


class Rounds(Strategy):
    """Least squares by gradient steps."""

    max_iter: int = setting(6, "How many rounds.", at_least=1)
    rate: float = setting(0.2, "How far a step goes.", above=0)
    gate: str = setting("", "A file that says how many rounds may be taken; more wait for it.")

    name: ClassVar[str] = "rounds"
    party = RoundsParty
    protocol = Protocol(
        Round("prepare", tells=(FACTS, BITS)),
        Repeat(Round("fit", "summed, a fit of each sample", tells=BITS), at_most="max_iter"),
        Round("coefficients", "its coefficients", tells=FACTS),
    )
    needs_labels: ClassVar[bool] = True
    exchanges_asked: ClassVar[tuple[str, ...]] = (EXCHANGE,)
    disclosure = (("server", "fits of each sample, summed over parties"),)

    def run(self, federation, alignment, result, progress):
        labels = federation.labels
        labelled = np.isfinite(labels)
        federation.call("prepare")
        residuals = np.zeros(len(labels))
        for number in range(self.max_iter):
            while self.gate and int(Path(self.gate).read_text() or 0) <= number:
                time.sleep(0.05)
            asked = {"residuals": residuals, "rate": self.rate / labelled.sum()}
            fits = federation.sum("fit", asked)["fits"]
            residuals = np.where(labelled, labels - fits, 0.0)
            result.history.append({"iteration": number, "loss": float(residuals @ residuals)})
        told = federation.call("coefficients")
        rows = [
            (name, column, value)
            for name, values in sorted(told.items())
            for column, value in zip(values["columns"], values["beta"], strict=True)
        ]
        table = pd.DataFrame(rows, columns=["party", "column", "estimate"])
        result.coefficients = table.set_index(["party", "column"])
        result.metrics["loss"] = result.history[-1]["loss"]
