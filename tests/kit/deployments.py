"""A Deployment Runtime of the tests' own: a SuperLink and SuperNodes on loopback, to be broken."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
from runtimes import ROOT, Flower, processes_of, stop_all
from third_party import install_rounds


def free_ports(count):
    """Different free ports: nodes that start slowly must not be given the same one."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def make_data(names, n):
    """Tables of two columns, each party lacking some rows, and labels."""
    rng = np.random.default_rng(11)
    index = pd.Index([f"s{i:03}" for i in range(n)], name="id")
    parties = {
        name: pd.DataFrame(rng.normal(size=(n, 2)), index=index, columns=["a", "b"])
        for name in names
    }
    labels = sum(table["a"] for table in parties.values()) + rng.normal(size=n)
    kept = {name: table[rng.random(n) > 0.3] for name, table in parties.items()}
    return kept, labels.rename("y")


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def parents():
    """Parent of every process, by process ID."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
    return found


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class Run:
    """A run that was submitted; its output goes to a file."""

    def __init__(self, flower, log, arguments):
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "apps.cli.main", *arguments],
            cwd=ROOT,
            env=flower.env,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
        )

    @property
    def text(self):
        return self.log.read_text()

    def wait_for(self, text, seconds=240):
        wait_until(
            lambda: text in self.text or self.process.poll() is not None, seconds, repr(text)
        )
        assert text in self.text, self.text[-3000:]

    def finish(self, seconds=240):
        """Wait for its end; return its exit status."""
        return self.process.wait(seconds)


class Deployment:
    """SuperLink and SuperNodes, insecure, on loopback, where the strategy `rounds` is installed.

    Nodes are started as the documentation does; by Flower's own command each message of a run that
    has no channels starts a process that imports all that there is.
    """

    def __init__(self, home, parties, supernode=("flwr-vertical", "supernode")):
        self.flower, self.parties, self.supernode = Flower(home), parties, supernode
        self.flower.env["PYTHONPATH"] = str(install_rounds(home / "elsewhere"))
        self.port, *ports = free_ports(1 + len(parties))
        self.ports = dict(zip(parties, ports, strict=True))
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "trial"\n\n[superlink.trial]\n'
            f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.nodes = {}
        self.count = 0
        self.start_superlink()
        for name in parties:
            self.start_node(name)

    def start_superlink(self):
        self.superlink = self.flower.start(
            "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(self.flower.home / "superlink.db"),
        )  # fmt: skip
        url = f"http://127.0.0.1:{self.port}/health"

        def healthy():
            try:
                urllib.request.urlopen(url, timeout=1).close()
            except OSError:
                return False
            return True

        wait_until(healthy, 60, "the SuperLink")

    def start_node(self, name):
        self.nodes[name] = self.flower.start(
            *self.supernode, "--insecure", "--superlink", f"127.0.0.1:{self.port}",
            "--port", str(self.ports[name]), "--node-config",
            f"party='{name}' {self.parties[name]}",
        )  # fmt: skip

    def submit(self, **config):
        """Start a run of the repository's app."""
        arguments = ["run", ".", "trial"]
        for key, value in config.items():
            text = str(value).lower() if isinstance(value, bool) else repr(value)
            arguments += ["--run-config", f"{key.replace('_', '-')}={text}".replace("'", '"')]
        return self.start_run(*arguments)

    def start_run(self, *arguments):
        """Start `flwr-vertical` with these arguments."""
        self.count += 1
        return Run(self.flower, self.flower.home / f"run-{self.count}.log", arguments)

    def folder(self, run_name):
        """Return the server's folder of a run."""
        return self.flower.results / "server" / run_name

    def apps(self, kind, of=None):
        """Return the processes of ServerApps or ClientApps, of one SuperNode perhaps."""
        above = parents()

        def belongs(pid):
            while pid in above and pid != of:
                pid = above[pid]
            return pid == of

        found = [p for p in processes_of(self.flower.home) if kind in command(p)]
        return [p for p in found if of is None or belongs(p)]

    def client_apps(self, name):
        return self.apps("flwr-clientapp", self.nodes[name].pid)

    def kill_node(self, name):
        """Kill a SuperNode, and what it started, as if its machine lost power."""
        above = parents()
        pids = [self.nodes[name].pid]
        for pid in pids:
            pids += [p for p, parent in above.items() if parent == pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.nodes[name].wait()

    def flwr(self, *arguments, timeout=60):
        return subprocess.run(
            ["flwr", *arguments],
            cwd=ROOT,
            env=self.flower.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def stop(self):
        stop_all(self.flower.home)
