"""Tables of two parties as numbers, samples without a label, and what is missing."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits

from flwr_vertical import Table
from flwr_vertical.arrays import Flags
from simulations.data import Sources, fingerprint, load_motor
from simulations.fedpsg.data import Joint, coded
from simulations.fedpsg.data import load as load_classes
from strategies.trees.binning import fit_bins

WITH_LEVELS = " with levels"
EMBEDDED = ("Breast cancer", "Digits odd or even")
"""What scikit-learn brings along; the first half of the columns is party a's."""


def load(name: str, sources: Sources) -> Joint:
    """Load ``Bank``, ``Credit`` or ``Letter``, levels as numbers or as they are, or others."""
    if name in EMBEDDED:
        made = load_breast_cancer if name == EMBEDDED[0] else load_digits
        x, y = made(return_X_y=True, as_frame=True)
        y, half = (y % 2).astype(float), x.shape[1] // 2
        return Joint(x.iloc[:, :half], x.iloc[:, half:], y, fingerprint([x, y.to_frame()]))
    if name == "motor":
        data = load_motor(sources)
        return Joint(data.parties["guest"], data.parties["host"], data.labels, data.fingerprint)
    joint = load_classes(name.removesuffix(WITH_LEVELS), sources)
    labels = pd.Series(pd.factorize(joint.labels, sort=True)[0], joint.labels.index, dtype=float)
    if name.endswith(WITH_LEVELS):
        return Joint(joint.a, joint.b, labels, joint.fingerprint)
    return Joint(coded(joint.a, joint.a), coded(joint.b, joint.b), labels, joint.fingerprint)


@dataclass(frozen=True)
class Task:
    """What a method is given, and the labels it is judged by."""

    a: pd.DataFrame  # Of all samples; NaN where a cell is missing
    b: pd.DataFrame  # Of all samples; NaN where a cell is missing
    labels: "pd.Series[float]"  # Of all samples
    test: Flags  # (n_samples,): samples whose label no method sees
    lacks: Flags  # (n_samples,): samples that party b lacks: its columns are NaN there

    @property
    def pooled(self) -> pd.DataFrame:
        """Both parties' columns."""
        return pd.concat([self.a, self.b], axis=1)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """What each party holds."""
        return {"a": self.a, "b": self.b[~self.lacks]}

    @property
    def hidden_labels(self) -> "pd.Series[float]":
        """The labels that a method sees."""
        return self.labels.mask(self.test)


def draw(joint: Joint, settings: dict[str, Any], blocks: bool) -> Task:
    """Draw the rows, the samples without a label, and what is missing."""
    rng = np.random.default_rng(settings["seed"])
    n = len(joint.labels)
    rows = np.arange(n)
    if 0 < settings["rows"] < n:
        rows = np.sort(rng.permutation(n)[: settings["rows"]])
    a, b = joint.a.iloc[rows].astype(float), joint.b.iloc[rows].astype(float)
    labels = joint.labels.iloc[rows]
    lacks = np.zeros(len(rows), dtype=bool)
    if blocks:
        lacks = rng.random(len(rows)) < settings["share"]
        b = b.mask(np.broadcast_to(lacks[:, None], b.shape))
    else:
        a = a.mask(rng.random(a.shape) < settings["share"])
        b = b.mask(rng.random(b.shape) < settings["share"])
    test = rng.random(len(rows)) < settings["test"]
    return Task(a, b, labels, test, lacks)


def binned(table: pd.DataFrame, n_bins: int) -> pd.DataFrame:
    """Return the numbers of the bins that the federated booster uses; NaN stays."""
    held = Table.of(table)
    made = fit_bins(held, n_bins)
    codes = made.codes(held, "pooled").astype(float)
    codes[codes == np.array(made.layout.n_bins)] = np.nan
    return pd.DataFrame(codes, table.index, table.columns)
