"""What all data sets of FALSE-VFL's study share: tables by party, labels, missing blocks.

What the paper leaves open: which samples have labels, and which of these are aligned, is drawn
uniformly; tables are standardised by the training samples, column by column, images by one mean
and deviation of all pixels of the training images, and blocks are missing by what is so
standardised (for tables: over the samples given).
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.errors import DataError
from flwr_vertical.incomplete import draw_blocks, split_columns
from simulations.data import Sources
from strategies.neural.party import PartyBlock

N_PARTIES, COLUMNS_EACH = 8, 77
N_LABELS, N_ALIGNED = 500, 100

Labels = Integers


@dataclass(frozen=True)
class Split:
    """Complete tables of training and test samples."""

    train: dict[str, pd.DataFrame]  # By party, standardised by the training samples
    test: dict[str, pd.DataFrame]  # By party, standardised by the training samples
    train_labels: Labels  # Classes, from 0
    test_labels: Labels  # Classes, from 0
    n_classes: int
    # Height and width of a party's images, whose pixels are its columns, row by row
    image_shape: tuple[int, int] | None = None
    # Excessive variance that "MAR 2" may use up (Algorithm 2: B, 0.5 for ModelNet10)
    budget: float = 0.7

    def draw_mask(self, part: str, regime: str, seed: int, aligned: Labels) -> Flags:
        """Draw which blocks of ``"train"`` or ``"test"`` are missing, none of the aligned ones."""
        tables = self.train if part == "train" else self.test
        settings: dict[str, float] = {"budget": self.budget} if regime == "MAR 2" else {}
        if not regime.startswith("MCAR"):
            settings["standardize"] = self.image_shape is None
        mask = draw_blocks(regime, tables, seed=seed, **settings)
        mask[aligned] = False
        return mask

    def part(self, n_train: int, n_test: int, seed: int = 0) -> "Split":
        """Return so many samples drawn at random; 0 keeps all."""
        rng = np.random.default_rng([seed, 11])
        drawn = [
            np.sort(rng.choice(len(labels), n, replace=False)) if 0 < n < len(labels) else None
            for labels, n in ((self.train_labels, n_train), (self.test_labels, n_test))
        ]
        if all(rows is None for rows in drawn):
            return self
        own, other = (slice(None) if rows is None else rows for rows in drawn)
        return replace(
            self,
            train={name: table.iloc[own] for name, table in self.train.items()},
            test={name: table.iloc[other] for name, table in self.test.items()},
            train_labels=self.train_labels[own],
            test_labels=self.test_labels[other],
        )


def load_isolet(sources: Sources) -> Split:
    """Load Isolet; subset 5 (other speakers) is the test, and the last column is dropped."""
    path = sources.path("isolet/isolet.csv")
    frame = pd.read_csv(path)
    names = [f"f{i}" for i in range(1, N_PARTIES * COLUMNS_EACH + 1)]
    if lacking := [name for name in [*names, "class", "subset"] if name not in frame]:
        raise DataError(f"{path} lacks the columns {lacking[:5]}; expected f1..f617, class, subset")
    own, other = frame[frame["subset"] < 5], frame[frame["subset"] == 5]
    labels = [part["class"].to_numpy(dtype=np.int64) - 1 for part in (own, other)]
    return standardised(own[names], other[names], labels[0], labels[1], 26)


def standardised(
    train: pd.DataFrame, test: pd.DataFrame, train_labels: Labels, test_labels: Labels, n: int
) -> Split:
    """Give runs of neighbouring columns to eight parties, standardised by the training samples."""
    mean, deviation = train.mean(), train.std(ddof=0).replace(0.0, 1.0)
    tables = [
        split_columns((part - mean) / deviation, N_PARTIES, shuffle=False) for part in (train, test)
    ]
    return Split(tables[0], tables[1], train_labels, test_labels, n)


def draw_labelled(
    n_samples: int, seed: int, n_labels: int = N_LABELS, n_aligned: int = N_ALIGNED
) -> tuple[Labels, Labels]:
    """Draw which samples have a label, and which of those are aligned."""
    rng = np.random.default_rng([seed, 7])
    labelled = rng.choice(n_samples, n_labels, replace=False)
    return labelled, labelled[:n_aligned]


def to_blocks(tables: dict[str, pd.DataFrame], mask: Flags) -> dict[str, PartyBlock]:
    """Return what each party holds, for the central form of the method."""
    blocks = {}
    for k, (name, table) in enumerate(tables.items()):
        held = np.flatnonzero(~mask[:, k])
        row = np.full(len(mask), -1, dtype=np.int64)
        row[held] = np.arange(len(held))
        x = torch.tensor(table.to_numpy()[held], dtype=torch.float32)
        blocks[name] = PartyBlock(x, torch.ones_like(x), torch.from_numpy(row))
    return blocks


HAPT_COLUMNS, HAPT_CLASSES, HAPT_EACH = 561, 12, 70


def load_hapt(sources: Sources) -> Split:
    """Load HAPT, human activities and postural transitions, from the files that UCI has.

    ``hapt/Train/X_train.txt`` and ``y_train.txt``, ``hapt/Test/X_test.txt`` and ``y_test.txt``, as
    the archive "HAPT Data Set" has them: 561 numbers a line, separated by blanks, and a class from
    1 to 12. Test samples are the data set's own, of nine volunteers that no training sample is of.
    Eight parties get 70 columns each; the one dropped is the last.
    """
    (train, train_labels), (test, test_labels) = (_part(sources, n) for n in ("Train", "Test"))
    kept = [f"f{i}" for i in range(1, N_PARTIES * HAPT_EACH + 1)]
    return standardised(train[kept], test[kept], train_labels, test_labels, HAPT_CLASSES)


def _part(sources: Sources, name: str) -> tuple[pd.DataFrame, Labels]:
    path = sources.path(f"hapt/{name}/X_{name.lower()}.txt")
    try:
        frame = pd.read_csv(path, sep=r"\s+", header=None, dtype=float)
    except ValueError as error:
        raise DataError(f"{path} is not a file of numbers: {error}") from error
    if frame.shape[1] != HAPT_COLUMNS or bool(frame.isna().to_numpy().any()):
        raise DataError(
            f"{path} has lines of {frame.shape[1]} numbers, some perhaps shorter; expected UCI's "
            f"file with {HAPT_COLUMNS} a line"
        )
    frame.columns = pd.Index([f"f{i}" for i in range(1, HAPT_COLUMNS + 1)])
    where = sources.path(f"hapt/{name}/y_{name.lower()}.txt")
    classes = pd.read_csv(where, header=None)[0].to_numpy()
    if len(classes) != len(frame) or not np.isin(classes, range(1, HAPT_CLASSES + 1)).all():
        raise DataError(
            f"{where} has {len(classes)} labels from {classes.min()} to {classes.max()}; expected "
            f"one from 1 to {HAPT_CLASSES} for each of the {len(frame)} lines of {path.name}"
        )
    return frame, classes.astype(np.int64) - 1
