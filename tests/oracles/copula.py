"""VCDS, EVCDS and IEVCDS as Tang, Feng, Li and Wang write them, literally and at one place.

All N^2 comparisons, loops over samples, the Bernstein operator by its definition. Noise is handed
in.
"""

import math

import numpy as np
from scipy.stats import norm

from strategies.copula.ranks import flip_tiles


def comparisons(values, ties):
    """V of section 2.2: v[i][k] = 1 if sample i is above k (i < k); equal values by their ties."""
    n = len(values)
    return [
        [int((values[i], ties[i]) > (values[k], ties[k])) if i < k else None for k in range(n)]
        for i in range(n)
    ]


def perturb(v, turned, theta):
    """Eqs. (2.2) and (2.3): the perturbed ranks, and the debiased ones.

    Shapes: turned (i, k): whether the comparison of i and k is turned round.
    """
    n = len(v)
    ranks, debiased = np.ones(n), np.ones(n)
    for i in range(n):
        for k in range(n):
            if i == k:
                continue
            first, second = min(i, k), max(i, k)
            answer = v[first][second]
            if turned(first, second):
                answer = 1 - answer
            clean = (answer - theta) / (1 - 2 * theta)
            ranks[i] += answer if i < k else 1 - answer
            debiased[i] += clean if i < k else 1 - clean
    return ranks, debiased


def spearman(first, second):
    """Correlation of debiased ranks, with the variance that the true ones have."""
    n = len(first)
    middle = (n + 1) / 2
    products = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True)) / n
    return products / ((n**2 - 1) / 12)


def bernstein(f, l, h):  # noqa: E741
    """Eq. (2.4): the iterated operator of a function on [0, 1], as a function."""

    def b(v, x):
        return math.comb(l, v) * x**v * (1 - x) ** (l - v)

    def operator(g):
        values = [g(v / l) for v in range(l + 1)]
        return lambda x: sum(values[v] * b(v, x) for v in range(l + 1))

    powers = []  # B^(i - 1) (b_v), for i = 1, ..., h, each a function for each v
    for v in range(l + 1):
        functions = [lambda x, v=v: b(v, x)]
        for _ in range(h - 1):
            functions.append(operator(functions[-1]))
        powers.append(functions)

    def basis(v, x):
        return sum(math.comb(h, i) * (-1) ** (i - 1) * powers[v][i - 1](x) for i in range(1, h + 1))

    return lambda x: sum(f(v / l) * basis(v, x) for v in range(l + 1))


def evcds_margin(x, z, ranks):
    """Eqs. (2.5) to (2.7): reordered values and their F~, for scores z in rank order.

    F~ is of the largest latent score among those ranked no higher.
    """
    ordered, lowest = sorted(x), min(ranks)
    position = np.argsort(np.argsort(ranks, kind="stable"), kind="stable")
    largest = [
        max(z[k] for k in range(len(z)) if ranks[k] <= rank or ranks[k] == lowest) for rank in ranks
    ]
    return [(ordered[at], norm.cdf(score)) for at, score in zip(position, largest, strict=True)]


def sweep(z, order, omega, rng):
    """Lines 10 to 15 of Algorithm 2 for complete rows: each score between its neighbours."""
    n, p = z.shape
    for j in range(p):
        before = list(range(j))
        weights = np.linalg.solve(omega[np.ix_(before, before)], omega[before, j])
        sd = math.sqrt(omega[j, j] - omega[j, before] @ weights)
        for place in range(n):
            i = order[j][place]
            low = z[order[j][place - 1], j] if place else -math.inf
            high = z[order[j][place + 1], j] if place < n - 1 else math.inf
            mu = z[i, before] @ weights
            a, b = norm.cdf((low - mu) / sd), norm.cdf((high - mu) / sd)
            z[i, j] = mu + sd * norm.ppf(a + (b - a) * rng.random())
    return z


def ievcds(x, iterations, rng):
    """Algorithm 3 without noise: impute through latent scores, rank, correlate, again.

    Shapes: x (n, p): NaN = missing; returns (p, p): the copula's correlation matrix.
    """
    n, p = x.shape
    seen = ~np.isnan(x)
    z = np.full((n, p), np.nan)
    omega = np.eye(p)
    for j in range(p):
        z[seen[:, j], j] = normal_scores(x[seen[:, j], j])
        for k in range(j):
            both = seen[:, j] & seen[:, k]
            omega[j, k] = omega[k, j] = rank_correlation(x[both, j], x[both, k])
    completed = x.copy()
    for _ in range(iterations):
        laws = {}  # of the missing given the seen, by which are seen
        for i in range(n):
            gone, known = np.flatnonzero(~seen[i]), np.flatnonzero(seen[i])
            if not len(gone):
                continue
            if (pattern := seen[i].tobytes()) not in laws:
                weights = np.linalg.solve(omega[np.ix_(known, known)], omega[np.ix_(known, gone)])
                left = omega[np.ix_(gone, gone)] - omega[np.ix_(gone, known)] @ weights
                laws[pattern] = weights, np.linalg.cholesky(left)
            weights, root = laws[pattern]
            z[i, gone] = z[i, known] @ weights + root @ rng.standard_normal(len(gone))
        for j in range(p):
            observed = np.sort(x[seen[:, j], j])
            scores = np.sort(z[seen[:, j], j])
            missing = ~seen[:, j]
            completed[missing, j] = np.interp(z[missing, j], scores, observed)
            # Beyond the largest observed score the map is not known: keep the order of scores.
            for at, end in ((z[:, j] < scores[0], 0), (z[:, j] > scores[-1], -1)):
                at &= missing
                completed[at, j] = observed[end] + z[at, j] - scores[end]
            z[:, j] = normal_scores(completed[:, j])
        for j in range(p):
            for k in range(j):
                omega[j, k] = omega[k, j] = rank_correlation(completed[:, j], completed[:, k])
    return omega


def normal_scores(values):
    return norm.ppf((np.argsort(np.argsort(values)) + 0.5) / len(values))


def rank_correlation(a, b):
    ranks = [np.argsort(np.argsort(v)) for v in (a, b)]
    return 2 * math.sin(math.pi / 6 * np.corrcoef(*ranks)[0, 1])


def dense_flips(n, flip, stream):
    """The noise that is handed in: the whole matrix f_ij of the bits that `flip_sums` counts."""
    found = np.zeros((n + 256, n + 5000), dtype=np.int8)
    for first, left, bits in flip_tiles(n, flip, stream):
        ones = np.unpackbits(bits.copy().view(np.uint8), axis=1, bitorder="little")
        found[first : first + 256, left : left + ones.shape[1]] += ones
    assert not np.triu(found).any()
    assert not found[n:].any()
    assert not found[:, n:].any()
    return found[:n, :n]
