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
from flwr_vertical.results import grade_section as gr
from flwr_vertical.results import imputed as im
from flwr_vertical.results import influence as nf
from flwr_vertical.results import missingness as mi
from flwr_vertical.results import path as pa
from flwr_vertical.results import quality as qu
from flwr_vertical.results import synthetic as sy
from flwr_vertical.results.atomic import write_bytes_atomically
from flwr_vertical.results.definitions import meaning_of, most_telling_first
from flwr_vertical.results.own import own_facts, own_sentence, rows_got
from flwr_vertical.results.page import (
    Item,
    Section,
    bullet_list,
    dataframe_html,
    details_html,
    format_value,
    paragraph,
    render_page,
    subheading,
)
from flwr_vertical.results.quality_score import quality_score
from flwr_vertical.results.result import Result, needed_lines
from flwr_vertical.results.storage import is_own_report
from flwr_vertical.results.units import human_bytes, human_seconds

_FOLDED_FROM = 12  # rows of a table
_MOST_PANELS = 12
_MOST_PREDICTIONS = 20
_FEW_PANELS = 4  # of a figure in a notebook
_FEW_COEFFICIENTS = 20


def write_report(
    result: Result,
    folder: Path,
    more: Iterable[Section] = (),
    mode: int = 0o600,
    party: str = "",
) -> Path:
    """Write the report of a run; see `Result.report`."""
    path = folder if folder.suffix == ".html" else folder / "report.html"
    path = path.expanduser().absolute()
    if path.exists() and not is_own_report(path):
        raise ConfigError(f"cannot write the report to {path}: another file is there; move it away")
    return write_bytes_atomically(path, report_html(result, more=more, party=party).encode(), mode)


def report_html(
    result: Result, *, date: str = "", more: Iterable[Section] = (), party: str = ""
) -> str:
    """Return the report of a run as one self-contained HTML page."""
    ungraded = "" if party else gr.grade_if_synthetic(result)
    size = _size(result)
    kind = "party report" if party else "run report"
    above = [f"flwr-vertical {result.version}".strip(), kind, result.name]
    above += [date or result.finished]
    seed = result.settings.get("seed")
    above += [] if seed is None else [f"seed {seed}"]
    return render_page(
        f"{party}: {result.strategy}" if party else result.strategy,
        [*(rows_got(result, party) if party else ()), *_sections(result, ungraded), *more],
        subtitle=own_sentence(result, party) if party else _sentence(result, size),
        facts=own_facts(result, party) if party else _facts(result, size),
        kicker=" · ".join(part for part in above if part),
        made=result.call,
    )


def key_figures(result: Result) -> Iterator[tuple[str, str | bytes]]:
    """Yield figures of a result with their titles, the one that says most first."""
    found = result.evaluation
    if found is not None:
        numbers = found.task == "numbers"
        figure = ev.numbers_figure(found) if numbers else ev.classes_figure(found)
        if figure:
            yield "Predictions against true labels", figure
    if pairs := qu.synthetic_pairs(result.originals, result.tables):
        yield "Synthetic and observed values", sy.margins_figure(pairs[:_FEW_PANELS])
    columns = _imputed_columns(result)
    known = [item for item in columns if item.truth is not None and item.numeric][:_FEW_PANELS]
    if known:
        yield "Imputed against true values", im.scatter_figure(known)
    if result.coefficients is not None and "estimate" in result.coefficients:
        spreads = _spreads(result)
        if figure := fg.coefficients_figure(result.coefficients, spreads, most=_FEW_COEFFICIENTS):
            yield "Coefficients", figure
    if columns:
        yield "Imputed and observed values", im.distributions_figure(columns[:_FEW_PANELS])
    if figure := fg.history_figure(result.history):
        yield "Convergence", figure


def _sections(result: Result, ungraded: str) -> Iterator[Section]:
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
    yield from gr.sections(result.graded, ungraded)
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
        names = most_telling_first(result.metrics)
        overall = pd.DataFrame({"metric": names, "value": [result.metrics[n] for n in names]})
        meanings = [meaning_of(name) for name in names]
        if any(meanings):
            overall["meaning"] = meanings
        tables.append(subheading("Overall") + dataframe_html(overall, index=False))
    if result.party_metrics:
        frame = pd.DataFrame.from_dict(result.party_metrics, orient="index")
        table = dataframe_html(frame.rename_axis("party"))
        told = {str(n): meaning_of(str(n)) for n in frame if n not in result.metrics}
        told = {name: text for name, text in told.items() if text}
        words = bullet_list(f"{name}: {text}" for name, text in told.items()) if told else ""
        tables.append(subheading("By party") + table + words)
    if tables:
        yield Section("Metrics", tables)


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
    of_blocks = "Which party holds which sample. "
    if result.originals and any(table.shape[1] for table in result.originals.values()):
        state, parties, columns = mi.states(
            result.originals, result.settings.get("normalise_ids", ())
        )
        of, of_blocks = "columns", ""
    elif result.mask is not None and result.mask.size:
        state = np.asarray(result.mask, dtype=np.uint8) * mi.BLOCK
        columns = result.parties or [f"party {k + 1}" for k in range(state.shape[1])]
        parties, of = [""] * len(columns), "parties"
    else:
        return
    if not state.size:
        return
    if not state.any():  # a figure of one colour says less than a sentence
        yield Section("What is missing", paragraph("No cell and no block is missing."))
        return
    figure = mi.matrix_figure(state, parties, columns, of=of)
    yield Section("What is missing", figure, of_blocks + order)


def _synthetic(result: Result) -> Iterator[Section]:
    pairs = qu.synthetic_pairs(result.originals, result.tables)
    if not pairs:
        return
    margins = qu.margin_quality(result.originals, result.tables)
    items: list[Item] = []
    if result.graded is None:  # a grade says the same, and a large table's takes seconds
        score = quality_score(result.originals, result.tables)
        said = f"Quality {score.score:.3f} of 1: column shapes {score.shapes.mean():.3f}"
        if len(score.trends):
            said += f", pair trends {score.trends.mean():.3f}"
        items.append(bullet_list([said + " (as SDMetrics defines them)."]))
    items += [
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


def _imputed_columns(result: Result) -> list[im.Imputed]:
    if result._judged is not None:
        return im.imputed_columns(*result._judged)
    return im.imputed_columns(result.originals, _filled(result), result.truth)


def _imputed(result: Result) -> Iterator[Section]:
    columns = _imputed_columns(result)
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
        caption = "Imputed cells whose true value is known. On the dashed line both are equal."
        if result.imputation is None:
            table = dataframe_html(im.errors(known))
            items.append(details_html(f"Errors of all {len(known)} columns", table))
        else:
            table = dataframe_html(result.imputation, max_rows=1000)
            folded = details_html(f"Errors of all {len(result.imputation)} columns", table)
            items.append(folded if len(result.imputation) > _FOLDED_FROM else table)
            caption += (
                " Beside the error of a column stands that of its mean (of levels, the most "
                "frequent one), and of the party alone where it was run; skill is the share of the "
                "mean's squared error, or wrong cells, that is removed: below 0 the mean is better."
            )
            if result.settings.get("hold_out"):
                caption += " Cells were held out of the run for this, and put back."
        caption += _left_out("numeric columns", len(numeric))
        caption += _left_out("categorical columns", len(categories))
        yield Section("Imputed against true values", items, caption)
    if guess and result._judged is None:
        figure = im.distributions_figure(guess[:_MOST_PANELS])
        caption = "What is missing may truly differ from what is seen: unlike shapes need no error."
        caption += _left_out("columns", len(guess))
        yield Section("Imputed and observed values", figure, caption)


def _filled(result: Result) -> dict[str, pd.DataFrame]:
    """Return the parties' tables that are no synthetic ones."""
    return {
        name: table
        for name, table in result.tables.items()
        if name in result.originals and not qu.is_synthetic(result.originals[name], table)
    }


def _spreads(result: Result) -> pd.Series | None:
    """Return standard deviations of the coefficients' variables, as far as tables are known."""
    assert result.coefficients is not None
    found = {
        key: spread_of(result.originals[key[0]], str(key[1]))
        for key in result.coefficients.index
        if isinstance(key, tuple) and key[0] in result.originals
    }
    known = {key: spread for key, spread in found.items() if spread is not None and spread > 0}
    return pd.Series(known, dtype=float) if known else None


def spread_of(table: pd.DataFrame, variable: str) -> float | None:
    """Return the standard deviation of a column, or of the indicator ``column=level``."""
    if variable in table:
        column = table[variable]
        numeric = pd.api.types.is_numeric_dtype(column)
        return float(column.astype(float).std()) if numeric else None
    name, _, level = variable.partition("=")
    if not level or name not in table:
        return None
    known = table[name].dropna()
    return float((known.astype(str) == level).astype(float).std()) if len(known) else None


def _left_out(what: str, count: int) -> str:
    if count <= _MOST_PANELS:
        return ""
    return f" Drawn are the {_MOST_PANELS} most imputed of {count} {what}."


def _coefficients(result: Result) -> Iterator[Section]:
    frame = result.coefficients
    if frame is not None and not frame.empty:
        items: list[Item] = []
        spreads = _spreads(result)
        figure = fg.coefficients_figure(frame, spreads) if "estimate" in frame else None
        if figure:
            items.append(figure)
        table = dataframe_html(frame, max_rows=1000)
        items.append(
            table if len(frame) <= 12 else details_html(f"All {len(frame)} estimates", table)
        )
        caption = (
            "On the right, by how much the prediction changes as the variable rises by one of its "
            "standard deviations: that can be compared between variables."
        )
        yield Section("Coefficients", items, caption if spreads is not None else "")
    path = getattr(result.model, "path", None)
    estimates = getattr(result.model, "path_coefficients", None)
    if isinstance(path, pd.DataFrame) and isinstance(estimates, pd.DataFrame):
        spreads = None if frame is None else _spreads(result)
        if figure := pa.path_figure(path, estimates, spreads, result.metrics.get("lambda")):
            caption = (
                "Coefficients as the weight of the penalty falls, from left to right; the dashed "
                "line is the model that was chosen."
            )
            yield Section("Path of the penalty", figure, caption)


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
        state, _, _ = mi.states(result.originals, result.settings.get("normalise_ids", ()))
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
        name = most_telling_first(result.metrics)[0]
        text += f"; {name} {format_value(result.metrics[name])}"
    return text + "."
