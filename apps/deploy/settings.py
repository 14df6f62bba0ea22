"""The run config of a run on a trial federation."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.deploy.folder import Plan, label_file
from flwr_vertical.errors import ConfigError

ROOT = Path(__file__).parents[2]

_LABELLED = {"vfem", "single", "complete-case", "mean-impute"}


def run_config(
    home: Path, plan: Plan, strategy: str, run_name: str, settings: Sequence[str] = ()
) -> dict[str, Any]:
    """Run config of a strategy: its preset in ``apps``, this federation's files, then settings."""
    preset = ROOT / "apps" / f"{strategy}.toml"
    config = flat(tomllib.loads(preset.read_text())) if preset.exists() else {}
    config = {key: value for key, value in config.items() if not key.startswith("demo.")}
    config |= {
        "strategy": strategy,
        "run-name": run_name,
        "parties": ",".join(plan.parties),
        "min-nodes": len(plan.nodes),
        "patience": 120.0,
        "output": str(home / "server" / "results"),
        "labels": "",
    }
    if strategy in _LABELLED:
        own = plan.labels or ("" if plan.own_data else str(label_file(home)))
        config |= {"labels": own, "label-column": plan.label_column}
    for item in settings:
        config |= parse_setting(item)
    return config


def parse_setting(item: str) -> dict[str, Any]:
    """Read settings as Flower does: a TOML file, or key=value pairs with spaces between."""
    try:
        if item.endswith(".toml"):
            return flat(tomllib.loads(Path(item).expanduser().read_text()))
        pairs = re.findall(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)", item)
        if not pairs:
            raise ValueError("it is no key=value")
        return flat(tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs)))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the setting {item!r} ({error}); expected for instance "
            "'vfem.max-iter=50 aggregation=\"ckks\"'; texts have quotes"
        ) from error


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write nested tables as one, the keys joined by dots."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found
