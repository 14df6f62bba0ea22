"""The report of one run: the figures and tables people look at, on one page."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError
from flwr_vertical.grading import quality as qu
from flwr_vertical.pages import figures as fg
from flwr_vertical.pages.page import (
    Item,
    Section,
    bullet_list,
    dataframe_html,
    format_named,
    format_value,
    human_bytes,
    human_seconds,
    render_page,
    shown,
    subheading,
)
from flwr_vertical.reports import coefficients as co
from flwr_vertical.reports import evaluation as ev
from flwr_vertical.reports import importance as nf
from flwr_vertical.reports import imputation as im
from flwr_vertical.reports import missingness as mi
from flwr_vertical.reports import synthetic as sy
from flwr_vertical.reports.glossary import meaning_of, most_telling_first
from flwr_vertical.results.data import ResultData, needed_lines
from flwr_vertical.results.storage import is_own_report
from flwr_vertical.whole_files import write_bytes_atomically

_MOST_PREDICTIONS = 20
_MOST_OF_FRAME = 40  # rows of a table of the strategy's
_FEW_PANELS = 4  # of a figure in a notebook
_FEW_COEFFICIENTS = 20
_SAID_ONCE = ("What is missing", "What it cost", "Who learned what", "What nodes must agree to")
_MOST_ROWS_GOT = _MOST_COLUMNS_GOT = 12  # on a party's own page


def write_report(
    result: ResultData,
    folder: Path,
    more: Iterable[Section] = (),
    party: str = "",
    drawn: Iterable[Section] | None = None,
) -> Path:
    """Write the report of a run; see `Result.report` and `report_html`."""
    path = folder if folder.suffix == ".html" else folder / "report.html"
    path = path.expanduser().absolute()
    if path.exists() and not is_own_report(path):
        raise ConfigError(f"cannot write the report to {path}: another file is there; move it away")
    page = report_html(result, more=more, party=party, drawn=drawn)
    return write_bytes_atomically(path, page.encode(), 0o600)


def report_html(
    result: ResultData,
    *,
    date: str = "",
    more: Iterable[Section] = (),
    party: str = "",
    drawn: Iterable[Section] | None = None,
) -> str:
    """Return the report of a run, or of `party` in it, as one self-contained HTML page."""
    ungraded = "" if party else sy.grade_if_synthetic(result)
    drawn = _sections(result, ungraded) if drawn is None else drawn
    size = _size(result)
    kind = "party report" if party else "run report"
    above = [f"flwr-vertical {result.version}".strip(), kind, result.name]
    above += [date or result.finished]
    seed = result.settings.get("seed")
    above += [] if seed is None else [f"seed {seed}"]
    return render_page(
        f"{party}: {result.strategy}" if party else result.strategy,
        [*(shown("Rows that it got", _rows_got(result, party)) if party else ()), *drawn, *more],
        subtitle=_own_sentence(result, party) if party else _sentence(result, size),
        facts=_own_facts(result, party) if party else _facts(result, size),
        kicker=" · ".join(part for part in above if part),
        made=result.call,
    )


def key_figures(result: ResultData) -> Iterator[tuple[str, str | bytes]]:
    """Yield figures of a result with their titles, the one that says most first."""
    found = result.evaluation
    if found is not None and (figure := ev.figure(found)):
        yield "Predictions against true labels", figure
    if pairs := qu.synthetic_pairs(result.originals, result.tables):
        yield "Synthetic and observed values", sy.margins_figure(pairs[:_FEW_PANELS])
    columns = im.columns_of(result)
    known = [item for item in columns if item.truth is not None and item.numeric][:_FEW_PANELS]
    if known:
        yield "Imputed against true values", im.scatter_figure(known)
    if result.coefficients is not None and "estimate" in result.coefficients:
        spreads = co.spreads_of(result)
        if figure := fg.coefficients_figure(result.coefficients, spreads, most=_FEW_COEFFICIENTS):
            yield "Coefficients", figure
    if columns:
        yield "Imputed and observed values", im.distributions_figure(columns[:_FEW_PANELS])
    if figure := fg.history_figure(result.history):
        yield "Convergence", figure


def _sections(result: ResultData, ungraded: str) -> Iterator[Section]:
    """Yield what there is to show; a part that cannot be shown costs no other one."""
    parts: dict[str, Iterable[Section]] = {
        "Notes": _notes(result),
        "Metrics": _metrics(result),
        "Evaluation": _evaluation(result),
        "Importance": nf.sections(result.importance, result.contributions),
        "What is missing": mi.sections(result),
        "Synthetic values": sy.sections(result),
        "Grade": sy.grade_sections(result.graded, ungraded),
        "Imputed values": im.sections(result),
        "Convergence": _convergence(result),
        "Coefficients": co.sections(result),
        "Predictions": _predictions(result),
        "Figures and tables of the strategy": _own_of_strategy(result),
        "What it cost": _cost(result),
        "Who learned what": _told(result),
        "Settings": _settings(result),
    }
    for what, made in parts.items():
        yield from shown(what, made)


def _notes(result: ResultData) -> Iterator[Section]:
    stated = [] if result.privacy is None else result.privacy.sentences
    if notes := [note for note in result.notes if note not in stated]:
        yield Section("Notes", bullet_list(notes))
    if result.privacy is not None:
        table = dataframe_html(result.privacy.to_frame())
        yield Section("Privacy", [bullet_list(stated), table], result.privacy.caption)


def _evaluation(result: ResultData) -> Iterator[Section]:
    if result.evaluation is not None:
        yield ev.section(result.evaluation)


def _convergence(result: ResultData) -> Iterator[Section]:
    if history := fg.history_figure(result.history):
        yield Section("Convergence", history, "What the run reported from round to round.")


def _own_of_strategy(result: ResultData) -> Iterator[Section]:
    if result.figures:
        figures: list[Item] = []
        for title, figure in result.figures.items():
            figures += [subheading(title), figure]
        yield Section("Figures of the strategy", figures)
    for title, frame in result.frames.items():
        table = dataframe_html(frame, max_rows=_MOST_OF_FRAME)
        where = f"result.{title}" if title.isidentifier() else f"result.frames[{title!r}]"
        yield Section(title.replace("_", " ").capitalize(), table, f"In Python: {where}")


def _told(result: ResultData) -> Iterator[Section]:
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


def _settings(result: ResultData) -> Iterator[Section]:
    if result.settings:
        settings = pd.DataFrame(
            {"setting": list(result.settings), "value": list(result.settings.values())},
            dtype=object,
        )
        # Values are of all types: as text they line up on the left.
        settings["value"] = [format_value(value) for value in result.settings.values()]
        yield Section("Settings", dataframe_html(settings, index=False))


def stage_sections(
    result: ResultData, ungraded: str = "", without: Iterable[str] = _SAID_ONCE
) -> Iterator[Section]:
    """Yield the sections of one of several results on a page, without what is said once."""
    return (section for section in _sections(result, ungraded) if section.heading not in without)


def _metrics(result: ResultData) -> Iterator[Section]:
    tables = []
    if result.metrics:
        names = most_telling_first(result.metrics)
        # Only p-values become text here: a column of numbers stands on the right.
        values = [
            format_named(name, value) if name.endswith("p_value") else value
            for name, value in ((name, result.metrics[name]) for name in names)
        ]
        overall = pd.DataFrame({"metric": names, "value": values}, dtype=object)
        meanings = [result.meanings.get(name) or meaning_of(name) for name in names]
        if any(meanings):
            overall["meaning"] = meanings
        tables.append(subheading("Overall") + dataframe_html(overall, index=False))
    if result.party_metrics:
        frame = pd.DataFrame.from_dict(result.party_metrics, orient="index")
        table = dataframe_html(frame.rename_axis("party"))
        own = [str(name) for name in frame if name not in result.metrics]
        told = {name: result.meanings.get(name) or meaning_of(name) for name in own}
        told = {name: text for name, text in told.items() if text}
        words = bullet_list(f"{name}: {text}" for name, text in told.items()) if told else ""
        tables.append(subheading("By party") + table + words)
    if tables:
        yield Section("Metrics", tables)


def _predictions(result: ResultData) -> Iterator[Section]:
    predicted = result.predictions
    if predicted is None or not len(predicted):
        return
    first = predicted.head(_MOST_PREDICTIONS)
    shown = "all" if len(first) == len(predicted) else f"the first {len(first)}"
    caption = f"{len(predicted):,} samples without a label, {shown} shown."
    yield Section("Predictions", dataframe_html(first), caption)


def _cost(result: ResultData) -> Iterator[Section]:
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


def _size(result: ResultData) -> _Size:
    size = _Size()
    if result.originals:
        state, _, _ = mi.states(result.originals, result.settings.get("normalise_ids", ()))
        size.samples, size.columns = state.shape
        size.missing = float((state != mi.PRESENT).mean()) if state.size else None
    elif result.mask is not None:
        size.samples = len(result.mask)
        size.missing = float(np.mean(result.mask)) if result.mask.size else None
    return size


def _facts(result: ResultData, size: _Size) -> dict[str, str]:
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


def _sentence(result: ResultData, size: _Size) -> str:
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
        text += f"; {name} {format_named(name, result.metrics[name])}"
    return text + "."


def _own_facts(result: ResultData, party: str) -> dict[str, str]:
    """Return the cards under the title of a party's page."""
    before, after = result.originals[party], result.tables.get(party)
    facts = {"Own rows": f"{len(before):,}", "Columns": f"{before.shape[1]:,}"}
    if before.size:
        facts["Missing cells"] = f"{before.isna().to_numpy().mean():.1%}"
    if after is None:
        return facts
    if qu.is_synthetic(before, after):
        return {**facts, "Synthetic rows": f"{len(after):,}"}
    facts["Cells filled in"] = f"{_filled_cells(before, after):,}"
    facts["Rows got"] = f"{len(_got(before, after)):,}"
    return facts


def _own_sentence(result: ResultData, party: str) -> str:
    """Return the sentence under the title of a party's page."""
    before, after = result.originals[party], result.tables.get(party)
    columns = counted(before.shape[1], "column")
    text = f"Party {party!r} gave {counted(len(before), 'row')} of {columns}"
    if after is None:
        return text + "; its table is unchanged."
    if qu.is_synthetic(before, after):
        return text + f" and got {len(after):,} synthetic rows."
    text += f"; {_filled_cells(before, after):,} of its missing cells are filled in"
    got = len(_got(before, after))
    return text + (f", and it got {counted(got, 'row')} that only others had." if got else ".")


def _rows_got(result: ResultData, party: str) -> Iterator[Section]:
    """Return the section with rows that a party had not before, if there are any."""
    before, after = result.originals[party], result.tables.get(party)
    if after is None or before.empty:
        return
    made = qu.is_synthetic(before, after)
    got = after if made else _got(before, after)
    if not len(got):
        return
    shown = got.iloc[:_MOST_ROWS_GOT, :_MOST_COLUMNS_GOT]
    what = "synthetic rows" if made else "rows of samples that this party had no row of"
    caption = f"{len(got):,} {what}; {len(shown)} are shown here, all are in the table."
    if left := got.shape[1] - shown.shape[1]:
        caption += f" {counted(left, 'more column')} not shown."
    yield Section("Rows that it got", dataframe_html(shown), caption)


def _filled_cells(before: pd.DataFrame, after: pd.DataFrame) -> int:
    """Return how many missing cells of a party's own rows have a value afterwards."""
    columns = [name for name in before if name in after]
    rows = before.index.intersection(after.index)
    filled = before.loc[rows, columns].isna() & after.loc[rows, columns].notna()
    return int(filled.to_numpy().sum())


def _got(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    return after[~after.index.isin(before.index)]
