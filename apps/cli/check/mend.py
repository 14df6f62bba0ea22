"""``flwr-vertical check --fix``: node configs by which findings that a key can mend are gone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.storage import check_name
from flwr_vertical.settings.toml import toml_text
from flwr_vertical.tables import Finding
from flwr_vertical.tables.cleaning import DROP, IDS, MISSING_IN
from flwr_vertical.tables.id_checks import steps_for
from flwr_vertical.tables.table import checked_ids
from flwr_vertical.whole_files import write_text_atomically

from .tables import CheckedTable, Checks

Configs = dict[str, dict[str, Any]]
_PASSES = 4  # what one key mends may bring out another finding
_STATES = "policy.labels"


class Mending:
    """Node configs that grow by what mends findings, and why each key is there.

    They begin with what owners have stated. A label column stays, and its owner hands it over.
    """

    def __init__(
        self, configs: Mapping[str, Mapping[str, Any]], label_column: str | None = None
    ) -> None:
        self.configs: Configs = {name: dict(config) for name, config in configs.items()}
        self.reasons: dict[str, dict[str, list[str]]] = {name: {} for name in configs}
        self._label_column = label_column

    def run(self, check: Callable[[Configs], Checks]) -> Checks:
        """Mend until nothing more can be, and return what is left."""
        checks = check(self.configs)
        for table in checks.tables:
            if table.frame is not None and self._label_column in table.frame.columns:
                self._state(table.party, _STATES, str(self._label_column), "the labels")
        for _ in range(_PASSES):
            before = {name: dict(config) for name, config in self.configs.items()}
            for table in checks.tables:
                for finding in table.findings:
                    self._mend(table, finding)
                for finding in checks.findings:
                    if table.party in finding.seen:
                        self._mend(table, finding)
            if self.configs == before:
                break
            checks = check(self.configs)
        return checks

    def _mend(self, table: CheckedTable, finding: Finding) -> None:
        for key, value in finding.mend.items():
            about = f"{finding.column}: {finding.seen}" if finding.column else finding.seen
            if key == IDS:
                for step in _steps(table, value):
                    self._add(table.party, key, step, about)
            elif key == DROP:
                # Names are separated by commas, and labels are no column to be dropped.
                if "," not in value and value != self._label_column:
                    self._add(table.party, key, value, about)
            elif key.startswith(MISSING_IN):
                self._add(table.party, key, value, about)
            else:
                self._state(table.party, key, value, about)

    def _add(self, party: str, key: str, value: str, about: str) -> None:
        """Add to a list of texts with commas."""
        parts = [part for part in str(self.configs[party].get(key, "")).split(",") if part]
        if value not in parts:
            self.configs[party][key] = ",".join([*parts, value])
        self._say(party, key, about)

    def _state(self, party: str, key: str, value: str, about: str) -> None:
        """State a key that the owner has not stated."""
        if key not in self.configs[party]:
            self.configs[party][key] = value
            self._say(party, key, about)

    def _say(self, party: str, key: str, about: str) -> None:
        said = self.reasons[party].setdefault(key, [])
        if about not in said:
            said.append(about)

    def write(self, place: Path) -> list[str]:
        """Write a node config for each party; returns what was written, in lines."""
        single = len(self.configs) == 1 and place.suffix == ".toml"
        files = {name: place if single else place / f"{name}.toml" for name in self.configs}
        for name, file in files.items():
            check_name(name)
            if file.exists():
                raise ConfigError(f"{file} exists already, and nothing is overwritten")
        lines = []
        for name, file in files.items():
            text = self.text(name)
            write_text_atomically(file, text)
            lines += [f"written: {file}", *(f"  {line}" for line in text.splitlines())]
        return lines

    def text(self, party: str) -> str:
        """Return a node config as TOML, with the reasons of its keys as comments."""
        reasons = self.reasons[party]
        lines = []
        for key, value in ({"party": party} | self.configs[party]).items():
            lines += [f"# {' '.join(about.split())}\n" for about in reasons.get(key, [])]
            lines.append(toml_text({key: value}))
        return "".join(lines)


def _steps(table: CheckedTable, steps: str) -> list[str]:
    """Return the steps that change IDs of a table and make none of them equal."""
    if table.frame is None or any(one.code == "ids" for one in table.findings):
        return []
    return steps_for(checked_ids(table.frame.index, table.party), steps.split(","))
