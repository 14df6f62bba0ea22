"""The server half of inference: from the last E-step to standard errors and predictions."""

from dataclasses import dataclass

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Array
from flwr_vertical.products import (
    PairKeys,
    encrypted_products,
    sketched_products,
    sketched_rank_correlations,
)
from flwr_vertical.server import Total
from strategies.linear import Problem
from strategies.vfem.expectation import EStep
from strategies.vfem.information import (
    Parts,
    Weights,
    dense_covariance,
    expected_reductions,
    is_positive_definite,
)
from strategies.vfem.rank_check import RankCheck, summarise_rank_correlations

Pair = tuple[int, int]

_SKETCH_NUMBERS, _LEAST_SKETCH, _LARGEST_SKETCH = 4_000_000, 1000, 4000


def check_ranks(federation: Federation, problem: Problem, keys: PairKeys) -> RankCheck:
    """Estimate rank correlations between columns of different parties; two rounds."""
    # Small data can afford larger sketches, and needs them: chance alone is noisy there.
    size = int(np.clip(_SKETCH_NUMBERS // len(problem.y), _LEAST_SKETCH, _LARGEST_SKETCH))
    by_pair, noise = sketched_rank_correlations(federation, ~problem.mask, keys, size)
    return summarise_rank_correlations(by_pair, noise, problem.columns)


@dataclass(frozen=True)
class Estimates:
    """What the parties hand over in the end."""

    total: Total  # Of the step ``finish``
    # level_variance, intercept_variance: Of standardised labels; None without standard errors,
    # NaN where they failed
    level_variance: float | None = None
    intercept_variance: float | None = None
    # Of intercept and all coefficients (standardised), where the server knows it
    covariance: Array | None = None


def infer(
    federation: Federation,
    problem: Problem,
    estep: EStep,
    result: Result,
    *,
    kind: str | None,
    intercept: bool,
    keys: PairKeys,
    sketch_rows: int,
) -> Estimates:
    """Have the parties finish, with standard errors of the kind asked for."""
    if kind is None:
        return Estimates(federation.sum("finish"))
    weights = Weights.at(estep)
    per_row = (1.0 / estep.variance)[estep.patterns.group]
    names = federation.parties
    own = {name: per_row[~problem.mask[:, k]] for k, name in enumerate(names)}
    if kind == "expected":
        told = federation.call("information", per_party={n: {"weight": own[n]} for n in names})
        crosses = [told[name]["cross"] for name in names]
        found = expected_reductions(weights, crosses, intercept)
        reductions = {n: {"reduction": r} for n, r in zip(names, found.by_party, strict=True)}
        total = federation.sum("finish", per_party=reductions)
        return Estimates(total, found.level_variance, found.intercept_variance)
    parts = _parts(federation, problem, estep)
    if kind == "gram":
        n_columns = {name: len(problem.columns[name]) for name in names}
        products = encrypted_products(federation, own, n_columns)
    else:
        products = sketched_products(federation, own, keys, sketch_rows)
    covariance = _valid_covariance(weights, parts, products, intercept, result)
    if covariance is None:
        return Estimates(federation.sum("finish"), 1.0 / weights.level, float("nan"))
    starts = 1 + np.cumsum([0, *(len(part.loading) for part in parts)])
    blocks = {
        name: {
            "covariance": covariance[starts[k] : starts[k + 1], starts[k] : starts[k + 1]].copy()
        }
        for k, name in enumerate(names)
    }
    total = federation.sum("finish", per_party=blocks)
    level = 1.0 / weights.level
    return Estimates(total, level, float(covariance[0, 0]), covariance)


def _parts(federation: Federation, problem: Problem, estep: EStep) -> list[Parts]:
    """One round: what each party's own columns say, and sums of them."""
    arguments = {"weight": 1.0 / estep.variance, "missing": estep.patterns.missing.view(np.uint8)}
    groups = {
        name: {"group": estep.patterns.group[~problem.mask[:, k]]}
        for k, name in enumerate(federation.parties)
    }
    told = federation.call("parts", arguments, per_party=groups)
    return [
        Parts(t["gram"], t["loading"], t["mean"], t["sums"])
        for t in (told[name] for name in federation.parties)
    ]


def _valid_covariance(
    weights: Weights,
    parts: list[Parts],
    products: dict[Pair, Array],
    intercept: bool,
    result: Result,
) -> Array | None:
    """Covariance from products; noisy ones are shrunk until they can be products at all."""
    share = 1.0
    while True:
        shrunk = {pair: share * product for pair, product in products.items()}
        try:
            covariance = dense_covariance(weights, parts, shrunk, intercept)
        except np.linalg.LinAlgError:
            covariance = None
        if covariance is not None:
            own = covariance if intercept else covariance[1:, 1:]
            if is_positive_definite(own / np.sqrt(np.abs(np.outer(np.diag(own), np.diag(own))))):
                break
        share *= 0.8
        if share < 0.01:
            result.notes.append(
                "no standard errors: the information about the coefficients is singular, since "
                "columns of different parties determine each other, or too few samples are held by "
                "several parties; leave out columns, or use standard_errors='expected'"
            )
            return None
    if share < 1.0:
        result.notes.append(
            f"the products across parties were shrunk by {1 - share:.0%} to give valid standard "
            "errors: the sketches are too small or columns of different parties nearly determine "
            "each other"
        )
    return covariance
