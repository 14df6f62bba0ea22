"""``flwr-vertical supernode``: Flower's SuperNode, whose ClientApps start at once."""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.config import check_node_config
from flwr_vertical.settings.toml import read_item
from flwr_vertical.sources.address import is_database

# Of the SuperNode, and what they are of the SuperExec.
_HANDED_ON = {
    "--ssl-ca-certfile": "--root-certificates",
    "--superexec-auth-secret-file": "--superexec-auth-secret-file",
}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "supernode",
        help="start a SuperNode whose ClientApps start at once",
        description="Takes the options of `flower-supernode` and starts it. A process beside it "
        "has imported what ClientApps need, and each of them is a copy of that process, so it "
        "starts in a fraction of the time. Needs fork: Linux or macOS.",
        prefix_chars="+",  # so that Flower's options are arguments here
        add_help=False,
    )
    parser.add_argument("options", nargs="*", help="of flower-supernode")
    return parser


def run(options: argparse.Namespace) -> int:
    """Start what makes ClientApps, and become the SuperNode."""
    if not hasattr(os, "fork"):
        raise ConfigError("this system has no fork; start `flower-supernode` with these options")
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--host", default="127.0.0.1")
    own.add_argument("--port", default="9094")  # Flower's own default
    for option in ("--isolation", "--ssl-certfile", "--node-config", *_HANDED_ON):
        own.add_argument(option)
    found = vars(own.parse_known_args(options.options)[0])
    if found["isolation"]:
        raise ConfigError("`flwr-vertical supernode` sets --isolation itself; leave it out")
    # `-P`: an app finds its packages in its own folder, not beside this file.
    command = [sys.executable, "-P", str(Path(__file__).parents[1] / "superexec.py")]
    command += ["--runtime-api-address", f"{found['host']}:{found['port']}"]
    command += ["--parent-pid", str(os.getpid())]
    command += [] if found["ssl_certfile"] else ["--insecure"]
    for option, name in _HANDED_ON.items():
        value = found[option.lstrip("-").replace("-", "_")]
        command += [name, value] if value else []
    program = str(Path(sys.executable).with_name("flower-supernode"))
    if "--help" not in options.options:
        _check_start(found["host"], found["port"], found["node_config"] or "")
        subprocess.Popen(command)
    os.execv(program, [program, "--isolation", "process", *options.options])


def _check_start(host: str, port: str, node_config: str) -> None:
    """Raise for what Flower's SuperNode ends with by a traceback, and for keys that it drops."""
    if node_config.endswith(".toml") and not Path(node_config).is_file():
        raise ConfigError(f"--node-config: there is no file {node_config}")
    if node_config:
        config = read_item(node_config)
        check_node_config("--node-config", config)
        data = str(config.get("data", ""))
        if not is_database(data) and Path(data).is_absolute() and not Path(data).exists():
            raise ConfigError(f"--node-config: data={data!r}, but there is no such file")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, int(port)), family=family).close()
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"this SuperNode's own processes cannot reach it at {host}:{port} ({error}); two "
            "SuperNodes on one machine need two ports: state another --port"
        ) from error
