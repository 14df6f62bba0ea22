"""Parties for tests of channels: they return what they get."""

import time

import numpy as np
import pandas as pd
from flwr.app import Message

from flwr_vertical import LocalGrid, MemoryStorage, Party, Summands, Table, party_app, step


def answer(message):
    """Return a message's content, or more; sleep before if it says so."""
    values = message.content.get("values")
    if values is not None and "sleep" in values:
        time.sleep(float(values["sleep"]))
    if values is not None and "grow" in values:
        values["x"] = bytes(int(values["grow"]))
    return Message(message.content, reply_to=message)


class Echo(Party):
    """Returns what it gets; counts in its state."""

    @step
    def numbers(self, base):
        return {"base": base}

    @step
    def total(self, base):
        return Summands({"base": base})

    @step
    def count(self):
        self.state["count"] = int(self.state.get("count", 0)) + 1
        return {"count": self.state["count"]}

    @step
    def fail(self):
        raise ValueError("the disk is on fire")

    @step
    def nap(self, seconds):
        time.sleep(seconds)
        return {}


def echo_grid(n=3, app=None):
    names = [f"p{k}" for k in range(1, n + 1)]
    table = Table.of(pd.DataFrame({"x": np.arange(3.0)}))
    app = app or party_app(Echo, storage=MemoryStorage(dict.fromkeys(names, table)))
    # A party that serves a channel is busy all the while: all of them must be able to run.
    nodes = [{"party": name} for name in names]
    return LocalGrid(app, nodes, max_parallel=len(nodes))
