"""Data like the paper's of small and medium-sized enterprises (Section 6), which are not public.

What the paper says is kept: five institutions, their numbers of variables and missing rates, how
few rows are complete, 92 of these held out, 13 variables that matter. What it does not say is
chosen in the preset: correlations, effects, the share of risky firms. Effects are spread over all
institutions, since the paper's IEVCDS selects variables of each.
"""

from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from flwr_vertical.arrays import Flags
from flwr_vertical.errors import VerticalError
from flwr_vertical.incomplete import drop_blocks
from simulations.copula.methods import fit_table, synthesise, together
from simulations.replications import Metrics
from simulations.vfem.missing import calibrate_shared, factor_mask, standardised

SINGLE = "Single-"


def draw_firms(
    sme: dict[str, Any], rows: int, seed: int
) -> tuple[dict[str, pd.DataFrame], "pd.Series[float]", Flags]:
    """Draw complete tables, labels and the mask of missing blocks, shape (rows, n_parties)."""
    rng = np.random.default_rng([seed, rows])
    sizes = [party["variables"] for party in sme["parties"].values()]
    p = sum(sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # One factor for each institution and one for all.
    common = np.sqrt(sme["between"]) * rng.standard_normal((rows, 1))
    own = np.sqrt(sme["within"] - sme["between"]) * rng.standard_normal((rows, len(sizes)))
    latent = common + own[:, owner] + np.sqrt(1 - sme["within"]) * rng.standard_normal((rows, p))
    X = latent.copy()
    X[:, 1::3] = rng.poisson(np.exp(0.5 * latent[:, 1::3]))  # counts, as of inspections
    X[:, 2::3] = latent[:, 2::3] > 1.0  # flags, as of a removal
    beta = np.zeros(p)
    starts = np.cumsum([0, *sizes])[:-1]
    for start, party in zip(starts, sme["parties"].values(), strict=True):
        count = party["effects"]
        signs = (-1.0) ** np.arange(count)
        chosen = slice(start, start + count)
        beta[chosen] = sme["effect"] * signs / X[:, chosen].std(axis=0)
    eta = (X - X.mean(axis=0)) @ beta
    level = brentq(lambda shift: float(expit(eta + shift).mean()) - sme["risky"], -30, 30)
    labels = pd.Series((rng.random(rows) < expit(eta + level)).astype(np.float64), name="risky")
    tables = {}
    for name, start, size in zip(sme["parties"], starts, sizes, strict=True):
        columns = pd.Index([f"v{j + 1}" for j in range(size)])
        frame = pd.DataFrame(X[:, start : start + size], columns=columns)
        whole = [name for j, name in enumerate(columns) if (start + j) % 3]
        tables[name] = frame.astype(dict.fromkeys(whole, np.int64))
    rates = [party["missing"] for party in sme["parties"].values()]
    shared = calibrate_shared(rates, sme["complete_cases"] / rows)
    # Firms that few know are also those that are rarely caught: missing at random by the label.
    factor = standardised(
        sme["by_label"] * standardised(labels.to_numpy()) + rng.standard_normal(rows)
    )
    return tables, labels, factor_mask(factor, rates, shared, rng)


def measure_sme(settings: dict[str, Any]) -> Metrics:
    """Fit one method and predict complete rows that were held out."""
    sme, seed, name = settings["sme"], settings["seed"], settings["method"]
    tables, labels, mask = draw_firms(sme, settings["rows"], seed)
    complete = np.flatnonzero(~mask.any(axis=1))
    held_out = np.random.default_rng([seed, 1]).choice(
        complete, min(sme["test"], len(complete) // 2), replace=False
    )
    kept = ~np.isin(np.arange(len(labels)), held_out)
    held = {
        party: frame[frame.index.isin(np.flatnonzero(kept))]
        for party, frame in drop_blocks(tables, mask).items()
    }
    used = list(tables)
    if name.startswith(SINGLE):
        used = used[-1:]
        name = name.removeprefix(SINGLE)
    try:
        made = synthesise(
            name, {party: held[party] for party in used}, labels[kept], settings["epsilon"], seed
        )
        assert made.labels is not None
        whole = together(made, {party: tables[party] for party in used})
        beta, intercept = fit_table(whole, made.labels, "binomial", settings["glm"])
    except VerticalError:
        return {"failed": 1.0}
    X = np.concatenate([tables[p].to_numpy(dtype=np.float64)[held_out] for p in used], axis=1)
    score = expit(X @ beta + intercept)
    truth = labels.to_numpy()[held_out] > 0
    risky = score >= float(made.labels.mean())
    return {
        "failed": 0.0,
        "recall": float(risky[truth].mean()) if truth.any() else float("nan"),
        "auc": float(roc_auc_score(truth, score)) if 0 < truth.sum() < len(truth) else 0.5,
        "ns": float(np.count_nonzero(beta)),
        "complete": float(len(complete)),
    }
