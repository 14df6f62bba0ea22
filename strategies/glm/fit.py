"""What the server works out between opened sums and the result: path, noise, how well it fits."""

import re
from collections.abc import Sequence

import numpy as np

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products.row_groups import RowGroups
from strategies.glm.approximation import Approximation
from strategies.glm.means import MaximumLikelihood
from strategies.glm.outcome import NOT_CONVERGED, GLMModel
from strategies.glm.penalties import grid
from strategies.glm.selection import Selection
from strategies.linear.families import Family
from strategies.linear.moments.collect import OpenedMoments
from strategies.linear.moments.dp_moments import moved_by
from strategies.linear.moments.groups import MinimumRows, complete_rows
from strategies.linear.moments.patterns import Pattern
from strategies.linear.problem import Problem, note

_BETWEEN = re.compile(r",(?![^(]*\))")  # not within bs(age, 4)


def rows_in_common(
    mask: Flags, widths: Integers, minimum: MinimumRows, *, n_vectors: int, advice: str, few: str
) -> RowGroups:
    """Take rows that all parties have; `advice`: what uses others, `few`: what fits few rows."""
    try:
        return complete_rows(mask, widths, minimum, n_vectors)
    except DataError as error:
        some = mask.any(axis=1) & ~mask.all(axis=1)
        text = str(error)
        if some.any():
            more = counted(some.sum(), "more sample lacks", "more samples lack")
            text += f". {more} some party: {advice}"
        raise DataError(text + few) from error


def grid_of(
    opened: OpenedMoments,
    rows: Pattern,
    family: Family,
    penalised: Flags,
    *,
    intercept: bool,
    standardize: bool,
) -> Array:
    """Return lambdas from that on from which no column is selected, by the score at none."""
    n, problem, unit = rows.n_rows, opened.problem, opened.unit
    mean = rows.sums / n
    second = rows.about(mean)[1] / n
    spread = np.sqrt(np.maximum(np.diag(second)[:-1], 0.0))
    score = second[:-1, -1] * problem.y_scale
    if not intercept:
        at_none = float(family.mean(np.zeros(1))[0])
        of_labels = problem.y_center + problem.y_scale * mean[-1] - at_none
        score = score + (opened.center / unit + mean[:-1]) * of_labels
    per = 1.0 / np.where(spread > 0.0, spread, np.inf) if standardize else unit
    return grid(max(float(np.abs(score * per)[penalised].max(initial=0.0)), 1e-300))


def noise_covariance(
    opened: OpenedMoments, rows: Pattern, beta: Array, level: float, intercept: bool
) -> Array | None:
    """Return what noise on the moments adds to the covariance of intercept and coefficients.

    Shapes: beta (n_columns,): the coefficients; only those that are not 0 were estimated; returns
    (1 + n_selected, 1 + n_selected): in the units of columns and labels; None without noise.
    """
    if opened.noise is None:
        return None
    problem, unit = opened.problem, opened.unit
    center = opened.center * intercept
    origin = np.append((center - opened.center) / unit, 0.0)
    about = rows.less(origin)
    slopes = beta * unit / problem.y_scale
    start = (level - problem.y_center + float(center @ beta)) / problem.y_scale
    vector = np.concatenate([[-start], -slopes, [1.0]])
    chosen = np.flatnonzero(beta)
    kept = np.concatenate([[0], 1 + chosen]) if intercept else 1 + chosen
    moments = np.block([[about.n_rows, about.sums], [about.sums[:, None], about.products]])
    score = sum(part.of_products(vector) for part in moved_by(opened.noise[:1], origin))
    inverse = np.linalg.pinv(moments[np.ix_(kept, kept)], hermitian=True)
    added = np.zeros((1 + len(chosen), 1 + len(chosen)))
    own = slice(0 if intercept else 1, None)
    added[own, own] = inverse @ np.asarray(score)[np.ix_(kept, kept)] @ inverse
    change = np.diag(np.append(1.0, 1.0 / unit[chosen]))
    change[0, 1:] = -center[chosen] / unit[chosen]
    return np.asarray(problem.y_scale**2 * change @ added @ change.T)


def penalised_columns(unpenalised: str, problem: Problem) -> Flags:
    """Tell which columns are penalised, shape (n_columns,)."""
    free = _names_by_party(unpenalised, list(problem.columns))
    for party, names in free.items():
        if unknown := sorted(set(names) - set(problem.columns[party])):
            raise ConfigError(
                f"party {party!r} has no columns {unknown} to leave unpenalised; it has "
                f"{problem.columns[party]}"
            )
    return np.concatenate([~np.isin(own, free[party]) for party, own in problem.columns.items()])


def _names_by_party(text: str, parties: Sequence[str]) -> dict[str, list[str]]:
    """Split ``"party:column, ..."`` by party."""
    names: dict[str, list[str]] = {party: [] for party in parties}
    for item in filter(None, (part.strip() for part in _BETWEEN.split(text))):
        party, colon, column = item.partition(":")
        if not colon or party.strip() not in names:
            raise ConfigError(
                f"unpenalized must name columns as 'party:column', got {item!r}; the parties are "
                f"{list(parties)}"
            )
        names[party.strip()].append(column.strip())
    return names


def fill_normal(
    at: Approximation, beta: Array, whole: bool, result: Result, weights: Array
) -> None:
    """Fill in how well the chosen coefficients fit normal labels; `weights`: those of the rows."""
    left, without = at.noise_of(beta), at.noise_of(np.zeros_like(beta))
    result.metrics["deviance_explained"] = 1.0 - left / max(without, 1e-300)
    if whole:  # with blocks missing, the labels' likelihood given the columns is not one number
        result.metrics["deviance"] = at.n_rows * left * at.mean_weight
        result.metrics["log_likelihood"] = float(
            -0.5 * at.n_rows * (np.log(2.0 * np.pi * max(left, 1e-300)) + 1.0)
            + 0.5 * np.log(weights).sum()
        )


def fill_means(maximum: MaximumLikelihood, found: Selection, null: float, result: Result) -> None:
    """Fill in how well the chosen coefficients fit; `null`: the deviance without columns."""
    beta, lost = found.beta[:, found.chosen], float(found.lost[found.chosen])
    shrunk = float(maximum.ridge @ (beta**2 - maximum.at.estimate[1:] ** 2))
    value = maximum.log_likelihood - lost / 2.0 + shrunk
    # Far from the maximum the expansion may come to less than a perfect fit has.
    deviance = max(maximum.deviance + 2.0 * (maximum.log_likelihood - value), 0.0)
    value = maximum.log_likelihood + (maximum.deviance - deviance) / 2.0
    result.metrics |= {
        "deviance": deviance,
        "deviance_explained": 1.0 - deviance / max(null, 1e-300),
        "log_likelihood": value,
        "iterations": float(maximum.evaluations),
        "converged": float(maximum.converged),
    }
    for text in maximum.notes:
        note(result, text)
    if not maximum.converged:
        note(
            result,
            f"not converged after {maximum.evaluations} evaluations of the means (30 at most; "
            "parties allow one for every ten rows of the smallest set of rows that takes part, or "
            "the fewest 'vectors' that a node config states; a step of a penalised fit takes "
            "three): coefficients and errors are those of the last step; look for columns that "
            "nearly determine each other, or have values far out",
        )
        if isinstance(result.model, GLMModel):
            result.model.outcome = NOT_CONVERGED
