"""Bring a trial federation up, run something on it, look at it, take it down."""

import json
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from flwr_vertical.errors import ConfigError

from .folder import LINK, STATE, Plan, State, load_state, prepare, write_files, write_toml
from .processes import (
    Process,
    check_alive,
    check_port,
    command,
    environment,
    free_port,
    start,
    stop,
)
from .settings import ROOT, run_config


def up(home: Path, plan: Plan, port: int | None, say: Callable[[str], None] = print) -> State:
    """Start SuperLink and SuperNodes and wait until all of them are connected."""
    plan.check()
    prepare(home)
    if (home / STATE).exists() and any(p.alive for p in _processes(load_state(home))):
        raise ConfigError(
            f"the federation in {home} is up already; `status` shows it, `down` takes it down"
        )
    port = port or free_port()
    check_port(port)
    state = State(plan, port)
    state.save(home)
    write_files(home, plan, port)
    say(f"keys, certificates and configurations: {home}")
    try:
        _start_superlink(home, state)
        say(f"SuperLink: https://127.0.0.1:{port}, TLS and SuperNode authentication")
        for node in plan.nodes:  # a SuperNode whose key is not registered yet gives up
            _flwr(home, "supernode", "register", str(home / "nodes" / node / "supernode.pub"),
                  LINK, "--name", node)  # fmt: skip
        for node in plan.nodes:
            _start_node(home, state, node)
        _wait_for_nodes(home, state)
        say(f"SuperNodes: {', '.join(plan.nodes)}")
    except BaseException:
        stop(home, _processes(state))
        raise
    return state


def run(
    home: Path,
    strategy: str,
    settings: Sequence[str] = (),
    run_name: str = "",
    labels: str = "",
    label_column: str = "",
    say: Callable[[str], None] = print,
) -> int:
    """Run a strategy by `flwr-vertical run` and say where the results are."""
    state = load_state(home)
    processes = _processes(state)
    if not any(process.alive for process in processes):
        raise ConfigError(f"the federation in {home} is not up; start it by `up`")
    check_alive(processes)
    name = run_name or re.sub(r"[^\w-]", "-", strategy) + time.strftime("-%Y%m%d-%H%M%S")
    config = run_config(home, state.plan, strategy, name, settings, labels, label_column)
    name = str(config["run-name"])  # settings may state it, too
    if not re.fullmatch(r"\w[\w .+-]{0,127}", name):
        raise ConfigError(f"--run-name {name!r} is not usable: letters, digits, spaces and _.+-")
    file = write_toml(home / "analyst" / f"{name}.toml", config)
    vertical = [sys.executable, "-m", "apps.cli.main", "run", str(ROOT), LINK]
    code = subprocess.run(
        [*vertical, "--run-config", str(file)], env=_analyst(home), check=False
    ).returncode
    if code:
        if code != 2:  # with 2 nothing was begun, and the command has said why
            say(f"the run failed; logs of SuperLink and SuperNodes: {home / 'logs'}")
        check_alive(processes)
        return code
    say(f"the server's result:    {home / 'server' / 'results' / name}")
    for party in state.plan.parties:
        folder = home / "nodes" / party / "results" / name
        if folder.is_dir():
            say(f"the result of {party + ':':<10}{folder}")
    return 0


def status(home: Path, say: Callable[[str], None] = print) -> int:
    """Show the processes; 0 if all of them run."""
    state = load_state(home)
    processes = _processes(state)
    for process in processes:
        alive = "up" if process.alive else "DEAD"
        say(f"{alive:<5}{process.pid:>8}  {process.name:<22}{process.log}")
    if not any(process.alive for process in processes):
        say(f"the federation in {home} is down")
        return 1
    check_alive(processes)
    _flwr(home, "supernode", "list", LINK, show=True)
    say(f"to use Flower's own commands: export FLWR_HOME={home / 'analyst'}")
    return 0


def down(home: Path, remove: bool = False, say: Callable[[str], None] = print) -> int:
    """End all processes; keep the folder, or remove it with keys and results."""
    state = load_state(home)
    ended = stop(home, _processes(state))
    state.processes = []
    state.save(home)
    say(f"ended: {', '.join(ended) or 'nothing was running'}")
    if remove:
        shutil.rmtree(home)
        say(f"removed: {home}")
    else:
        say(f"kept, with keys, logs and results: {home} (`down --remove` removes it)")
    return 0


def _start_superlink(home: Path, state: State) -> None:
    server = home / "server"
    arguments = [
        command("flower-superlink"), "--host", "127.0.0.1", "--port", str(state.port),
        "--ssl-ca-certfile", str(home / "ca.crt"),
        "--ssl-certfile", str(server / "server.crt"), "--ssl-keyfile", str(server / "server.key"),
        "--enable-supernode-auth",
    ]  # fmt: skip
    _start(home, state, "superlink", arguments, environment(server / "flower", server))
    context = ssl.create_default_context(cafile=str(home / "ca.crt"))
    _wait(home, state, lambda: _healthy(state.port, context), "the SuperLink does not answer")


def _start_node(home: Path, state: State, node: str) -> None:
    folder = home / "nodes" / node
    arguments = [
        command("flwr-vertical"), "supernode", "--superlink", f"127.0.0.1:{state.port}",
        "--root-certificates", str(home / "ca.crt"),
        "--auth-supernode-private-key", str(folder / "supernode"),
        "--port", str(free_port()), "--node-config", str(folder / "node.toml"),
    ]  # fmt: skip
    _start(home, state, f"supernode-{node}", arguments, environment(folder / "flower", folder))


def _start(
    home: Path, state: State, name: str, arguments: list[str], variables: dict[str, str]
) -> None:
    process = start(home, name, arguments, variables)
    state.processes.append(vars(process))
    state.save(home)  # even if this process is killed, `down` knows what there is


def _wait_for_nodes(home: Path, state: State) -> None:
    def connected() -> bool:
        nodes = json.loads(_flwr(home, "supernode", "list", LINK, "--format", "json"))["nodes"]
        online = [node for node in nodes if node["status"] == "online"]
        return len(online) >= len(state.plan.nodes)

    _wait(home, state, connected, "not all SuperNodes connect; see the logs of those that do not")


def _wait(
    home: Path, state: State, ready: Callable[[], bool], problem: str, patience: float = 120.0
) -> None:
    deadline = time.monotonic() + patience
    while not ready():
        check_alive(_processes(state))
        if time.monotonic() > deadline:
            raise ConfigError(f"{problem} after {patience:.0f} s; logs: {home / 'logs'}")
        time.sleep(0.5)


def _healthy(port: int, context: ssl.SSLContext) -> bool:
    try:
        urllib.request.urlopen(
            f"https://127.0.0.1:{port}/health", timeout=2, context=context
        ).close()
    except OSError:
        return False
    return True


def _analyst(home: Path) -> dict[str, str]:
    return environment(home / "analyst", home / "server")


def _flwr(home: Path, *arguments: str, show: bool = False) -> str:
    done = subprocess.run(
        [command("flwr"), *arguments],
        env=_analyst(home),
        stdin=subprocess.DEVNULL,
        stdout=None if show else subprocess.PIPE,
        stderr=None if show else subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        said = "" if show else f": {done.stdout.strip()} {done.stderr.strip()}"
        raise ConfigError(f"`flwr {' '.join(arguments)}` failed{said}")
    return done.stdout or ""


def _processes(state: State) -> list[Process]:
    return [Process(**found) for found in state.processes]
