"""Synthetic values beside the observed ones, and the grade that attacks on them give."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from flwr_vertical.errors import DataError
from flwr_vertical.grading import quality
from flwr_vertical.grading.attacks import grade
from flwr_vertical.grading.quality_score import quality_score
from flwr_vertical.grading.record import MARGIN, Grade
from flwr_vertical.log import logger
from flwr_vertical.pages import figures as fg
from flwr_vertical.pages import page
from flwr_vertical.results.data import ResultData

_MOST_PANELS = 12

_MOST_INFERENCES = 10


def margins_figure(pairs: Sequence[quality.ColumnPair]) -> str:
    """Draw real and synthetic distributions, one panel for each column, as SVG."""
    figure, axes = fg.small_multiples(len(pairs))
    for ax, pair in zip(axes, pairs, strict=True):
        series = (("observed", pair.real), ("synthetic", pair.made))
        if pair.numeric:
            values = [s.to_numpy(dtype=float) for _, s in series]
            low, high = min(v.min() for v in values), max(v.max() for v in values)
            edges = np.linspace(low, high, 31)
            for number, v in enumerate(values):
                ax.hist(
                    v,
                    edges.tolist(),
                    weights=np.full(len(v), 1 / len(v)),
                    histtype="stepfilled" if number == 0 else "step",
                    color=fg.LINE if number == 0 else fg.colour(0),
                    linewidth=1.6,
                    label=series[number][0],
                )
        else:
            shares = pd.DataFrame({name: quality.level_shares(s) for name, s in series}).fillna(0.0)
            shares = shares.sort_values("observed", ascending=False).head(8)
            at = np.arange(len(shares))
            for number, name in enumerate(shares):
                colour = fg.LINE if number == 0 else fg.colour(0)
                ax.bar(at + 0.4 * number - 0.2, shares[name], 0.38, color=colour, label=str(name))
            ax.set_xticks(at, [fg.plain(level, 9) for level in shares.index])
        fg.label(ax, f"{fg.plain(pair.party, 22)}\n{fg.plain(pair.column, 22)}", "", "share")
    fg.legend(axes[0])
    return fg.to_svg(figure)


def correlations_figure(found: quality.Correlations) -> str:
    """Draw each pair's rank correlation before and after, as SVG."""
    figure, (left, right) = fg.new_figure(4.2, 1, 2)
    upper = np.triu_indices(len(found.names), k=1)
    left.plot([-1, 1], [-1, 1], **fg.GUIDE)
    points = found.real[upper], found.made[upper]
    left.scatter(*points, s=10, color=fg.colour(0), alpha=0.6, rasterized=True)
    left.set(xlim=(-1, 1), ylim=(-1, 1), box_aspect=1)
    fg.label(left, "Rank correlation of each pair of columns", "observed", "synthetic")
    image = right.imshow(found.made - found.real, cmap="RdBu_r", vmin=-0.3, vmax=0.3)
    fg.colour_scale(right, image)
    parties = [party for party, _ in found.names]
    starts = [k for k in range(len(parties)) if k == 0 or parties[k] != parties[k - 1]]
    right.set_xticks(starts, [fg.plain(parties[k], 12) for k in starts], rotation=45, ha="right")
    right.set_yticks(starts, [fg.plain(parties[k], 12) for k in starts])
    fg.label(right, "Synthetic less observed")
    return fg.to_svg(figure)


def grade_figure(grade: Grade) -> str:
    """Draw what each attack gains above chance, with its interval; of columns the worst ones."""
    drawn = [(risk.attack, grade.gain(risk)) for risk in grade.risks]
    guessed = {risk.attack for risk in grade.inferences}
    first = [(name, gain) for name, gain in drawn if name not in guessed]
    if (mean := grade.mean_inference) is not None:
        first.append(("inference: mean of all columns", mean))
    worst = sorted((item for item in drawn if item[0] in guessed), key=lambda item: -item[1].low)
    shown = [*first, *worst[:_MOST_INFERENCES]]
    figure, (ax,) = fg.new_figure(1.0 + 0.26 * len(shown))
    place = np.arange(len(shown))[::-1]
    values, lows, highs = (np.array([gain[k] for _, gain in shown]) for k in range(3))
    ax.barh(place, values, 0.5, color=fg.colour(0), alpha=0.35)
    ax.hlines(place, lows, highs, color=fg.colour(0), linewidth=1.8)
    ax.plot(values, place, "o", color=fg.colour(0), markersize=4)
    ax.axvline(0, color=fg.SOFT, linewidth=0.8)
    ax.axvline(MARGIN, color=fg.colour(1), linewidth=1.2, linestyle=(0, (4, 3)))
    ax.set_yticks(place, [fg.plain(name, 44) for name, _ in shown])
    ax.set_ylim(-0.8, len(shown) - 0.2)
    fg.grid_lines(ax, "x")
    left_out = len(worst) - len(worst[:_MOST_INFERENCES])
    title = "Success above chance" + (f" ({left_out} more columns below)" if left_out else "")
    fg.label(ax, title, f"gain and 95 % interval; dashed: {MARGIN:g}")
    return fg.to_svg(figure)


def sections(result: ResultData) -> Iterator[page.Section]:
    """Return the section that compares synthetic with observed values."""
    pairs = quality.synthetic_pairs(result.originals, result.tables)
    if not pairs:
        return
    margins = quality.margin_quality(result.originals, result.tables)
    items: list[page.Item] = []
    if result.graded is None:  # a grade says the same, and a large table's takes seconds
        score = quality_score(result.originals, result.tables)
        said = f"Quality {score.score:.3f} of 1: column shapes {score.shapes.mean():.3f}"
        if score.trends.notna().any():
            said += f", pair trends {score.trends.mean():.3f}"
        items.append(page.bullet_list([said + " (as SDMetrics defines them)."]))
    items += [
        margins_figure(pairs[:_MOST_PANELS]),
        page.details_html(f"Margins of all {len(pairs)} columns", page.dataframe_html(margins)),
    ]
    if len(pairs) > 1:
        correlations = quality.correlation_quality(result.originals, result.tables)
        off = np.abs(correlations.differences)
        items.append(page.subheading("Pairs of columns"))
        items.append(correlations_figure(correlations))
        if len(off):
            caption = f"Differences are {off.mean():.3f} on average and {off.max():.3f} at most."
            items.append(page.bullet_list([caption]))
    models = quality.downstream_quality(result.originals, result.tables)
    if len(models):
        note = (
            "Each column predicted from all others; models fitted on real or on synthetic rows, "
            "judged on real rows that fitted neither: R2, or of levels the share of right answers."
        )
        items += [page.subheading("Models"), page.bullet_list([note]), page.dataframe_html(models)]
    caption = (
        "Compared with what is observed, so this page is as secret as the real tables. Where "
        "blocks are missing at random the whole may truly differ from what is observed."
    )
    if len(pairs) > _MOST_PANELS:
        caption += f" Drawn are the first {_MOST_PANELS} of {len(pairs)} columns."
    yield page.Section("Synthetic and observed values", items, caption)


def grade_if_synthetic(result: ResultData) -> str:
    """Grade synthetic tables beside real ones, if nobody has; return why that cannot be done."""
    if result.graded is None and quality.synthetic_pairs(result.originals, result.tables):
        try:
            result.take_grade(grade(result.originals, result.tables))
        except DataError as error:
            return f"Not graded: {error}."
        except Exception as error:  # nothing but the grade depends on it
            logger.exception("the synthetic tables are not graded")
            return f"Not graded: {type(error).__name__}: {error}. The log says where."
    return ""


def grade_sections(tried: Grade | None, ungraded: str) -> Iterator[page.Section]:
    """Return the section of a grade, or one that says why there is none."""
    if tried is None:
        if ungraded:
            yield page.Section("Grade", page.paragraph(ungraded))
        return
    items: list[page.Item] = [page.bullet_list(tried.sentences)]
    if tried.risks:
        table = page.dataframe_html(tried.to_frame())
        items += [grade_figure(tried), page.details_html(f"All {len(tried.risks)} attacks", table)]
    caption = (
        "Attacks on the synthetic rows by somebody who knows other things of people: how much "
        "oftener they succeed with people whose rows were used than by chance. Letters follow from "
        f"stated limits: of privacy, what is shown at 95 % (A up to {MARGIN:g}, B up to 0.05, C up "
        "to 0.15); of utility, quality (A from 0.9, B from 0.8, C from 0.7). A grade compares with "
        "real rows, and no epsilon covers it: keep it with them."
    )
    yield page.Section("Grade", items, caption)
