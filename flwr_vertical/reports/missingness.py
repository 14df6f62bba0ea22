"""Figure of what is missing: cells, and whole blocks of a party."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from flwr_vertical.arrays import Bytes
from flwr_vertical.pages import figures as fg
from flwr_vertical.pages.page import Section, paragraph
from flwr_vertical.results.data import ResultData
from flwr_vertical.tables.ids import in_normal_form

PRESENT, CELL, BLOCK = 0, 1, 2
_STATE_COLOURS = ("#d7e6f1", "#e69f00", "#34495e")
_STATE_NAMES = ("present", "missing cell", "missing block")


def states(
    originals: Mapping[str, pd.DataFrame], normalise: Sequence[str] = ()
) -> tuple[Bytes, list[str], list[str]]:
    """Return states (samples x columns) of what is missing, and party and name of each column."""
    originals = {name: in_normal_form(table, normalise, name) for name, table in originals.items()}
    samples = pd.Index([])
    for table in originals.values():
        samples = table.index if samples.empty else samples.union(table.index, sort=False)
    parts, parties, columns = [], [], []
    for party, table in originals.items():
        cells = table.isna().to_numpy().astype(np.uint8) * CELL
        part = np.full((len(samples), table.shape[1]), BLOCK, dtype=np.uint8)
        part[samples.get_indexer(table.index)] = cells
        parts.append(part)
        parties += [party] * table.shape[1]
        columns += [str(name) for name in table.columns]
    return np.concatenate(parts, axis=1), parties, columns


def matrix_figure(
    state: Bytes,
    parties: Sequence[str],
    columns: Sequence[str],
    most: int = 600,
    of: str = "columns",
) -> str:
    """Draw missing cells (1) and blocks (2) of (n_samples, n_columns), and each column's share."""
    n, p = state.shape
    starts = [j for j in range(p) if j == 0 or parties[j] != parties[j - 1]]
    pattern = (state == BLOCK).astype(np.uint8)
    order = np.lexsort(pattern.T[::-1]) if n else np.arange(0)
    shown = state[order][np.linspace(0, n - 1, min(n, most)).astype(int)] if n else state
    figure, (top, ax) = fg.new_figure(5.8, 2, 1, height_ratios=(1, 3.4))
    rate = [(state == code).mean(axis=0) if n else np.zeros(p) for code in (CELL, BLOCK)]
    width = 0.82 if p <= 120 else 1.0
    top.bar(range(p), rate[0], width, color=_STATE_COLOURS[CELL])
    top.bar(range(p), rate[1], width, bottom=rate[0], color=_STATE_COLOURS[BLOCK])
    top.set_xlim(-0.5, p - 0.5)
    top.set_ylim(0, min(1.0, max(0.1, 1.15 * float((rate[0] + rate[1]).max()))))
    top.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    fg.label(top, "", "", "missing")
    ax.imshow(
        shown, aspect="auto", interpolation="nearest", vmin=0, vmax=2,
        cmap=ListedColormap(_STATE_COLOURS), extent=(-0.5, p - 0.5, max(n, 1), 0),
    )  # fmt: skip
    # Lines between columns help as long as the columns are wider than the lines.
    for j in range(1, p) if p <= 120 else starts[1:]:
        is_border = j in starts
        ax.axvline(j - 0.5, color="white", linewidth=4 if is_border else 0.7)
    if p <= 60:
        turn = 0 if p <= 6 else 90 if p > 24 else 45
        ax.set_xticks(range(p), [fg.plain(name, 24) for name in columns])
        ax.tick_params(axis="x", labelrotation=turn, labelsize=8 if p <= 40 else 6.5, length=0)
        for tick in ax.get_xticklabels():
            tick.set_horizontalalignment("right" if turn == 45 else "center")
            tick.set_rotation_mode("anchor" if turn == 45 else "default")
    fg.label(ax, "", of, f"samples ({n:,})")
    named = [(start, end, int(100 * (end - start) / p)) for start, end in pairwise([*starts, p])]
    if len(starts) > 20:
        named = [part for part in named if part[2] > 4]
    top.set_xticks(
        [(start + end - 1) / 2 for start, end, _ in named],
        [fg.plain(parties[start], max(4, room)) for start, _, room in named],
        fontsize=9.5, fontweight="bold", color=fg.INK,
    )  # fmt: skip
    top.tick_params(axis="x", length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    used = [code for code in (PRESENT, CELL, BLOCK) if (state == code).any()]
    handles = [Patch(color=_STATE_COLOURS[code], label=_STATE_NAMES[code]) for code in used]
    fg.legend(top, handles=handles, loc="outside upper right", ncols=3)
    return fg.to_svg(figure)


def sections(result: ResultData) -> Iterator[Section]:
    """Return the section on which cells and blocks are missing."""
    order = (
        "Samples with the same missing blocks stand together. The bars give the share of samples "
        "that a column misses."
    )
    of_blocks = "Which party holds which sample. "
    if result.originals and any(table.shape[1] for table in result.originals.values()):
        state, parties, columns = states(result.originals, result.settings.get("normalise_ids", ()))
        of, of_blocks = "columns", ""
    elif result.mask is not None and result.mask.size:
        state = np.asarray(result.mask, dtype=np.uint8) * BLOCK
        columns = result.parties or [f"party {k + 1}" for k in range(state.shape[1])]
        parties, of = [""] * len(columns), "parties"
    else:
        return
    if not state.size:
        return
    if not state.any():  # a figure of one colour says less than a sentence
        yield Section("What is missing", paragraph("No cell and no block is missing."))
        return
    figure = matrix_figure(state, parties, columns, of=of)
    yield Section("What is missing", figure, of_blocks + order)
