"""Rounds and private sums: the same totals in every mode, and failures that name their cause."""

import logging
import threading
import time
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from flwr_vertical import (
    Arbiter,
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    RecordingGrid,
    Strategy,
    Summands,
    party_app,
    simulate,
    step,
)
from flwr_vertical.errors import ConfigError, DataError, PartyError, ProtocolError, VerticalError
from flwr_vertical.protocol.messages import read_envelope

MODES = ["plain", "masked", "ckks"]
# Half a step of 2^-32 for each of up to 6 parties; CKKS noise and its rounding to 2^-24.
TOLERANCE = {"plain": 1e-12, "masked": 6 * 2.0**-33, "ckks": 1e-7}
TAKEN = []  # (party, step) of every step taken by a Contributor


def number(name):
    return int(name.removeprefix("p"))


def contribution(k, seed):
    rng = np.random.default_rng([seed, k])
    return {
        "matrix": rng.normal(scale=50, size=(7, 5)),
        "single": np.float64(rng.normal()),
        "float32": rng.normal(size=4).astype(np.float32),
        "counts": rng.integers(0, 1000, size=6).astype(np.uint16),
        "signed": rng.integers(-1000, 1000, size=(2, 3)),
        "flags": rng.random(9) < 0.5,
        "empty": np.empty((0, 4)),
    }


class Contributor(Party):
    """Sends reproducible terms; misbehaves on demand."""

    @property
    def k(self):
        return number(self.name)

    def note(self, name):
        TAKEN.append((self.name, name))

    @step
    def contribute(self, seed=0):
        self.note("contribute")
        return Summands(contribution(self.k, seed), {"k": self.k, "name": self.name})

    @step
    def nothing(self):
        return Summands({}, {"k": self.k})

    @step
    def one(self, value=1.0, factor=1.0):
        self.note("one")
        return Summands({"x": np.full(3, value * factor)})

    @step
    def ask(self, value, own=0):
        self.note("ask")
        return {"answer": self.k * value + own, "told": str(self.state.get("told", ""))}

    @step
    def burn(self, culprit="p2"):
        self.note("burn")
        if self.name == culprit:
            raise ValueError("the disk is on fire")
        return Summands({"x": np.ones(2)})

    @step
    def shape(self, size=2):
        return Summands({"x": np.ones(3 if self.name == "p2" else size)})

    @step
    def names(self):
        return Summands({"y" if self.name == "p2" else "x": np.ones(2)})

    @step
    def nothing_from_two(self):
        return Summands({} if self.name == "p2" else {"x": np.ones(2)})

    @step
    def types(self, first, others):
        return Summands({"x": np.ones(2, dtype=first if self.k == 1 else others)})

    @step
    def text(self):
        return Summands({"x": np.array(["a"]) if self.name == "p2" else np.ones(1)})

    @step
    def gap(self):
        return Summands({"x": np.array([np.nan, 1.0]) if self.name == "p2" else np.ones(2)})


class Ranker(Arbiter):
    """Releases an order instead of the sums."""

    @step
    def order(self, sums, descending=False):
        order = np.argsort(sums["x"])
        return {"order": order[::-1] if descending else order}

    @step
    def look_at_table(self, sums):
        return {"rows": self.services.load_table()}


def config(names, mode, arbiters=None):
    arbiters = int(mode == "ckks") if arbiters is None else arbiters
    return [{"party": name} for name in names] + [{"role": "arbiter"}] * arbiters


@contextmanager
def federated(n=3, mode="plain", party=Contributor, nodes=None, wrap=None, opened=True, **kwargs):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    names = [f"p{k}" for k in range(1, n + 1)]
    arbiter = kwargs.get("arbiter", Arbiter)
    app = party_app(party, arbiter=arbiter, storage=MemoryStorage({}))
    with LocalGrid(app, nodes or config(names, mode)) as grid:
        kwargs = {"retries": 0, "timeout": 30.0, "patience": 0.05} | kwargs
        federation = Federation(wrap(grid) if wrap else grid, aggregation=mode, **kwargs)
        if opened:
            federation.open()
        TAKEN.clear()
        yield federation


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("mode", MODES)
def test_sums_over_parties_in_every_mode(mode, n):
    with federated(n, mode) as federation:
        for seed in (0, 1):
            total = federation.sum("contribute", {"seed": seed})
            terms = [contribution(k, seed) for k in range(1, n + 1)]
            assert set(total.values) == set(terms[0])
            for name, term in terms[0].items():
                expected = np.sum([np.asarray(t[name], dtype=float) for t in terms], axis=0)
                if np.asarray(term).dtype.kind == "f":
                    assert total[name].dtype == np.asarray(term).dtype
                    tolerance = TOLERANCE[mode]
                    if name == "float32":  # half a step per party, and the total's own rounding
                        tolerance += n * federation.resolution_of(np.float32) / 2 + 1e-6
                    np.testing.assert_allclose(total[name], expected, rtol=0, atol=tolerance)
                else:
                    assert total[name].dtype.kind in "iu"
                    np.testing.assert_array_equal(total[name], expected)
                assert total[name].shape == np.shape(term)
            assert total.public == {f"p{k}": {"k": k, "name": f"p{k}"} for k in range(1, n + 1)}


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_sum_is_empty(mode):
    with federated(3, mode) as federation:
        total = federation.sum("nothing")
        assert total.values == {}
        assert total.public == {"p1": {"k": 1}, "p2": {"k": 2}, "p3": {"k": 3}}
        np.testing.assert_allclose(federation.sum("one")["x"], 3.0, atol=1e-7)  # and goes on


@pytest.mark.parametrize("mode", MODES)
def test_arguments_for_all_and_for_one(mode):
    with federated(3, mode) as federation:
        total = federation.sum("one", {"value": 2.0}, per_party={"p3": {"factor": 10.0}})
        np.testing.assert_allclose(total["x"], 2 + 2 + 20, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_a_release_step_replaces_the_sums(mode):
    with federated(3, mode, arbiter=Ranker) as federation:
        released = federation.sum("contribute", release="reveal")
        assert set(released.values) == set(contribution(1, 0))
        step_release = federation.sum(
            "types", {"first": "f8", "others": "f8"},
            release="order", release_arguments={"descending": True},
        )  # fmt: skip
        assert set(step_release.values) == {"order"}
        np.testing.assert_array_equal(np.sort(step_release["order"]), [0, 1])


@pytest.mark.parametrize("mode", MODES)
def test_a_release_step_that_cannot_be_taken_is_an_error(mode):
    with federated(2, mode, arbiter=Ranker) as federation:
        with pytest.raises(VerticalError, match=r"Ranker has no step 'colour'.*'order'"):
            federation.sum("one", release="colour")
        if mode == "masked":
            with pytest.raises(ProtocolError, match="the server holds no table"):
                federation.sum("one", release="look_at_table")


def test_every_party_of_a_process_of_its_own_for_each_message():
    """Flower runs each message in a new process: keys, masks and numbers come from the state."""
    for mode in MODES:
        if mode == "ckks":
            pytest.importorskip("tenseal")

        def forgetful(message, context):
            return party_app(Contributor, storage=MemoryStorage({}))(message, context)

        with LocalGrid(forgetful, config(["p1", "p2", "p3"], mode)) as grid:
            federation = Federation(grid, aggregation=mode, retries=0, timeout=30)
            federation.open()
            for value in (1.0, -2.5, 4.0):
                total = federation.sum("one", {"value": value})
                np.testing.assert_allclose(total["x"], 3 * value, atol=1e-7)


def test_the_remedy_for_an_overflow_works():
    with federated(2, "masked", fraction_bits=16) as federation:
        np.testing.assert_allclose(federation.sum("one", {"value": 1e10})["x"], 2e10, rtol=1e-15)
    with (
        federated(2, "masked") as federation,
        pytest.raises(PartyError, match="lower fraction_bits from 32 to 28"),
    ):
        federation.sum("one", {"value": 1e10})


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_a_missing_value_in_a_sum_is_an_error(mode):
    with (
        federated(3, mode) as federation,
        pytest.raises(PartyError, match=r"'p2'.*'gap'.*array 'x'.*some of its values are NaN"),
    ):
        federation.sum("gap")


def test_replies_come_in_the_order_of_the_parties():
    """Whoever answers first: sums of floats over the replies must repeat exactly."""

    class Unhurried(Contributor):
        @step
        def first_last(self):
            time.sleep(0.02 * (4 - self.k))
            return {"k": self.k}

    with federated(3, party=Unhurried) as federation:
        assert list(federation.call("first_last")) == ["p1", "p2", "p3"]
        assert list(federation.call("first_last", parties=["p3", "p1"])) == ["p3", "p1"]
        assert federation.ledger.to_frame()["party"].tolist()[3:6] == ["p1", "p2", "p3"]


def test_a_call_returns_the_answers_of_the_parties_that_are_asked():
    with federated(3) as federation:
        replies = federation.call("ask", {"value": 10}, per_party={"p2": {"own": 3}})
        assert [reply["answer"] for reply in replies.values()] == [10, 23, 30]
        TAKEN.clear()
        assert list(federation.call("ask", {"value": 1}, parties=["p3"])) == ["p3"]
        assert TAKEN == [("p3", "ask")]
        with pytest.raises(ConfigError, match=r"no party 'p9'.*\['p1', 'p2', 'p3'\]"):
            federation.call("ask", {"value": 1}, parties=["p9"])


def test_an_update_rides_with_the_next_message_and_stays():
    with federated(2) as federation:
        rounds = federation.ledger.rounds
        federation.update("p2", {"told": "a secret"})
        assert federation.ledger.rounds == rounds
        for _ in range(2):
            replies = federation.call("ask", {"value": 1})
            assert replies["p1"]["told"] == ""
            assert replies["p2"]["told"] == "a secret"


@pytest.mark.parametrize(("mode", "rounds"), [("plain", 1), ("masked", 1), ("ckks", 2)])
def test_the_ledger_counts_rounds_and_messages(mode, rounds):
    with federated(3, mode) as federation:
        opened = federation.ledger.to_frame()
        assert federation.ledger.rounds == 1
        assert set(opened["step"]) == {"hello"}
        assert federation.ledger.messages == 3 + (mode == "ckks")
        federation.sum("contribute")
        frame = federation.ledger.to_frame().iloc[len(opened) :]
        assert federation.ledger.rounds == 1 + rounds
        assert sorted(frame["party"][:3]) == ["p1", "p2", "p3"]
        assert set(frame["mode"][:3]) == {mode}
        values = sum(np.size(term) for term in contribution(1, 0).values())
        assert list(frame["values_up"][:3]) == [values] * 3
        if mode == "ckks":
            last = frame.iloc[3]
            assert (last["step"], last["party"], last["mode"]) == ("reveal", "(arbiter)", "open")
        assert (frame["bytes_up"] > 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_party_that_raises_is_named_and_not_asked_again(mode):
    with federated(3, mode, retries=2) as federation:
        with pytest.raises(PartyError) as caught:
            federation.sum("burn")
        assert (caught.value.party, caught.value.step) == ("p2", "burn")
        assert caught.value.cause == "ValueError: the disk is on fire"
        assert str(caught.value) == (
            "party 'p2' failed in step 'burn': ValueError: the disk is on fire"
        )
        assert TAKEN.count(("p2", "burn")) == 1
        # The others' masks are spent, and the run can still go on.
        np.testing.assert_allclose(federation.sum("one")["x"], 3.0, atol=1e-7)


@pytest.mark.parametrize("n_late", [1, 2])
def test_a_party_that_does_not_answer_in_time_is_named(n_late):
    release = threading.Event()
    late = ["p2", "p3"][:n_late]

    class Sleeper(Contributor):
        @step
        def sleep(self):
            if self.name in late:
                release.wait(20)
            return Summands({"x": np.ones(2)})

    try:
        with federated(3, party=Sleeper, timeout=0.3) as federation:
            started = time.monotonic()
            with pytest.raises(PartyError) as caught:
                federation.sum("sleep")
            assert 0.25 < time.monotonic() - started < 5
            assert (caught.value.party, caught.value.step) == ("p2", "sleep")
            assert "no answer within 0.3 s" in caught.value.cause
            assert ("(the same round failed for p3)" in caught.value.cause) == (n_late == 2)
    finally:
        release.set()


def test_a_late_party_is_asked_again_but_takes_the_step_once():
    class Slow(Contributor):
        @step
        def slow(self):
            self.note("slow")
            if self.name == "p2":
                time.sleep(0.5)
            return Summands({"x": np.ones(2)})

    with federated(3, "masked", party=Slow, timeout=0.3, retries=3) as federation:
        np.testing.assert_allclose(federation.sum("slow")["x"], 3.0, atol=1e-9)
        assert sorted(TAKEN) == [("p1", "slow"), ("p2", "slow"), ("p3", "slow")]
        np.testing.assert_allclose(federation.sum("one")["x"], 3.0, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "shapes", "party", "cause"),
    [
        ("shape", {"x": (2,)}, "p2", "returned summands {'x': (3,)}; expected {'x': (2,)}"),
        ("shape", None, "p2", "{'x': (3,)}; party 'p1' returned {'x': (2,)}"),
        ("names", {"x": (2,)}, "p2", "returned summands {'y': (2,)}; expected {'x': (2,)}"),
        ("names", None, "p2", "{'y': (2,)}; party 'p1' returned {'x': (2,)}"),
        ("nothing_from_two", None, "p2", "returned summands {}; party 'p1' returned {'x': (2,)}"),
        ("one", {"x": (3,), "z": (1,)}, "p1", "{'x': (3,)}; expected {'x': (3,), 'z': (1,)}"),
    ],
)
def test_wrong_summands_are_an_error_never_zero(mode, name, shapes, party, cause):
    with federated(3, mode) as federation:
        with pytest.raises(PartyError) as caught:
            federation.sum(name, shapes=shapes)
        assert (caught.value.party, caught.value.step) == (party, name)
        assert cause in caught.value.cause


def test_integers_of_different_rings_do_not_add_up():
    with federated(2, "masked") as federation:
        with pytest.raises(PartyError) as caught:
            federation.sum("types", {"first": "u1", "others": "i8"})
        assert caught.value.party == "p2"
        assert "'x'" in caught.value.cause


@pytest.mark.parametrize("mode", MODES)
def test_summands_must_be_numbers(mode):
    with (
        federated(2, mode) as federation,
        pytest.raises(PartyError, match=r"'p2'.*'text'.*summand 'x' has dtype <U1"),
    ):
        federation.sum("text")


class Lossy(RecordingGrid):
    """Spoils the first replies of one party to one step."""

    def __init__(self, grid, spoil, step="one", node_id=2, times=1):
        super().__init__(grid)
        self.spoil, self.step, self.node_id, self.times = spoil, step, node_id, times

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        asked = {m.metadata.dst_node_id for m in sent if self._concerns(m)}
        for reply in super().send_and_receive(sent, timeout=timeout):
            if reply.metadata.src_node_id in asked and self.times > 0:
                self.times -= 1
                origin = next(
                    m for m in sent if m.metadata.dst_node_id == reply.metadata.src_node_id
                )
                if (spoiled := self.spoil(origin)) is not None:
                    yield spoiled
            else:
                yield reply

    def _concerns(self, message):
        envelope = read_envelope(message.content)
        return message.metadata.dst_node_id == self.node_id and envelope["step"] == self.step


def lost(message):
    return None


def flower_error(code, reason="the node is away"):
    def reply(message):
        error = Message(Error(code=code, reason=reason), reply_to=message)
        if code in (3, 4, 5):  # as the SuperLink does (`create_message_error_unavailable_...`)
            error.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        return error

    return reply


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "spoil", [lost, *map(flower_error, [3, 4, 5, 8])], ids=["lost", "3", "4", "5", "8"]
)
def test_a_failure_of_transport_is_tried_again(mode, spoil):
    with federated(3, mode, retries=2, wrap=lambda g: Lossy(g, spoil, times=2)) as federation:
        np.testing.assert_allclose(federation.sum("one")["x"], 3.0, atol=1e-7)
        assert sorted(TAKEN) == [("p1", "one"), ("p2", "one"), ("p3", "one")]
        assert federation.ledger.rounds == (3 if mode == "ckks" else 2)  # a retry is no round
        np.testing.assert_allclose(federation.sum("one")["x"], 3.0, atol=1e-7)


def test_a_node_that_missed_its_signs_of_life_is_asked_again_when_it_is_listed_again():
    """As on a machine that is too busy for a minute: all tries at once would be in vain."""

    class Struck(Lossy):
        looks = 0

        def get_node_ids(self):
            self.looks += self.times < 99
            self.times = 0 if self.looks == 3 else self.times
            return [n for n in super().get_node_ids() if n != 2 or self.times in (0, 99)]

    grids = []

    def wrap(grid):
        grids.append(Struck(grid, flower_error(5), times=99))
        return grids[0]

    with federated(3, retries=1, patience=20.0, wrap=wrap) as federation:
        federation.sum("one")
    assert (grids[0].looks, grids[0].times) == (3, 0)


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lost, "no answer within 30 s after 3 tries"),
        (flower_error(5), "Flower reports error 5: the node is away after 3 tries"),
    ],
)
def test_lasting_failures_of_transport_end_the_run(spoil, cause):
    with federated(3, retries=2, wrap=lambda g: Lossy(g, spoil, times=99)) as federation:
        with pytest.raises(PartyError) as caught:
            federation.sum("one")
        assert (caught.value.party, caught.value.step) == ("p2", "one")
        assert caught.value.cause == cause


def test_flower_s_other_errors_are_not_tried_again():
    reason = "Traceback ...\nKeyError: 'x'"
    grids = []

    def wrap(grid):
        grids.append(Lossy(grid, flower_error(2, reason), times=99))
        return grids[0]

    with federated(3, retries=5, wrap=wrap) as federation:
        with pytest.raises(PartyError) as caught:
            federation.sum("one")
        assert caught.value.cause == "Flower reports error 2: KeyError: 'x'"
        assert grids[0].times == 98


def test_an_answer_of_another_app_is_refused():
    def foreign(message):
        return Message(RecordDict(), reply_to=message)

    with (
        federated(3, wrap=lambda g: Lossy(g, foreign)) as federation,
        pytest.raises(PartyError, match=r"'p2'.*'one'.*not in this library's form"),
    ):
        federation.sum("one")


def test_a_greeting_may_be_repeated():
    def wrap(grid):
        return Lossy(grid, lost, step="hello")

    with federated(3, "masked", retries=1, wrap=wrap) as federation:
        np.testing.assert_allclose(federation.sum("one")["x"], 3.0, atol=1e-9)


@pytest.mark.parametrize(
    ("nodes", "kwargs", "error", "why"),
    [
        (config(["p1", "p1"], "plain"), {}, ConfigError, "two nodes call themselves 'p1'"),
        (config(["p1", "p2"], "plain"), {"parties": ["p1", "p3"]}, ConfigError,
         r"expected parties \['p3'\] are absent; here are \['p1', 'p2'\]"),
        (config(["p1", "p2"], "ckks", 0), {"mode": "ckks"}, ConfigError,
         "'ckks' needs an arbiter: start one more SuperNode with --node-config"),
        (config(["p1", "p2"], "ckks", 2), {"mode": "ckks"}, ConfigError,
         "two nodes have the role 'arbiter'"),
        (config([], "plain", 1), {}, ConfigError, "no party is connected"),
        ([{"party": "p1"}, {}], {}, PartyError,
         r"'node 2' failed in step 'hello': ConfigError: node 2 has no party name"),
        ([{"party": "p1"}, {"party": "p2", "role": "boss"}], {}, PartyError,
         "'p2' failed in step 'hello': .*role = 'boss'; expected 'party' or 'arbiter'"),
        (config(["p1"], "plain"), {"min_nodes": 3}, ConfigError,
         "1 of 3 nodes are connected after 0 s; start the missing .*num-supernodes=3"),
        (config(["p1"], "plain"), {"parties": ["p1", "p2"]}, ConfigError, "1 of 2 nodes"),
        (config(["p1", "p2"], "ckks", 0), {"mode": "ckks", "parties": ["p1", "p2"]}, ConfigError,
         "2 of 3 nodes .*; one of them is the arbiter, which aggregation 'ckks' needs"),
    ],
)  # fmt: skip
def test_what_keeps_a_federation_from_opening(nodes, kwargs, error, why):
    if kwargs.get("mode") == "ckks":
        pytest.importorskip("tenseal")
    with federated(nodes=nodes, opened=False, **kwargs) as federation:
        started = time.monotonic()
        with pytest.raises(error, match=why):
            federation.open()
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_nodes_that_come_late_are_waited_for(mode):
    """The last of them is the arbiter, where there is one."""

    class Growing(RecordingGrid):
        asked = 0

        def get_node_ids(self):
            self.asked += 1
            return list(super().get_node_ids())[: self.asked]

    names = ["p1", "p2"]
    with federated(2, mode, wrap=Growing, opened=False, patience=5.0, parties=names) as federation:
        federation.open()
        assert federation.parties == names
        np.testing.assert_allclose(federation.sum("one")["x"], 2.0, atol=1e-7)


@pytest.mark.parametrize("mode", ["secret", "", "MASKED"])
def test_unknown_modes_are_refused(mode):
    with pytest.raises(ConfigError, match=r"unknown aggregation.*\['plain', 'masked', 'ckks'\]"):
        Federation(None, aggregation=mode)


class FailingParty(Party):
    @step
    def fail(self, how: str) -> dict[str, float]:
        if how == "data" and self.name != "p0":
            raise DataError(f"party {self.name!r}, column 'x' holds nothing of use")
        if how == "bug":
            return {"x": [][1]}
        return {"x": 1.0}


class Failing(Strategy):
    """Fail."""

    how: str = "data"
    name = "failing"
    party = FailingParty

    def run(self, federation, alignment, result, progress):
        federation.call("fail", {"how": self.how})


def tables(n):
    return {f"p{i}": pd.DataFrame({"x": np.arange(5.0)}) for i in range(n)}


@pytest.mark.parametrize(("n", "others"), [(2, 0), (4, 2), (8, 6)])
def test_one_error_tells_of_all_parties(caplog, n, others):
    caplog.set_level(logging.INFO)
    with pytest.raises(PartyError) as caught:
        simulate(Failing(), tables(n))
    assert (caught.value.party, caught.value.step) == ("p1", "fail")
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("DataError: party 'p1', column 'x' holds nothing of use")
    told = [line for line in lines if line.startswith("  party")]
    assert len(told) == min(others, 4)
    assert ("and 2 more parties" in lines[-1]) == (others == 6)
    assert not any(record.exc_info for record in caplog.records)


def test_the_traceback_of_a_mistake_in_a_step_is_logged_once(caplog):
    with pytest.raises(PartyError, match="IndexError"):
        simulate(Failing(how="bug"), tables(3))
    assert len([record for record in caplog.records if record.exc_info]) == 1
