"""What parties and server of FALSE-VFL are told, read from every message of a run."""

import numpy as np
import pytest
from deep_runs import SMALL, make_data

from flwr_vertical import simulate
from flwr_vertical.protocol import decode
from flwr_vertical.protocol.messages import ARGUMENTS, SUMS, VALUES, read_envelope
from strategies.false_vfl.strategy import FalseVFL

ROUNDS = ("prepare", "encode", "log_terms", "go_backward", "score", "keep")


def run(variant, labels, tables, mode="plain", **settings):
    transcript = []
    strategy = FalseVFL(
        variant=variant, pretrain_epochs=2, epochs=6, pretrain_batch_size=20, **SMALL | settings
    )
    simulate(strategy, tables, labels, aggregation=mode, progress=False, transcript=transcript)
    return transcript


def asked(transcript):
    """Step and arguments of every message to a party, in order."""
    for record in transcript:
        if record.direction == "down":
            step = read_envelope(record.content)["step"]
            if step in ROUNDS:
                yield record.node_id, step, decode(record.content, ARGUMENTS)


@pytest.fixture(scope="module")
def parties():
    return make_data(seed=6, held=0.5)


@pytest.mark.parametrize("variant", ["I", "II"])
def test_no_message_to_a_party_depends_on_a_label(parties, variant):
    tables, labels, _ = parties
    other = 1 - labels  # every label is another one; the samples that have one are the same
    messages = [list(asked(run(variant, y, tables))) for y in (labels, other)]
    assert len(messages[0]) == len(messages[1]) > 3 * 20
    for (node, step, one), (again, same, two) in zip(*messages, strict=True):
        assert (node, step, set(one)) == (again, same, set(two))
        for name, value in one.items():
            if (step, name) != ("keep", "model"):  # a random name
                np.testing.assert_array_equal(value, two[name])


def test_a_party_is_told_of_samples_that_it_holds_and_of_no_other(parties):
    tables, labels, _ = parties
    ids = list(dict.fromkeys(i for table in tables.values() for i in table.index))
    holds = {node: np.isin(ids, table.index) for node, table in enumerate(tables.values(), start=1)}
    seen, batch, told = set(), {}, {}
    for node, step, values in asked(run("I", labels, tables)):
        if step == "encode":
            told[node], batch[node] = batch.get(node), values["batch"]
            rows = None if told[node] is None else holds[node][told[node]].sum()
        else:
            rows = holds[node][batch[node]].sum() if node in batch else None
        for name in ("mean", "log_sigma", "weights", "in_mean", "in_precision"):
            if name in values:
                seen.add(name)
                assert len(values[name]) == rows
    assert seen == {"mean", "log_sigma", "weights", "in_mean", "in_precision"}


def test_a_masked_run_sends_nothing_of_a_party_in_the_open(parties):
    """Replies are uniform words of 32 bits; nothing beside them but consent and what it drew."""
    tables, labels, _ = parties
    words, last = [], {}
    for record in run("I", labels, tables, mode="masked"):
        if record.direction == "down":
            last[record.node_id] = read_envelope(record.content)["step"]
        elif (step := last[record.node_id]) in ROUNDS:
            sent = decode(record.content, SUMS).values()
            words += [v.ravel() for v in sent if hasattr(v, "ravel")]
            told = set(decode(record.content, VALUES))
            assert told == ({"lone", "drawn", "precision"} if step == "prepare" else set())
    words = np.concatenate([w.view(np.uint32) for w in words])
    assert len(words) > 10_000
    # Each bit is 1 in half of the words, to five standard errors.
    bits = np.array([((words >> np.uint32(k)) & np.uint32(1)).mean() for k in range(32)])
    assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(len(words))
