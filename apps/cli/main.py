"""``flwr-vertical``: run the app and know how it ended; tools for nodes and their owners.

``flwr run`` itself exits with 0 even when the ServerApp raises; ``flwr-vertical run`` waits for
the end, prints the cause and exits with 1. Settings are checked first: 2 if one is wrong.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError, DataError, VerticalError
from flwr_vertical.registry import available_strategies
from flwr_vertical.settings.toml import read_items, toml_text

from .local_superlink import (
    check_simulation,
    local_options,
    run_environment,
    stop_local_superlink,
)
from .parsing import SHELLS, SuggestingParser, completion_script, version_text
from .run_config import app_defaults, checked_config, checked_here

_STARTS = 3
_NO_RAY = "Ray, which carries simulations, did not start on this machine, and nothing was computed"
_STARTED = re.compile(r"Successfully started run (\d+)")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser: one subcommand for each thing that can be done."""
    from . import watch
    from .check.options import add_check_command

    parser = SuggestingParser(
        prog="flwr-vertical", description="Vertical federated learning on incomplete data."
    )
    parser.add_argument("--version", action="version", version=version_text())
    names = ", ".join(available_strategies())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run a Flower app, show its log, and exit with 1 if it fails",
        description="Like `flwr run --stream`, but the exit code tells how the run ended. "
        "All settings are checked before anything is started; exits with 2 if one is wrong.",
        epilog="example: flwr-vertical run . --run-config 'fknn.n-neighbors=7 strategy=\"fknn\"' "
        "--federation-config 'num-supernodes=3'",
    )
    run.add_argument("app", nargs="?", default=".", help="folder of the app (default: this one)")
    run.add_argument("superlink", nargs="?", help="name of a SuperLink in Flower's configuration")
    run.add_argument(
        "-c",
        "--run-config",
        action="append",
        default=[],
        metavar="KEY=VALUE|TOML",
        help=f"settings, or a file of them; strategy is one of {names}, or module:Class; "
        "'flwr-vertical strategies NAME' shows the settings of one",
    )
    run.add_argument(
        "--federation-config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of a simulation: num-supernodes=3 client-resources-num-cpus=1",
    )
    pipeline = commands.add_parser(
        "pipeline",
        help="run several strategies one after the other, over one alignment, as a file lists them",
        description="Runs the stages of a TOML file as one run, with one report, and keeps "
        "checkpoints: if it breaks off in any stage, the same command goes on there. Settings of "
        "all stages are checked before anything is started; exits with 2 if one is wrong.",
        epilog="example: flwr-vertical pipeline apps/pipelines/blood-pressure.toml",
    )
    pipeline.add_argument("file", metavar="TOML", help="its stages, and settings of the run")
    pipeline.add_argument("app", nargs="?", default=".", help="folder of the app")
    pipeline.add_argument("superlink", nargs="?", help="name of a SuperLink")
    pipeline.add_argument(
        "--federation-config", action="append", default=[], metavar="KEY=VALUE", help="as of run"
    )
    commands.add_parser(
        "stop",
        help="end the local SuperLink, which the first simulation leaves running",
        description="Ends the SuperLink that Flower starts on this machine for simulations, and "
        "the runs that are under way on it. SuperLinks of real nodes are not touched.",
    )
    listing = commands.add_parser(
        "strategies", help="list the strategies that can be used by name, or show one's settings"
    )
    listing.add_argument("name", nargs="?", help=f"one of {names}, or module:Class")
    keygen = commands.add_parser(
        "keygen",
        help="make an identity key, so that other nodes can notice swapped keys",
        description="Writes a private identity key for one node and prints its public key, which "
        "the other nodes pin in their node configs.",
    )
    keygen.add_argument("path", metavar="PATH", help="new file for the private key")
    keygen.add_argument("--party", default="NAME", help="name of the party, for what is printed")
    keygen.add_argument(
        "--show", action="store_true", help="make no key, print the public key of the file PATH"
    )
    align = commands.add_parser(
        "align",
        help="try an alignment on files of this machine and show who has which samples",
        description="Each file is a party, named after it. Prints how many samples there are for "
        "every pattern of who has them; no ID is shown.",
    )
    align.add_argument("files", nargs="+", metavar="FILE", help="CSV or Parquet, two or more")
    align.add_argument("--id-column", help="column of sample IDs, several with commas")
    align.add_argument(
        "--alignment", default="private-id", choices=("private-id", "blind-rsa", "plain")
    )
    align.add_argument("--rows", default="union", choices=("union", "intersection"))
    align.add_argument("--normalise", default="", help="of strip,casefold,nfc; default none")
    add_check_command(commands)
    policy = commands.add_parser(
        "policy",
        help="say in words what a node agrees to, and whether it would take part in a run",
        description="Nothing is started. With --run-config it exits with 1 if the node would "
        "refuse the run, and prints the keys that its owner would have to set.",
        epilog="example: flwr-vertical policy --node-config \"party='bank' policy.min-rows=200\" "
        '--run-config \'strategy="vfem" label-holder="bank" label-column="default"\'',
    )
    policy.add_argument("--node-config", action="append", default=[], metavar="KEY=VALUE|TOML")
    policy.add_argument("--file", metavar="TOML", help="a policy file")
    policy.add_argument("-c", "--run-config", action="append", default=[], metavar="KEY=VALUE|TOML")
    policy.add_argument("--app", default=".", help="folder of the app (default: this one)")
    ledger = commands.add_parser(
        "privacy-ledger", help="show what has left a node: runs, sets of rows, bits, epsilon"
    )
    ledger.add_argument("place", metavar="DIR", help="the node's 'output' folder, or a ledger")
    ledger.add_argument("--json", action="store_true", help="print JSON")
    ledger.add_argument(
        "--repair-clock",
        action="store_true",
        help="go on although the last entry is later than this machine's clock, which was ahead "
        "then and is right now; the repair is an entry, and every limit still counts what was told",
    )
    watch.add_parser(commands)
    new = commands.add_parser(
        "new",
        help="write a small Flower app of your own, which imports the installed package",
        description="Writes a folder with an app that runs as it is, on demonstration data, and "
        "with a preset, node configs and policies to be filled in. Nothing is overwritten.",
        epilog="example: flwr-vertical new credit --strategy fknn --parties bank,court",
    )
    new.add_argument("folder", metavar="FOLDER", help="new folder; its name is the app's")
    new.add_argument("--strategy", default="fknn", metavar="NAME", help=f"one of {names}")
    new.add_argument("--parties", default="bank,court", metavar="NAMES", help="with commas")
    completion = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        epilog="example: flwr-vertical completion bash > "
        "~/.local/share/bash-completion/completions/flwr-vertical",
    )
    completion.add_argument("shell", choices=SHELLS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        if options.command == "completion":
            print(completion_script(parser, options.shell))
            return 0
        if options.command == "new":
            from ..new import write_app

            print(write_app(Path(options.folder), options.strategy, options.parties.split(",")))
            return 0
        if options.command == "align":
            return _align(options)
        if options.command == "check":
            from .check import run_check

            return run_check(options)
        if options.command == "watch":
            from . import watch

            return watch.run(options)
        if options.command == "policy":
            from .policy import explain_policy

            text, agreed = explain_policy(
                options.node_config, options.file, options.run_config, options.app
            )
            print(text)
            return 0 if agreed else 1
        if options.command == "privacy-ledger":
            from .privacy_ledger import repair_clocks, show_ledgers

            if options.repair_clock:
                repair_clocks(Path(options.place))
            else:
                show_ledgers(Path(options.place), options.json)
            return 0
        if options.command == "keygen":
            return _keygen(options.path, options.party, options.show)
        if options.command == "strategies":
            from .strategies import describe_strategy, list_strategies

            print(describe_strategy(options.name) if options.name else list_strategies())
            return 0
        if options.command == "stop":
            print(stop_local_superlink())
            return 0
        if options.command == "pipeline":
            from .pipeline import read_pipeline

            read = partial(read_pipeline, Path(options.file))
        else:
            read = partial(read_items, options.run_config)
        return _run(options.app, options.superlink, read, options.federation_config)
    except VerticalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _align(options: argparse.Namespace) -> int:
    from .align import align_files, pattern_table

    result = align_files(
        options.files,
        id_column=options.id_column,
        alignment=options.alignment,
        rows=options.rows,
        normalise=options.normalise,
    )
    print(pattern_table(result.model).to_string(index=False))
    print(f"\n{result}")
    return 0


def _keygen(path: str, party: str, show: bool) -> int:
    from flwr_vertical.crypto.identity import (
        generate_identity,
        identity_text,
        load_identity,
        public_identity,
        write_identity,
    )

    file = Path(path).expanduser().absolute()
    private = load_identity(file) if show else generate_identity()
    if not show:
        write_identity(file, private)
    public = identity_text(public_identity(private))
    # Names such as 'A+B' are no bare keys of TOML, in which node configs are read.
    pin = f"pin.{party}" if re.fullmatch(r"[A-Za-z0-9_-]+", party) else f'pin."{party}"'
    print(f"private key (stays on this node): {file}")
    print(f"public key (tell the others by a way you trust): {public}")
    print(f"node config of this node:         identity-key='{file}'")
    print(f"node config of the other parties: {pin}='{public}'")
    return 0


def _run(
    app: str,
    superlink: str | None,
    read: Callable[[], dict[str, Any]],
    federation_config: list[str],
) -> int:
    if not (Path(app) / "pyproject.toml").is_file():
        raise ConfigError(
            f"{app!r} is no Flower app: there is no pyproject.toml in it; give the folder of the "
            "app, for instance a clone of this repository"
        )
    try:
        defaults = app_defaults(Path(app))
        settings = checked_config(defaults, read(), superlink is None)
        options = local_options(superlink)
        if options is not None:
            check_simulation()
            stated = {**options, **read_items(federation_config)}
            settings, nodes = checked_here(defaults, settings, stated)
            federation_config = [*federation_config, *nodes]
    except (ConfigError, DataError) as error:  # nothing has been started
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="flwr-vertical-") as folder:
        file = Path(folder) / "run-config.toml"
        file.write_text(toml_text(settings))
        # Of several options `flwr run` keeps the last of each table alone.
        items = ["--run-config", str(file)] if settings else []
        return _stream(app, superlink, items, federation_config)


def _stream(
    app: str,
    superlink: str | None,
    run_config: list[str],
    federation_config: list[str],
    starts: int = _STARTS,
) -> int:
    """Start the run, show its log and wait for its end; returns the exit code."""
    flwr = _flwr()
    link = [superlink] if superlink else []
    command = [flwr, "run", app, *link, "--stream", *run_config]
    for item in federation_config:
        command += ["--federation-config", item]

    run_id, no_ray, told = None, False, False
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=run_environment(),
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                found = _STARTED.search(line)
                run_id = found.group(1) if found else run_id
                no_ray = no_ray or _is_ray_start(line)
                told = told or "to go on from there" in line
        except KeyboardInterrupt:
            if run_id is not None:
                subprocess.run([flwr, "stop", run_id, *link], check=False)
            raise
    if run_id is None:  # flwr has said why
        return process.returncode or 1
    run = _wait(flwr, run_id, link)
    if run["status"] == "finished:completed":
        return 0
    if no_ray and starts > 1:
        print(f"{_NO_RAY}: trying again ({_STARTS - starts + 2} of {_STARTS})", flush=True)
        return _stream(app, superlink, run_config, federation_config, starts - 1)
    hint = f"; {_NO_RAY}: run the command again" if no_ray else ""
    if not told:  # a ServerApp that was killed says nothing
        from .resume_hint import resume_hint

        hint += resume_hint(Path(app), run_config)
    details = f"{run['status-details']}{hint}"
    print(f"error: the run ended as {run['status']!r}: {details}", file=sys.stderr)
    return 1


def _is_ray_start(line: str) -> bool:
    """Whether a line of the log says that Ray, under a simulation, did not start.

    Ray starts half a dozen processes and waits for some seconds for each, which a busy machine may
    need for longer. The log has the traceback.
    """
    in_start = "ray/_private/worker.py" in line and line.rstrip().endswith("in init")
    return in_start or ("Timed out waiting for file" in line and "ray" in line)


def _flwr() -> str:
    beside = Path(sys.executable).with_name("flwr")
    found = str(beside) if beside.exists() else shutil.which("flwr")
    if found is None:
        raise ConfigError("the command 'flwr' is not installed: pip install flwr")
    return found


def _wait(flwr: str, run_id: str, link: list[str], patience: float = 120.0) -> dict[str, Any]:
    """Ask how the run ended; a busy SuperLink may close the log long before, and not answer."""
    deadline = time.monotonic() + patience
    while True:
        answer = subprocess.run(
            [flwr, "ls", *link, "--run-id", run_id, "--format", "json"],
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            runs = json.loads(answer.stdout)["runs"]
        except (ValueError, KeyError):
            runs = []
        if runs and str(runs[0]["status"]).startswith("finished"):
            found: dict[str, Any] = runs[0]
            return found
        if runs:  # it goes on without a log
            deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            raise ConfigError(
                f"cannot learn how run {run_id} ended; ask `flwr ls` ({answer.stderr.strip()})"
            )
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
