"""What opening moments has to do with noise: the server's part, and what is on each sum."""

from dataclasses import replace

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Array
from flwr_vertical.privacy import KEY_BYTES
from flwr_vertical.products import Moments
from flwr_vertical.products.noise import PRODUCTS
from flwr_vertical.products.row_groups import RowGroups
from strategies.linear.moments.budget import Budget
from strategies.linear.moments.dp_moments import GroupNoise
from strategies.linear.moments.label_noise import LabelSums, noisy_label_sums, server_noise


def label_sums(
    federation: Federation,
    budget: Budget,
    moments: Moments,
    groups: RowGroups,
    y: Array,
    widths: list[int],
) -> list[LabelSums]:
    """Add the server's noise to the labels' sums, of each group and of the rows that tell nothing.

    The last are those in no group, and in groups of which no column is told.
    """
    told = [not withheld.all() for withheld in moments.withheld]
    rows = [y[(groups.group == g) & told[g]] for g in range(len(groups.mask))]
    rows.append(y[~np.isin(groups.group, np.flatnonzero(told))])
    nobody = np.zeros((1, groups.mask.shape[1]), dtype=bool)
    return noisy_label_sums(
        budget.rule,
        widths,
        np.concatenate([~groups.mask, nobody]),
        np.concatenate([moments.with_vectors[:, :, 0], np.zeros((1, sum(widths)))]),
        np.array([own.sum() for own in rows]),
        np.array([own @ own for own in rows]),
        federation.random_bytes(KEY_BYTES),
    )


def with_server_noise(
    federation: Federation,
    budget: Budget,
    moments: Moments,
    groups: RowGroups,
    widths: list[int],
) -> Moments:
    """Add the server's noise to products of two parties' columns, where these have that of one.

    From ciphertexts the later party alone adds noise, and knows it.
    """
    key = federation.random_bytes(KEY_BYTES)
    owner = np.repeat(np.arange(len(widths)), widths)
    pairs = np.argwhere(owner[:, None] < owner[None, :])
    levels = budget.rule.levels(widths, ~groups.mask, 1)[:, PRODUCTS]
    products = moments.products.copy()
    noise = server_noise("server products", key)
    for g, level in enumerate(levels):
        for i, j in pairs:
            if not (moments.withheld[g, i] or moments.withheld[g, j]):
                products[g, i, j] = products[g, j, i] = noise(products[g, i, j], float(level))
    return replace(moments, products=products)


def group_noise(
    moments: Moments, labels: list[LabelSums] | None, mean: Array, spread: Array
) -> list[GroupNoise] | None:
    """Return the noise on the moments of each group that is told of, of standardised columns."""
    sums, products, vectors = (
        moments.sums_variance,
        moments.products_variance,
        moments.vectors_variance,
    )
    if labels is None or sums is None or products is None or vectors is None:
        return None
    found = []
    for g, withheld in enumerate(moments.withheld):
        columns = np.flatnonzero(~withheld)
        if not len(columns):
            continue
        variance = np.zeros((len(columns) + 2, len(columns) + 2))
        inner, last = slice(1, len(columns) + 1), len(columns) + 1
        variance[0, inner] = variance[inner, 0] = sums[g][columns]
        variance[inner, inner] = products[g][np.ix_(columns, columns)]
        variance[last, inner] = variance[inner, last] = vectors[g][columns, 0]
        of_product, of_total, of_square = labels[g].variances
        variance[last, inner] += of_product
        variance[inner, last] += of_product
        variance[0, last] = variance[last, 0] = of_total
        variance[last, last] = of_square
        turn = np.zeros((len(mean) + 2, len(columns) + 2))
        turn[0, 0] = turn[-1, -1] = 1.0
        turn[1 + columns, 1 + np.arange(len(columns))] = 1.0 / spread[columns]
        turn[1 + columns, 0] = -mean[columns] / spread[columns]
        found.append(GroupNoise(variance, turn))
    _, of_total, of_square = labels[-1].variances
    turn = np.zeros((len(mean) + 2, 2))
    turn[0, 0] = turn[-1, -1] = 1.0
    found.append(GroupNoise(np.array([[0.0, of_total], [of_total, of_square]]), turn))
    return found
