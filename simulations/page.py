"""A study's page, in Markdown: what was asked, what was expected and came, tables, figures.

Tables of expectations have entries that begin with PASS or FAIL, for the terminal and ``--check``.
On the page each is a sentence instead; a table of numbers shows them without these words.
"""

import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import pandas as pd

PASS, FAIL = "PASS", "FAIL"
WIDTH = 100
MOST_NAMED = 4
"""Exceptions that a sentence names; of more it says how many there are."""

Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Part:
    """A section of a page."""

    heading: str
    text: str = ""
    items: Sequence[str] = ()
    tables: Mapping[str, str] = field(default_factory=dict)  # Captions; one alone may have ""
    figures: Sequence[str] = ()
    folded: bool = False  # Whether a reader unfolds it

    @classmethod
    def of(cls, words: Mapping[str, Any], values: Mapping[str, Any]) -> Self:
        """Return a section that ``page.toml`` describes; values stand for names in braces."""
        filled = {
            name: words[name].format(**values) for name in ("heading", "text") if name in words
        }
        items = [text.format(**values) for text in words.get("items", ())]
        return cls(**{**words, **filled, "items": items})


def read_words(path: Path) -> dict[str, Any]:
    """Return what ``page.toml`` says, words of the page and of the command line, without breaks."""

    def joined(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: joined(own) for name, own in value.items()}
        if isinstance(value, list):
            return [joined(own) for own in value]
        return " ".join(value.split()) if isinstance(value, str) else value

    return dict(joined(tomllib.loads(path.read_text(encoding="utf-8"))))


def render(
    words: Mapping[str, Any], command: str, notes: Sequence[str], parts: Sequence[Part],
    tables: Tables, figures: Sequence[str],
) -> str:  # fmt: skip
    """Return the page that ``page.toml`` has the words of, without figures that are not there."""
    head = f"# {words['title']}\n", f"<!-- Written by `{command}`; do not edit. -->\n"
    text = [*head, paragraph(words["question"])]
    if came := [f"{said} {outcome(tables[name])}" for name, said in words["goals"].items()]:
        text += ["## What was expected, and what came\n", items(came)]
    if notes:
        text += ["## How to read the numbers\n", items(notes)]
    for part in parts:
        text += _section(part, tables, figures)
    return "\n".join(text)


def _section(part: Part, tables: Tables, figures: Sequence[str]) -> list[str]:
    shown = {name: text for name, text in part.tables.items() if len(tables.get(name, ()))}
    drawn = [name for name in part.figures if name in figures]
    if (part.tables or part.figures) and not shown and not drawn:
        return []
    body = [paragraph(part.text)] if part.text else []
    body += [items(part.items)] if part.items else []
    body += [f"![{name}]({name}.png)\n" for name in drawn]
    for name, caption in shown.items():
        body += [f"### {caption}\n"] if caption and len(part.tables) > 1 else []
        body += [markdown_table(tables[name])]
    if part.folded:
        return [f"<details><summary>{part.heading}</summary>\n", *body, "</details>\n"]
    return [f"## {part.heading}\n", *body]


def outcome(table: pd.DataFrame) -> str:
    """Return in words where an expectation held, by the entries of its table."""
    held, missed = 0, []
    for label, row in zip(table.index, table.to_numpy(dtype=object), strict=True):
        place = " ".join(map(str, label)) if isinstance(label, tuple) else str(label)
        for column, value in zip(table.columns, row, strict=True):
            held += str(value).startswith(PASS)
            if str(value).startswith(FAIL):
                text = str(value).removeprefix(FAIL).strip(" :,")
                missed.append(f"{place.strip()}, {column}" + (f": {text}" if text else ""))
    if not held + len(missed):
        return "Not run."
    if not missed:
        return "It held" + (f" in all {held} cases." if held > 1 else ".")
    more = f"; and {len(missed) - MOST_NAMED} others" if len(missed) > MOST_NAMED else ""
    named = "; ".join(missed[:MOST_NAMED]) + more
    return f"It held in {held} of {held + len(missed)} cases. Not so: {named}."


def reached(tables: Iterable[pd.DataFrame]) -> bool:
    """Whether no entry of the tables fails."""
    return not any(
        str(value).startswith(FAIL)
        for table in tables
        for value in table.to_numpy(dtype=object).ravel().tolist()
    )


def verdict(good: bool, text: str = "") -> str:
    """Return the word, and the numbers behind it."""
    return f"{PASS if good else FAIL} {text}".strip()


def at_most(value: float, limit: float) -> str:
    """Return the word, the number and its limit."""
    return verdict(value <= limit, f"{value:.3f} ({limit:.3f})")


def at_least(value: float, limit: float, form: str = ".3f") -> str:
    """Return the word, the number and its limit."""
    return verdict(value >= limit, f"{value:{form}} ({limit:{form}})")


def verdicts(good: "pd.Series[bool]") -> "pd.Series[str]":
    """Return the words alone."""
    return good.map({True: PASS, False: FAIL})


_F = TypeVar("_F", pd.DataFrame, "pd.Series[float]")


def select(table: _F, **levels: Any) -> _F:
    """Return the rows whose index has these values."""
    for name, value in levels.items():
        table = table[table.index.get_level_values(name) == value]
    return table


def matching(frame: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Return the rows that have these values in columns."""
    for name, value in columns.items():
        frame = frame[frame[name] == value]
    return frame


def indexed(rows: Mapping[Any, Mapping[str, Any]], names: list[str]) -> pd.DataFrame:
    """Return a table of rows by tuples of keys; without rows, one that is empty and says so."""
    if not rows:
        return pd.DataFrame({"not run": []})
    index = pd.MultiIndex.from_tuples(list(rows), names=names)
    return pd.DataFrame(list(rows.values()), index=index)


def listed(values: Mapping[Any, Any], each: str, between: str = ", ") -> str:
    """Return names and values in one line, ``each`` for one."""
    return between.join(each.format(name, value) for name, value in values.items())


def items(texts: Iterable[str]) -> str:
    """Return a list, an item for each text."""
    return "".join(paragraph(f"- {text}", "  ") for text in texts)


def paragraph(text: str, indent: str = "") -> str:
    """Return text in lines of at most 100 characters, with a line end."""
    lines = textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines) + "\n"


def markdown_table(frame: pd.DataFrame) -> str:
    """Return a table with its index, numbers to three digits."""
    names = [str(name or "") for name in frame.index.names]
    several: Any = frame.columns.nlevels > 1
    columns = [" ".join(map(str, c)) if several else str(c) for c in frame.columns]
    head = [*names, *columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for label, row in zip(frame.index, frame.to_numpy(dtype=object), strict=True):
        labels = label if isinstance(label, tuple) else (label,)
        lines.append("| " + " | ".join([*map(str, labels), *map(_cell, row)]) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if not isinstance(value, str):
        return f"{value:.3g}" if isinstance(value, float) else str(value)
    word, _, rest = value.partition(" ")
    plain = {PASS: "yes", FAIL: "no"}.get(word.rstrip(",:"))
    if plain is None:
        return value
    # A number says it by itself; its limit or the paper's stands beside it.
    return rest if re.match(r"[-+–]?\d", rest) else value.replace(word.rstrip(",:"), plain, 1)


def beside_paper(ours: pd.DataFrame, paper: pd.DataFrame, digits: int = 3) -> pd.DataFrame:
    """Return ours and the paper's numbers in one cell: ``0.345 (0.385)``, a dash for none of ours.

    Rows and columns are ours.
    """
    printed = paper.reindex(index=ours.index, columns=ours.columns)
    text = ours.map(lambda value: f"{value:.{digits}f}" if pd.notna(value) else "–")
    return text + printed.map(lambda value: f" ({value:.{digits}f})" if pd.notna(value) else "")


def seeds_text(counts: "pd.Series[int]") -> str:
    """Return how many seeds stand behind the numbers of a row."""
    counts = counts[counts > 0]
    ends = (int(counts.min()), int(counts.max())) if len(counts) else (0,)
    return " to ".join(map(str, dict.fromkeys(ends)))
