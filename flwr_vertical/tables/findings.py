"""What a check of a table finds: where, how bad, what was seen and what to do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class DataWarning(UserWarning):
    """A table can be used but probably does not hold what its owner thinks it holds."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check of a table found."""

    code: str  # Short name of the check, such as ``"dates"``
    column: str  # The column, or "" if it is about sample IDs, rows or the file
    seen: str  # What was seen; counts and no values of the table
    advice: str = ""  # What to do
    examples: tuple[str, ...] = ()  # Some values, for the eyes of the table's owner only
    # Keys of the node config by which it would not be found any more
    mend: Mapping[str, str] = field(default_factory=dict, hash=False)
    # An error stops a run, a warning is probably a mistake, a note is good to know
    severity: Severity = Severity.WARNING

    def text(self, values: bool = True) -> str:
        """Return it as one line; what leaves the owner's screen shows no values."""
        where = f"column {self.column!r}: " if self.column else ""
        shown = f" (such as {', '.join(map(repr, self.examples))})" if values else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{where}{self.seen}{shown if self.examples else ''}{advice}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "severity": str(self.severity),
            "code": self.code,
            "column": self.column,
            "seen": self.seen,
            "advice": self.advice,
            "examples": list(self.examples),
            "mend": dict(self.mend),
        }


def examples_of(values: Iterable[object], most: int = 3) -> tuple[str, ...]:
    """Return the first few values as text, each at most 40 characters long."""
    shown: list[str] = []
    for value in values:
        if len(shown) == most:
            break
        text = str(value)
        shown.append(text if len(text) <= 40 else f"{text[:37]}...")
    return tuple(shown)


def lines_of(findings: Sequence[Finding], values: bool = True, most: int = 3) -> list[str]:
    """Return findings as lines; of many columns with the same finding, one line."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.severity, finding.code), []).append(finding)
    lines = []
    for group in alike.values():
        if len(group) <= most or not group[0].column:
            lines += [finding.text(values) for finding in group]
            continue
        shown = ", ".join(repr(finding.column) for finding in group[:most])
        lines.append(
            f"{len(group):,} columns alike ({shown} and {len(group) - most:,} more), as "
            f"{group[0].text(values)}"
        )
    return lines


def warnings_in(findings: Sequence[Finding]) -> list[Finding]:
    """Return the warnings and errors, without notes."""
    return [finding for finding in findings if finding.severity is not Severity.NOTE]
