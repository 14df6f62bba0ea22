"""Linear classifiers: processor time, rounds, bytes, and distance to scikit-learn.

    python benchmarks/classifiers.py            # 45,211 x 16, the size of Bank, two parties
    python benchmarks/classifiers.py --quick    # small sizes, for CI

Parties and server run in this process, one thread each for products of matrices. The time is that
of the whole run, alignment and moments included; scikit-learn fits the pooled table.
"""

import argparse
import time

import numpy as np
import pandas as pd
from machine import machine_line
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import roc_auc_score
from sklearn.svm import LinearSVC

from flwr_vertical import Strategy, simulate
from strategies.glm import VerticalGLM
from strategies.svm import VerticalSVM

L2 = 0.5
EXACT = {"C": 1.0 / (2.0 * L2), "tol": 1e-8, "max_iter": 100_000}


def make(n_rows: int, n_columns: int) -> tuple[pd.DataFrame, "pd.Series[float]"]:
    """Make columns, every third a flag and every fifth skewed, and labels, an eighth of them 1."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n_rows, n_columns))
    x[:, 1::3] = x[:, 1::3] > 0.5
    x[:, 2::5] = rng.exponential(size=x[:, 2::5].shape)
    slopes = 2.5 * rng.standard_normal(n_columns) / np.sqrt(n_columns)
    eta = (x - x.mean(axis=0)) / x.std(axis=0) @ slopes - 3.0
    y = (rng.random(n_rows) < expit(eta)).astype(float)
    return pd.DataFrame(x, columns=[f"x{j}" for j in range(n_columns)]), pd.Series(y)


def measure(strategy: Strategy, central: object, x: pd.DataFrame, y: "pd.Series[float]") -> None:
    """Fit to four fifths of the labels, predict the rest, and print a line."""
    half = x.shape[1] // 2
    parties = {"bank": x.iloc[:, :half], "court": x.iloc[:, half:]}
    test = np.arange(len(x)) % 5 == 0
    started = time.process_time()
    result = simulate(strategy, parties, y.mask(test), progress=False)
    seconds = time.process_time() - started
    center, spread = x[~test].mean(), x[~test].std(ddof=0)
    assert hasattr(central, "fit")
    model = central.fit((x[~test] - center) / spread, y[~test])
    expected = np.ravel(model.coef_)
    assert result.coefficients is not None
    own = result.coefficients["estimate"].to_numpy()[1:] * spread.to_numpy()
    gap = float(np.abs(own - expected).max() / np.abs(expected).max())
    assert result.predictions is not None
    ranked = result.predictions.iloc[:, -1]  # linear predictor, or decision value
    auc = roc_auc_score(y[ranked.index], ranked)
    theirs = roc_auc_score(y[test], model.decision_function((x[test] - center) / spread))
    ledger = result.ledger
    print(
        f"{type(strategy).__name__} {getattr(strategy, 'loss', '')}: {seconds:.1f} s of a "
        f"processor, {ledger.rounds} rounds, {(ledger.bytes_up + ledger.bytes_down) / 1e6:.0f} MB, "
        f"estimates off by {gap:.0e} of the largest, AUC {auc:.4f} (scikit-learn {theirs:.4f})",
        flush=True,
    )


def main() -> None:
    """Print a line for each classifier."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, for CI")
    size = (2_000, 6) if parser.parse_args().quick else (45_211, 16)
    print(machine_line())
    print(f"{size[0]:,} x {size[1]}, two parties, l2={L2}")
    x, y = make(*size)
    measure(VerticalGLM("binomial", "ridge", l2=L2), LogisticRegression(**EXACT), x, y)
    measure(VerticalSVM(L2, loss="squared"), RidgeClassifier(alpha=L2), x, y)
    hinge = LinearSVC(dual=False, intercept_scaling=100.0, **EXACT)
    measure(VerticalSVM(L2), hinge, x, y)


if __name__ == "__main__":
    main()
