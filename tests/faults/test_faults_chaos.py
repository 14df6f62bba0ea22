"""Seeded chaos on real nodes: what breaks is drawn at random, one thing or two at a time.

A trial breaks something in a run with checkpoints. The run then goes on by itself, or it ends with
an error that names party and cause (or the server's file), what was broken is put right, and
``resume=true`` goes on. Every run must end with the numbers of an unbroken one, and leave nothing.

``FLWR_VERTICAL_CHAOS_TRIALS`` and ``FLWR_VERTICAL_CHAOS_SEED`` set how many trials and which.
"""

import os
import random
import signal
import time

import numpy as np
import pandas as pd
import pytest
from deployments import Deployment, make_data, wait_until
from proxies import Proxy
from runtimes import free_port

from flwr_vertical import simulate
from flwr_vertical.server.journal import FILE_NAME
from tests.kit.rounds import Rounds

TRIALS = int(os.environ.get("FLWR_VERTICAL_CHAOS_TRIALS", "20"))
SEED = int(os.environ.get("FLWR_VERTICAL_CHAOS_SEED", "11"))
NAMES = ("bank", "court", "hospital")
ROUNDS = 150  # long enough that something can be broken

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300 + 60 * TRIALS)]


class Chaos:
    """A deployment, the run on it, and ways to break them."""

    def __init__(self, home, seed):
        self.home, self.rng = home, random.Random(seed)
        parties, self.labels = make_data(NAMES, 160)
        self.labels.to_csv(home / "labels.csv")
        for name, table in parties.items():
            table.to_parquet(home / f"{name}.parquet")
        self.expected = simulate(
            Rounds(max_iter=ROUNDS), parties, self.labels, alignment="plain"
        ).coefficients
        bind = f"127.0.0.1:{free_port()}"
        self.proxy = Proxy(bind)
        self.deployment = Deployment(
            home,
            {
                n: f"data='{home / n}.parquet' output='{home / n}-out' exchanges='sums' "
                "policy.alignments='plain'"
                for n in NAMES
            },
            supernode=("flower-supernode",),  # its ClientApps are processes, to be killed
        )
        self.settings = {
            "strategy": "rounds",
            "parties": ",".join(NAMES),
            "labels": str(home / "labels.csv"),
            "alignment": "plain",
            "transport": "channel",
            "channel-bind": bind,
            "channel-address": self.proxy.address,
            "rounds.max-iter": ROUNDS,
        }
        self.runs, self.run, self.name = 0, None, ""
        self.heard = False  # whether the command has told of a server that was killed
        self.put_right = []  # called when a run has ended because of what was broken

    # -- the run ---------------------------------------------------------------------------

    def begin(self):
        self.runs += 1
        self.name = f"chaos-{self.runs}"
        self.run = self.deployment.submit(run_name=self.name, checkpoint=True, **self.settings)

    def resume(self):
        self.run = self.deployment.submit(run_name=self.name, resume=True, **self.settings)

    @property
    def folder(self):
        return self.deployment.folder(self.name)

    @property
    def journal(self):
        return self.folder / FILE_NAME

    def checkpoint(self, name):
        return self.home / f"{name}-out" / self.name / ".checkpoint" / f"{name}.party"

    def progress(self):
        try:
            return self.journal.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def ended(self):
        return self.run.process.poll() is not None

    def wait_for_rounds(self, more):
        """Wait until the journal has grown, or the run has ended."""
        before = self.progress()
        wait_until(lambda: self.ended or self.progress() > before + more, 150, "rounds")

    def settle(self):
        """Go on until the run makes progress or is finished; return what happened on the way."""
        told = []
        while True:
            self.wait_for_rounds(2_000)
            if not self.ended:
                return told or ["went on"]
            if self.run.finish() == 0:
                self.check()
                return [*told, "finished"]
            killed = self.run.process.returncode < 0
            told.append("killed, resumed" if killed else self.clean_error())
            for put_right in self.put_right:
                put_right()
            self.put_right.clear()
            assert len(told) < 4, told
            self.resume()

    def clean_error(self):
        """The error that ended a run: a line with a party or a file of the server."""
        text = self.run.text
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        assert lines, text[-3000:]
        named = [name for name in NAMES if f"party '{name}'" in lines[-1]]
        assert named or str(self.journal) in lines[-1] or "ServerApp" in lines[-1], lines[-1]
        assert "Traceback" not in lines[-1]
        return lines[-1]

    def check(self):
        """The finished run's numbers are those of the unbroken one, and it leaves nothing."""
        found = pd.read_csv(self.folder / "coefficients.csv", index_col=[0, 1])
        np.testing.assert_allclose(found["estimate"], self.expected["estimate"], rtol=1e-10)
        assert (self.folder / "report.html").is_file()
        said = [line for line in self.run.text.splitlines() if "remove its checkpoint" in line]
        assert self.leftovers() == [], said

    def leftovers(self):
        """Keys and half-written files of the finished run."""
        folders = [self.folder, *(self.home / f"{name}-out" for name in NAMES)]
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return [p for p in files if p.name.startswith(".") or p.suffix in (".party", ".new")]

    # -- what breaks -----------------------------------------------------------------------

    def kill_party(self, name):
        for pid in self.deployment.client_apps(name):
            os.kill(pid, signal.SIGKILL)

    def stop_party(self, name):
        """For a while that is shorter than the server's patience."""
        pids = self.deployment.client_apps(name)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.5, 3.0))
        for pid in pids:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGCONT)

    def restart_node(self, name):
        self.deployment.kill_node(name)
        self.deployment.start_node(name)

    def cut_off(self, name):
        self.proxy.cut()

    def lose_checkpoint(self, name):
        """Whether it is written again depends on what else breaks; if not, it is put back."""
        path = self.checkpoint(name)
        try:
            whole = path.read_bytes()
        except FileNotFoundError:  # the run was at its end
            return
        path.unlink(missing_ok=True)

        def put_back():
            if not path.exists() and self.journal.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(whole)

        self.put_right.append(put_back)

    def kill_server(self, name):
        """The first time wait until the command has noticed, and says how to go on."""
        for pid in self.deployment.apps("flwr-serverapp"):
            os.kill(pid, signal.SIGKILL)
        if self.heard:
            self.run.process.kill()
        self.run.process.wait(150)
        if not self.heard and self.journal.exists():
            self.heard = True
            assert f"resume=true run-name='{self.name}'" in self.clean_error()

    def corrupt_checkpoint(self, name):
        self._corrupt_after_death(self.checkpoint(name), name)

    def corrupt_journal(self, name):
        self._corrupt_after_death(self.journal, name)

    def change_table(self, name):
        """Somebody replaces a party's file, and a new process reads it."""
        path = self.home / f"{name}.parquet"
        whole = path.read_bytes()
        (pd.read_parquet(path) + 1.0).to_parquet(path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
        self.put_right.append(lambda: path.write_bytes(whole))
        self.restart_node(name)
        wait_until(lambda: self.ended, 150, "the refusal of a table that has changed")
        if self.run.finish() != 0:  # else the last rounds were over before
            assert "its data have changed" in self.run.text, self.run.text[-3000:]
        else:
            path.write_bytes(whole)

    def _corrupt_after_death(self, path, name):
        """Damage a file while nobody holds it, and see that it is refused and named."""
        self.kill_server(name)
        wait_until(lambda: settled(path), 60, "the last answer of a party")
        if not path.exists():  # the run was at its end
            return
        whole = path.read_bytes()
        at = self.rng.randrange(60, len(whole) // 2)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        self.resume()
        assert self.run.finish(150) == 1, self.run.text[-3000:]
        assert str(path) in self.run.text, self.run.text[-3000:]
        self.clean_error()
        path.write_bytes(whole)


def settled(path, seconds=3.0):
    """Whether nobody writes to a file any more: a party may still answer a server that is dead."""
    found = []
    for _ in range(2):
        found.append(path.stat().st_mtime_ns if path.exists() else None)
        time.sleep(seconds / 2)
    return found[0] == found[1]


QUICK = ["stop_party", "cut_off", "lose_checkpoint"]
SLOW = ["restart_node", "kill_server"]  # half a minute each, mostly waiting
ONCE = ["kill_party", "corrupt_checkpoint", "corrupt_journal", "change_table"]


@pytest.fixture
def chaos(tmp_path):
    made = Chaos(tmp_path, SEED)
    yield made
    made.proxy.close()
    made.deployment.stop()


def plan(rng, trials):
    """What is broken in each trial, and at whom: every kind at least once, if there are enough."""
    kinds = [[kind] for kind in QUICK + SLOW + ONCE]
    rng.shuffle(kinds)
    kinds += [rng.sample(QUICK + SLOW, 2) for _ in range(4)]
    while len(kinds) < trials:
        kinds.append(rng.sample(QUICK, rng.choice([1, 2])))
    del kinds[trials:]
    rng.shuffle(kinds)
    return [[(kind, rng.choice(NAMES)) for kind in each] for each in kinds]


def test_chaos(chaos, capsys):
    with capsys.disabled():
        print(f"\nchaos: {TRIALS} trials, FLWR_VERTICAL_CHAOS_SEED={SEED}")
        for number, breaks in enumerate(plan(chaos.rng, TRIALS), start=1):
            if chaos.run is None or chaos.ended:
                chaos.begin()
            chaos.wait_for_rounds(chaos.rng.randrange(3_000, 20_000))
            if chaos.ended:
                continue_or_fail(chaos)
            started = time.monotonic()
            for kind, name in breaks:
                getattr(chaos, kind)(name)
            told = chaos.settle()
            seconds = time.monotonic() - started
            print(f"{number:3} {seconds:5.1f} s  {breaks}: {'; '.join(t[:150] for t in told)}")
    while not (chaos.ended and chaos.run.finish() == 0):
        wait_until(lambda: chaos.ended, 150, "the end of the last run")
        if chaos.run.finish() != 0:
            chaos.clean_error()
            chaos.resume()
    chaos.check()
    wait_until(lambda: not chaos.deployment.apps("flwr-clientapp"), 60, "the parties' processes")
    assert not chaos.deployment.apps("flwr-serverapp")


def continue_or_fail(chaos):
    """A run that ended by itself did so because it was finished; the next one is broken instead."""
    assert chaos.run.finish() == 0, chaos.run.text[-3000:]
    chaos.check()
    chaos.begin()
    chaos.wait_for_rounds(2_000)
