import json
import logging
import pathlib
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest
from channel_runs import answer

from flwr_vertical.channel.client import ChannelError, dial
from flwr_vertical.channel.endpoint import Endpoint

PARTY_PROCESS = pathlib.Path(__file__).with_name("party_process.py")


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


class PartyThread:
    """An echo party in a thread of the tests' process; what it said at last, in `ending`."""

    def __init__(self, endpoint, node_id, **changed):
        self.stream = dial(replace(endpoint.invite(node_id), **changed), node_id)
        self.ending = ""
        self.thread = threading.Thread(target=self.run, name=f"channel-party-{node_id}")
        self.thread.start()

    def run(self):
        try:
            self.stream.serve(answer)
            self.ending = "closed"
        except ChannelError as error:
            self.ending = f"error: {error}"

    def said(self):
        self.thread.join(20)
        return self.ending


@pytest.fixture
def party_threads():
    started = []

    def start(endpoint, node_id, **changed):
        started.append(PartyThread(endpoint, node_id, **changed))
        return started[-1]

    yield start
    for party in started:
        party.stream.close()


@pytest.fixture
def endpoint():
    made = Endpoint(dial_timeout=10.0, reconnect=0.5)
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
