"""Kills a run at every entry of its journal and at every message, and resumes it.

``python -m tests.faults.kills`` does so for every built-in strategy, in this process, and prints a
table. A resumed run must give the numbers of an unbroken one, to the bit, or end with an error of
the library's own. There are four kinds of kill:

=======  =========================================================================================
before   the server, with an entry of its journal not written; the parties have answered
after    the server, with an entry just written; the next message has not left
half     the server, after the first party alone has answered a message
party    a party's process, after it took a step; its answer is lost, and the server goes on
=======  =========================================================================================

All run in one process, so a kill of the server ends the parties, too: they go on from their
checkpoints.
"""

import argparse
import dataclasses
import functools
import hashlib
import logging
import shutil
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from flwr.app import Error, Message

from flwr_vertical import LocalGrid, simulate
from flwr_vertical.alignment import steps
from flwr_vertical.crypto.masks import generate_keypair
from flwr_vertical.crypto.permutation import secret_order
from flwr_vertical.errors import VerticalError
from flwr_vertical.node import introduction
from flwr_vertical.node.service import StepServer
from flwr_vertical.products import pair_keys
from flwr_vertical.server import journal
from flwr_vertical.server.journal import Journal
from tests.kit import cases
from tests.kit.resuming import ServerKilled

# Runs whose numbers follow from keys of the parties: how sums are rounded.
OF_KEYS = cases.LARGE
# Runs whose parties keep shares of a model, random but for their sum: predictions are compared.
OF_SHARES = {"forest", "forest snapshots"}
# Runs whose loops go back to snapshots: case, and steps between two snapshots.
LOOPS = {"gbdt": 1, "forest": 1, "vertigan": 1, "fedpsg-ar joint": 1}
LOOPS |= {"vanilla-vfl": 2, "false-vfl": 2, "fedhssl": 2}
WHENS = ("before", "after", "half", "party")
# What differs between two runs by its nature: what they cost, and when and where they were.
_OF_THE_RUN = {"ledger", "where", "finished", "figures", "_judged"}
_CRASHED = 8  # Flower's code for a process that ended


class Run:
    """One small run of a strategy, that can be broken and resumed."""

    def __init__(self, name, case, n_rows=None, **settings):
        self.name, self._settings = name, settings
        self._strategy = cases.made(case)
        self._tables, self._labels = cases.tables_of(case), cases.labels_of(case)
        if n_rows:
            self._tables, self._labels = cases.tables(n_rows, cells=0.0), cases.labels(n_rows)

    def __call__(self, folder, resume=False):
        options = {"min_rows": 1, "patience": 120.0, "retries": 1} | self._settings
        if "policy" in options:  # ledgers of this run alone, which outlive a kill
            ledgers = Path(f"{folder}-ledgers")
            if not resume:
                shutil.rmtree(ledgers, ignore_errors=True)
                ledgers.mkdir()
            options["ledgers"] = ledgers
        return simulate(
            self._strategy, self._tables, self._labels, checkpoint=folder, resume=resume, **options
        )

    def comparable(self, result):
        """Return a result with what can be compared in place of shares."""
        if self.name in OF_SHARES:
            result.predictions = result.predict(self._tables).predictions
            result._party_models = {}
        return result


class Killer:
    """Counts entries and rounds of a run, and kills the server or a party at one of them."""

    def __init__(self, patch):
        self.entries = self.rounds = 0
        self.when, self.at = "", -1
        self.hit = False
        self._servers = []
        append, send, answer = Journal._append, LocalGrid.send_and_receive, StepServer.answer

        def counted_append(journal, meta, records):
            number, self.entries = self.entries, self.entries + 1
            if self._is_now("before", number):
                raise ServerKilled
            append(journal, meta, records)
            if self._is_now("after", number):
                raise ServerKilled

        def counted_send(grid, messages, *, timeout=None):
            messages = list(messages)
            number, self.rounds = self.rounds, self.rounds + 1
            if self._is_now("half", number):
                list(send(grid, messages[:1], timeout=timeout))
                raise ServerKilled
            replies = list(send(grid, messages, timeout=timeout))
            if self._is_now("party", number):
                replies = self._without_one(grid, replies, messages[number % len(messages)])
            return replies

        def noted_answer(server, request, context):
            if server not in self._servers:
                self._servers.append(server)
            return answer(server, request, context)

        patch.setattr(Journal, "_append", counted_append)
        patch.setattr(LocalGrid, "send_and_receive", counted_send)
        patch.setattr(StepServer, "answer", noted_answer)

    def aim(self, when="", at=-1):
        self.when, self.at, self.hit = when, at, False
        self.entries = self.rounds = 0
        self._servers.clear()

    def _is_now(self, when, number):
        if (when, number) != (self.when, self.at):
            return False
        self.hit = True
        return True

    def _without_one(self, grid, replies, lost):
        """End the process of the party that a message went to; its answer does not arrive."""
        node_id = lost.metadata.dst_node_id
        for server in self._servers:
            server._caches.pop(node_id, None)
        grid.contexts[node_id].state.clear()
        kept = [r for r in replies if r.metadata.src_node_id != node_id]
        return [*kept, Message(Error(code=_CRASHED, reason="it was killed"), reply_to=lost)]


def steady(patch, keys=False):
    """Give every run the same random bytes, so that only recovery can change a number.

    The parties' key pairs are others in each run, unless `keys` wants the same: one that is made
    anew where it should have been kept is then found.
    """
    drawn, random_bytes = {}, Journal.random_bytes

    def draw(count):
        return hashlib.shake_256(b"%d" % drawn.get("number", 0)).digest(count)

    def in_order(journal, count):  # also of those that the journal has
        drawn["number"] = 1 if drawn.get("by") is not journal else drawn["number"] + 1
        drawn["by"] = journal
        return random_bytes(journal, count)

    patch.setattr(Journal, "random_bytes", in_order)
    patch.setattr(journal, "secrets", SimpleNamespace(token_bytes=draw))
    patch.setattr(introduction, "secrets", SimpleNamespace(token_bytes=bytes))
    patch.setattr(steps, "secret_order", lambda count, random=bytes: secret_order(count, bytes))
    if keys:
        pairs = defaultdict(generate_keypair)

        def of_node():  # each node has a thread
            return pairs[threading.current_thread().name]

        for module in (introduction, pair_keys):
            patch.setattr(module, "generate_keypair", of_node)


def leaves(value, path=""):
    """Yield what a result holds, piece by piece, by where it is."""
    if isinstance(value, pd.DataFrame | pd.Series | pd.Index):
        frame = value.to_frame() if not isinstance(value, pd.DataFrame) else value
        frame = frame.reset_index() if not isinstance(value, pd.Index) else frame
        for k, name in enumerate(frame.columns):
            yield from leaves(frame.iloc[:, k].to_numpy(), f"{path}[{name!r}]")
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield path, (value.dtype.str, value.shape, value.tobytes())
    elif isinstance(value, np.ndarray | list | tuple):
        yield path, len(value)
        for k, one in enumerate(value):
            yield from leaves(one, f"{path}[{k}]")
    elif isinstance(value, dict):
        yield path, sorted(map(repr, value))
        for key in sorted(value, key=repr):
            yield from leaves(value[key], f"{path}[{key!r}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            if each.name not in _OF_THE_RUN:
                yield from leaves(getattr(value, each.name), f"{path}.{each.name}")
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, type):
        yield from leaves(vars(value), path)
    else:
        yield path, value if isinstance(value, bytes) else repr(value)


def differences(one, other):
    """Name what differs between two results."""
    left, right = dict(leaves(one)), dict(leaves(other))
    return sorted(p for p in left.keys() | right.keys() if left.get(p) != right.get(p))


def outcome(run, killer, when, at, folder, expected):
    """Kill a run once, resume it, and say how it compares with an unbroken one."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        killer.aim(when, at)
        try:
            result = run(folder)
        except ServerKilled:
            killer.aim()
            result = run(folder, resume=True)
        else:
            if not killer.hit:
                return "not reached"
    except VerticalError as error:
        return f"clean error: {type(error).__name__}: {error}"
    except Exception as error:
        return f"raised: {type(error).__name__}: {error}"
    killer.aim()
    found = differences(expected, run.comparable(result))
    return "equal" if not found else f"differs: {len(found)} of {', '.join(found[:4])}"


def kill_everywhere(run, every=1, whens=WHENS, first=0):
    """Kill a run at every place (or every so many) and resume it."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
        steady(patch, keys=run.name in OF_KEYS)
        killer, folder = Killer(patch), Path(place) / "run"
        expected = run(folder)
        entries, rounds = killer.entries, killer.rounds
        expected = run.comparable(expected)
        again = differences(expected, run.comparable(run(Path(place) / "again")))
        if again:
            raise AssertionError(f"{run.name}: two unbroken runs differ in {again[:4]}")
        found = {}
        for when in whens:
            for at in range(first, entries if when in ("before", "after") else rounds, every):
                found[when, at] = outcome(run, killer, when, at, folder, expected)
    return entries, rounds, found


def runs():
    """Return the runs by name: the cases of the contract, with snapshots, ledgers, ciphertexts."""
    found = {case: functools.partial(Run, case, case) for case in cases.CASES}
    for case, every in LOOPS.items():
        name = f"{case} snapshots"
        found[name] = functools.partial(Run, name, case, checkpoint_every=every)
    # Parties that keep a privacy ledger recognise labels, and masked columns come with sketches.
    found["glm ledger"] = functools.partial(
        Run, "glm ledger", "glm", n_rows=150, policy={"exchanges": "*"}, min_rows=None
    )
    found["fknn ckks"] = functools.partial(Run, "fknn ckks", "fknn", aggregation="ckks")
    return found


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--strategy", action="append", metavar="NAME", help="only runs of these")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="kill at each N-th place")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print("| run | entries | messages | kills | equal | clean error | wrong | seconds |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    wrong = []
    for name, make in runs().items():
        if asked.strategy and name.split()[0] not in asked.strategy:
            continue
        started = time.monotonic()
        entries, rounds, found = kill_everywhere(make(), asked.every)
        counts = Counter(told.partition(":")[0] for told in found.values())
        kills = len(found) - counts["not reached"]
        other = kills - counts["equal"] - counts["clean error"]
        row = [name, entries, rounds, kills, counts["equal"], counts["clean error"], other]
        row.append(round(time.monotonic() - started))
        print("|", " | ".join(map(str, row)), "|", flush=True)
        wrong += [f"{name}, {when} {at}: {told}" for (when, at), told in found.items()
                  if told not in ("equal", "not reached")]  # fmt: skip
    print("\n".join(["", *wrong]))
    return any(": clean error: " not in line for line in wrong)


if __name__ == "__main__":
    raise SystemExit(main())
