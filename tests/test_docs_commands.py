"""Commands and configurations in the documentation are ones that the programs take.

Every command of a shell block, and every command in a sentence, goes through the parser of its
program, and every run config through the check of ``flwr-vertical run``. Commands that start
nothing are run. TOML blocks are read as what they configure.
"""

import importlib
import importlib.util
import pathlib
import re
import shlex
import tomllib

import pytest
from flwr.cli.app import app as flwr_app
from typer.main import get_command

from apps.cli import main
from apps.cli.run_config import app_defaults, checked_config
from apps.cli.stages import read_pipeline
from apps.deploy import federation
from flwr_vertical.node.config import NODE_KEYS, check_node_config
from flwr_vertical.policy.reading import read_policy_file
from flwr_vertical.settings.toml import flat, read_items
from simulations.__main__ import make_parser as make_studies_parser
from strategies import register_all

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = {"known-cells"}  # strategies that a page tells how to write
STARTS_NOTHING = {"strategies", "policy", "keygen", "align"}
OF_OTHERS = {"project", "superlink"}  # tables of a package's and of Flower's configuration
OF_NODES = {"party", "data", "policy", "trees"}  # one of them is in every node config
OF_SHELL = {"cat", "cd", "export", "openssl", "pip", "python3", ".", "ssh-keygen", "umask", "git"}
MENTIONED = re.compile(r"`((?:flwr-vertical|flwr run|python -m|python benchmarks/)\s[^`]+)`")


def name_of(path):
    return str(path.relative_to(ROOT))


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.S | re.M)


def in_blocks(path):
    """Yield the words of each command of a page's shell blocks."""
    for block in blocks(path, "bash"):
        text = re.sub(r"<<X\n.*?^X$", "", block, flags=re.S | re.M).replace("\\\n", " ")
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            while words:
                end = words.index("&&") if "&&" in words else len(words)
                command = words[:end]
                if command:  # without what comes after a redirection
                    yield command[: command.index(">")] if ">" in command else command
                words = words[end + 1 :]


def in_sentences(path):
    """Yield the words of each command that is named in a page's text."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    for match in MENTIONED.finditer(text):
        words = shlex.split(match[1])
        if "..." not in match[1] and len(words) > 2:  # two words are a command's name
            yield words


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What commands find where they are run: a clone, and the files that deployment.md makes."""
    found = tmp_path_factory.mktemp("clone")
    for name in ("pyproject.toml", "apps", "benchmarks", "docs", "notebooks"):
        (found / name).symlink_to(ROOT / name)
    written = blocks(ROOT / "docs" / "deployment.md", "toml")
    (found / "node.toml").write_text(
        next(text for text in written if text.startswith('party = "bank"'))
        + next(text for text in written if text.startswith("[policy]"))
    )
    (found / "vfem.toml").write_text(
        next(text for text in written if text.startswith('strategy = "vfem"'))
    )
    for name in ("bank", "court"):
        (found / f"{name}.csv").write_text(f"id,{name}_x\na,1.5\nb,2.5\n")
    return found


def check(words, folder):
    """Have the program's own parser read a command; raise if it cannot."""
    program, *rest = words
    if program == "flwr-vertical":
        options = main.make_parser().parse_args(rest)
        if options.command == "run":
            check_run_config(options.run_config)
        if options.command in STARTS_NOTHING:
            assert main.main(rest) in (0, 1, 2)
        if options.command == "supernode":
            check(["flower-supernode", *options.options], folder)
    elif program == "flwr":
        read_by_click(get_command(flwr_app), rest)
    elif program == "ray":
        read_by_click(pytest.importorskip("ray.scripts.scripts").cli, rest)
    elif program == "flower-superlink":
        module = importlib.import_module("flwr.superlink.cli.flower_superlink")
        module._parse_args_run_superlink().parse_args(rest)
    elif program == "flower-supernode":
        if rest != ["--version"]:
            module = importlib.import_module("flwr.supernode.cli.flower_supernode")
            options = module._parse_args_run_supernode().parse_args(rest)
            if not options.node_config.endswith(".toml"):
                check_node_config("the node", read_items([options.node_config]))
    elif program == "mkdocs":
        assert rest[0] in ("build", "serve")
    elif program == "python" and rest[0] == "-m":
        check_module(*rest[1:])
    elif program == "python":
        assert (folder / rest[0]).is_file()
    elif program.startswith(".ci/"):
        assert (ROOT / program).is_file()
    else:
        assert program in OF_SHELL


def check_module(name, *rest):
    if not rest:  # a sentence that names the program
        assert importlib.util.find_spec(name) is not None
    elif name == "apps.deploy.federation":
        options = federation.make_parser().parse_args(rest)
        given = read_items(options.run_config) if options.command == "run" else {}
        if options.command == "run" and options.strategy not in EXAMPLES:
            checked_config(app_defaults(ROOT), {"strategy": options.strategy, **given})
    elif name == "simulations":
        make_studies_parser().parse_args(rest)
    else:
        assert importlib.util.find_spec(name) is not None


def check_run_config(items):
    given = read_items(items)
    if given.get("strategy") not in EXAMPLES:
        checked_config(app_defaults(ROOT), given)


def read_by_click(command, words):
    """Parse words by Flower's or Ray's command line, down to the last subcommand."""
    context = command.make_context(command.name, words[:1] if hasattr(command, "commands") else [])
    for word in words:
        if not hasattr(command, "commands"):
            break
        command, words = command.commands[word], words[1:]
    if not hasattr(command, "commands"):
        command.make_context(command.name, words, parent=context)


def is_of_a_node(key):
    return any(known.covers(key) for known in NODE_KEYS)


def test_the_programs_take_every_command(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    register_all()
    refused = []
    commands = [
        (path, words) for path in PAGES for words in (*in_blocks(path), *in_sentences(path))
    ]
    assert len(commands) > 100
    for path, words in commands:
        try:
            check(words, folder)
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and not error.code:
                continue  # --version and --help
            said = f"{error!r} {capsys.readouterr().err[-300:]}"
            refused.append(f"{name_of(path)}: {shlex.join(words)}: {said}")
    assert refused == []


def test_every_toml_block_has_known_keys(tmp_path):
    register_all()
    for i, block in enumerate(block for path in PAGES for block in blocks(path, "toml")):
        given = tomllib.loads(block)
        keys = flat(given)
        if set(given) <= OF_OTHERS:
            continue
        if set(given) & OF_NODES or all(is_of_a_node(key) for key in keys):
            check_node_config("the node", keys)
        elif "stages" in given:
            file = tmp_path / f"{i}.toml"
            file.write_text(block)
            checked_config(app_defaults(ROOT), read_pipeline(file))
        elif set(keys) & set(app_defaults(ROOT)):
            checked_config(app_defaults(ROOT), keys)
        else:
            file = tmp_path / f"{i}.toml"
            file.write_text(block)
            assert read_policy_file("the node", file)


def test_a_wrong_command_is_refused(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for text in (
        "flwr-vertical polices --node-config node.toml",
        'flwr-vertical run . --run-config \'strategy="vfem" vfem.covarianze="full"\'',
        "flower-supernode --node-config \"party='bank' dta='x.csv'\"",
        "python -m simulations vfem --quik",
        "flwr run . --run-confg x",
        "frobnicate x",
    ):
        with pytest.raises((Exception, SystemExit)):
            check(shlex.split(text), folder)
