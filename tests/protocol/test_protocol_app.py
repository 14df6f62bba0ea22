"""`party_app` and the state of a node: one message after the other, in one process or in many."""

import copy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_vertical import (
    Arbiter,
    FileStorage,
    MemoryStorage,
    Party,
    Summands,
    Table,
    party_app,
    step,
)
from flwr_vertical.crypto.masks import generate_keypair
from flwr_vertical.node.state import State
from flwr_vertical.protocol import decode, encode
from flwr_vertical.protocol.messages import (
    ENVELOPE,
    SUMS,
    VALUES,
    make_message,
    make_request,
    read_envelope,
)
from flwr_vertical.version import __version__

TABLE = Table.of(pd.DataFrame({"x": [1.0, 2.0, 4.0]}, index=[10, 20, 30]))


class Remembering(Party):
    """Keeps a list of what it was told, in its state."""

    taken = 0  # in this process, over all objects

    @step
    def remember(self, value):
        type(self).taken += 1
        self.state["told"] = np.append(self.state.get("told", np.empty(0)), value)
        self.state["count"] = int(self.state.get("count", 0)) + 1
        return {"told": self.state["told"], "count": self.state["count"]}

    @step
    def fail_after_writing(self):
        self.state["told"] = np.array([666.0])
        raise RuntimeError("out of paper")

    @step
    def overwrite(self, value):
        self.state["told"] = value
        return {}

    @step
    def forget(self):
        del self.state["told"]
        return {"left": sorted(key for key in self.state if key in ("told", "count"))}

    @step
    def write_into(self):
        self.state["told"][0] = 5.0
        return {}

    @step
    def total(self):
        type(self).taken += 1
        return Summands({"x": self.table.frame["x"].to_numpy()}, {"rows": self.table.n_samples})

    @step
    def nothing(self):
        pass

    @step
    def a_number(self):
        return 3

    def not_a_step(self):
        return {}


@pytest.fixture(autouse=True)
def _fresh_count():
    Remembering.taken = 0


def new_app(party=Remembering, **kwargs):
    return party_app(party, storage=MemoryStorage({"bank": TABLE}), **kwargs)


def new_context(run_id=1, **node_config):
    config = node_config or {"party": "bank"}
    return Context(run_id=run_id, node_id=7, node_config=config, state=RecordDict(), run_config={})


def ask(app, context, name, sequence, mode="call", updates=None, after=None, **arguments):
    """Send one message; return envelope, values and sums of the reply."""
    envelope = {"mode": mode} | ({} if after is None else {"after": after})
    if name == "hello":
        envelope |= {"n-parties": 2}
    if mode != "call":
        envelope |= {"n-parties": 2, "fraction-bits": 32}
    request = make_request(name, sequence, arguments, updates, **envelope)
    reply = app(make_message(request, 7), context)
    assert isinstance(reply, Message)
    assert reply.metadata.src_node_id == 7
    return SimpleNamespace(
        envelope=dict(read_envelope(reply.content)),
        values=decode(reply.content, VALUES),
        sums=decode(reply.content, SUMS),
    )


def error_of(reply):
    assert reply.envelope["status"] == "error"
    assert not reply.values
    assert not reply.sums
    return f"{reply.envelope['error']}: {reply.envelope['message']}"


def greeted(mode="call", app=None, **node_config):
    app, context = app or new_app(), new_context(**node_config)
    reply = ask(app, context, "hello", 0, mode=mode)
    assert reply.envelope["status"] == "ok"
    return app, context


def test_it_is_a_flower_client_app_that_answers_query_step():
    app = new_app()
    assert isinstance(app, ClientApp)
    reply = ask(app, new_context(), "hello", 0)
    assert reply.envelope["status"] == "ok"
    assert reply.values == {"party": "bank", "role": "party", "version": __version__}
    assert reply.envelope["seconds"] > 0


def test_other_messages_are_not_served():
    reply = new_app()(make_message(RecordDict(), 7), new_context())
    assert "no flwr-vertical envelope" in read_envelope(reply.content)["message"]
    message = make_message(make_request("hello", 0, {}, mode="call"), 7)
    message.metadata.__dict__["_message_type"] = "query.other"
    with pytest.raises(ValueError, match="query"):
        new_app()(message, new_context())


def test_state_survives_a_new_process_for_each_message():
    _, context = greeted()
    for sequence in range(1, 5):
        reply = ask(new_app(), context, "remember", sequence, value=float(sequence))
    np.testing.assert_array_equal(reply.values["told"], [1, 2, 3, 4])


def test_state_goes_through_the_context_and_only_there():
    """A state put into another context goes on there; an empty context knows nothing."""
    app, context = greeted()
    ask(app, context, "remember", 1, value=1.0)
    moved = new_context()
    moved.state = context.state
    reply = ask(new_app(), moved, "remember", 2, value=2.0)
    np.testing.assert_array_equal(reply.values["told"], [1, 2])
    message = error_of(ask(new_app(), new_context(), "remember", 3, value=1.0))
    assert "step 'remember' came before the greeting" in message
    assert "start the run again" in message
    assert Remembering.taken == 2


def test_what_is_read_back_is_a_read_only_copy():
    app, context = greeted()
    given = np.arange(3.0)
    ask(app, context, "overwrite", 1, value=given)
    given[:] = -1
    state = State(context)
    np.testing.assert_array_equal(state["told"], [0, 1, 2])
    assert "read-only" in error_of(ask(app, context, "write_into", 2))


def test_a_value_may_change_from_array_to_scalar_and_be_deleted():
    app, context = greeted()
    ask(app, context, "remember", 1, value=1.0)
    ask(app, context, "overwrite", 2, value="text")
    assert State(context)["told"] == "text"
    ask(app, context, "overwrite", 3, value=np.arange(2))
    np.testing.assert_array_equal(State(context)["told"], [0, 1])
    assert ask(app, context, "forget", 4).values["left"] == ["count"]
    assert "told" not in State(context)


def test_a_failed_step_leaves_no_trace_in_the_state():
    app, context = greeted()
    ask(app, context, "remember", 1, value=1.0)
    assert error_of(ask(app, context, "fail_after_writing", 2)) == "RuntimeError: out of paper"
    np.testing.assert_array_equal(State(context)["told"], [1.0])
    assert ask(app, context, "remember", 3, value=2.0).values["count"] == 2


def test_errors_of_other_libraries_do_not_quote_cells_to_the_server(tmp_path, caplog):
    class Clumsy(Party):
        @step
        def read(self):
            return {"x": pd.to_numeric(pd.Series(["Smith, John"]))}

    path = tmp_path / "bank.csv"
    TABLE.frame.to_csv(path)
    config = {"party": "bank", "data": str(path), "output": str(tmp_path / "results")}
    answers = {}
    for storage in (FileStorage(), MemoryStorage({"bank": TABLE})):
        app, context = party_app(Clumsy, storage=storage), new_context(**config)
        ask(app, context, "hello", 0, mode="masked")
        answers[type(storage)] = error_of(ask(app, context, "read", 1))
    assert "Smith" not in answers[FileStorage]
    assert answers[FileStorage].startswith("ValueError: raised in ")
    assert "see the party's own log" in answers[FileStorage]
    assert "Smith" in caplog.text  # the party's own
    assert "Smith" in answers[MemoryStorage]  # all tables lie in one process


def test_labels_that_are_no_numbers_are_not_quoted():
    frame = pd.DataFrame({"x": [1.0, 2.0], "name": ["Smith, John", "4"]}, index=["a", "b"])
    app = party_app(Party, storage=MemoryStorage({"bank": Table.of(frame)}))
    context = new_context()
    context.run_config.update({"label-holder": "bank", "label-column": "name"})
    ask(app, context, "hello", 0)
    message = error_of(ask(app, context, "labels", 1))
    assert "the labels in column 'name' must be numbers" in message
    assert "Smith" not in message


def test_updates_enter_the_state_before_the_step():
    app, context = greeted()
    reply = ask(app, context, "remember", 1, updates={"told": np.array([9.0])}, value=1.0)
    np.testing.assert_array_equal(reply.values["told"], [9, 1])


def test_a_new_greeting_starts_with_an_empty_state():
    app, context = greeted()
    ask(app, context, "remember", 5, value=1.0)
    ask(app, context, "hello", 0)
    reply = ask(app, context, "remember", 1, value=2.0)
    np.testing.assert_array_equal(reply.values["told"], [2.0])


def test_unknown_steps_and_arguments_are_errors():
    app, context = greeted()
    for name in ("fit", "not_a_step", "take", "__init__"):
        message = error_of(ask(app, context, name, 1))
        assert message.startswith(f"ProtocolError: Remembering has no step {name!r}")
        assert "'remember'" in message  # those that there are
        assert "same version" in message
    answer = ask(app, context, "remember", 1, value=1.0, colour="red")
    assert "unexpected keyword argument 'colour'" in error_of(answer)


def test_a_repeated_message_gets_the_same_reply_and_is_not_taken_twice():
    app, context = greeted()
    first = ask(app, context, "remember", 1, value=1.0)
    again = ask(app, context, "remember", 1, value=1.0)
    assert Remembering.taken == 1
    assert again.envelope == first.envelope
    np.testing.assert_array_equal(again.values["told"], first.values["told"])
    np.testing.assert_array_equal(State(context)["told"], [1.0])


def test_a_message_that_another_process_answered_gets_the_same_reply_whatever_it_asks():
    """Flower starts a process for each message, and its SuperLink may lose a reply."""
    app, context = greeted()
    first = ask(app, context, "remember", 1, value=1.0)
    for name, values in ("remember", {"value": 1.0}), ("remember", {"value": 2.0}), ("total", {}):
        again = ask(new_app(), context, name, 1, **values)
        assert again.envelope == first.envelope
        np.testing.assert_array_equal(again.values["told"], [1.0])
    assert Remembering.taken == 1
    ask(new_app(), context, "remember", 2, value=1.0)
    assert [name for name in context.state if "reply-1" in name] == []  # the server has it


def test_a_message_older_than_the_last_or_whose_reply_was_too_large_to_keep_is_refused(monkeypatch):
    app, context = greeted()
    ask(app, context, "remember", 1, value=1.0)
    ask(app, context, "remember", 2, value=1.0)
    answered = "message {} ('remember') was already answered"
    for served_by in (app, new_app()):
        assert answered.format(1) in error_of(ask(served_by, context, "remember", 1, value=1.0))
    monkeypatch.setattr("flwr_vertical.node.recovering._MOST_BYTES", 10)
    ask(app, context, "remember", 3, value=1.0)
    assert answered.format(3) in error_of(ask(new_app(), context, "remember", 3, value=1.0))
    assert Remembering.taken == 3


def test_a_node_that_lost_what_it_remembered_of_an_answer_says_so():
    app, context = greeted()
    before = copy.deepcopy(context)
    ask(app, context, "remember", 1, value=1.0, after=0)
    ask(app, context, "remember", 2, value=1.0, after=1)
    # Its reply has left, but its state was never kept.
    message = error_of(ask(new_app(), before, "remember", 2, value=1.0, after=1))
    assert "builds on message 1, which this node answered" in message
    assert Remembering.taken == 2


def masked_node():
    """A greeted node that knows one peer, and the updates that make it know."""
    app, context = new_app(), new_context()
    greeting = ask(app, context, "hello", 0, mode="masked").values
    _, public = generate_keypair()
    updates = {
        "sum.peers": ["bank", "court"],
        "sum.public-keys": [greeting["public-key"], public],
        "sum.nonce": bytes(32),
    }
    return app, context, updates


def test_a_repeated_masked_term_is_the_same_bytes():
    app, context, updates = masked_node()
    first = ask(app, context, "total", 1, mode="masked", updates=updates)
    again = ask(app, context, "total", 1, mode="masked")
    assert first.sums["x"].dtype == np.uint64
    np.testing.assert_array_equal(again.sums["x"], first.sums["x"])
    assert first.values == {"rows": 3}
    assert Remembering.taken == 1


def test_no_mask_is_used_twice_across_processes():
    """Equal terms, masked in two processes, differ: the last sequence number is in the state."""
    _, context, updates = masked_node()
    first = ask(new_app(), context, "total", 1, mode="masked", updates=updates)
    second = ask(new_app(), context, "total", 2, mode="masked")
    assert not np.any(first.sums["x"] == second.sums["x"])
    assert State(context)["sum.last-sequence"] == 2
    again = ask(new_app(), context, "total", 2, mode="masked")
    np.testing.assert_array_equal(again.sums["x"], second.sums["x"])


def test_a_masked_sum_needs_the_keys_of_the_others():
    app, context = greeted(mode="masked")
    message = error_of(ask(app, context, "total", 1, mode="masked"))
    assert "party 'bank' has no public keys of the other parties" in message


def test_a_name_that_comes_twice_among_the_keys_is_refused():
    """Counted as two parties it would have one mask, which whoever has that name takes off."""
    app, context, updates = masked_node()
    own, court = updates["sum.public-keys"]
    updates |= {"sum.peers": ["bank", "court", "court"], "sum.public-keys": [own, court, court]}
    message = error_of(ask(app, context, "total", 1, mode="masked", updates=updates))
    assert "['bank', 'court', 'court'], of which some have one name" in message


def test_the_private_key_stays_in_the_state():
    app, context = new_app(), new_context()
    reply = ask(app, context, "hello", 0, mode="masked")
    assert set(reply.values) == {"party", "role", "version", "public-key"}
    private = State(context)["sum.private-key"]
    assert len(private) == 32
    assert private not in reply.values.values()


@pytest.mark.parametrize("mode", ["call", "plain", "ckks"])
def test_keys_are_made_only_where_they_are_needed(mode):
    _, context = greeted(mode=mode)
    own = {"node.name", "node.seed", "node.secret"}
    assert set(State(context)) == {*own, "sum.mode", "protocol.last-sequence"}


def test_only_the_arbiter_makes_ckks_keys_and_it_keeps_the_secret():
    ts = pytest.importorskip("tenseal")
    context = new_context(role="arbiter")
    reply = ask(new_app(), context, "hello", 0, mode="ckks")
    assert reply.values["role"] == "arbiter"
    assert not ts.context_from(reply.values["ckks-public"]).is_private()
    assert ts.context_from(State(context)["sum.ckks-secret"]).is_private()


def test_a_party_cannot_open_sums():
    pytest.importorskip("tenseal")
    app, context = greeted(mode="ckks")
    request = make_request("reveal", 1, {}, mode="call")
    request.update(encode({"x": [b"1"], "shape:x": [1, 0]}, SUMS))
    reply = app(make_message(request, 7), context)
    assert "only the arbiter opens sums" in read_envelope(reply.content)["message"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"colour": "red"}, "node 7 has no party name; start its SuperNode with --node-config"),
        ({"party": ""}, "party name '' is not usable"),
        ({"party": "../etc"}, "party name '../etc' is not usable"),
        ({"party": "bank", "role": "boss"}, "role = 'boss'; expected 'party' or 'arbiter'"),
    ],
)
def test_bad_node_configs(config, why):
    assert why in error_of(ask(new_app(), new_context(**config), "hello", 0))


def test_what_a_step_may_return():
    app, context = greeted()
    assert ask(app, context, "nothing", 1).values == {}
    assert "step 'a_number' returned int; a called step returns a dict" in error_of(
        ask(app, context, "a_number", 2)
    )
    assert "returned dict; return Summands(values, public)" in error_of(
        ask(app, context, "remember", 3, mode="plain", value=1.0)
    )
    assert "returned Summands" in error_of(ask(app, context, "total", 4))


def test_halves_may_be_chosen_by_the_run_config():
    class Other(Party):
        @step
        def who(self):
            return {"who": self.services.run_config["strategy"]}

    def choose(context):
        assert context.run_config["strategy"] == "other"
        return Other, Arbiter

    app, context = new_app(choose), new_context()
    context.run_config["strategy"] = "other"
    ask(app, context, "hello", 0)
    assert ask(app, context, "who", 1).values == {"who": "other"}


def test_an_override_of_a_step_need_not_be_marked_again():
    class Child(Remembering):
        def nothing(self):
            return {"something": 1}

    app, context = greeted(app=new_app(Child))
    assert ask(app, context, "nothing", 1).values == {"something": 1}


def test_a_new_run_reads_the_table_anew():
    storage = MemoryStorage({"bank": TABLE})
    app = party_app(Remembering, storage=storage)
    for run_id, rows in [(1, 3), (2, 1)]:
        storage._tables["bank"] = Table.of(TABLE.frame.iloc[:rows])
        context = new_context(run_id=run_id)
        ask(app, context, "hello", 0, mode="plain")
        assert ask(app, context, "total", 1, mode="plain").values == {"rows": rows}


def test_the_label_column_is_not_among_the_features():
    class Columns(Party):
        @step
        def columns(self):
            return {"columns": self.table.columns, "kinds": list(self.table.kinds)}

    frame = pd.DataFrame({"x": [1.0, 2.0], "speed": [3.0, 4.0]}, index=["a", "b"])
    app = party_app(Columns, storage=MemoryStorage({"bank": Table.of(frame)}))
    for holder, expected in [("bank", ["x"]), ("court", ["x", "speed"])]:
        context = new_context()
        context.run_config.update({"label-holder": holder, "label-column": "speed"})
        ask(app, context, "hello", 0)
        values = ask(app, context, "columns", 1).values
        assert values == {"columns": expected, "kinds": expected}


def test_the_reply_names_no_other_records():
    """A reply holds an envelope, values and sums, so that the transcript can be audited."""
    app, context, updates = masked_node()
    request = make_request(
        "total", 1, {}, updates, mode="masked", **{"n-parties": 2, "fraction-bits": 32}
    )
    reply = app(make_message(request, 7), context)
    assert set(reply.content) == {
        ENVELOPE, "values.arrays", "values.values", "sums.arrays", "sums.values",
    }  # fmt: skip
