"""On which side of splits rows are, many splits at once."""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Flags
from strategies.trees.binning import Codes, Layout
from strategies.trees.node_sums import Indices


@dataclass(frozen=True)
class Comers:
    """Rows that come to own splits.

    Parameters
    ----------
    split : numpy.ndarray of shape (n_comers,)
        Number of the split that each of them comes to.
    missing : numpy.ndarray of shape (n_comers,), bool
        Whether it lacks the cell.
    left : numpy.ndarray of that shape, bool
        Whether it goes to the left if it has the cell.
    """

    split: Indices
    missing: Flags
    left: Flags

    @classmethod
    def of(
        cls, layout: Layout, codes: Codes, rows: Indices, split: Indices, column: Indices,
        at: Indices,
    ) -> "Comers":  # fmt: skip
        """Look the cells up.

        Parameters
        ----------
        layout : Layout
            Of the own columns.
        codes : numpy.ndarray of shape (n_samples, n_columns)
        rows, split : numpy.ndarray of shape (n_comers,)
            Which row comes to which split.
        column, at : numpy.ndarray of shape (n_splits,)
            Column and place of the slot of each split.
        """
        n_bins, nominal = np.array(layout.n_bins), np.array(layout.nominal)
        of, place = column[split], at[split]
        code = codes[rows, of]
        missing = code == n_bins[of]
        one_level = nominal[of] & (place < n_bins[of])
        left = np.where(one_level, code == place, (code <= place) & ~missing)
        return cls(split, missing, left)

    def sides(self, missing_left: Flags) -> Flags:
        """Return which of them go to the left; `missing_left` is of each split."""
        return np.asarray(np.where(self.missing, missing_left[self.split], self.left))

    def settled(self, missing_left: Flags, fitted: Flags) -> Flags:
        """Return where rows that lack the cell go in the end, shape (n_splits,).

        Where none that is fitted lacks it, they go with the majority.

        Parameters
        ----------
        missing_left : numpy.ndarray of shape (n_splits,), bool
            As the arbiter chose.
        fitted : numpy.ndarray of shape (n_comers,), bool
            Which of them are fitted.
        """
        n_splits = len(missing_left)
        lacking = np.bincount(self.split, fitted & self.missing, n_splits)
        here = np.bincount(self.split, fitted, n_splits)
        to_left = np.bincount(self.split, fitted & self.left, n_splits)
        return np.where(lacking > 0, missing_left, 2 * to_left >= here)
