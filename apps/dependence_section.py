"""On a party's own page: how predictions depend on each of its columns."""

import numpy as np
import pandas as pd

from flwr_vertical.pages import figures as fg
from flwr_vertical.pages.page import Item, Section, dataframe_html, details_html

_MOST_PANELS = 12


def dependence_section(table: pd.DataFrame) -> Section:
    """Return small figures of partial dependence, those columns first that move predictions most.

    Shapes: table (n_codes, ...): ``column``, ``values`` of a bin, ``prediction`` by class.
    """
    predictions = [name for name in table if name not in ("column", "values")]
    span = table.groupby("column")[predictions].agg(np.ptp).max(axis=1)
    names = list(span.sort_values(ascending=False, kind="stable").index[:_MOST_PANELS])
    figure, axes = fg.small_multiples(len(names))
    for ax, name in zip(axes, names, strict=False):
        own = table[table["column"] == name]
        known = own[own["values"] != "missing"]
        places = np.arange(len(known))
        for number, prediction in enumerate(predictions):
            ink = fg.colour(number)
            ax.plot(places, known[prediction], "o-", markersize=3, linewidth=1.2, color=ink)
            ax.axhline(own[prediction].iloc[-1], linestyle=(0, (4, 3)), linewidth=1, color=ink)
        shown = places[:: max(1, len(places) // 3)]
        ax.set_xticks(shown, [fg.plain(known["values"].iloc[i], 12) for i in shown], fontsize=7)
        fg.label(ax, fg.plain(name))
    items: list[Item] = [fg.to_svg(figure)]
    items.append(details_html(f"All {len(table)} bins", dataframe_html(table, max_rows=1000)))
    return Section(
        "How predictions depend on own columns",
        items,
        "Mean raw predictions (of classes, the log-odds) if all samples were in a bin, the other "
        "columns as they are; dashed: if the cell is missing. The server made them, of the trees "
        "and without a value of the column.",
    )
