"""A server that sends other messages than the strategy does, at every place of a run."""

import pytest

from simulations.attacks.deviating import (
    ANSWERED,
    ARGUMENT,
    BY_PROTOCOL,
    OTHERWISE,
    RAW,
    STATE,
    STEP,
    VALUE,
    deviate,
)
from tests.kit import cases

# Arguments that an honest server may leave out as well.
OPTIONAL = {"commitment", "missing", "labels", "donors", "labels_attempt", "columns_of"} | {
    "n_listed",
    "split",
    "standardized",
    "exhausted",
    "weights",
    "sketched",
}


@pytest.mark.parametrize("case", ["mean", "fknn", "vfem"])
def test_other_messages_are_refused_at_every_place_of_a_run(case):
    tries = deviate(
        cases.made(case), cases.tables_of(case), cases.labels_of(case), min_rows=1, seed=1
    )
    count = tries.count()
    print(f"{case}: {len(tries.made)} tries\n{count.to_string()}")
    assert len(tries.made) > 50
    assert set(tries.count().columns[:4]) == {BY_PROTOCOL, OTHERWISE, RAW, ANSWERED}
    assert count["cells found"].sum() == 0
    # A step that is not next, and a key of the state, never come as far as the strategy's code.
    assert tries.of(STEP, ANSWERED, OTHERWISE, RAW) == []
    assert tries.of(STATE, ANSWERED, OTHERWISE, RAW) == []
    assert tries.of(ARGUMENT, RAW) == []
    answered = {one.what.partition(" missing")[0] for one in tries.of(ARGUMENT, ANSWERED)}
    assert answered <= OPTIONAL
    assert count.loc[VALUE].sum() > 0


def test_a_node_without_a_protocol_answers_what_the_others_refuse(monkeypatch):
    """What tries this could fail."""
    strategy = type(cases.made("mean"))
    monkeypatch.setattr(strategy, "protocol", None)
    tries = deviate(strategy(), cases.tables_of("mean"), min_rows=1, seed=1)
    assert tries.of(STATE, ANSWERED)
