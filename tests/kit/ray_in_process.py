"""A stand-in for Ray in this process: it pickles what goes to actors and comes back, as Ray does.

An actor of Ray is a process that takes seconds to start. This one takes none, so every strategy can
be run on a `RayGrid`; tests/grids/test_grids_ray.py runs some on Ray itself.
"""

import pickle

from ray import cloudpickle


def sent(value):
    """Return a value as it arrives: another object, its arrays read-only."""
    buffers = []
    data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[buffer.raw().tobytes() for buffer in buffers])


class InProcessActorError(Exception):
    """What Ray raises for an actor."""


class _Reference:
    def __init__(self, value):
        self.value = value


class _Method:
    def __init__(self, method):
        self.method = method

    def remote(self, *arguments):
        return _Reference(sent(self.method(*sent(arguments))))


class _Actor:
    def __init__(self, instance):
        self.instance = instance

    def __getattr__(self, name):
        return _Method(getattr(self.instance, name))


class _ActorClass:
    def __init__(self, ray, cls):
        self.ray, self.cls = ray, cls

    def remote(self, *arguments):
        self.ray.started += 1
        return _Actor(self.cls(*sent(arguments)))


class InProcessRay:
    """The part of Ray that `RayGrid` uses; `started` counts its actors."""

    class exceptions:  # noqa: N801
        RayError = InProcessActorError

    def __init__(self, cpus=2):
        self.cpus, self.started = cpus, 0

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": float(self.cpus)}

    def remote(self, **resources):
        return lambda cls: _ActorClass(self, cls)

    def wait(self, references, num_returns, timeout):
        return references[:num_returns], references[num_returns:]

    def get(self, given):
        if isinstance(given, list):
            return [reference.value for reference in given]
        return given.value

    def kill(self, actor):
        assert isinstance(actor, _Actor)
