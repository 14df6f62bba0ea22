"""What statisticians print of a fitted model: the table of coefficients and how well it fits."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import scipy
from scipy.special import ndtr

from flwr_vertical import Result
from flwr_vertical.arrays import Array
from strategies.glm.approximation import Approximation
from strategies.glm.means import MaximumLikelihood

_WIDTH = 96
_HEADS = {
    "estimate": "coef",
    "std_error": "std err",
    "z": "z",
    "p_value": "P>|z|",
    "ci_low": "[0.025",
    "ci_high": "0.975]",
    "vif": "VIF",
}
EXTRA = ("pearson_chi2", "overdispersion_z", "overdispersion_p_value")
"""Statistics that need sums over residuals."""
_STARS = ((0.001, "***"), (0.01, "**"), (0.05, "*"), (0.1, "."))
_LABELS = {
    "n_samples": "Samples",
    "df_resid": "Df residuals",
    "df_model": "Df model",
    "dispersion": "Dispersion",
    "log_likelihood": "Log likelihood",
    "log_likelihood_null": "Log likelihood, null model",
    "lr_statistic": "LR against the null model",
    "lr_p_value": "P > LR",
    "aic": "AIC",
    "bic": "BIC",
    "deviance": "Deviance",
    "pearson_chi2": "Pearson chi2",
    "overdispersion_z": "Overdispersion z",
    "overdispersion_p_value": "P > |z|, overdispersion",
}


def statistics_of(
    result: Result,
    at: Approximation,
    n_selected: int,
    maximum: MaximumLikelihood | None,
    null_deviance: float,
) -> dict[str, float]:
    """Return what follows from the likelihood of a fit with so many coefficients.

    The null model has no column. AIC and BIC count coefficients and intercept, as statsmodels'
    ``aic`` and ``bic_llf`` do. Overdispersion of counts: z is the statistic of Dean and Lawless
    (1989), ``sum of (y - mu)^2 - y`` over the root of ``2 sum of mu^2``.
    """
    value, n = result.metrics["log_likelihood"], at.n_rows
    if maximum is None:
        explained = result.metrics["deviance_explained"]
        lost = -n * np.log(max(1.0 - explained, 1e-300))
    else:
        lost = null_deviance - result.metrics["deviance"]
    k = n_selected + at.intercept
    found = {
        "n_samples": n,
        "df_model": float(n_selected),
        "df_resid": n - k,
        "dispersion": result.metrics["dispersion"],
        "log_likelihood": value,
        "log_likelihood_null": value - lost / 2.0,
        "lr_statistic": lost,
        "lr_p_value": float(scipy.stats.chi2.sf(lost, max(n_selected, 1))),
        "aic": 2.0 * k - 2.0 * value,
        "bic": float(np.log(n)) * k - 2.0 * value,
        "deviance": result.metrics["deviance"],
    }
    sums: Mapping[str, float] = {} if maximum is None else maximum.sums
    if "pearson" in sums:
        found["pearson_chi2"] = sums["pearson"]
    if "squared means" in sums and maximum is not None:
        z = (sums["squares"] - maximum.labels) / float(np.sqrt(2.0 * sums["squared means"]))
        found |= {"overdispersion_z": z, "overdispersion_p_value": float(2.0 * ndtr(-abs(z)))}
    return found


def inflation(covariance: Array, beta: Array) -> Array:
    """Return the variance inflation factor of each selected column, NaN of others; (n_columns,)."""
    out, chosen = np.full(len(beta), np.nan), np.flatnonzero(beta)
    spread = np.sqrt(np.diag(covariance)[chosen])
    if len(chosen) and (spread > 0.0).all():
        correlation = covariance[np.ix_(chosen, chosen)] / np.outer(spread, spread)
        if np.linalg.eigvalsh(correlation)[0] > 1e-12:
            out[chosen] = np.diag(np.linalg.inv(correlation))
    return out


def text_of(
    title: str,
    family: str,
    errors: str,
    statistics: Mapping[str, float],
    table: pd.DataFrame,
    stars: bool,
) -> str:
    """Write the table down; coefficients that are 0 are counted, not listed."""
    cells = [("Family", family), ("Errors", errors)]
    cells += [(_LABELS[key], f"{value:,.6g}") for key, value in statistics.items()]
    half = _WIDTH // 2 - 2
    lines = [title.center(_WIDTH).rstrip(), "=" * _WIDTH]
    for left, right in zip(cells[::2], [*cells[1::2], ("", "")], strict=False):
        one, two = (f"{name}:" + value.rjust(half - len(name) - 1) if name else ""
                    for name, value in (left, right))  # fmt: skip
        lines.append(f"{one}    {two}".rstrip())
    shown = table[table["estimate"] != 0.0]
    names = [f"{party}:{name}" for party, name in shown.index]
    wide = max([24, *map(len, names)])
    keys = [key for key in _HEADS if key in shown]
    heads = "".join(_HEADS[key].rjust(11) for key in keys)
    lines += ["=" * _WIDTH, " " * wide + heads]
    lines.append("-" * _WIDTH)
    for name, (_, row) in zip(names, shown.iterrows(), strict=True):
        text = "".join(_number(row[key], key).rjust(11) for key in keys)
        mark = ""
        if stars and "p_value" in keys:
            mark = next((m for below, m in _STARS if row["p_value"] < below), "")
        lines.append(f"{name.ljust(wide)}{text} {mark}".rstrip())
    lines.append("=" * _WIDTH)
    if left_out := len(table) - len(shown):
        lines.append(f"{left_out} further coefficients are 0 or cannot be told.")
    if stars:
        lines.append("*** p < 0.001, ** p < 0.01, * p < 0.05, . p < 0.1")
    return "\n".join(lines)


def _number(value: float, key: str) -> str:
    """Write a number in at most ten characters, and one that is not 0 not as 0.0000."""
    if np.isnan(value):
        return ""
    if key in ("z", "p_value", "vif") and abs(value) < 1e4:
        return f"{value:.3f}"
    usual = value == 0.0 or 1e-3 <= abs(value) < 1e4
    return f"{value:.4f}" if usual else f"{value:.3e}"
