"""Limits of a policy on what adds up: bits of rows, epsilon, IDs of others that are blinded.

The ledger counts, over all runs or, where tables lie in memory, within one.
"""

from math import ceil, isfinite, log2

from flwr_vertical.errors import PolicyError
from flwr_vertical.policy.record import FEW_IDS, FOREIGN_IDS, Policy, key_of
from flwr_vertical.privacy import MOST_DELTA
from flwr_vertical.tables import Table, is_numeric

ROUNDING = 1e-9
"""Of sums of bits and of epsilon."""

VERSIONS = 10
"""Of a row, with other cells or columns, that may be told whole where a policy states no number."""

_NUMBER_BITS = 64


def bits_of_row(table: Table) -> float:
    """Return how many bits a row of a table holds at most.

    However many sums with it are opened, they tell no more. A number has 64 bits, a cell of levels
    the binary logarithm of their number (that the cell is missing counts as one), rounded up.
    """
    total = 0
    for name, kind in table.kinds.items():
        if is_numeric(kind):
            total += _NUMBER_BITS
        else:
            total += ceil(log2(table.frame[name].nunique() + 1))
    return float(total)


def check_bits(
    who: str,
    policy: Policy,
    bits: float,
    n_rows: int,
    told: tuple[float, float],
    what: str,
    *,
    more: float = 0.0,
    predictions: bool = False,
    default: float = 0.0,
) -> None:
    """Raise if so many bits of single rows may not be told.

    `told`: the most of one of these rows, before and with this; `more`: what follows; `default`:
    what may be told where the policy states no number.
    """
    before, in_all = told[0], told[1] + more
    if not n_rows:
        return
    if predictions and bits > policy.grid:
        raise PolicyError(
            who,
            key_of("grid"),
            f"{bits:g} bits of a row ({what})",
            f"{policy.grid} bits of a row in one model's prediction",
        )
    field = "predictions" if predictions else "openings"
    stated = policy.predictions if predictions else policy.openings
    limit = default if stated is None else float(stated)
    if in_all > limit + ROUNDING:
        raise PolicyError(
            who,
            key_of(field),
            f"{bits + more:g} bits of {n_rows:,} of its rows ({what}), of some of which {before:g} "
            "were told before",
            f"{limit:g} bits of a row over all runs",
            f"its owner would have to set {key_of(field)}={in_all:g}",
        )


def check_epsilon(
    who: str, policy: Policy, epsilon: float, delta: float, spent: float, releases: int, what: str
) -> None:
    """Raise if so much privacy budget may not be spent."""
    if delta > MOST_DELTA:
        asked = f"epsilon {epsilon:g} but for a chance (delta) of {delta:g}"
        raise PolicyError(who, key_of("max_epsilon"), asked, f"a delta of {MOST_DELTA:g} at most")
    total = policy.epsilon_total
    asked = f"epsilon {epsilon:g} ({what}), after {spent:g} in {releases} release(s)"
    allowed = "one release, as it states no total"
    advice = f"its owner would have to set {key_of('epsilon_total')}={spent + epsilon:g}"
    if total is not None:
        allowed = f"{total:g} in all, over columns, groups and runs"
    if not isfinite(epsilon):
        raise PolicyError(
            who, key_of("epsilon_total"), asked, allowed + ", with noise", "use a finite epsilon"
        )
    over = releases > 0 if total is None else spent + epsilon > total * (1 + ROUNDING)
    if over:
        raise PolicyError(who, key_of("epsilon_total"), asked, allowed, advice)


def check_foreign_ids(who: str, policy: Policy, count: int, n_own: int) -> None:
    """Raise if a node would blind too many IDs of others in a run."""
    stated = policy.foreign_ids
    most = max(FOREIGN_IDS * n_own, FEW_IDS) if stated is None else stated * n_own
    if count <= most:
        return
    times = count / max(n_own, 1)
    raise PolicyError(
        who,
        key_of("foreign_ids"),
        f"{count:,} IDs that are not its own, {times:.3g} times as many as it has rows",
        f"{most:,.0f} in a run, for {n_own:,} rows of its own",
        "who lists guessed IDs learns which of them it has; if the others do have so many, its "
        f"owner would have to set {key_of('foreign_ids')}={ceil(times)}",
    )
