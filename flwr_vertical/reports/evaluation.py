"""Figures and the report's section of an evaluation: curves of classes, residuals of numbers."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.pages import figures as fg
from flwr_vertical.pages import page
from flwr_vertical.results.evaluation import CONSTANT, HAZARD_RATIO, TIMES, Evaluation
from flwr_vertical.results.survival import survival_curve
from flwr_vertical.tables.codes import level_text

_BINS = 10  # of the reliability curve, each with as many samples
_MOST_CLASSES = 6  # whose curves have a colour and a name
_MOST_CELLS = 12  # classes of a confusion matrix that still has numbers
_MOST_OTHERS = 5
_MOST_PLACES = 600  # of a curve
_HEIGHT = 3.1


def section(evaluation: Evaluation) -> page.Section:
    """Return the report's section."""
    items: list[page.Item] = [page.dataframe_html(evaluation.table())]
    if found := figure(evaluation):
        items.append(found)
    if len(evaluation.classes) > 2:
        table = page.dataframe_html(evaluation.by_class(), max_rows=1000)
        items.append(page.details_html(f"All {len(evaluation.classes)} classes", table))
    if evaluation.notes:
        items.append(page.bullet_list(evaluation.notes))
    return page.Section("Predictions against true labels", items, _caption(evaluation))


def figure(evaluation: Evaluation) -> str | None:
    """Draw predictions against labels, as SVG."""
    if evaluation.task == TIMES:
        return times_figure(evaluation)
    return (numbers_figure if evaluation.task == "numbers" else classes_figure)(evaluation)


def times_figure(evaluation: Evaluation) -> str:
    """Draw which share survives of samples whose predicted hazards are low to high, as SVG.

    The curves are those of Kaplan and Meier.
    """
    figure, (axes,) = fg.new_figure(_HEIGHT, 1, 1)
    time, event, _ = evaluation.times()
    place = evaluation.samples[HAZARD_RATIO].rank(method="first").to_numpy() - 1
    third = (3 * place // len(place)).astype(int)
    for number, name in enumerate(("lowest", "middle", "highest")):
        own = third == number
        at, share = survival_curve(time[own], event[own])
        steps = np.concatenate([[0.0], at, time[own].max(initial=0.0, keepdims=True)])
        axes.step(
            steps, np.concatenate([[1.0], share, share[-1:] if len(share) else [1.0]]),
            where="post", color=fg.colour(number), label=f"{name} third of hazards",
        )  # fmt: skip
    axes.set_ylim(0.0, 1.02)
    fg.label(axes, "Survival by predicted hazard", "time", "share")
    fg.legend(axes)
    return fg.to_svg(figure)


def classes_figure(evaluation: Evaluation) -> str | None:
    """Draw ROC, precision against recall, calibration, gain, lift and confusion, as SVG.

    Of several classes each one is taken against the rest, and there is no gain and no lift. None
    where a class has neither a sample nor a probability.
    """
    p = evaluation.probabilities()
    if p is None:
        figure, axes = fg.new_figure(_HEIGHT + 0.6, 1, 2)
        axes[1].set_visible(False)
        _confusion(axes[0], evaluation)
        return fg.to_svg(figure)
    curves = _Curves(evaluation)
    if not curves.series:
        return None
    binary = len(evaluation.classes) == 2
    figure, axes = fg.new_figure(2 * _HEIGHT + 0.3, 2, 3 if binary else 2)
    curves.roc(axes[0])
    curves.precision(axes[1])
    curves.calibration(axes[2])
    if binary:
        curves.gain(axes[3])
        curves.lift(axes[4])
    _confusion(axes[-1], evaluation)
    return fg.to_svg(figure)


def numbers_figure(evaluation: Evaluation) -> str:
    """Draw predicted against observed labels, and residuals, as SVG."""
    y, found = evaluation.labels, evaluation.predicted()
    figure, (against, residuals, spread) = fg.new_figure(_HEIGHT + 0.2, 1, 3)
    fg.diagonal(against, found, y)
    fg.label(against, "Predicted and observed", "predicted", "observed")
    left = y - found
    residuals.axhline(0, **fg.GUIDE)
    fg.points(residuals, found, left)
    residuals.set(box_aspect=1)
    fg.label(residuals, "Residuals", "predicted", "observed - predicted")
    spread.hist(left, bins=min(40, max(8, len(left) // 8)), color=fg.colour(0), alpha=0.75)
    spread.axvline(0, **fg.GUIDE)
    spread.set(box_aspect=1)
    fg.label(spread, "Distribution of residuals", "observed - predicted", "samples")
    for ax in (against, residuals, spread):
        ax.locator_params(nbins=5)
    return fg.to_svg(figure)


def gain_curve(positive: Flags, score: Array) -> tuple[Array, Array]:
    """Return the share of samples chosen by score, highest first, and the share of positives found.

    Equal scores are chosen together.

    Shapes: positive (n_samples,); score (n_samples,); returns (n_points,): both from 0 to 1.
    """
    wrong, right, _ = sk.roc_curve(positive, score, drop_intermediate=False)
    share = float(np.mean(positive))
    return share * right + (1.0 - share) * wrong, right


class _Curves:
    """The curves of an evaluation: of two classes the second, and single parties; else all."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        y, classes = evaluation.labels, evaluation.classes
        self.binary = len(classes) == 2
        self.series: list[tuple[str, Flags, Array]] = []
        judged = [1] if self.binary else range(len(classes))
        names = [""]
        if self.binary:
            names += [name for name in evaluation.beside if name != CONSTANT][:_MOST_OTHERS]
        for name in names:
            p = evaluation.probabilities(name)
            for j in judged:
                positive = y == classes[j]
                if p is not None and positive.any() and not positive.all():
                    label = name or (
                        "this run" if self.binary else f"class {level_text(classes[j])}"
                    )
                    self.series.append((label, positive, p[:, j]))
        if not self.binary:  # the most frequent ones get a colour
            self.series.sort(key=lambda item: -int(item[1].sum()))

    def roc(self, ax: Axes) -> None:
        ax.plot([0, 1], [0, 1], **fg.GUIDE)
        for i, (name, positive, score) in enumerate(self.series):
            wrong, right, _ = sk.roc_curve(positive, score)
            value = sk.roc_auc_score(positive, score)
            self._line(ax, i, wrong, right, f"{name}, AUC {value:.3f}")
        fg.label(ax, "ROC", "false positive rate", "true positive rate")
        self._finish(ax, "lower right")

    def precision(self, ax: Axes) -> None:
        if self.binary:
            share = float(self.series[0][1].mean())
            ax.axhline(share, **fg.GUIDE)
        for i, (name, positive, score) in enumerate(self.series):
            precision, recall, _ = sk.precision_recall_curve(positive, score)
            value = sk.average_precision_score(positive, score)
            enough = _enough(recall * positive.sum() / np.maximum(precision, 1e-12), positive)
            places = recall[enough], precision[enough]
            self._line(ax, i, *places, f"{name}, AP {value:.3f}", drawstyle="steps-post")
        fg.label(ax, "Precision and recall", "recall", "precision")
        self._finish(ax, "best")

    def calibration(self, ax: Axes) -> None:
        ax.plot([0, 1], [0, 1], **fg.GUIDE)
        shown = self.series
        if not self.binary:
            pooled = np.concatenate([item[1] for item in shown])
            shown = [("all classes", pooled, np.concatenate([item[2] for item in shown]))]
        for i, (name, positive, score) in enumerate(shown):
            share, mean = calibration_curve(
                positive, np.clip(score, 0.0, 1.0), n_bins=_BINS, strategy="quantile"
            )
            value = float(np.mean((score - positive) ** 2))
            label = f"{name}, Brier {value:.3f}" if self.binary else name
            self._line(ax, i, mean, share, label, marker="o", markersize=3.5)
        fg.label(ax, "Calibration", "predicted probability", "share of positives")
        self._finish(ax, "upper left", inside=True)

    def gain(self, ax: Axes) -> None:
        ax.plot([0, 1], [0, 1], **fg.GUIDE)
        for i, (name, positive, score) in enumerate(self.series):
            self._line(ax, i, *gain_curve(positive, score), name)
        fg.label(ax, "Gain", "share of samples, most probable first", "share of positives found")
        self._finish(ax, "lower right")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    def lift(self, ax: Axes) -> None:
        ax.axhline(1.0, **fg.GUIDE)
        for i, (name, positive, score) in enumerate(self.series):
            chosen, found = gain_curve(positive, score)
            enough = _enough(chosen * len(positive), positive)
            self._line(ax, i, chosen[enough], found[enough] / chosen[enough], name)
        fg.label(ax, "Lift", "share of samples, most probable first", "positives against chance")
        ax.set(xlim=(-0.02, 1.02), box_aspect=1)
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        fg.legend(ax, loc="upper right")

    def _line(self, ax: Axes, i: int, x: Array, y: Array, label: str, **options: Any) -> None:
        named = self.binary or i < _MOST_CLASSES
        # Curves of many samples would make pages of many megabytes.
        take = np.linspace(0, len(x) - 1, min(len(x), _MOST_PLACES)).astype(int)
        ax.plot(
            x[take], y[take],
            color=fg.colour(i) if named else fg.LINE,
            linewidth=1.8 if i == 0 and self.binary else 1.2 if named else 0.8,
            zorder=3.0 - 0.01 * i if named else 1.0,
            label=fg.plain(label, 40) if named else None,
            **options,
        )  # fmt: skip

    def _finish(self, ax: Axes, place: str, inside: bool = False) -> None:
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), box_aspect=1)
        if self.binary or inside:
            fg.legend(ax, loc=place)
            return
        rest = len(self.series) - _MOST_CLASSES
        if rest > 0:
            ax.plot([], [], color=fg.LINE, linewidth=0.8, label=f"{rest} more classes")
        fg.legend(ax, loc="upper left", bbox_to_anchor=(1.02, 1.0))


def _enough(chosen: Array, positive: Flags) -> Flags:
    """Return where a share of positives is of ten samples or more: of a few it is chance."""
    return np.asarray(chosen >= min(10, len(positive)) - 1e-9)


def _confusion(ax: Axes, evaluation: Evaluation) -> None:
    counts = evaluation.confusion()
    rows = counts.to_numpy(dtype=float)
    shares = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1.0)
    ax.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal")
    few = len(counts) <= _MOST_CELLS
    if few:
        for (i, j), count in np.ndenumerate(counts.to_numpy()):
            ink = "white" if shares[i, j] > 0.55 else fg.INK
            text = f"{count:,}\n{shares[i, j]:.0%}" if len(counts) <= 5 else f"{count:,}"
            size = 10 if len(counts) <= 3 else 8
            ax.text(j, i, text, ha="center", va="center", color=ink, fontsize=size)
    ax.set_xticks(range(len(counts)), list(counts.columns), fontsize=8 if few else 6)
    ax.set_yticks(range(len(counts)), list(counts.index), fontsize=8 if few else 6)
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    title = "Confusion"
    if len(evaluation.classes) == 2 and evaluation.probabilities() is not None:
        title += f" at {evaluation.threshold:.3g}"
    fg.label(ax, title, "predicted", "label")


def _caption(evaluation: Evaluation) -> str:
    text = f"{len(evaluation):,} {evaluation.what}. "
    if evaluation.task == TIMES:
        return text + "In thirds by their predicted hazards. The constant predicts one for all."
    if evaluation.task == "numbers":
        return text + "The constant predicts the mean label for all."
    text += "The constant predicts the same class shares for all. "
    if len(evaluation.classes) == 2 and evaluation.probabilities() is not None:
        text += (
            f"Class {level_text(evaluation.classes[1])} is predicted from a probability of "
            f"{page.format_value(evaluation.threshold)} ({evaluation.rule}). Dashed: the constant, "
            "or a perfect calibration."
        )
    else:
        text += "AUC, average precision and F1 are means over classes, each against the rest."
    return text
