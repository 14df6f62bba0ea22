"""Attacks on the span of the vectors in a view: fits, probes and gradients add up to columns."""

import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from sklearn.linear_model import OrthogonalMatchingPursuit

from flwr_vertical.arrays import Array, Flags, Indices
from simulations.attacks.score import Guess
from simulations.attacks.vectors import Family, basis, restrict, row_sets
from simulations.attacks.views import View

_MOST_SETS = 12  # of rows; the largest, and those that one party has alone
_MOST_SINGLE = 24  # vectors of a family, spread over its rounds
_FULL = 0.4  # a span of more dimensions than this share of the rows fits anything
_SPARSE = 4  # vectors of a sparse combination
_MOST_FLAG_DIMENSIONS = 24
_NULL = 1e-7


def single_vectors(found: list[Family]) -> Iterator[Guess]:
    """Guess that a vector is a column, up to origin and unit: no knowledge needed."""
    for family in found:
        n_vectors = family.values.shape[1]
        chosen = np.unique(np.linspace(0, n_vectors - 1, min(n_vectors, _MOST_SINGLE)).astype(int))
        yield from (Guess(family.rows, family.values[:, j]) for j in chosen)


def known_rows(
    view: View, found: list[Family], truth: Mapping[str, pd.DataFrame]
) -> Iterator[Guess]:
    """Learn columns on half of the rows, and guess them on the others.

    The attacker knows half of the cells: the strongest form of every linear attack, since it needs
    neither coefficients nor moments. What it finds was in the span.
    """
    rng = np.random.default_rng(0)
    for rows in chosen_sets(view, found):
        vectors = joined(view, found, rows)
        parts = [p for f in found if (p := restrict(f, rows)) is not None]
        half = rng.permutation(len(rows)) < len(rows) // 2
        for party, frame in truth.items():
            if party == view.who:
                continue
            here = frame.iloc[rows].to_numpy(dtype=float)
            known = ~np.isnan(here).any(axis=1)
            if (known & half).sum() < 8 or not (known & ~half).any():
                continue
            for j, name in enumerate(frame):
                for values in _learned(vectors, parts, here[:, j], known & half):
                    guess = np.where(known & ~half, values, np.nan)
                    yield Guess(rows, guess, (party, str(name)), affine=False)


def flags_in_span(view: View, found: list[Family]) -> Iterator[Guess]:
    """Find vectors of two values in the span: b b = b is linear in the products of a basis."""
    for rows in chosen_sets(view, found):
        parts = [p for f in found if (p := restrict(f, rows)) is not None]
        for span in [joined(view, found, rows), *_spans(parts)]:
            yield from (Guess(rows, flag) for flag in two_valued(span))


def _spans(parts: list[Array]) -> Iterator[Array]:
    """Iterate over spans of families, also without directions that fixed point may have made."""
    for part in parts:
        fine = basis(part)
        yield fine
        if (coarse := basis(part, tol=1e-6)).shape[1] < fine.shape[1]:
            yield coarse


def two_valued(span: Array) -> list[Array]:
    """Return vectors of two values in ``1`` and a span.

    For ``b = a0 + U a``, ``b b = b`` reads ``(U a)^2 + (2 a0 - 1) U a + a0^2 - a0 = 0``: linear in
    the products of columns of U, in U and in 1. Each such b gives a quadratic form ``a a'`` in the
    null space, and two mixtures of these forms have the vectors a as generalised eigenvectors.

    Shapes: span (n_rows, n_dimensions): orthonormal, centred; returns (n_rows,): zeros and ones,
    up to complement; NaN in rows that nothing is said of.
    """
    # A row with a direction of its own makes every product with it linear; what the span says of
    # the other rows does not need it.
    alone = (span**2).sum(axis=1) + 1 / len(span) > 1 - 1e-6
    if alone.any() and not alone.all():
        found = []
        for flag in two_valued(basis(span[~alone], tol=1e-5)):
            whole = np.full(len(span), np.nan)
            whole[~alone] = flag
            found.append(whole)
        return found
    n_rows, r = span.shape
    upper = np.triu_indices(r)
    if not 0 < r <= _MOST_FLAG_DIMENSIONS or n_rows < 1.2 * (len(upper[0]) + r + 1):
        return []
    unit = span * np.sqrt(n_rows)
    products = unit[:, upper[0]] * unit[:, upper[1]]
    design = np.column_stack([products, unit, np.ones(n_rows)])
    size, right = np.linalg.eigh(design.T @ design / n_rows)
    null = right[:, size < _NULL]
    if not null.shape[1]:
        return []
    forms = np.zeros((null.shape[1], r, r))
    forms[:, upper[0], upper[1]] = null[: len(upper[0])].T / 2
    forms = forms + np.swapaxes(forms, 1, 2)
    rng = np.random.default_rng(0)
    one, other = (np.tensordot(rng.normal(size=len(forms)), forms, 1) for _ in range(2))
    vectors = np.linalg.eig(one @ np.linalg.pinv(other, rcond=1e-6))[1]
    found = []
    for column in np.real(vectors).T:
        values = unit @ column
        reach = np.ptp(values)
        level = (values - values.min()) / (reach or 1.0)
        if reach > 1e-6 and np.minimum(level, 1 - level).max() < 1e-3:
            found.append(level.round())
    return found


def chosen_sets(view: View, found: list[Family]) -> list[Indices]:
    """Return the sets of rows to attack: the largest, and rows that one party has alone."""
    have = {family.rows.tobytes() for family in found}
    alone = view.mask.sum(axis=1) == view.mask.shape[1] - 1
    sets = [np.sort(rows) for rows in row_sets(view)]
    first = [rows for rows in sets if rows.tobytes() in have]
    lone = [rows for rows in sets if alone[rows].all()]
    chosen = {rows.tobytes(): rows for rows in [*first, *lone]}
    return list(chosen.values())[:_MOST_SETS]


def joined(view: View, found: list[Family], rows: Indices) -> Array:
    """Return a basis of all vectors over some rows, without families that fill the space."""
    parts = []
    for family in found:
        part = restrict(family, rows)
        if part is not None:
            reduced = basis(part)
            if reduced.shape[1] <= _FULL * len(rows):
                parts.append(reduced)
    if view.own is not None:
        own = view.own.iloc[rows].to_numpy(dtype=float)
        parts.append(basis(own[:, ~np.isnan(own).any(axis=0)]))
    if view.labels is not None and not np.isnan(view.labels[rows]).any():
        parts.append(basis(view.labels[rows][:, None]))
    return basis(np.hstack(parts)) if parts else np.zeros((len(rows), 0))


def _learned(vectors: Array, parts: list[Array], target: Array, train: Flags) -> Iterator[Array]:
    """Predict a column from all vectors by least squares, and from a few of many vectors."""
    if 0 < vectors.shape[1] <= 0.8 * train.sum():
        design = np.column_stack([np.ones(len(vectors)), vectors])
        yield design @ np.linalg.lstsq(design[train], target[train], rcond=1e-12)[0]
    if np.ptp(target[train]) == 0.0:
        return
    for part in parts:
        part = part[:, np.ptp(part, axis=0) > 0]  # over these rows some vectors are constant
        if min(2, _SPARSE) <= part.shape[1] and part.shape[1] > _FULL * len(part):
            scaled = (part - part.mean(axis=0)) / part.std(axis=0)
            model = OrthogonalMatchingPursuit(n_nonzero_coefs=_SPARSE)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # vectors that others explain
                model.fit(scaled[train], target[train])
            yield model.predict(scaled)
