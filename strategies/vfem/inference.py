"""The server half of inference: from the last E-step to standard errors and predictions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Result
from flwr_vertical.protocol import Total
from flwr_vertical.protocol.opening import ARBITER
from strategies.regression import Problem
from strategies.regression.pairs import PairKeys
from strategies.vfem.expectation import EStep
from strategies.vfem.information import (
    Parts,
    Weights,
    dense_covariance,
    expected_reductions,
    is_positive_definite,
)
from strategies.vfem.rank_check import RankCheck, summarise_rank_correlations
from strategies.vfem.sketches import (
    estimate_products,
    rank_correlation_noise,
    rank_correlations,
)

Array = npt.NDArray[np.float64]
Pair = tuple[int, int]

_SKETCH_NUMBERS, _LEAST_SKETCH, _LARGEST_SKETCH = 4_000_000, 1000, 4000


def check_ranks(federation: Federation, problem: Problem, keys: PairKeys) -> RankCheck:
    """Estimate rank correlations between columns of different parties; two rounds."""
    # Small data can afford larger sketches, and needs them: chance alone is noisy there.
    size = int(np.clip(_SKETCH_NUMBERS // len(problem.y), _LEAST_SKETCH, _LARGEST_SKETCH))
    sketches = federation.call("sketch_ranks", {**keys.arguments(), "size": size})
    keys.handed_out = True
    held = ~problem.mask
    by_pair, noise = {}, {}
    for k, one in enumerate(federation.parties):
        for offset, other in enumerate(federation.parties[k + 1 :]):
            shared = int((held[:, k] & held[:, k + 1 + offset]).sum())
            sizes = int(held[:, k].sum()), int(held[:, k + 1 + offset].sum())
            by_pair[one, other] = rank_correlations(
                sketches[one][other], sketches[other][one], shared
            )
            noise[one, other] = rank_correlation_noise(*sizes, shared, size)
    return summarise_rank_correlations(by_pair, noise, problem.columns)


@dataclass(frozen=True)
class Estimates:
    """What the parties hand over in the end.

    Parameters
    ----------
    total : Total
        Of the step ``finish``.
    level_variance, intercept_variance : float or None
        Of standardised labels; None without standard errors, NaN where they failed.
    covariance : numpy.ndarray or None
        Of intercept and all coefficients (standardised), where the server knows it.
    """

    total: Total
    level_variance: float | None = None
    intercept_variance: float | None = None
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
        products = _encrypted_products(federation, problem, own)
    else:
        products = _sketched_products(federation, own, keys, sketch_rows)
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


def _encrypted_products(
    federation: Federation, problem: Problem, weight: dict[str, Array]
) -> dict[Pair, Array]:
    """Exact products: one party encrypts, the other multiplies, the arbiter opens; four rounds."""
    names = federation.parties
    if len(names) < 2:
        return {}
    nonce = federation.random_bytes(32)
    key = federation.call("product_keys", {"nonce": nonce}, parties=[ARBITER])[ARBITER]
    arguments = {"nonce": nonce, **key}
    encrypted = federation.call("encrypt_rows", arguments, parties=names[:-1])
    scale = max(float(values.max(initial=0.0)) for values in weight.values())
    per_party: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(names[1:], start=1):
        columns = {
            f"{j}:{column}": blocks
            for j, peer in enumerate(names[:k])
            for column, blocks in encrypted[peer].items()
        }
        per_party[name] = {"weight": weight[name] / scale, "peers": names[:k], **columns}
    products = federation.call("multiply_rows", arguments, per_party=per_party, parties=names[1:])
    pairs = [(j, k) for k in range(1, len(names)) for j in range(k)]
    sizes = [len(problem.columns[name]) for name in names]
    shapes = np.array([[sizes[j], sizes[k]] for j, k in pairs], dtype=np.int64)
    wanted = {str(i): products[names[k]][str(j)] for i, (j, k) in enumerate(pairs)}
    opened = federation.call("open_products", {"shapes": shapes, **wanted}, parties=[ARBITER])
    return {pair: opened[ARBITER][str(i)] * scale for i, pair in enumerate(pairs)}


def _sketched_products(
    federation: Federation, weight: dict[str, Array], keys: PairKeys, size: int
) -> dict[Pair, Array]:
    """Estimated products, from sketches by seeds that every two parties share."""
    names = federation.parties
    if len(names) < 2:
        return {}
    known = keys.arguments()
    if not keys.handed_out:
        federation.call("keep_pair_keys", known)
    sketches = federation.call(
        "sketch_rows",
        {"nonce": keys.nonce, "size": size},
        per_party={name: {"weight": weight[name]} for name in names},
    )
    return {
        (j, k): estimate_products(sketches[names[j]][names[k]], sketches[names[k]][names[j]])
        for k in range(1, len(names))
        for j in range(k)
    }


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
