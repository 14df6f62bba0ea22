"""The server's course through the regressions: products, coefficients, blinded predictions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.errors import ProtocolError
from flwr_vertical.results import Progress
from strategies.fedpsg.comparison import Comparison
from strategies.fedpsg.regression.steps import TERM
from strategies.fedpsg.regression.targets import GroupSums, Told, jobs_of, solve


def regress_and_impute(
    federation: Federation,
    comparison: Comparison,
    common: Mapping[str, Any],
    targets: Mapping[str, Mapping[str, Any]],
    n_trees: int,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Learn regressions over all parties, and have them fill what rules did not: five rounds."""
    names = federation.parties
    progress.total = (progress.total or 0) + 4
    replies = federation.call("take_up", {**common, "trees": n_trees}, per_party=targets)
    progress.step("take up")
    told = {
        name: Told(
            np.asarray(replies[name]["attributes"], dtype=np.int64),
            int(replies[name]["n_targets"]),
            np.asarray(replies[name]["missing"]).astype(bool),
        )
        for name in names
    }
    jobs = jobs_of(told)
    moments = comparison.multiply_features()
    sums = GroupSums(
        names, comparison.rows.sizes, comparison.rows.mask, moments.sums, moments.products,
        moments.withheld,
    )  # fmt: skip
    solved = [(job, found) for job in jobs if (found := solve(job, told, sums)) is not None]
    ends = np.cumsum([len(told[name].attributes) for name in names])
    asked: dict[str, dict[str, Any]] = {name: {} for name in names}
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for number, (job, (weights, result)) in enumerate(solved):
        for name, part in zip(names, np.split(weights, ends[:-1]), strict=True):
            asked[name] |= {f"rows:{number}": job.rows, f"weights:{number}": part}
        given[job.target] |= {
            f"rows:{number}": job.rows,
            f"columns:{number}": job.columns,
            f"offset:{number}": result.offset,
        }
        if common["rule"] == "draw":
            given[job.target][f"root:{number}"] = result.root
    total = federation.sum(
        "predict", {"targets": [job.target for job, _ in solved]}, per_party=asked
    )
    progress.step("predict")
    numbers = {int(of["number"]) for of in total.public.values()}
    if len(numbers) != 1:
        raise ProtocolError(f"the parties blinded by different numbers of messages: {numbers}")
    for number, (job, _) in enumerate(solved):
        given[job.target][f"{TERM}:{number}"] = total[f"{TERM}:{number}"]
    return federation.call("fill", {"number": numbers.pop()}, per_party=given)
