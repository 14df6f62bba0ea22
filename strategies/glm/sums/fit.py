"""The server half of a federated fit: rounds over the parties, until BIC can choose."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Array
from flwr_vertical.results import Progress
from strategies.glm.lambda_path import BIC, information_criterion, parse_lambdas
from strategies.glm.penalties import check_penalty
from strategies.glm.sums.block import Request
from strategies.glm.sums.central import choose_lambdas, label_unit, null_level
from strategies.glm.sums.fits import CONVERGED, EXHAUSTED, SEPARATED, Fits, Settings
from strategies.glm.sums.release import composed, noise_scale
from strategies.glm.sums.solver import Solver
from strategies.glm.sums.steps import NORM
from strategies.least_squares.baseline import note
from strategies.linear import Problem
from strategies.linear.families import Family, check_labels, family_named

if TYPE_CHECKING:
    from strategies.glm.strategy import VerticalGLM


@dataclass(frozen=True)
class FederatedFit:
    """All fits, and the one that was chosen."""

    family: Family
    unit: float  # What labels were divided by
    lambdas: Array  # (n_lambdas,): in label units; of a fit that did not converge, where it ended
    bic: Array  # (n_lambdas,): in label units; of a fit that did not converge, where it ended
    chosen: int
    selected: npt.NDArray[np.int64]  # (n_lambdas,): how many coefficients are not zero
    fits: Fits  # In units of `unit`
    outcome: str  # Of the chosen fit


def fit_federated(
    settings: "VerticalGLM",
    federation: Federation,
    problem: Problem,
    used: npt.NDArray[np.int64],
    y: Array,
    free: dict[str, list[str]],
    result: Result,
    progress: Progress,
) -> FederatedFit:
    """Fit every lambda and choose one.

    Shapes: used (n_used,): numbers of the samples of the fit among the labelled ones; y (n_used,):
    their labels.
    """
    family = family_named(settings.family)
    check_labels(family, y)
    private = settings.dp == "admm"
    unit = label_unit(y, family.has_dispersion, settings.intercept)
    labels = y / unit
    reach = _begin(settings, federation, problem, used, labels, free, result)
    penalty, shape = check_penalty(settings.penalty, settings.penalty_shape)
    stated = parse_lambdas(settings.lambdas)
    lambdas = choose_lambdas(
        stated, penalty, reach, unit, settings.n_lambdas, settings.lambda_ratio
    )
    first: dict[str, Any] = {"strengths": lambdas, "penalty": penalty, "shape": shape}
    if private:
        first["noise"] = noise_scale(settings.epsilon, settings.delta)
        first["delta"], first["rounds"] = settings.delta, settings.dp_rounds

    def exchange(request: Request) -> dict[str, Array]:
        total = federation.sum("admm", {**vars(request), **first})
        first.clear()
        return total.values

    solver = Solver(
        family,
        labels,
        len(lambdas),
        len(federation.parties),
        problem.n_columns,
        Settings(
            penalty,
            settings.intercept,
            settings.tol,
            settings.kkt_tol,
            settings.lla_steps,
            settings.dp_rounds if private else settings.max_iter,
            private,
            settings.lambdas == BIC and not private,
        ),
        exchange,
        int(federation.rng.integers(2**31)),
        lambda entry: progress.step("admm", open_lambdas=entry["active"]),
    )
    fits = solver.run()
    result.history = fits.history
    if private:
        _account(settings, federation, len(fits.history) * len(lambdas), result)
    selected = fits.selected
    if (selected < 0).any():
        selected = np.asarray(federation.sum("count")["selected"], dtype=np.int64)
    bic = information_criterion(family, labels, fits.fit + fits.level, selected)
    usable = np.array([outcome == CONVERGED for outcome in fits.outcomes])
    if not usable.any():
        usable = np.array([outcome == EXHAUSTED for outcome in fits.outcomes])
    chosen = int(np.argmin(np.where(usable, bic, np.inf)))
    outcome = fits.outcomes[chosen] if usable.any() else SEPARATED
    return FederatedFit(family, unit, lambdas * unit, bic, chosen, selected, fits, outcome)


def _begin(
    settings: "VerticalGLM",
    federation: Federation,
    problem: Problem,
    used: npt.NDArray[np.int64],
    labels: Array,
    free: dict[str, list[str]],
    result: Result,
) -> float:
    """One round: say which samples take part; return from where on no column is selected."""
    family = family_named(settings.family)
    level = null_level(family, labels, settings.intercept)
    residual = labels - family.mean(np.full(len(labels), level))
    complete = np.zeros(len(problem.y), dtype=bool)
    complete[used] = True
    per_party = {
        name: {
            "used": complete[~problem.mask[:, k]].view(np.uint8),
            "unpenalized": free[name],
        }
        for k, name in enumerate(federation.parties)
    }
    total = federation.sum("begin", {"residual": residual}, per_party=per_party)
    for name, told in total.public.items():
        problem.collinear[name] = list(told["constant"])
        if told["constant"]:
            note(
                result,
                f"party {name!r}: columns {list(told['constant'])} do not vary over the samples of "
                "the fit; they are left out and have no coefficient",
            )
    if settings.dp == "admm":  # data must not decide; the largest correlation there can be
        return float(np.sqrt(np.mean(residual**2)))
    return float(max(float(total["reach"]), 0.0) ** (1.0 / NORM))


def _account(
    settings: "VerticalGLM", federation: Federation, n_releases: int, result: Result
) -> None:
    """Write down what all noisy releases cost together, and what that is worth."""
    sigma = noise_scale(settings.epsilon, settings.delta)
    epsilon = composed(sigma, settings.delta, n_releases)
    for name in federation.parties:
        federation.ledger.spend(
            name, epsilon, f"{n_releases} noisy fits (delta {settings.delta:g})"
        )
    note(
        result,
        "dp='admm' is a baseline to compare with, and protects no row: noise lies in the span of a "
        "party's columns, so whoever knows as many rows as there are columns reads the others off "
        "the fits. Use dp='moments' for differential privacy",
    )
