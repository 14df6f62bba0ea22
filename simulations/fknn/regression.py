"""What imputation does for a regression (Section 4.3.4, Figures 11 to 18)."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression
from sklearn.metrics import explained_variance_score
from sklearn.model_selection import KFold, cross_val_score

from flwr_vertical import Strategy, simulate
from flwr_vertical.incomplete import blank_cells, mcar_cells
from simulations.data import VerticalData
from simulations.fknn.tables import TABLE3
from simulations.replications import Metrics
from strategies.baselines import Max, Mean, Min
from strategies.fknn import FKNN

Tables = dict[str, pd.DataFrame]

COMPLETE = "complete data"
MEASURES = {"explained variance": "largest is best", "RMSE": "smallest is best"}


def compared(fknn: dict[str, Any]) -> dict[str, Strategy]:
    """Return the method with these settings, and the constants beside it, by name."""
    return {"FKNN": FKNN(**fknn), "MAX": Max(), "MIN": Min(), "MEAN": Mean()}


def replicate_regression(settings: dict[str, Any], data: VerticalData) -> Metrics:
    """Split, remove cells, impute, fit and score, once for each method.

    Test rows are imputed with the imputed training rows as donors, the paper's second way.
    """
    seed = settings["seed"]
    order = np.random.default_rng(seed).permutation(len(data.labels))
    n_train = round(settings["train_share"] * len(order))
    ids = data.labels.index[order]
    train, test = ids[:n_train], ids[n_train:]
    losing = ["guest"] if settings["scope"] == "A" else ["guest", "host"]
    masks = mcar_cells({name: data.parties[name] for name in losing}, settings["rate"], seed=seed)
    incomplete = {
        name: blank_cells(frame, masks[name]) if name in masks else frame
        for name, frame in data.parties.items()
    }
    metrics = _scores(COMPLETE, [data.parties] * 2, [train, test], data.labels)
    for name, strategy in compared(settings["fknn"]).items():
        fitted = simulate(strategy, _select(incomplete, train), seed=seed, progress=False)
        new = simulate(
            strategy, _select(incomplete, test), seed=seed, fitted=fitted, progress=False
        )
        metrics |= _scores(name, [fitted.tables, new.tables], [train, test], data.labels)
    return metrics


def cross_validation(data: VerticalData) -> pd.DataFrame:
    """Four-fold cross-validated error of predicting the label (Section 4.2), on complete data."""
    guest = data.parties["guest"].to_numpy()
    everything = np.hstack([guest, data.parties["host"].to_numpy()])
    folds = KFold(4, shuffle=True, random_state=0)
    rows = {}
    for name, X, paper in (
        ("guest's 4 features", guest, 0.709),
        ("all 11 features", everything, 0.097),
    ):
        rmse = "neg_root_mean_squared_error"
        scores = cross_val_score(LinearRegression(), X, data.labels, cv=folds, scoring=rmse)
        error = -float(scores.mean())
        rows[name] = {"RMSE": error, "its square": error**2, "paper": paper}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("predictors")


def regression_table(frame: pd.DataFrame, scope: str) -> pd.DataFrame:
    """Mean of each measure over runs."""
    chosen = frame[(frame["part"] == "regression") & (frame["scope"] == scope)]
    parts = chosen["metric"].str.split("/", expand=True)
    chosen = chosen.assign(method=parts[0], measure=parts[1])
    table = chosen.pivot_table(index=["measure", "rate"], columns="method", values="value")
    return table[[*TABLE3, COMPLETE]].rename_axis(columns=None)


def _select(tables: Tables, ids: "pd.Index[Any]") -> Tables:
    return {name: frame.loc[ids] for name, frame in tables.items()}


def _scores(
    name: str, tables: list[Tables], ids: list["pd.Index[Any]"], labels: "pd.Series[float]"
) -> Metrics:
    """Score a regression; tables and IDs of training and of test rows."""
    x, new = (
        np.hstack([of[party].loc[rows].to_numpy() for party in sorted(of)])
        for of, rows in zip(tables, ids, strict=True)
    )
    y, truth = (labels.loc[rows].to_numpy() for rows in ids)
    predicted = LinearRegression().fit(x, y).predict(new)
    return {
        f"{name}/explained variance": float(explained_variance_score(truth, predicted)),
        f"{name}/RMSE": float(np.sqrt(np.mean((truth - predicted) ** 2))),
    }
