"""Steps that are not repeatable: one lost answer, and all parties take the round again."""

import copy

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Error, Message, RecordDict

from flwr_vertical import (
    Arbiter,
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    RecordingGrid,
    Summands,
    Table,
    party_app,
    step,
)
from flwr_vertical.errors import PartyError, ProtocolError
from flwr_vertical.node.service import NodeTypes, StepServer
from flwr_vertical.node.state import State
from flwr_vertical.node.steps import StepGroup, Uses, unrepeatable_steps
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import (
    HELLO,
    SUMS,
    VALUES,
    make_message,
    make_request,
    read_envelope,
    renumber,
)

NAMES = ["bank", "court", "hospital"]


class Walker(Party):
    """Each step moves its state by a random amount and tells where it is."""

    @step(repeatable=False)
    def walk(self):
        moved = np.asarray(self.state.get("place", np.zeros(4))) + np.random.default_rng().normal(
            size=4
        )
        self.state["place"] = moved
        self.state["steps"] = int(self.state.get("steps", 0)) + 1
        self.cache["derived"] = self.state["steps"]
        return Summands({"place": moved}, {"steps": self.state["steps"]})

    @step
    def where(self):
        assert self.cache.get("derived", self.state["steps"]) == self.state["steps"]
        return Summands({"place": np.asarray(self.state["place"])}, {"steps": self.state["steps"]})

    @step
    def draw(self):
        return {"x": self.rng.normal(size=2), "key": self.secret_bytes("test")}


class LossyGrid(RecordingGrid):
    """Loses the answer of a party to a message, by its number."""

    def __init__(self, grid, forget=None):
        super().__init__(grid)
        self.local, self.forget = grid, forget or (lambda node_id: None)
        self.losses = []  # (number of the round from now on, node)
        self.rounds = 0

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        self.rounds += 1
        replies = list(super().send_and_receive(sent, timeout=timeout))
        lost = {node for number, node in self.losses if number == self.rounds}
        for node_id in lost:
            self.forget(node_id)
        failed = [m for m in sent if m.metadata.dst_node_id in lost]
        return [r for r in replies if r.metadata.src_node_id not in lost] + [
            Message(Error(code=8, reason="it crashed"), reply_to=m) for m in failed
        ]

    def asked(self, name):
        """Numbers of the messages of a step, by node."""
        found = {}
        for record in self.transcript:
            envelope = read_envelope(record.content)
            if record.direction == "down" and envelope["step"] == name:
                found.setdefault(record.node_id, []).append(int(envelope["sequence"]))
        return found


@pytest.fixture(params=["masked", "plain"])
def setup(request):
    tables = {n: Table.of(pd.DataFrame({"x": [1.0]}, index=["s"])) for n in NAMES}
    apps = {"now": party_app(Walker, storage=MemoryStorage(tables))}

    def renew(node_id):
        apps["now"] = party_app(Walker, storage=MemoryStorage(tables))

    def app(message, context):
        return apps["now"](message, context)

    with LocalGrid(app, [{"party": name} for name in NAMES]) as local:
        grid = LossyGrid(local)
        federation = Federation(grid, aggregation=request.param, parties=NAMES, retries=2, seed=7)
        federation.open()
        yield grid, federation, renew


def places(grid):
    return [np.asarray(State(c)["place"]) for c in grid.local.contexts.values()]


def test_a_lost_answer_retakes_the_round_at_all_parties(setup):
    grid, federation, _ = setup
    federation.sum("walk")
    grid.losses = [(grid.rounds + 1, 2), (grid.rounds + 2, 3)]
    total = federation.sum("walk")
    # Three attempts, each under a number of its own, and the same one for everybody.
    assert set(map(tuple, grid.asked("walk").values())) == {(1, 2, 3, 4)}
    # Each party stands one step further than before: what was lost is undone everywhere.
    assert {told["steps"] for told in total.public.values()} == {2}
    np.testing.assert_allclose(total["place"], sum(places(grid)), atol=1e-8)
    after = federation.sum("where")
    np.testing.assert_allclose(after["place"], total["place"], atol=1e-8)
    assert {told["steps"] for told in after.public.values()} == {2}
    # Keys and positions that rode with the lost message arrive, too, and rounds go on.
    federation.update("court", {"steps": 10})
    grid.losses = [(grid.rounds + 1, 2)]
    assert federation.sum("walk").public["court"] == {"steps": 11}


def test_a_round_is_not_taken_again_after_another_one(setup):
    """Else a server could repeat what a protocol has once, and go on after it was refused."""
    grid, federation, _ = setup
    federation.sum("walk")
    federation.sum("where")
    (walk,) = (r.content for r in grid.transcript
               if r.direction == "down" and r.node_id == 1
               and read_envelope(r.content)["step"] == "walk")  # fmt: skip
    again = make_message(renumber(walk, 9, 1), 1)
    (reply,) = grid.local.send_and_receive([again])
    assert "another message followed" in str(read_envelope(reply.content)["message"])
    assert np.asarray(State(grid.local.contexts[1])["steps"]) == 1


def test_no_number_masks_two_arrays(setup):
    grid, federation, _ = setup
    grid.losses = [(grid.rounds + 1, 1)]
    federation.sum("walk")
    terms = {}
    for record in grid.transcript:
        if record.direction == "up" and (sums := decode(record.content, SUMS)):
            terms.setdefault(record.node_id, []).append(sums["place"])
    assert len(terms[2]) == 2
    assert not np.array_equal(*terms[2])
    numbers = grid.asked("walk")[2]
    assert len(set(numbers)) == len(numbers)


def test_repeatable_steps_are_asked_again_under_their_number(setup):
    grid, federation, _ = setup
    federation.sum("walk")
    grid.losses = [(grid.rounds + 1, 2)]
    federation.sum("where")
    assert grid.asked("where") == {1: [2], 2: [2, 2], 3: [2]}


def test_a_process_that_forgot_the_state_before_ends_the_run(setup):
    grid, federation, renew = setup
    federation.sum("walk")
    grid.forget = renew
    grid.losses = [(grid.rounds + 1, 2)]
    with pytest.raises(PartyError, match="the state before it is gone with the process"):
        federation.sum("walk")


def test_without_tries_left_the_round_fails(setup):
    grid, federation, _ = setup
    grid.losses = [(grid.rounds + k, 2) for k in (1, 2, 3)]
    with pytest.raises(PartyError, match=r"'court' failed in step 'walk': .*after 3 tries"):
        federation.sum("walk")


def test_marks_are_inherited_and_the_nearest_counts():
    class Base(Party):
        @step(repeatable=False)
        def a(self): ...

        @step(repeatable=False)
        def b(self): ...

        @step
        def c(self): ...

    class Group(StepGroup):
        @step(repeatable=False)
        def d(self): ...

    class Other(StepGroup):
        @step(repeatable=False)
        def e(self): ...

    class Derived(Base):
        group = Uses(Group)

        def a(self): ...

        @step
        def b(self): ...

        @step(repeatable=False)
        def c(self): ...

    assert unrepeatable_steps(Base) == {"a", "b"}
    assert unrepeatable_steps(Derived, (Other,)) == {"a", "c", "d", "e"}
    assert unrepeatable_steps(Arbiter) == set()


def drawn(seed, n=1, names=("bank", "court"), step_name="draw"):
    nodes = [{"party": name} for name in names]
    with LocalGrid(party_app(Walker, storage=MemoryStorage({})), nodes) as grid:
        federation = Federation(grid, parties=list(names), seed=seed)
        federation.open()
        return [federation.call(step_name) for _ in range(n)]


def test_random_numbers_follow_from_seed_party_and_message():
    first, second = drawn(5, 2)
    again = drawn(5, 2)
    for one, other in zip((first, second), again, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name]["x"], other[name]["x"])
    values = [tuple(told["x"]) for call in (first, second, drawn(6)[0]) for told in call.values()]
    assert len(set(values)) == 6
    assert drawn(2**80)  # larger than Flower's integers


def test_secret_bytes_are_new_in_each_run_and_message():
    keys = [told["key"] for _ in range(2) for call in drawn(5, 2) for told in call.values()]
    assert len(set(keys)) == 8
    assert {len(key) for key in keys} == {32}


def test_a_release_step_at_the_server_draws_nothing():
    class Noisy(Arbiter):
        @step
        def release(self, sums):
            return {"x": self.rng.normal()}

    with pytest.raises(ProtocolError, match="a release step at the server works on the sums alone"):
        Noisy().take("release", {"sums": {}})
    with pytest.raises(ProtocolError, match="has no secret of this run"):
        Noisy().secret_bytes("noise")


def test_other_arguments_draw_other_noise():
    """A server that asks for something else under the same number learns no difference."""

    class Asked(Party):
        @step
        def draw(self, scale: float):
            return {"key": self.secret_bytes("noise")}

    def answer(*scales):
        found = []
        for scale in scales:
            copied = copy.deepcopy(context)
            request = make_request("draw", 1, {"scale": scale}, mode="call")
            found.append(decode(server().answer(request, copied), VALUES)["key"])
        return found

    def server():
        return StepServer(lambda context: NodeTypes(Asked), MemoryStorage({}))

    context = Context(1, 1, {"party": "p"}, RecordDict(), {})
    server().answer(make_request(HELLO, 0, {}, mode="masked"), context)
    one, same, other = answer(1.0, 1.0, 2.0)
    assert one == same != other
