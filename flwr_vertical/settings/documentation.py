"""The documentation of a record's settings, made of its fields."""

import dataclasses
import textwrap
import typing
from typing import Any

from flwr_vertical.settings.field import extra_of, quoted

_AFTER = ("Attributes", "Returns", "Raises", "See Also", "Notes", "References", "Examples")


def documented(written: str | None, cls: Any) -> str:
    """Add the section of parameters to a docstring that has none."""
    text = textwrap.dedent(" " * 4 + (written or f"{cls.__name__}.")).strip("\n")
    fields = dataclasses.fields(cls)
    if not fields or "\nParameters\n" in text:
        return text
    rows = []
    for field in fields:
        extra = extra_of(field)
        kind = field.type if isinstance(field.type, str) else _annotation(field.type)
        kind = kind.replace(" | ", " or ")
        if extra.limits.choices is not None:
            kind = "{" + ", ".join(map(quoted, extra.limits.choices)) + "}"
            kind += " or None" if "None" in str(field.type) else ""
        optional = field.default is not dataclasses.MISSING
        rows.append(f"{field.name} : {kind}" + (f", default {quoted(field.default)}" * optional))
        limits = f" ({extra.limits.text})" if extra.limits.text else ""
        rows += textwrap.wrap(
            f"{extra.doc}{limits}", 92, initial_indent=" " * 4, subsequent_indent=" " * 4
        )
    section = "\n".join(["Parameters", "----------", *rows])
    before, after = text, ""
    for name in _AFTER:
        head = f"\n{name}\n{'-' * len(name)}\n"
        if head in text and text.index(head) < len(before):
            before, after = text[: text.index(head)], text[text.index(head) :]
    return f"{before.rstrip()}\n\n{section}\n{after}"


def _annotation(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not typing.get_args(annotation)
    text = annotation.__name__ if plain else str(annotation)
    return text.replace("typing.", "").replace("collections.abc.", "").replace("pathlib.", "")
