"""Text of a study's page of the documentation, in lines of at most 100 characters."""

import textwrap
from collections.abc import Iterable

WIDTH = 100


def paragraph(text: str) -> str:
    """Return text in lines, with a line end."""
    return _wrapped(text, "")


def items(texts: Iterable[str]) -> str:
    """Return a list, an item for each text."""
    return "".join(_wrapped(f"- {text}", "  ") for text in texts)


def _wrapped(text: str, indent: str) -> str:
    lines = textwrap.wrap(
        text,
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) + "\n"
