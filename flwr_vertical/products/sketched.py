"""Parties sketch their columns for each other; the server multiplies the sketches.

The numerics, and what a sketch tells the server, are in `sketches`. A sketch goes to the server
only: the other owner of its seed could solve for the rows.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from flwr_vertical.node import Party, StepGroup, step
from flwr_vertical.products.columns import HeldColumns, MultipliesColumns, RanksColumns
from flwr_vertical.products.pair_keys import PairKeys, PairKeySteps
from flwr_vertical.products.sketches import (
    estimate_products,
    rank_correlation_noise,
    rank_correlations,
    rank_scores,
    sketch,
)
from flwr_vertical.server import Federation


class RankSketchSteps(StepGroup):
    """Sketches of rank scores; the party also uses `PairKeySteps`, and has `columns_to_rank`.

    Parameters
    ----------
    party : Party
        Whose columns they are.
    purpose : str
        What the strategy wants them for; no other use of seeds in the strategy has the same.
    """

    party: RanksColumns

    def __init__(self, party: Party, purpose: str) -> None:
        super().__init__(party)
        self._purpose = purpose

    @step
    def sketch_ranks(self, nonce: bytes, size: int, **keys: Any) -> dict[str, Any]:
        """Keep the other parties' keys, and sketch the rank scores of the own columns for each.

        Parameters
        ----------
        nonce : bytes
            Of this run.
        size : int
            Rows of a sketch.
        **keys
            The other arguments of `PairKeySteps.keep_pair_keys`.

        Returns
        -------
        dict[str, numpy.ndarray of shape (size, n_columns)]
            By the other party's name.
        """
        pair_keys = self.other(PairKeySteps)
        pair_keys.keep_pair_keys(nonce=nonce, **keys)
        columns = self.party.columns_to_rank()
        scores = HeldColumns(rank_scores(columns.values), columns.rows, columns.n_samples)
        return _sketches(scores, pair_keys.seeds(nonce, self._purpose), size)


class SketchSteps(StepGroup):
    """Sketches of columns; the party also uses `PairKeySteps`, and has `columns_to_multiply`.

    Parameters
    ----------
    party : Party
        Whose columns they are.
    purpose : str
        As of `RankSketchSteps`.
    """

    party: MultipliesColumns

    def __init__(self, party: Party, purpose: str) -> None:
        super().__init__(party)
        self._purpose = purpose

    @step
    def sketch_rows(self, nonce: bytes, weight: Array, size: int) -> dict[str, Any]:
        """Sketch the own columns for each other party, each row times the root of its weight.

        Parameters
        ----------
        nonce : bytes
            Of this run.
        weight : numpy.ndarray of shape (n_held,)
            Of the rows held, at least 0.
        size : int
            Rows of a sketch.

        Returns
        -------
        dict[str, numpy.ndarray of shape (size, n_columns)]
            By the other party's name.
        """
        columns = self.party.columns_to_multiply().weighted(np.sqrt(weight))
        seeds = self.other(PairKeySteps).seeds(nonce, self._purpose)
        return _sketches(columns, seeds, size)


def _sketches(columns: HeldColumns, seeds: dict[str, bytes], size: int) -> dict[str, Any]:
    return {
        name: sketch(columns.values, columns.rows, columns.n_samples, seed, size)
        for name, seed in seeds.items()
    }


def sketched_products(
    federation: Federation, weight: dict[str, Array], keys: PairKeys, size: int
) -> dict[tuple[int, int], Array]:
    """Estimate weighted products of different parties' columns; one round beside the keys'.

    The parties use `SketchSteps`.

    Parameters
    ----------
    federation : Federation
        Of the run.
    weight : dict[str, numpy.ndarray of shape (n_held,)]
        By party, of the rows that it holds.
    keys : PairKeys
        Of the run.
    size : int
        Rows of a sketch.

    Returns
    -------
    dict of (j, k) with j < k to numpy.ndarray of shape (n_columns_j, n_columns_k)
        By the places of two parties in ``federation.parties``; empty if there is one party.
    """
    names = federation.parties
    if len(names) < 2:
        return {}
    keys.hand_out()
    sketches = federation.call(
        "sketch_rows",
        {"nonce": keys.nonce, "size": size},
        per_party={name: {"weight": weight[name]} for name in names},
    )
    return {
        (j, k): estimate_products(sketches[names[j]][names[k]], sketches[names[k]][names[j]])
        for k in range(1, len(names))
        for j in range(k)
    }


def sketched_rank_correlations(
    federation: Federation, held: npt.NDArray[np.bool_], keys: PairKeys, size: int
) -> tuple[dict[tuple[str, str], Array], dict[tuple[str, str], float]]:
    """Estimate rank correlations between columns of different parties; up to two rounds.

    The parties use `RankSketchSteps`, and keep each other's keys afterwards.

    Parameters
    ----------
    federation : Federation
        Of the run.
    held : numpy.ndarray of shape (n_samples, n_parties), bool
        Which samples each party holds.
    keys : PairKeys
        Of the run.
    size : int
        Rows of a sketch.

    Returns
    -------
    dict of (str, str) to numpy.ndarray of shape (n_columns_a, n_columns_b)
        By the names of two parties, in the order of ``federation.parties``.
    dict of (str, str) to float
        Their standard deviations if columns are independent.
    """
    sketches = federation.call("sketch_ranks", {**keys.arguments(), "size": size})
    keys.handed_out = True
    by_pair, noise = {}, {}
    for k, one in enumerate(federation.parties):
        for offset, other in enumerate(federation.parties[k + 1 :]):
            shared = int((held[:, k] & held[:, k + 1 + offset]).sum())
            sizes = int(held[:, k].sum()), int(held[:, k + 1 + offset].sum())
            by_pair[one, other] = rank_correlations(
                sketches[one][other], sketches[other][one], shared
            )
            noise[one, other] = rank_correlation_noise(*sizes, shared, size)
    return by_pair, noise
