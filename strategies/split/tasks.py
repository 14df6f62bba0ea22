"""Which parties' embeddings of a sample enter the sum while a method trains.

Vanilla VFL and FedHSSL sum over all that hold it. PlugVFL (Sun et al., 2024) leaves each out with
probability p. LASER-VFL (Valdeira, Wang and Chi, 2025) trains one predictor for each subset of the
parties that hold the sample, all with the same weights, and draws some of these tasks in each step.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Flags


class Tasks(NamedTuple):
    """Sums that are asked for in a step."""

    takes: Flags  # (n_tasks, n_rows, n_parties): whose embedding enters
    # (n_tasks, n_rows): what each sum's loss counts; adding up to 1 in each row
    weights: npt.NDArray[np.float64]


def draw_tasks(kind: str, held: Flags, drop: float, rng: np.random.Generator) -> Tasks:
    """Draw the tasks of a batch.

    Shapes: held (n_rows, n_parties): who holds what; one party at least in each row.
    """
    if kind == "observed":
        return Tasks(held[None], np.ones((1, len(held))))
    if kind == "dropped":
        keys = rng.random(held.shape)
        takes = held & (keys >= drop)
        # Somebody is always there, as the active party of the paper is: who was nearest to stay.
        last = np.where(held, keys, -1.0).argmax(axis=1)
        takes[np.arange(len(held)), last] = True
        return Tasks(takes[None], np.ones((1, len(held))))
    n_parties, counts = held.shape[1], held.sum(axis=1)
    keys = np.where(held, rng.random((n_parties, *held.shape)), np.inf)
    places = keys.argsort(axis=-1).argsort(axis=-1)
    sizes = np.arange(1, n_parties + 1)
    real = sizes[:, None] <= counts
    takes = held & (places < sizes[:, None, None]) & real[..., None]
    return Tasks(takes, _subset_shares(n_parties)[sizes[:, None], counts])


def _subset_shares(n_parties: int) -> npt.NDArray[np.float64]:
    """Return the share of subsets of size s among those of n parties, none but empty; [s, n]."""
    shares = np.zeros((n_parties + 1, n_parties + 1))
    row = np.ones(1)
    for n in range(1, n_parties + 1):
        row = np.convolve(row, [1.0, 1.0])  # Pascal's triangle
        shares[1 : n + 1, n] = row[1:] / (2.0**n - 1.0)
    return shares
