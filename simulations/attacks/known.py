"""Attacks with what the server knows beside vectors: coefficients, and moments of the columns."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flwr_vertical.arrays import Array, Integers
from simulations.attacks.opened import Opened, opened_of
from simulations.attacks.score import Guess
from simulations.attacks.span import joined
from simulations.attacks.vectors import Family, basis, restrict
from simulations.attacks.views import RESULT, View

_CONDITION = 1e10
_UNKNOWN = 1e-6
_MOST_COLUMNS = 200  # of a party; longer arrays are no coefficients


def known_coefficients(view: View, found: list[Family]) -> Iterator[Guess]:
    """Solve ``F = X B`` for X, where a view has as many fits F as coefficients B."""
    for coefficients in _coefficients(view):
        if np.linalg.matrix_rank(coefficients) < len(coefficients):
            continue
        if np.linalg.cond(coefficients) > _CONDITION:
            continue
        inverse = np.linalg.pinv(coefficients)
        for family in _fits(view, found, coefficients.shape[1]):
            yield from (Guess(family.rows, column) for column in (family.values @ inverse).T)


def moments_and_span(view: View, found: list[Family]) -> Iterator[Guess]:
    """Turn a basis of the columns' span into the columns, by their second moments.

    ``X = U Q R`` with ``R'R = X'X`` known and Q a rotation. Fits with known coefficients and
    products of columns with known vectors say where Q sends vectors (Schoenemann, 1966).
    """
    for opened in opened_of(view):
        rows = np.flatnonzero(opened.group >= 0)
        gram, sums = opened.products.sum(axis=0), opened.sums.sum(axis=0)
        span = joined(replace(view, labels=None), found, rows)
        if not 0 < span.shape[1] == len(gram):
            continue
        centred = gram - np.outer(sums, sums) / len(rows)
        if np.linalg.eigvalsh(centred)[0] <= 1e-9 * np.trace(centred):
            continue
        root = np.linalg.cholesky(centred).T
        pairs = _sent_to(view, found, rows, span, root, opened)
        if pairs is None:
            continue
        left, size, right = np.linalg.svd(pairs[1] @ pairs[0].T)
        for sign in (1.0, -1.0) if size[-1] < _UNKNOWN * size[0] else (1.0,):
            left[:, -1] *= sign  # a single direction that no pair says anything of has two signs
            columns = span @ (left @ right) @ root
            yield from (Guess(rows, column) for column in columns.T)


def _sent_to(
    view: View, found: list[Family], rows: Integers, span: Array, root: Array, opened: Opened
) -> tuple[Array, Array] | None:
    """Return vectors before and after the rotation."""
    before, after = [], []
    for coefficients in _coefficients(view):
        for family in _fits(view, found, coefficients.shape[1]):
            values = restrict(family, rows)
            if values is not None and len(coefficients) == len(root):
                before.append(root @ coefficients)
                after.append(span.T @ values)
    if opened.vectors.shape[1]:
        vectors = opened.vectors[rows] - opened.vectors[rows].mean(axis=0)
        means = np.outer(opened.sums.sum(axis=0), opened.vectors[rows].mean(axis=0))
        before.append(np.linalg.solve(root.T, opened.with_vectors.sum(axis=0) - means))
        after.append(span.T @ vectors)
    return (np.hstack(before), np.hstack(after)) if before else None


def _coefficients(view: View) -> Iterator[Array]:
    """Iterate over matrices (n_columns, n_fits) of coefficients of all parties' columns."""
    named: dict[tuple[str, str, str], dict[str, list[Array]]] = {}
    for item in view.items:
        value = item.value
        if item.other not in view.parties or not isinstance(value, np.ndarray):
            continue
        if value.dtype.kind == "f" and value.ndim in (1, 2) and 0 < len(value) <= _MOST_COLUMNS:
            key = (item.step, item.name, item.way)
            named.setdefault(key, {}).setdefault(item.other, []).append(value)
    for by_party in named.values():
        if set(by_party) != set(view.parties):
            continue
        turns = min(map(len, by_party.values()))
        matrices = [
            np.concatenate([by_party[p][-turn] for p in view.parties])
            for turn in range(turns, 0, -1)
            if len({by_party[p][-turn].shape[1:] for p in view.parties}) == 1
        ]
        if not matrices:
            continue
        if matrices[-1].ndim == 2:
            yield matrices[-1]
        elif len({len(m) for m in matrices}) == 1:
            yield np.column_stack(matrices)
    for item in view.items:
        if item.way == RESULT and np.ndim(item.value) == 2:
            yield np.asarray(item.value, dtype=float).T


def _fits(view: View, found: list[Family], n_fits: int) -> Iterator[Family]:
    """Iterate over vectors that may be the fits of so many columns of coefficients."""
    for item in view.items:
        value = item.value
        if item.ring or not isinstance(value, np.ndarray) or value.ndim != 2:
            continue
        if value.dtype.kind == "f" and value.shape[1] == n_fits:
            for rows in {f.rows.tobytes(): f.rows for f in found}.values():
                if len(rows) == len(value):
                    yield Family(item.name, rows, value - value.mean(axis=0))
    for family in found:  # one vector a round
        if family.values.shape[1] == n_fits and basis(family.values).shape[1] > 0:
            yield Family(family.key, family.rows, family.values - family.values.mean(axis=0))
