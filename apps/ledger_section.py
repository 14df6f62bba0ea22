"""A node's privacy ledger in its own report: what has left so far, and what may leave still."""

from collections.abc import Iterator

import pandas as pd

from flwr_vertical.pages.page import Item, Section, dataframe_html, details_html, paragraph
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.summary import LedgerSummary

from .ledger_usage import Standing, colluding, entry_rows, run_rows, standing

_MOST_RUNS = 200


def ledger_sections(summary: LedgerSummary, policy: Policy, run: str) -> Iterator[Section]:
    """Make the sections of a report."""
    found = standing(summary, policy)
    state = pd.DataFrame(
        [(one.what, one.so_far, one.allowed, one.key) for one in found],
        columns=["over all runs", "so far", "allowed", "key"],
    )
    items: list[Item] = []
    if bounded := [one for one in found if one.used is not None]:
        items.append(_used_figure(bounded))
    items.append(dataframe_html(state, index=False, formats={"so far": str}))
    yield Section(
        "What has left this node so far",
        items,
        "From the privacy ledger of this party, which is written before anything leaves. Where a "
        "number is at its limit, runs that would exceed it are refused.",
    )
    numbers = {r["id"] for r in summary.runs if r["name"] == run}
    entries = [entry for entry in summary.entries if entry["run"] in numbers]
    if entries:
        told = pd.DataFrame(entry_rows(summary, entries)).drop(columns="run")
        body: list[Item] = [dataframe_html(told, index=False)]
        if more := colluding(entries):
            body.append(paragraph(more))
        yield Section("What this run was told", body)
    runs = pd.DataFrame(run_rows(summary)).iloc[::-1]
    title = f"All {len(runs):,} runs, the latest first"
    table = dataframe_html(runs, index=False, max_rows=_MOST_RUNS)
    yield Section("Runs of this node", details_html(title, table))


def _used_figure(bounded: list[Standing]) -> str:
    """Draw which share of its limits is used, as bars."""
    # Parties import this package for every message: matplotlib waits until something is drawn.
    from flwr_vertical.pages import figures as fg

    figure, (ax,) = fg.new_figure(0.7 + 0.36 * len(bounded))
    places = range(len(bounded))
    shares = [min(one.used or 0.0, 1.0) for one in bounded]
    ax.barh(places, [1.0] * len(bounded), height=0.5, color=fg.LINE)
    full = [share > 1.0 - 1e-9 for share in shares]
    colours = [fg.colour(1) if at_limit else fg.colour(0) for at_limit in full]
    ax.barh(places, shares, height=0.5, color=colours)
    ax.set_yticks(places, [one.what for one in bounded])
    ax.invert_yaxis()
    ax.set_xlim(0.0, 1.0)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    fg.label(ax, x="share of the limit")
    return fg.to_svg(figure)
