"""On which side of splits rows are, many splits at once."""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Flags
from strategies.trees.binning import Codes, Layout
from strategies.trees.node_sums import Indices


@dataclass(frozen=True)
class Comers:
    """Rows that come to own splits."""

    split: Indices  # (n_comers,): number of the split that each of them comes to
    missing: Flags  # (n_comers,): whether it lacks the cell
    left: Flags  # Whether it goes to the left if it has the cell

    @classmethod
    def of(
        cls, layout: Layout, codes: Codes, rows: Indices, split: Indices, column: Indices,
        at: Indices,
    ) -> "Comers":  # fmt: skip
        """Look the cells up.

        Shapes: codes (n_samples, n_columns); rows, split (n_comers,): which row comes to which
        split; column, at (n_splits,): column and place of the slot of each split.
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

        Shapes: missing_left (n_splits,): as the arbiter chose; fitted (n_comers,): which of them
        are fitted.
        """
        n_splits = len(missing_left)
        lacking = np.bincount(self.split, fitted & self.missing, n_splits)
        here = np.bincount(self.split, fitted, n_splits)
        to_left = np.bincount(self.split, fitted & self.left, n_splits)
        return np.where(lacking > 0, missing_left, 2 * to_left >= here)
