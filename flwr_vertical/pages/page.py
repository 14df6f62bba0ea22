"""A self-contained HTML page: headings, tables, figures, captions; nothing loaded from elsewhere.

Reports of runs and of studies are both made by `render_page`.
"""

from __future__ import annotations

import base64
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from flwr_vertical.counted import counted
from flwr_vertical.log import logger
from flwr_vertical.pages.template import PAGE, PHONE

if TYPE_CHECKING:
    # Parties import this package for every message: matplotlib waits until something is drawn.
    from matplotlib.figure import Figure

# Marks our pages, so that a report never overwrites somebody else's file.
GENERATOR = '<meta name="generator" content="flwr-vertical">'

_FOLDED_FROM = 12  # rows that a table may have without being folded away
_WORDY = 40  # letters from which a cell wraps, and needs room to do so

Item: TypeAlias = "str | bytes | pd.DataFrame | Figure"
Body: TypeAlias = "Item | Sequence[Item]"


class Section(NamedTuple):
    """One part of a page."""

    heading: str  # Plain text
    # A string is SVG if it starts like one, otherwise HTML, whose text the caller has escaped (see
    # `paragraph`); bytes are a PNG
    body: Body
    caption: str = ""  # Plain text under the heading that says how to read the body


def render_page(
    title: str,
    sections: Iterable[Section | tuple[str, Body] | tuple[str, Body, str]],
    *,
    subtitle: str = "",
    facts: Mapping[str, str] | None = None,
    kicker: str = "flwr-vertical",
    made: str = "",
) -> str:
    """Return a self-contained HTML page, whose only links are to its own sections.

    `facts` are label and value of the cards under the title, best at most eight; `kicker` is a
    small line above the title, and `made`, under it, says how the page came about: a call or a
    command.
    """
    parts = [Section(*section) for section in sections]
    links, blocks = [], []
    for number, part in enumerate(parts, start=1):
        heading = escape(part.heading)
        caption = f'<p class="caption">{escape(part.caption)}</p>' if part.caption else ""
        links.append(f'<a href="#section-{number}">{heading}</a>')
        blocks.append(
            f'<section id="section-{number}"><h2>{heading}</h2>{caption}\n'
            f"{body_html(part.body, part.heading)}</section>"
        )
    cards = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
        for label, value in (facts or {}).items()
    )
    return PAGE.substitute(
        generator=GENERATOR,
        phone=PHONE,
        title=escape(title),
        kicker=escape(kicker),
        subtitle=f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else "",
        made=f'<p class="made"><code>{escape(made)}</code></p>' if made else "",
        facts=f'<dl class="facts">{cards}</dl>' if cards else "",
        links=f"<nav>{''.join(links)}</nav>" if len(links) > 1 else "",
        sections="\n".join(blocks),
    )


def shown(what: str, sections: Iterable[Section]) -> Iterator[Section]:
    """Yield sections as HTML; one that fails says so, is in the log, and ends no run."""
    try:
        for section in sections:
            body = body_html(section.body, section.heading)
            yield Section(section.heading, body, section.caption)
    except Exception as error:
        logger.exception("%s: not shown on the page", what)
        why = f"{type(error).__name__}: {error}. The log of whoever made this page says where."
        yield Section(f"{what}: not shown", paragraph(why))


def paragraph(text: str) -> str:
    """Return `text`, escaped, as an HTML paragraph."""
    return f"<p>{escape(text)}</p>"


def subheading(text: str) -> str:
    """Return `text`, escaped, as a heading inside a section."""
    return f"<h3>{escape(text)}</h3>"


def bullet_list(texts: Iterable[str]) -> str:
    """Return the texts, escaped, as an HTML list."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def side_by_side(parts: Iterable[str]) -> str:
    """Return pieces of HTML next to each other, as far as the page is wide enough."""
    return '<div class="side">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def details_html(summary: str, html: str) -> str:
    """Return `html` folded away under a line `summary` that opens it."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def folded_html(frame: pd.DataFrame, summary: str) -> str:
    """Return a data frame as a table, folded away under a line if it is long."""
    table = dataframe_html(frame, max_rows=1000)
    return table if len(frame) <= _FOLDED_FROM else details_html(summary, table)


def dataframe_html(
    df: pd.DataFrame,
    *,
    index: bool = True,
    max_rows: int = 200,
    formats: Mapping[str, Callable[[Any], str]] | None = None,
) -> str:
    """Return a data frame as an HTML table with readable numbers, in a box that scrolls sideways.

    Its text is escaped. A last line says how many rows beyond `max_rows` were left out. `formats`
    says how to write the values of a column; the rest follow `format_named`.
    """
    shown = df.iloc[:max_rows]
    columns: list[tuple[str, Sequence[Any], bool]] = []
    if index:
        for level, name in enumerate(shown.index.names):
            columns.append(
                ("" if name is None else str(name), list(shown.index.get_level_values(level)), True)
            )
    for position, label in enumerate(shown.columns):
        columns.append((str(label), list(shown.iloc[:, position]), False))
    formats = formats or {}
    head, cells = [], []
    for name, values, is_index in columns:
        write = formats.get(name, partial(format_named, name))
        # The index is a label even where it is a number.
        numeric = not is_index and any(
            isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
            for value in values
        )
        wordy = any(isinstance(value, str) and len(value) > _WORDY for value in values)
        side = ' class="number"' if numeric else ' class="words"' if wordy else ""
        tag = "th" if is_index else "td"
        head.append(f"<th{side}>{escape(name)}</th>")
        cells.append([
            f"<{tag}{side}>{escape(str(value) if is_index else write(value))}</{tag}>"
            for value in values
        ])  # fmt: skip
    rows = "".join(f"<tr>{''.join(row)}</tr>\n" for row in zip(*cells, strict=True))
    left_out = len(df) - len(shown)
    note = f'<p class="caption">{counted(left_out, "more row")} not shown.</p>' if left_out else ""
    table = f"<table><thead><tr>{''.join(head)}</tr></thead>\n<tbody>\n{rows}</tbody></table>"
    return f'<div class="table">{table}</div>{note}'


def format_value(value: Any) -> str:
    """Return a value as text: four significant digits, thousands separated, a dash for missing."""
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    if isinstance(value, numbers.Real):
        number = float(value)
        if math.isnan(number):
            return "–"
        if number == 0 or math.isinf(number):
            return f"{number:g}".replace("inf", "∞")
        if 1e-4 <= abs(number) < 9999.5:
            return f"{number:,.4g}"
        return f"{number:,.0f}" if 9999.5 <= abs(number) < 1e9 else f"{number:.3e}"
    if value is None or value is pd.NA or value is pd.NaT:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {format_value(item)}" for key, item in value.items()) or "–"
    if isinstance(value, (list, tuple, set)):
        return ", ".join(map(format_value, value)) or "–"
    return str(value)


def format_named(name: str, value: Any) -> str:
    """Return a value as text; of a p-value that is nearly 0, that it is below 0.001."""
    small = isinstance(value, numbers.Real) and 0 <= float(value) < 1e-3
    return "<0.001" if small and name.endswith("p_value") else format_value(value)


def body_html(body: Body, heading: str) -> str:
    """Return the body of a section as HTML, which is a body as well."""
    items: Sequence[Item] = body if isinstance(body, (list, tuple)) else [body]  # type: ignore[list-item]
    return "\n".join(_item_html(item, heading) for item in items)


def _item_html(item: Item, heading: str) -> str:
    if isinstance(item, pd.DataFrame):
        return dataframe_html(item)
    if isinstance(item, bytes):
        return as_image(item, heading)
    if not isinstance(item, str):
        from flwr_vertical.pages.figures import to_svg

        item = to_svg(item, restyle=False)
    return as_image(item, heading) if item.lstrip().startswith(("<svg", "<?xml")) else item


def as_image(drawing: str | bytes, heading: str) -> str:
    """Return a drawing, SVG text or the bytes of a PNG, as an HTML figure.

    As an image a drawing cannot run scripts, and its ids cannot clash with another one's. A phone
    shows the narrow one of a `Drawing`.
    """
    image = f'<img src="{_as_data(drawing)}" alt="{escape(heading)}">'
    if narrow := getattr(drawing, "narrow", ""):
        phone = f'<source media="{PHONE}" srcset="{_as_data(narrow)}">'
        image = f"<picture>{phone}{image}</picture>"
    return f"<figure>{image}</figure>"


def _as_data(drawing: str | bytes) -> str:
    kind = "svg+xml" if isinstance(drawing, str) else "png"
    data = drawing.encode() if isinstance(drawing, str) else drawing
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def human_bytes(size: float) -> str:
    """Return a size such as ``"12.3 kB"`` (1 kB = 1,000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.95:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Return a duration such as ``"3.24 ms"``, ``"4.5 s"`` or ``"2 min 05 s"``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
