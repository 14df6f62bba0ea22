"""Ensembles by which parties hold a sample: each pattern of missing blocks has trees of its own.

One ensemble for all samples must let every split say where samples without the block go, and what
it learns of a party's columns from samples that miss the others is diluted. So there are several,
which grow in the same rounds: the first uses the columns of all parties and is fitted to all
samples; each other one belongs to a frequent pattern of held parties, uses their columns alone and
is fitted to all samples that hold a block of theirs. A sample is predicted by the ensemble of its
own pattern, or by the first if its pattern has none.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Flags


@dataclass(frozen=True)
class Ensembles:
    """Whose columns the trees of each ensemble may use."""

    parties: Flags  # (n_ensembles, n_parties): the first has all parties

    @classmethod
    def frequent(
        cls, held: Flags, fit: npt.NDArray[np.intp], most: int, fewest: int
    ) -> "Ensembles":
        """Return one for all samples, and one for each of the most frequent other patterns.

        Shapes: held (n_samples, n_parties): which parties hold each sample; fit (n_fit,): samples
        that trees are fitted to.
        """
        every = np.ones((1, held.shape[1]), dtype=bool)
        patterns, counts = np.unique(held, axis=0, return_counts=True)
        known = held[fit]
        chosen = [
            pattern
            for pattern in patterns[np.argsort(-counts, kind="stable")]
            if pattern.any() and not pattern.all() and (known & pattern).any(axis=1).sum() >= fewest
        ]
        return cls(np.concatenate([every, *(pattern[None] for pattern in chosen[:most])]))

    def __len__(self) -> int:
        return len(self.parties)

    def fitted(self, held: Flags) -> Flags:
        """Return to which samples each ensemble is fitted: those with a block of its parties.

        Shapes: held (n_samples, n_parties); returns (n_ensembles, n_samples).
        """
        found: Flags = np.any(self.parties[:, None] & held, axis=2)
        found[:1] = True
        return found

    def predicting(self, held: Flags) -> npt.NDArray[np.intp]:
        """Return which ensemble predicts each sample, shape (n_samples,)."""
        out = np.zeros(len(held), dtype=np.intp)
        for number, pattern in enumerate(self.parties[1:], start=1):
            out[(held == pattern).all(axis=1)] = number
        return out
