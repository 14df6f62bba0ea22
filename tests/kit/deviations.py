"""Servers that ask for something else than their strategy has them ask; nodes are unchanged."""

import copy

from flwr_vertical.server import Federation


def asked_for(monkeypatch, step, change, at=None):
    """Have the server change what it asks for in a step, each time or in its request number `at`.

    `change` gets the arguments of all parties, and those of each by name.
    """
    once, count = Federation._requests, []

    def other(self, name, arguments, per_party, *more, **options):
        if name == step:
            count.append(name)
            if at in (None, len(count)):
                arguments = copy.deepcopy(dict(arguments or {}))
                per_party = copy.deepcopy(dict(per_party or {}))
                change(arguments, per_party)
        return once(self, name, arguments, per_party, *more, **options)

    monkeypatch.setattr(Federation, "_requests", other)


def altered(name, change):
    """Return the change of one argument, which all parties get."""

    def alter(common, each):
        common[name] = change(common[name])

    return alter


def told_otherwise(monkeypatch, step, party, change):
    """Have the server ask one party for something else than the others, under the same number."""
    once = Federation._requests

    def equivocate(self, name, arguments, *more, **options):
        requests = once(self, name, arguments, *more, **options)
        if name == step:
            self._record.sequence -= 1
            self._record.course -= 1
            others = once(self, name, arguments | change(arguments), *more, **options)
            requests[party] = others[party]
        return requests

    monkeypatch.setattr(Federation, "_requests", equivocate)
