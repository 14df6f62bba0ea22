"""Read a node's policy: keys of its node config, or a file that one key names."""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.policy.record import PREFIX, Policy
from flwr_vertical.settings import nearest, settings_of
from flwr_vertical.settings.toml import flat

FILE = "policy"
"""Key of the node config that names a policy file."""

PLAIN_KEYS = {
    "min-rows": "min-rows",
    "exchanges": "exchanges",
    "prediction-bits": "grid",
    "max-epsilon": "max-epsilon",
}
"""Keys of the node config without a prefix, and the keys of a policy that they set."""


def read_policy(
    who: str, config: Mapping[str, Any], unstated: Mapping[str, Any] | None = None
) -> Policy:
    """Return the policy of a node."""
    stated = {k.removeprefix(PREFIX): v for k, v in config.items() if k.startswith(PREFIX)}
    spelt = {key: f"node config {PREFIX}{key}" for key in stated}
    path = config.get(FILE)
    if path not in (None, ""):
        if stated:
            raise ConfigError(
                f"{who}: the node config names a policy file, {str(path)!r}, and has keys "
                f"{sorted(PREFIX + key for key in stated)} as well; put all of them in one place"
            )
        stated = read_policy_file(who, Path(str(path)))
        spelt = {key: f"{path}: {key}" for key in stated}
    for plain, key in PLAIN_KEYS.items():
        if plain not in config:
            continue
        if key in stated:
            raise ConfigError(
                f"{who}: {plain!r} of the node config and {spelt[key]!r} set the same; keep one"
            )
        stated[key], spelt[key] = config[plain], f"node config {plain}"
    return Policy(**{**(unstated or {}), **_checked(who, stated, spelt)})


def read_policy_file(who: str, path: Path) -> dict[str, Any]:
    """Return the keys of a policy file, TOML, one key a line."""
    try:
        found = flat(tomllib.loads(path.expanduser().read_text()))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{who}: the policy file {str(path)!r} cannot be read ({reason}); the node takes part "
            "in no run without it. Expected TOML, such as: min-rows = 200"
        ) from error
    # With or without the prefix that the keys have in a node config.
    return {key.removeprefix(PREFIX): value for key, value in found.items()}


def _checked(who: str, stated: Mapping[str, Any], spelt: Mapping[str, str]) -> dict[str, Any]:
    known = {item.key: item for item in settings_of(Policy)}
    values = {}
    for key, value in stated.items():
        if key not in known:
            hint = nearest(key, known, Policy.removed)
            raise ConfigError(
                f"{who}: {spelt[key]} is no key of a policy{hint}; what it was to set would not "
                f"hold. There are {', '.join(known)}"
            )
        item = dataclasses.replace(known[key], name=spelt[key])
        try:
            values[known[key].name] = item.check(value)
        except ConfigError as error:
            raise ConfigError(f"{who}: {error}") from None
    return values
