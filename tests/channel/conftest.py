import json
import logging
import pathlib
import subprocess
import sys
import threading
import time
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import LocalGrid, MemoryStorage, Party, Summands, Table, party_app, step
from flwr_vertical.channel.endpoint import Endpoint

PARTY_PROCESS = pathlib.Path(__file__).with_name("party_process.py")


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
    return LocalGrid(app, [{"party": name} for name in names])


class PartyProcess:
    """An echo party in a process of its own."""

    def __init__(self, endpoint, node_id, **changed):
        self.offer = asdict(endpoint.invite(node_id)) | changed
        self.process = subprocess.Popen(
            [sys.executable, str(PARTY_PROCESS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.process.stdin.write(json.dumps({"offer": self.offer, "node_id": node_id}) + "\n")
        self.process.stdin.flush()

    def said(self):
        return self.process.stdout.readline().strip()


@pytest.fixture
def party_processes():
    started = []

    def start(endpoint, node_id, **changed):
        started.append(PartyProcess(endpoint, node_id, **changed))
        return started[-1]

    yield start
    for party in started:
        party.process.kill()
        party.process.wait()
        party.process.stdin.close()
        party.process.stdout.close()


@pytest.fixture
def endpoint():
    made = Endpoint(dial_timeout=10.0)
    yield made
    made.close(patience=1.0)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Every test ends with the threads it began with (LocalGrid's end on their own)."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 10.0
    while True:
        left = [t for t in set(threading.enumerate()) - before if "channel" in t.name]
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG)
    return caplog
