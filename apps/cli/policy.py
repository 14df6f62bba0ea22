"""``flwr-vertical policy``: a node's policy in words, and what a run would need of it."""

import argparse
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr_vertical.node.config import check_node_config
from flwr_vertical.policy.reading import read_policy, read_policy_file
from flwr_vertical.policy.record import PREFIX, Policy, text_of
from flwr_vertical.policy.requirements import asked_by, for_arbiter
from flwr_vertical.policy.run_request import Refusal, RunRequest, refusals
from flwr_vertical.registry import SETTINGS, make_strategy
from flwr_vertical.settings import settings_of
from flwr_vertical.settings.toml import read_items

from .output import add_json, print_json
from .policy_words import in_words
from .run import add_settings
from .run_config import app_defaults, checked_config
from .stages import with_stages

_WIDTH = 96
_ITEMS = settings_of(Policy)


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "policy",
        help="say in words what a node agrees to, and whether it would take part in a run",
        description="Nothing is started. With --run-config it exits with 1 if the node would "
        "refuse the run, and prints the keys that its owner would have to set.",
        epilog="example: flwr-vertical policy --node-config \"party='bank' policy.min-rows=200\" "
        '--run-config \'strategy="vfem" label-holder="bank" label-column="default"\'',
    )
    parser.add_argument("--node-config", action="append", default=[], metavar="KEY=VALUE|TOML")
    parser.add_argument("--file", metavar="TOML", help="a policy file")
    add_settings(parser)
    parser.add_argument("--app", default=".", help="folder of the app (default: this one)")
    add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the policy, and the answer to a run; returns 1 if it would be refused."""
    found = answer(options.node_config, options.file, options.run_config, options.app)
    if options.json:
        print_json(
            {
                "node": found.who,
                "policy": {item.key: getattr(found.policy, item.name) for item in _ITEMS},
                "in_words": in_words(found.policy),
                "agrees": None if found.refusals is None else not found.refusals,
                "refusals": list(map(vars, found.refusals or ())),
            }
        )
    else:
        print(found)
    return 1 if found.refusals else 0


@dataclass(frozen=True)
class Answer:
    """What a node agrees to, and what it says to a run."""

    who: str
    policy: Policy
    refusals: list[Refusal] | None  # None if no run is asked about

    def __str__(self) -> str:
        lines = [f"{self.who}:", *_wrapped(in_words(self.policy)), "", *_stated_lines(self.policy)]
        if self.refusals is None:
            return "\n".join(lines)
        lines += ["", "This run:"]
        if not self.refusals:
            taken = "The node would take part. What it may tell is counted in the run."
            return "\n".join([*lines, *_wrapped([taken])])
        lines += _wrapped(
            f"{one.key} forbids it: asked: {one.asked}; allowed: {one.allowed}"
            for one in self.refusals
        )
        lines += ["", "The node's owner would have to put into its node config:"]
        return "\n".join([*lines, *(f"  {one.line}" for one in self.refusals)])


def answer(
    node_config: Sequence[str], file: str | None, run_config: Sequence[str], app: str
) -> Answer:
    """Say what a node with a policy agrees to, and whether a run could take place."""
    config = read_items(node_config)
    party = str(config.get("party", "NAME"))
    who = "the arbiter" if config.get("role") == "arbiter" else f"party {party!r}"
    check_node_config(who, config)
    if file is not None:
        stated = read_policy_file(who, Path(file))
        config |= {PREFIX + key: value for key, value in stated.items()}
    policy = read_policy(who, config)
    if not run_config:
        return Answer(who, policy, None)
    given = read_items(run_config)
    if "stages" in given:
        given = with_stages(given, "the run config")
    request = request_of(given, app, party)
    found = refusals(policy, for_arbiter(request) if who == "the arbiter" else request)
    return Answer(who, policy, found)


def request_of(given: Mapping[str, Any], app: str, party: str) -> RunRequest:
    """Return what a run with these settings asks of a party."""
    defaults = app_defaults(Path(app))
    config = {**defaults, **given}
    name = str(config.get("strategy", ""))
    if ":" in name:  # its module is not imported here before the node's owner agrees
        return RunRequest.of(config, party)
    config |= checked_config(defaults, given, here=False)
    strategy = make_strategy(name, {SETTINGS: "", **config})
    strategy.check_label_holder(str(config.get("label-holder", "")))  # no key would help
    asked = asked_by(strategy, name)
    found = RunRequest.of(config, party, exchanges=asked.exchanges, epsilon=asked.epsilon)
    return replace(found, stages=asked.stages)


def _stated_lines(policy: Policy) -> list[str]:
    """Return the keys of a policy with their values; defaults are marked."""
    lines = ["As keys of the node config:"]
    for item in _ITEMS:
        value = getattr(policy, item.name)
        mark = "   (default)" if value == item.default and value is not None else ""
        lines.append(f"  {PREFIX}{item.key}={text_of(value)}{mark}")
    return lines


def _wrapped(sentences: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for sentence in sentences:
        lines += textwrap.wrap(
            sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    ",
            break_on_hyphens=False,
        )  # fmt: skip
    return lines
