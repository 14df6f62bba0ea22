"""Asks every sum twice, the second time a process that has forgotten all: no pad may cover two."""

import contextlib
import copy

import pytest

from flwr_vertical.node.live_objects import live_of
from flwr_vertical.node.service import StepServer
from flwr_vertical.node.steps import unrepeatable_steps
from flwr_vertical.protocol.messages import ENVELOPE, HELLO, read_envelope
from flwr_vertical.protocol.private_sum import MODES


class SecondAnswerError(AssertionError):
    """A step answered something else when it was taken again from the same state."""


class Repetition:
    """What was asked twice."""

    def __init__(self):
        self.steps, self.declared = set(), set()
        self.differences = []

    def compare(self, step, first, second):
        first, second = (_contents(reply) for reply in (first, second))
        if first == second:
            self.steps.add(step)
        else:
            self.differences.append(step)

    def check(self):
        if self.differences:
            raise SecondAnswerError(
                f"{sorted(set(self.differences))} answered something else when taken again; draw "
                "from self.rng or self.secret_bytes, or declare @step(repeatable=False)"
            )


def _contents(reply):
    """All that a reply carries, but for the seconds it took."""
    found = {}
    for name, record in reply.items():
        for key, value in record.items():
            if (name, key) != (ENVELOPE, "seconds"):
                raw = (value.dtype, value.shape, value.data) if hasattr(value, "data") else value
                found[name, key] = raw
    return found


@contextlib.contextmanager
def every_sum_twice(also=()):
    """Within it every message of a sum is answered by a fresh process first.

    That process has the live objects as they were, as from its own disk, and nothing else.
    """
    repetition = Repetition()
    once = StepServer.answer

    def twice(self, request, context):
        envelope = read_envelope(request)
        step = str(envelope["step"])
        if step == HELLO or (envelope["mode"] not in MODES and step not in also):
            return once(self, request, context)
        if step in unrepeatable_steps(*self._types(context).of(self._storage.role(context))):
            repetition.declared.add(step)
            return once(self, request, context)
        forgetful = StepServer(self._types, self._storage)
        # Live objects alone it has: a process without them takes no step.
        live = live_of(self._cache(context))
        live_of(forgetful._cache(context)).__dict__.update(copy.deepcopy(live).__dict__)
        first = once(forgetful, request, copy.deepcopy(context))
        second = once(self, request, context)
        repetition.compare(step, first, second)
        return second

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepServer, "answer", twice)
        yield repetition
    repetition.check()
