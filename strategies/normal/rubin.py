"""Rubin's rules: one set of coefficients from fits on several draws of the missing cells.

With estimates ``q_d`` and variances ``u_d`` of m draws (Rubin, 1987, section 3.1)

    q = mean of q_d,  u = mean of u_d,  b = sum of (q_d - q)^2 / (m - 1),  t = u + (1 + 1/m) b

and with ``r = (1 + 1/m) b / t``, degrees of freedom ``v = (m - 1) / r^2``; where a fit on complete
data has v_0 (Barnard and Rubin, 1999)

    1 / v* = 1 / v + 1 / ((v_0 + 1) / (v_0 + 3) v_0 (1 - r)).

The fraction of missing information is ``(r + 2 / (v + 3)) / (1 + r)`` with ``r = (1 + 1/m) b / u``.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from flwr_vertical import Result
from flwr_vertical.errors import ConfigError, DataError


def pool(fits: Sequence[Result], df: float | None = None, level: float = 0.95) -> pd.DataFrame:
    """Pool the coefficients of fits on several draws.

    Draws of `JointNormal` know no labels of the server: parties must not learn them. Pooled slopes
    of a regression of such labels are too small (attenuated); `VFEM` is the right tool there. The
    outcome must be a column of a party when cells are drawn. Even so slopes are too small, by a
    tenth or so, where cells or rows are missing at several parties: draws know of others' columns
    what these show, which is filled in, and of a row that one other party holds, less.

    Parameters
    ----------
    fits : Sequence[Result]
        One of each draw, two at least, with `coefficients` that have standard errors.
    df : float, optional
        Degrees of freedom of a fit on complete data, such as rows less coefficients; infinite by
        default.
    level : float, default 0.95
        Of the confidence intervals.

    Returns
    -------
    pandas.DataFrame
        As `Result.coefficients`, by Student's distribution; also ``df``, and ``fmi``, the fraction
        of missing information.

    Raises
    ------
    ConfigError, DataError
        If there are fewer than two fits, one has no standard errors, or their coefficients differ.

    Examples
    --------
    >>> index = pd.MultiIndex.from_tuples([("bank", "income")], names=["party", "variable"])
    >>> fits = [
    ...     Result("any", coefficients=pd.DataFrame({"estimate": q, "std_error": 1.0}, index))
    ...     for q in (1.0, 2.0, 3.0)
    ... ]
    >>> pool(fits)[["estimate", "std_error"]].round(3).to_numpy().tolist()
    [[2.0, 1.528]]
    """
    if len(fits) < 2:
        raise ConfigError(f"pooling needs fits on two draws or more, got {len(fits)}")
    if df is not None and not df > 0:
        raise ConfigError(f"df must be above 0, got {df!r}")
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level must be between 0 and 1, got {level!r}")
    tables: list[pd.DataFrame] = []
    for number, fit in enumerate(fits):
        table = fit.coefficients
        if table is None or "std_error" not in table:
            raise DataError(f"fit {number} of {fit.strategy!r} has no standard errors to pool")
        first = tables[0].index if tables else table.index
        if len(table) != len(first) or set(table.index) != set(first):
            raise DataError(
                f"fit {number} has other coefficients than the first: {sorted(set(table.index))} "
                f"and {sorted(set(first))}"
            )
        tables.append(table.loc[first])
    m = len(tables)
    q = np.stack([table["estimate"].to_numpy(dtype=float) for table in tables])
    u = np.mean([table["std_error"].to_numpy(dtype=float) ** 2 for table in tables], axis=0)
    between = (1.0 + 1.0 / m) * q.var(axis=0, ddof=1)
    total = u + between
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, between / total, 0.0)
        v = (m - 1) / share**2
        freedom = v
        if df is not None and np.isfinite(df):
            observed = (df + 1.0) / (df + 3.0) * df * (1.0 - share)
            freedom = 1.0 / (1.0 / v + 1.0 / observed)
        ratio = between / u
        missing = np.where(np.isinf(ratio), 1.0, (ratio + 2.0 / (freedom + 3.0)) / (1.0 + ratio))
    found = pd.DataFrame(
        {"estimate": q.mean(axis=0), "std_error": np.sqrt(total)}, index=tables[0].index
    )
    found["z"] = found["estimate"] / found["std_error"].where(found["std_error"] > 0)
    found["p_value"] = 2.0 * scipy.stats.t.sf(found["z"].abs(), freedom)
    half = scipy.stats.t.ppf(0.5 + level / 2.0, freedom) * found["std_error"]
    found["ci_low"], found["ci_high"] = found["estimate"] - half, found["estimate"] + half
    found["df"], found["fmi"] = freedom, missing
    return found
