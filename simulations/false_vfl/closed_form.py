"""Isolet without a network: discriminants and logistic regression on completed rows.

Draws, blocks and labels are those of the study of FALSE-VFL; columns are pooled here, no message is
sent, and means are not rounded. A joint normal model of all columns, from sums over pairs of
parties, completes the labelled rows (`strategies.normal`); linear discriminants (`strategies.lda`)
or a logistic regression, its ridge by cross-validation, are fitted to these. Beside them what a
user would try first: nearest neighbours and a logistic regression, and boosted trees that accept
missing values (scikit-learn). The deep methods' columns are those of the study's page, the paper's
from its tables::

    FLWR_VERTICAL_DATA=... python -m simulations.false_vfl.closed_form [--quick]
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import KNNImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.products.pairs import PairMoments
from simulations.data import ROOT, Sources, read_paper
from simulations.false_vfl.data import Split, draw_labelled, load_isolet
from simulations.false_vfl.runs import TEST_SEEDS
from simulations.false_vfl.study import FalseVFLStudy
from simulations.kept import read_kept
from simulations.page import markdown_table, select
from simulations.preset import Options, quick_asked
from simulations.replications import Store, to_frame
from strategies.lda.discriminant import fit_discriminant, log_odds
from strategies.normal.equations import JointModel, fit_model
from strategies.normal.filling import complete_rows

TRAININGS = ("MCAR 2", "MCAR 5", "MNAR 7")
TESTS = ("MCAR 0", "MCAR 2", "MCAR 5", "MAR 1", "MAR 2", "MNAR 7", "MNAR 9")
SEEDS = 5
RECORDS = ROOT / "docs/records/false_vfl.jsonl"

Predict = Callable[[Array, Flags], Array]
"""From columns, NaN where a party lacks them, and who holds each row, to classes."""


class Pooled:
    """Columns of all parties, and what is fitted to them."""

    def __init__(self, x: Array, held: Flags, widths: Sequence[int], y: Array) -> None:
        self.x, self.held, self.widths = x, held, list(widths)
        ends = np.cumsum(self.widths).tolist()
        self.slices = [slice(e - w, e) for e, w in zip(ends, self.widths, strict=True)]
        self.labelled = np.flatnonzero(np.isfinite(y))
        self.y = y[self.labelled]
        self.model = self._joint_model()

    def _joint_model(self) -> JointModel:
        x, n, k = np.nan_to_num(self.x), len(self.x[0]), len(self.slices)
        counts = self.held.T.astype(np.int64) @ self.held.astype(np.int64)
        none = np.zeros(n, dtype=bool), np.zeros((n, k), dtype=bool)
        return fit_model(PairMoments(x.sum(axis=0), x.T @ x, counts, *none, 0), self.slices)

    def complete(self, x: Array) -> Array:
        """Fill columns with their conditional means."""
        return complete_rows(x, np.tile(self.model.mean, (len(x), 1)), self.model.covariance)

    def discriminants(self) -> Predict:
        """Fit linear discriminants to completed rows; other rows go by the columns they have."""
        classes, number = np.unique(self.y, return_inverse=True)
        z = self.complete(self.x)[self.labelled]
        flags = np.eye(len(classes))[number]
        counts = flags.sum(axis=0).astype(np.int64)
        fit = fit_discriminant(z.sum(axis=0), z.T @ z, z.T @ flags, counts)

        def predict(x: Array, held: Flags) -> Array:
            sets, which = np.unique(held, axis=0, return_inverse=True)
            slopes, level = log_odds(fit, self.widths, sets)
            scores = np.zeros((len(x), len(classes)))
            for g in range(len(sets)):
                rows = which.ravel() == g
                scores[rows, 1:] = np.nan_to_num(x[rows] - fit.mean) @ slopes[g].T + level[g]
            return np.asarray(classes[scores.argmax(axis=1)])

        return predict

    def logistic(self, complete: Callable[[Array], Array]) -> Predict:
        """Fit a logistic regression to completed rows, and complete what is predicted."""
        z = complete(self.x)[self.labelled]
        search = GridSearchCV(LogisticRegression(max_iter=300), {"C": [0.01, 0.1, 1.0]}, cv=3)
        fit = search.fit(z, self.y)
        return lambda x, _: np.asarray(fit.predict(complete(x)))

    def neighbours(self) -> Predict:
        """Complete by nearest neighbours among the training rows, then logistic regression."""
        imputer = KNNImputer(n_neighbors=5).fit(self.x)
        return self.logistic(lambda x: np.asarray(imputer.transform(x)))

    def trees(self) -> Predict:
        """Fit boosted trees to the labelled rows as they are."""
        fit = HistGradientBoostingClassifier(max_iter=50, random_state=0)
        fit.fit(self.x[self.labelled], self.y)
        return lambda x, _: np.asarray(fit.predict(x))


def part_of(
    split: Split, part: str, regime: str, seed: int, aligned: Indices
) -> tuple[Array, Flags, list[int]]:
    """Return the columns of Isolet's part with blocks missing, who holds each row, and widths."""
    tables = split.train if part == "train" else split.test
    widths = [table.shape[1] for table in tables.values()]
    held = ~split.draw_mask(part, regime, seed, aligned)
    x = np.hstack([table.to_numpy() for table in tables.values()])
    return np.where(np.repeat(held, widths, axis=1), x, np.nan), held, widths


def deep(train: str) -> pd.DataFrame:
    """Return what the study's page has: methods by tests, in percent."""
    nowhere = Path()  # nothing else is read, and nothing written
    study, store = FalseVFLStudy(Options(nowhere)), Store(nowhere, read_kept(RECORDS))
    cells = study.tables(to_frame(study.jobs(), store, study.context))["cells"].round(1)
    own = select(cells, dataset="Isolet", train=train).droplevel(["dataset", "train"])
    return own.reset_index().pivot(index="method", columns="test", values="accuracy")[list(TESTS)]


def print_table(train: str, own: dict[str, Array]) -> None:
    """Print a table of methods by tests."""
    page = deep(train)
    ours = page.index.str.startswith("FALSE-VFL")
    printed = read_paper("false_vfl", "tables")
    chosen = (printed["dataset"] == "Isolet") & (printed["train_mechanism"] == train)
    best = printed[chosen].groupby("test_mechanism")["accuracy"].max()
    table = pd.DataFrame(own, list(TESTS))
    table["FALSE-VFL here"] = page[ours].max()
    table["best deep baseline here"] = page[~ours].max()
    table["best of the paper"] = best
    shown = table.T.assign(mean=table.mean()).map("{:.1f}".format)
    print(markdown_table(shown.rename_axis(f"trained under {train}")), flush=True)


def isolet(quick: bool) -> None:
    """Print accuracies on Isolet in percent, on average over seeds."""
    split = load_isolet(Sources.find(None))
    for train in ("MCAR 2",) if quick else TRAININGS:
        found: dict[str, list[list[float]]] = {}
        for seed in range(1 if quick else SEEDS):
            labelled, aligned = draw_labelled(len(split.train_labels), seed)
            y = np.full(len(split.train_labels), np.nan)
            y[labelled] = split.train_labels[labelled]
            pooled = Pooled(*part_of(split, "train", train, seed, aligned), y)
            none, more = np.zeros(0, dtype=np.int64), seed + TEST_SEEDS
            tests = [part_of(split, "test", test, more, none)[:2] for test in TESTS]
            fits = methods(pooled, slow=seed == 0 and train == "MCAR 2")
            for name, fit in list(fits.items())[: 1 if quick else None]:
                predict = fit()
                right = [np.mean(predict(*rows) == split.test_labels) for rows in tests]
                found.setdefault(name, []).append([100.0 * float(share) for share in right])
        print_table(train, {name: np.mean(values, axis=0) for name, values in found.items()})


def methods(pooled: Pooled, slow: bool) -> dict[str, Callable[[], Predict]]:
    """Return what is fitted, by name; on Isolet some take minutes: one seed of one training."""
    quick: dict[str, Callable[[], Predict]] = {
        "`lda`": pooled.discriminants,
        "`joint-normal`, logistic": partial(pooled.logistic, pooled.complete),
    }
    more = {"neighbours, logistic": pooled.neighbours, "boosted trees": pooled.trees}
    return quick | (more if slow else {})


def others(quick: bool) -> None:
    """Print accuracies on tables that shaped nothing; blocks missing in training and test."""
    found = {}
    for name, labels in TABLES[:1] if quick else TABLES:
        rows = []
        for seed in range(1 if quick else SEEDS):
            rng = np.random.default_rng(seed)
            x, y = LOADS[name]()
            order = rng.permutation(len(x))[:6000]
            x, y = x[order] / x.std(axis=0), y[order]
            widths = [len(part) for part in np.array_split(np.arange(x.shape[1]), 3)]
            held = rng.random((len(x), 3)) >= MISSING
            held[~held.any(axis=1), 0] = True
            x = np.where(np.repeat(held, widths, axis=1), x - x.mean(axis=0), np.nan)
            n = 2 * len(x) // 3
            known = np.where(np.arange(n) < labels, y[:n], np.nan)
            fits = methods(Pooled(x[:n], held[:n], widths, known), slow=True)
            rows.append({to: np.mean(fit()(x[n:], held[n:]) == y[n:]) for to, fit in fits.items()})
        found[name, labels] = 100.0 * pd.DataFrame(rows).mean()
    shown = pd.DataFrame(found).T.map("{:.1f}".format)
    print(markdown_table(shown.rename_axis(["table", "labels"])), flush=True)


def letters() -> tuple[Array, Array]:
    """Return attributes and classes of Letter Recognition."""
    frame = pd.read_csv(Sources.find(None).path("letter/letter_recognition.csv"))
    y = pd.factorize(frame["lettr"])[0].astype(float)
    return frame.drop(columns="lettr").to_numpy(float), y


LOADS: dict[str, Callable[[], tuple[Array, Array]]] = {
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "letter": letters,
}
TABLES = (("wine", 60), ("breast cancer", 60), ("breast cancer", 300), ("letter", 1000),
          ("letter", 4000))  # fmt: skip
MISSING = 0.3

if __name__ == "__main__":
    quick = quick_asked(__doc__)
    others(quick)
    isolet(quick)
