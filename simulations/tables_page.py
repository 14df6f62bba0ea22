"""Pages of studies that are notes and tables: HTML, and text of the documentation."""

from collections.abc import Mapping, Sequence

import pandas as pd

from flwr_vertical.pages import Section, bullet_list, dataframe_html, render_page
from simulations.attacks.docs import markdown_table
from simulations.markdown import items
from simulations.vfem.page import marked


def html_page(
    title: str, notes: Sequence[str], titles: Mapping[str, str], tables: Mapping[str, pd.DataFrame]
) -> str:
    """Return the HTML page."""
    sections = [Section("How", [bullet_list(notes)], "")]
    sections += [
        Section(heading, [marked(dataframe_html(tables[name], max_rows=200))], "")
        for name, heading in titles.items()
    ]
    return render_page(title, sections, kicker="flwr-vertical · study")


def markdown_page(
    title: str,
    command: str,
    notes: Sequence[str],
    titles: Mapping[str, str],
    tables: Mapping[str, pd.DataFrame],
) -> str:
    """Return the documentation's page; ``command`` writes it, the rest is as in `html_page`."""
    parts = [f"# {title}\n", f"<!-- Written by `{command}`; do not edit. -->\n", items(notes)]
    for name, heading in titles.items():
        parts += [f"## {heading}\n", markdown_table(tables[name])]
    return "\n".join(parts)
