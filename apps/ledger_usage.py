"""Where a node stands: what has left it so far, in words, against the limits of its policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr_vertical.policy.record import Policy, key_of
from flwr_vertical.privacy_ledger.entries import time_text
from flwr_vertical.privacy_ledger.summary import LedgerSummary

STATE = {
    "rows": "rows that the ledger knows",
    "rows_told_of": "rows that sums were opened of",
    "sets": "sets of rows that opened sums can be combined to",
    "smallest_set": "rows of the smallest of them",
    "vectors": "most label vectors with one of them",
    "prediction_bits": "most bits of one row in predictions",
    "other_bits": "most bits of one row told otherwise",
    "epsilon": "epsilon spent",
    "delta": "delta spent",
    "releases": "releases with privacy noise",
}
"""What `LedgerSummary.state` has, in words."""

_KINDS = {
    "rows": "sums",
    "predictions": "predictions",
    "bits": "other bits",
    "epsilon": "releases",
    "ids": "IDs blinded",
    "refused": "refused",
}
RUN_COLUMNS = ["run", "name", "strategy", "began (UTC)", "greetings", *_KINDS.values()]
ENTRY_COLUMNS = ["run", "at (UTC)", "to", "what", "rows", "smallest set", "vectors", "cost"]
_LIMITS = {
    "smallest_set": ("min_rows", "at least {}"),
    "vectors": ("vectors", "at most {}"),
    "prediction_bits": ("predictions", "at most {}"),
    "other_bits": ("openings", "at most {}"),
    "epsilon": ("epsilon_total", "at most {}"),
}
_UNSTATED = {
    "min_rows": "at least 100, or three times the columns and labels",
    "vectors": "one for ten rows of the set",
    "openings": "as many as ten versions of a row hold",
    "epsilon_total": "one release",
}


@dataclass(frozen=True)
class Standing:
    """One number of a ledger."""

    what: str  # In words
    so_far: str  # In words
    key: str = ""  # Key of the policy that bounds it and what it allows, in words; "" for none
    allowed: str = ""  # Key of the policy that bounds it and what it allows, in words; "" for none
    # Share of the limit that is used, if that is a number; None otherwise
    used: float | None = None


def standing(summary: LedgerSummary, policy: Policy | None = None) -> list[Standing]:
    """Return where a node stands over all runs, against its policy if that is known."""
    found = []
    for name, words in STATE.items():
        value = summary.state[name]
        so_far = f"{value:,.10g}"
        if policy is None or name not in _LIMITS:
            found.append(Standing(words, so_far))
            continue
        field, form = _LIMITS[name]
        limit = getattr(policy, field)
        allowed = _UNSTATED.get(field, "") if limit is None else form.format(f"{limit:,g}")
        used = value / limit if limit and name != "smallest_set" else None
        found.append(Standing(words, so_far, key_of(field), allowed, used))
    return found


def run_rows(summary: LedgerSummary) -> list[dict[str, Any]]:
    """Return a row for each run: who asked, how often it greeted, what it was told."""
    counts: dict[int, dict[str, Any]] = {}
    for entry in summary.entries:
        own = counts.setdefault(entry["run"], dict.fromkeys(_KINDS, 0))
        if entry["kind"] in _KINDS:  # a repair of the clock tells nothing
            # Of IDs the number counts, of the rest how often something was told.
            own[entry["kind"]] += entry["n_rows"] if entry["kind"] == "ids" else 1
    empty = dict.fromkeys(_KINDS, 0)
    return [
        {
            "run": run["id"],
            "name": run["name"],
            "strategy": run["strategy"],
            "began (UTC)": time_text(run["began"]),
            "greetings": run["greetings"],
            **{_KINDS[k]: number for k, number in counts.get(run["id"], empty).items()},
        }
        for run in summary.runs
    ]


def entry_rows(
    summary: LedgerSummary, entries: Sequence[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each entry (default: all), its values as texts."""
    names = {run["id"]: run["name"] for run in summary.runs}
    return [
        {
            "run": names[entry["run"]],
            "at (UTC)": time_text(entry["at"]),
            "to": entry["receiver"],
            "what": entry["what"],
            "rows": _count(entry["n_rows"]),
            "smallest set": _count(entry["smallest"]),
            "vectors": _count(entry["n_vectors"]),
            "cost": _cost(entry),
        }
        for entry in (summary.entries if entries is None else entries)
    ]


def colluding(entries: Sequence[dict[str, Any]]) -> str:
    """Say who together could see more of what was told; "" where nobody could."""
    seen = {entry["colluding"]: None for entry in entries if entry["colluding"]}
    return f"Could see more by colluding: {'; '.join(seen)}." if seen else ""


def _cost(entry: dict[str, Any]) -> str:
    parts = []
    if entry["bits"]:
        parts.append(f"{entry['bits']:g} bits of a row")
    if entry["epsilon"]:
        parts.append(f"epsilon {entry['epsilon']:g}")
    if entry["delta"]:
        parts.append(f"delta {entry['delta']:g}")
    return ", ".join(parts)


def _count(number: int) -> str:
    return f"{number:,}" if number else ""
