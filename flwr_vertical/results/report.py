"""The report of one run: the figures and tables people look at, on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.results import evaluation_figures as ev
from flwr_vertical.results import figures as fg
from flwr_vertical.results import imputed as im
from flwr_vertical.results import influence as nf
from flwr_vertical.results import missingness as mi
from flwr_vertical.results import quality as qu
from flwr_vertical.results import synthetic as sy
from flwr_vertical.results.atomic import write_bytes_atomically
from flwr_vertical.results.page import (
    Item,
    Section,
    bullet_list,
    dataframe_html,
    details_html,
    format_value,
    render_page,
    side_by_side,
    subheading,
)
from flwr_vertical.results.quality_score import quality_score
from flwr_vertical.results.result import Result, needed_lines
from flwr_vertical.results.storage import is_own_report
from flwr_vertical.results.units import human_bytes, human_seconds

_MOST_PANELS = 12
_MOST_PREDICTIONS = 20


def write_report(
    result: Result, folder: Path, more: Iterable[Section] = (), mode: int = 0o600
) -> Path:
    """Write the report of a run; see `Result.report`.

    Parameters
    ----------
    result, folder
        As there.
    more : iterable of Section, optional
        Sections after those of the run.
    mode : int, optional
        Of the file, less the umask.
    """
    path = folder if folder.suffix == ".html" else folder / "report.html"
    path = path.expanduser().absolute()
    if path.exists() and not is_own_report(path):
        raise ConfigError(f"cannot write the report to {path}: another file is there; move it away")
    return write_bytes_atomically(path, report_html(result, more=more).encode(), mode)


def report_html(result: Result, *, date: str = "", more: Iterable[Section] = ()) -> str:
    """Return the report of a run as one self-contained HTML page.

    Parameters
    ----------
    result : Result
        The run; sections without content are left out.
    date : str, optional
        Shown above the title. Left out by default, so that equal runs give equal pages.
    more : iterable of Section, optional
        Sections after those of the run.
    """
    size = _size(result)
    return render_page(
        result.strategy,
        [*_sections(result), *more],
        subtitle=_sentence(result, size),
        facts=_facts(result, size),
        kicker="flwr-vertical · run report" + (f" · {date}" if date else ""),
    )


def _sections(result: Result) -> Iterator[Section]:
    stated = [] if result.privacy is None else result.privacy.sentences
    if notes := [note for note in result.notes if note not in stated]:
        yield Section("Notes", bullet_list(notes))
    if result.privacy is not None:
        table = dataframe_html(result.privacy.to_frame())
        yield Section("Privacy", [bullet_list(stated), table], result.privacy.caption)
    yield from _metrics(result)
    if result.evaluation is not None:
        yield ev.section(result.evaluation)
    yield from nf.sections(result.importance, result.contributions)
    yield from _missing(result)
    yield from _synthetic(result)
    yield from _imputed(result)
    history = fg.history_figure(result.history)
    if history:
        yield Section("Convergence", history, "What the run reported from round to round.")
    yield from _coefficients(result)
    yield from _predictions(result)
    if result.figures:
        figures: list[Item] = []
        for title, figure in result.figures.items():
            figures += [subheading(title), figure]
        yield Section("Figures of the strategy", figures)
    yield from _cost(result)
    if result.disclosure:
        learned = pd.DataFrame(result.disclosure, columns=["who", "learns"])
        caption = "What each role of this run got to know, besides its own data."
        yield Section("Who learned what", dataframe_html(learned, index=False), caption)
    if result.needed_keys:
        needed = pd.DataFrame(
            [(node, key, format_value(value)) for node, keys in result.needed_keys.items()
             for key, value in keys.items()],
            columns=["node", "key of its node config", "value"],
        )  # fmt: skip
        caption = (
            "In a federation, a node takes part in this run only if its owner states these keys. "
            "To be pasted:"
        )
        lines = bullet_list(needed_lines(result.needed_keys))
        table = dataframe_html(needed, index=False)
        yield Section("What nodes must agree to", [table, lines], caption)
    if result.settings:
        settings = pd.DataFrame(
            {"setting": list(result.settings), "value": list(result.settings.values())},
            dtype=object,
        )
        # Values are of all types: as text they line up on the left.
        settings["value"] = [format_value(value) for value in result.settings.values()]
        yield Section("Settings", dataframe_html(settings, index=False))


def _metrics(result: Result) -> Iterator[Section]:
    tables = []
    if result.metrics:
        overall = pd.DataFrame({"metric": list(result.metrics), "value": result.metrics.values()})
        tables.append(subheading("Overall") + dataframe_html(overall, index=False))
    if result.party_metrics:
        frame = pd.DataFrame.from_dict(result.party_metrics, orient="index")
        table = dataframe_html(frame.rename_axis("party"))
        tables.append(subheading("By party") + table)
    if tables:
        yield Section("Metrics", side_by_side(tables))


def _predictions(result: Result) -> Iterator[Section]:
    predicted = result.predictions
    if predicted is None or not len(predicted):
        return
    first = predicted.head(_MOST_PREDICTIONS)
    shown = "all" if len(first) == len(predicted) else f"the first {len(first)}"
    caption = f"{len(predicted):,} samples without a label, {shown} shown."
    yield Section("Predictions", dataframe_html(first), caption)


def _missing(result: Result) -> Iterator[Section]:
    order = (
        "Samples with the same missing blocks stand together. The bars give the share of samples "
        "that a column misses."
    )
    if result.originals and any(table.shape[1] for table in result.originals.values()):
        state, parties, columns = mi.states(result.originals)
        yield Section("What is missing", mi.matrix_figure(state, parties, columns), order)
    elif result.mask is not None and result.mask.size:
        state = np.asarray(result.mask, dtype=np.uint8) * mi.BLOCK
        names = result.parties or [f"party {k + 1}" for k in range(state.shape[1])]
        body = mi.matrix_figure(state, [""] * len(names), names, of="parties")
        yield Section("What is missing", body, "Which party holds which sample. " + order)


def _synthetic(result: Result) -> Iterator[Section]:
    pairs = qu.synthetic_pairs(result.originals, result.tables)
    if not pairs:
        return
    margins = qu.margin_quality(result.originals, result.tables)
    score = quality_score(result.originals, result.tables)
    said = f"Quality {score.score:.3f} of 1: column shapes {score.shapes.mean():.3f}"
    if len(score.trends):
        said += f", pair trends {score.trends.mean():.3f}"
    items: list[Item] = [
        bullet_list([said + " (as SDMetrics defines them)."]),
        sy.margins_figure(pairs[:_MOST_PANELS]),
        details_html(f"Margins of all {len(pairs)} columns", dataframe_html(margins)),
    ]
    if len(pairs) > 1:
        correlations = qu.correlation_quality(result.originals, result.tables)
        off = np.abs(correlations.differences)
        items.append(subheading("Pairs of columns"))
        items.append(sy.correlations_figure(correlations))
        if len(off):
            caption = f"Differences are {off.mean():.3f} on average and {off.max():.3f} at most."
            items.append(bullet_list([caption]))
    models = qu.downstream_quality(result.originals, result.tables)
    if len(models):
        note = (
            "Each column predicted from all others; models fitted on real or on synthetic rows, "
            "judged on real rows that fitted neither: R2, or of levels the share of right answers."
        )
        items += [subheading("Models"), bullet_list([note]), dataframe_html(models)]
    caption = (
        "Compared with what is observed, so this page is as secret as the real tables. Where "
        "blocks are missing at random the whole may truly differ from what is observed."
    )
    if len(pairs) > _MOST_PANELS:
        caption += f" Drawn are the first {_MOST_PANELS} of {len(pairs)} columns."
    yield Section("Synthetic and observed values", items, caption)


def _imputed(result: Result) -> Iterator[Section]:
    filled = {
        name: table
        for name, table in result.tables.items()
        if name in result.originals and not qu.is_synthetic(result.originals[name], table)
    }
    columns = im.imputed_columns(result.originals, filled, result.truth)
    known = [item for item in columns if item.truth is not None]
    guess = [item for item in columns if item.truth is None]
    if known:
        items: list[Item] = []
        numeric = [item for item in known if item.numeric]
        categories = [item for item in known if not item.numeric]
        if numeric:
            items.append(im.scatter_figure(numeric[:_MOST_PANELS]))
        if categories:
            items.append(im.accuracy_figure(categories[:_MOST_PANELS]))
        table = dataframe_html(im.errors(known))
        items.append(details_html(f"Errors of all {len(known)} columns", table))
        caption = "Imputed cells whose true value is known. On the dashed line both are equal."
        caption += _left_out("numeric columns", len(numeric))
        caption += _left_out("categorical columns", len(categories))
        yield Section("Imputed against true values", items, caption)
    if guess:
        figure = im.distributions_figure(guess[:_MOST_PANELS])
        caption = "What is missing may truly differ from what is seen: unlike shapes need no error."
        caption += _left_out("columns", len(guess))
        yield Section("Imputed and observed values", figure, caption)


def _left_out(what: str, count: int) -> str:
    if count <= _MOST_PANELS:
        return ""
    return f" Drawn are the {_MOST_PANELS} most imputed of {count} {what}."


def _coefficients(result: Result) -> Iterator[Section]:
    frame = result.coefficients
    if frame is None or frame.empty:
        return
    items: list[Item] = []
    figure = fg.coefficients_figure(frame) if "estimate" in frame else None
    if figure:
        items.append(figure)
    table = dataframe_html(frame, max_rows=1000)
    items.append(table if len(frame) <= 12 else details_html(f"All {len(frame)} estimates", table))
    yield Section("Coefficients", items)


def _cost(result: Result) -> Iterator[Section]:
    ledger = result.ledger
    if ledger.messages:
        rows = ledger.summary()
        modes = ledger.to_frame().groupby("step", sort=False)["mode"].unique().map(", ".join)
        if len(rows) > 1:
            rows = pd.concat([rows, ledger.summary("total")])
        columns: dict[str, Callable[[Any], str]] = {
            "rounds": format_value,
            "messages": format_value,
            "bytes_up": human_bytes,
            "bytes_down": human_bytes,
            "values_up": lambda count: f"{count:,}" if count else "–",
            "bytes_per_value": lambda size: "–" if np.isnan(size) else f"{size:.1f}",
            "seconds": human_seconds,
        }
        names = {"bytes_up": "up", "bytes_down": "down", "values_up": "values summed"}
        names |= {"bytes_per_value": "bytes per value", "seconds": "time"}
        writers = {names.get(name, name): write for name, write in columns.items()}
        table = rows[list(columns)].rename(columns=names).rename_axis("step")
        table.insert(0, "mode", modes.reindex(table.index).fillna(""))
        items: list[Item] = [dataframe_html(table, formats=writers)]
        caption = (
            "Up is from the parties to the server. A round lasts as long as its slowest message."
        )
        if not ledger.privacy.empty:
            items += [subheading("Privacy spent"), dataframe_html(ledger.privacy, index=False)]
        yield Section("What it cost", items, caption)


class _Size:
    samples: int | None = None
    columns: int | None = None
    missing: float | None = None


def _size(result: Result) -> _Size:
    size = _Size()
    if result.originals:
        state, _, _ = mi.states(result.originals)
        size.samples, size.columns = state.shape
        size.missing = float((state != mi.PRESENT).mean()) if state.size else None
    elif result.mask is not None:
        size.samples = len(result.mask)
        size.missing = float(np.mean(result.mask)) if result.mask.size else None
    return size


def _facts(result: Result, size: _Size) -> dict[str, str]:
    facts = {"Parties": f"{len(result.parties)}"} if result.parties else {}
    if size.samples is not None:
        facts["Samples"] = f"{size.samples:,}"
    if size.columns is not None:
        facts["Columns"] = f"{size.columns:,}"
    if size.missing is not None:
        facts["Missing"] = f"{size.missing:.1%}"
    ledger = result.ledger
    if ledger.messages:
        facts["Rounds"] = f"{ledger.rounds:,}"
        facts["Sent by parties"] = human_bytes(ledger.bytes_up)
        facts["Sent to parties"] = human_bytes(ledger.bytes_down)
        facts["Time in rounds"] = human_seconds(ledger.seconds)
    return facts


def _sentence(result: Result, size: _Size) -> str:
    parties = f"{len(result.parties)} parties" if len(result.parties) != 1 else "One party"
    text = parties if result.parties else "A run"
    if size.samples is not None:
        held = f"{size.columns:,} columns about " if size.columns is not None else ""
        text += f" with {held}{size.samples:,} samples"
    if size.missing is not None:
        text += (
            f", {size.missing:.1%} of {'cells' if size.columns is not None else 'blocks'} missing"
        )
    if result.metrics:
        name, value = next(iter(result.metrics.items()))
        text += f"; {name} {format_value(value)}"
    return text + "."
