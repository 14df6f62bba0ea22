"""A stream that is cut is replaced by another one: no message is lost or handled twice."""

import threading
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from deployments import wait_until
from flwr.app import ConfigRecord, Message, RecordDict
from proxies import Proxy

from flwr_vertical import LocalGrid, MemoryStorage, Table, party_app, simulate
from flwr_vertical.channel import ChannelGrid, app
from flwr_vertical.channel.client import ChannelError, Connection, dial
from flwr_vertical.channel.endpoint import Endpoint
from flwr_vertical.channel.invitation import NODE_KEY, TOKEN_KEY, VERSION_KEY
from flwr_vertical.protocol.messages import make_message
from flwr_vertical.version import __version__
from tests.kit.rounds import Rounds

pytestmark = pytest.mark.slow


@pytest.fixture
def patient():
    """An endpoint that waits for those who were cut off."""
    made = Endpoint(dial_timeout=10.0, reconnect=3.0)
    made.proxy = Proxy(made.address)
    yield made
    made.close(patience=1.0)
    made.proxy.close()


@pytest.fixture
def proxy(patient):
    return patient.proxy


class Counting:
    """A party that counts what it handles."""

    def __init__(self, endpoint, proxy, seconds=0.0):
        offer = replace(endpoint.invite(1), address=proxy.address)
        self.stream = dial(offer, 1)
        self.seconds, self.handled, self.ending = seconds, [], ""
        self.entered = threading.Event()
        self.thread = threading.Thread(target=self.run, name="channel-party")
        self.thread.start()

    def handle(self, message):
        self.entered.set()
        time.sleep(self.seconds)
        self.handled.append(int(message.content["values"]["x"]))
        return Message(message.content, reply_to=message)

    def run(self):
        try:
            self.stream.serve(self.handle)
            self.ending = "closed"
        except ChannelError as error:
            self.ending = f"error: {error}"


def ask(endpoint, x, timeout=20):
    message = make_message(RecordDict({"values": ConfigRecord({"x": x})}), 1)
    return endpoint.mailbox.wait([endpoint.send(message)], timeout)[0]


def test_an_idle_stream_that_is_cut_comes_back(patient, proxy):
    party = Counting(patient, proxy)
    for x in range(4):
        proxy.cut()
        assert ask(patient, x).content["values"]["x"] == x
    assert party.handled == [0, 1, 2, 3]
    assert proxy.connections >= 4
    assert not patient.lost
    patient.close()
    party.thread.join(10)
    assert party.ending == "closed"


def test_a_stream_that_is_cut_while_the_party_computes(patient, proxy):
    party = Counting(patient, proxy, seconds=1.0)
    threading.Thread(target=lambda: (party.entered.wait(10), proxy.cut()), daemon=True).start()
    assert ask(patient, 7).content["values"]["x"] == 7
    assert party.handled == [7]
    assert not patient.lost


def test_a_request_waits_for_a_party_that_is_away(patient, proxy):
    party = Counting(patient, proxy)
    assert ask(patient, 0).has_content()
    proxy.open = False
    proxy.cut()
    time.sleep(0.2)
    found = []
    waiting = threading.Thread(target=lambda: found.append(ask(patient, 1)))
    waiting.start()
    time.sleep(0.5)
    assert not found  # the request waits for the party
    proxy.open = True
    waiting.join(15)
    assert found[0].content["values"]["x"] == 1
    assert party.handled == [0, 1]


def test_an_answer_that_does_not_arrive_comes_again_and_is_not_made_again(patient, proxy):
    party = Counting(patient, proxy)
    assert ask(patient, 0).has_content()
    proxy.mute.set()  # what the party says is swallowed
    threading.Thread(
        target=lambda: (wait_until(lambda: party.handled == [0, 1], 10, "an answer"),
                        proxy.mute.clear(), proxy.cut()),
    ).start()  # fmt: skip
    assert ask(patient, 1).content["values"]["x"] == 1
    assert party.handled == [0, 1]


def test_whoever_stays_away_is_lost_after_the_time_to_come_back(proxy, patient):
    party = Counting(patient, proxy)
    assert ask(patient, 0).has_content()
    started = time.monotonic()
    proxy.close()
    reply = ask(patient, 1, timeout=30)
    assert 2 < time.monotonic() - started < 8
    assert reply.error.code == 8
    assert "the channel to node 1 was lost" in reply.error.reason
    party.thread.join(20)
    assert party.ending.startswith("error: the channel broke")
    assert party.handled == [0]


def test_a_token_to_come_back_opens_one_stream_and_ends_with_a_new_invitation(patient):
    offer = patient.invite(1)
    first = Connection(offer, 1, offer.token, 5.0, lambda _: None)
    assert first.back not in ("", offer.token)
    second = Connection(offer, 1, first.back, 5.0, lambda _: None)
    wait_until(
        lambda: len(patient.admission._entries[1].back) == 1, 10, "a way back"
    )  # it has heard the welcome
    for token in (offer.token, first.back):
        with pytest.raises(Exception, match=r"was used already|not the one"):
            Connection(offer, 1, token, 5.0, lambda _: None)
    patient.invite(1)
    with pytest.raises(Exception, match="not the one that this run gave"):
        Connection(offer, 1, second.back, 5.0, lambda _: None)
    first.close()
    second.close()


def test_a_token_to_come_back_stays_good_until_the_next_one_has_arrived(patient):
    """Else a stream that is cut with the welcome on its way could never be replaced."""
    offer = patient.invite(1)
    first = Connection(offer, 1, offer.token, 5.0, lambda _: None)
    time.sleep(0.5)  # until the server has heard that the welcome arrived
    given = {TOKEN_KEY: first.back, VERSION_KEY: __version__, NODE_KEY: "1"}.items()
    for _ in range(3):  # admitted, and the fresh token never arrives
        assert patient.admission.judge(given)[1].name == "OK"
        lost = patient.admission.expect_back(1)
    second = Connection(offer, 1, first.back, 5.0, lambda _: None)
    wait_until(lambda: patient.admission._entries[1].back == (second.back,), 10, "the way back")
    assert patient.admission.judge(given)[1].name != "OK"
    assert patient.admission.judge([*given, (TOKEN_KEY, lost)])[1].name != "OK"
    first.close()
    second.close()


def test_the_server_gives_up_a_stream_that_the_party_has_replaced(patient, proxy):
    """The party sees the cut first: the server's end of the old stream still looks alive."""
    party = Counting(patient, proxy)
    assert ask(patient, 0).has_content()
    party.stream._current._call.cancel()
    assert ask(patient, 1).content["values"]["x"] == 1
    assert party.handled == [0, 1]


def test_rounds_over_a_network_that_is_cut_again_and_again(monkeypatch):
    rng = np.random.default_rng(3)
    parties = {
        f"p{k}": pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"]) for k in range(3)
    }
    parties["p0"] = parties["p0"].iloc[:45]
    labels = pd.Series(rng.normal(size=60))
    settings = {"alignment": "plain", "aggregation": "masked", "progress": False}
    expected = simulate(Rounds(max_iter=60), parties, labels, **settings)

    proxies, strategy = [], Rounds(max_iter=60)
    real = app.dial

    def through_proxy(offer, node_id):
        proxies.append(Proxy(offer.address))
        return real(replace(offer, address=proxies[-1].address), node_id)

    monkeypatch.setattr(app, "dial", through_proxy)
    over = threading.Event()

    def cut():
        turn = 0
        # On a busy machine cuts come faster than answers, so they become rarer.
        while not over.wait(0.03 + 0.001 * turn):
            turn += 1
            for proxy in list(proxies)[turn % 3 :: 3]:
                proxy.cut()

    storage = MemoryStorage({n: Table.of(t) for n, t in parties.items()})
    client = party_app(strategy.party, storage=storage)
    cutter = threading.Thread(target=cut)
    nodes = [{"party": n, "exchanges": "sums"} for n in parties]
    with (
        LocalGrid(client, nodes, storage=storage) as inner,
        ChannelGrid(inner, transport="channel", reconnect=4.0) as grid,
    ):
        cutter.start()
        result = strategy.start(
            grid=grid, labels=labels, parties=list(parties), retries=50, **settings
        )
        over.set()
        cutter.join()
    assert sum(proxy.connections for proxy in proxies) > 6
    for proxy in proxies:
        proxy.close()
    np.testing.assert_allclose(
        result.coefficients["estimate"], expected.coefficients["estimate"], rtol=1e-12
    )
    assert len(result.history) == len(expected.history)
