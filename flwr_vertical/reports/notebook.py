"""A result and its report in a notebook: as HTML that its cell shows."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.pages.page import (
    as_image,
    format_named,
    format_value,
    human_bytes,
    human_seconds,
)
from flwr_vertical.reports.glossary import meaning_of, most_telling_first
from flwr_vertical.reports.report import key_figures
from flwr_vertical.results.data import ResultData
from flwr_vertical.results.storage import is_own_report

_MOST_METRICS = 12
_MOST_NOTES = 5
_HEIGHT = 640  # pixels of a report inside a notebook
_LARGEST = 8_000_000  # bytes of a report that a notebook takes in

# `type(Path())`, as only Python 3.12 lets a class inherit from `Path` itself.
_AnyPath: Any = type(Path())


class ReportPath(_AnyPath):  # type: ignore[misc]
    """The path of a report, which a notebook shows as the report itself."""

    def _repr_html_(self) -> str | None:
        if not is_own_report(self) or self.stat().st_size > _LARGEST:
            return None
        page = self.read_text("utf-8")
        # Inside a frame, links to sections would lead to those of the notebook.
        page = page.replace("<body>", '<body class="framed">', 1)
        return (
            f'<iframe srcdoc="{escape(page)}" sandbox style="width: 100%; height: {_HEIGHT}px; '
            f'border: 1px solid #8886; border-radius: 8px"></iframe><p><small>{escape(str(self))}'
            "</small></p>"
        )


def result_html(result: ResultData) -> str:
    """Return a result as HTML for a notebook: a summary, and the figure that says most."""
    return f'<div class="flwr-vertical">{"".join(_parts(result))}</div>'


def _parts(result: ResultData) -> Iterator[str]:
    ledger = result.ledger
    told = [f"{len(result.parties)} parties"] if len(result.parties) > 1 else list(result.parties)
    if ledger.messages:
        told.append(f"{ledger.rounds:,} rounds")
        told.append(f"{human_bytes(ledger.bytes_up)} up, {human_bytes(ledger.bytes_down)} down")
        told.append(human_seconds(ledger.seconds))
    yield f"<p><b>{escape(result.call or result.strategy)}</b>"
    yield f"<br><small>{escape(' · '.join(told))}</small></p>" if told else "</p>"
    if result.metrics:
        names = most_telling_first(result.metrics)[:_MOST_METRICS]
        shown = [(name, result.metrics[name]) for name in names]
        left_out = len(result.metrics) - len(shown)
        yield _table(shown) + (f"<p><small>and {left_out} more</small></p>" if left_out else "")
    if result.party_metrics:
        frame = pd.DataFrame.from_dict(result.party_metrics, orient="index").rename_axis("party")
        yield frame.map(format_value).to_html(border=0)
    if result.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes[:_MOST_NOTES])
        more = len(result.notes) - _MOST_NOTES
        yield f"<ul>{notes}{f'<li>and {more} more notes</li>' if more > 0 else ''}</ul>"
    if (found := _key_figure(result)) is not None:
        title, figure = found
        yield f"<p><small>{escape(title)}</small></p>"
        yield (
            '<div style="background: #fff; padding: 6px; border-radius: 6px; max-width: 900px">'
            f"{as_image(figure, title)}</div>"
        )


def _table(metrics: list[tuple[str, float]]) -> str:
    rows = "".join(
        f'<tr title="{escape(meaning_of(name))}"><td style="text-align: left">{escape(name)}</td>'
        f"<td>{escape(format_named(name, value))}</td></tr>"
        for name, value in metrics
    )
    return f"<table>{rows}</table>"


def _key_figure(result: ResultData) -> tuple[str, str | bytes] | None:
    try:
        return next(key_figures(result), None)
    except Exception:  # a notebook shall show the rest of a result whatever it holds
        return None
