"""Isolet as FALSE-VFL has it: eight parties of 77 columns, blocks missing, few labels.

What the paper leaves open: the test samples are the data set's own (subset 5, 30 speakers that no
training sample is of); which samples have labels, and which of these are aligned, is drawn
uniformly; columns are standardised by the training samples; the one column dropped is the last.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from flwr_vertical.errors import DataError
from flwr_vertical.tables import draw_blocks, split_columns
from simulations.data import Sources
from strategies.deep.false_vfl.central import Block

N_PARTIES, COLUMNS_EACH = 8, 77
N_LABELS, N_ALIGNED = 500, 100


@dataclass(frozen=True)
class IsoletSplit:
    """Complete tables of training and test samples.

    Parameters
    ----------
    train, test : dict of str to DataFrame
        By party, standardised by the training samples.
    train_labels, test_labels : numpy.ndarray of int64
        Letters, 0 to 25.
    """

    train: dict[str, pd.DataFrame]
    test: dict[str, pd.DataFrame]
    train_labels: npt.NDArray[np.int64]
    test_labels: npt.NDArray[np.int64]


def load_isolet(
    sources: Sources, train: tuple[int, ...] = (1, 2, 3, 4), test: tuple[int, ...] = (5,)
) -> IsoletSplit:
    """Load subsets of Isolet; each has 30 speakers of its own.

    Raises
    ------
    DataError
        If the file is not there or has other columns.
    """
    path = sources.path("isolet/isolet.csv")
    frame = pd.read_csv(path)
    names = [f"f{i}" for i in range(1, N_PARTIES * COLUMNS_EACH + 1)]
    if lacking := [name for name in [*names, "class", "subset"] if name not in frame]:
        raise DataError(f"{path} lacks the columns {lacking[:5]}; expected f1..f617, class, subset")
    own, other = (frame[frame["subset"].isin(subsets)] for subsets in (train, test))
    mean, deviation = own[names].mean(), own[names].std(ddof=0)
    tables = [
        split_columns((part[names] - mean) / deviation, N_PARTIES, shuffle=False)
        for part in (own, other)
    ]
    labels = [part["class"].to_numpy(dtype=np.int64) - 1 for part in (own, other)]
    return IsoletSplit(tables[0], tables[1], labels[0], labels[1])


def draw_labelled(n_samples: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw which samples have a label, and which of those are aligned.

    Returns
    -------
    labelled : numpy.ndarray of shape (500,)
    aligned : numpy.ndarray of shape (100,)
        Among `labelled`.
    """
    rng = np.random.default_rng([seed, 7])
    labelled = rng.choice(n_samples, N_LABELS, replace=False)
    return labelled, labelled[:N_ALIGNED]


def draw_mask(
    tables: dict[str, pd.DataFrame], regime: str, seed: int, aligned: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Draw which blocks are missing, none of the aligned samples'; shape (n_samples, n_parties)."""
    mask = draw_blocks(regime, tables, seed=seed)
    mask[aligned] = False
    return mask


def to_blocks(
    tables: dict[str, pd.DataFrame],
    mask: npt.NDArray[np.bool_],
    dtype: torch.dtype = torch.float32,
) -> dict[str, Block]:
    """Return what each party holds, for the central form of the method."""
    blocks = {}
    for k, (name, table) in enumerate(tables.items()):
        held = np.flatnonzero(~mask[:, k])
        row = np.full(len(mask), -1, dtype=np.int64)
        row[held] = np.arange(len(held))
        x = torch.tensor(table.to_numpy(dtype=float)[held], dtype=dtype)
        blocks[name] = Block(x, torch.ones_like(x), torch.from_numpy(row))
    return blocks
