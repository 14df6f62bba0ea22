"""What a differentially private fit says of itself."""

import numpy as np

from flwr_vertical import Result
from flwr_vertical.privacy import MomentStatement, noise_is_seeded
from strategies.linear.moments.budget import Budget
from strategies.linear.moments.collect import OpenedMoments
from strategies.linear.moments.dp_moments import NoisyFit

ALL = "rows, over all parties"


def state_privacy(result: Result, budget: Budget, opened: OpenedMoments, found: NoisyFit) -> None:
    """Put statement, spending and notes into the result."""
    warnings = []
    if found.hidden:
        warnings.append(
            "The noise hides the variance of the residuals: standard errors and R2 mean nothing. "
            "Take more rows, fewer columns, narrower bounds or a larger epsilon."
        )
    n = found.fit.n_rows
    if budget.delta * n > 0.1:
        warnings.append(
            f"Delta times the {n:,.0f} rows is {budget.delta * n:.2g}: that many rows may be told "
            "of without any protection. Delta should be well below one over the rows."
        )
    if noise_is_seeded():
        warnings.append("The noise was drawn from a known seed: nothing of this run is private.")
    deviations = [
        float(np.sqrt(part.variance[1:-1, 1:-1].max(initial=0.0))) for part in opened.noise or []
    ]
    result.privacy = MomentStatement(
        budget.epsilon,
        budget.delta,
        budget.row_norm,
        int(n),
        [name for name, own in opened.parties.items() if own.stop > own.start],
        max(deviations, default=0.0),
        found.ridge,
        warnings,
    )
    result.ledger.spend(ALL, budget.epsilon, f"noisy moments (delta {budget.delta:g})")
    result.notes += result.privacy.sentences
    if opened.problem.has_free:
        result.notes.append(
            "samples without a label are not predicted: a prediction tells of its sample, which "
            "epsilon would not cover. Predict them in a run of its own, if the parties agree"
        )
