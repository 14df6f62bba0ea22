"""The graphical model by brute force: the whole joint table, fitted cell by cell."""

import numpy as np


def largest_entropy(sizes, tables, sweeps=3000):
    """Fit a joint table to consistent tables of some columns, by iterative proportional fitting.

    Deming and Stephan (1940): begun at the uniform table it ends at the one of largest entropy
    among those with these margins. Shapes: tables: by columns; returns ``sizes``.
    """
    joint = np.full(sizes, 1.0 / np.prod(sizes))
    for _ in range(sweeps):
        for columns, goal in tables.items():
            others = tuple(v for v in range(len(sizes)) if v not in columns)
            sums = joint.sum(axis=others, keepdims=True)
            shape = [sizes[v] if v in columns else 1 for v in range(len(sizes))]
            joint = joint * np.where(sums > 0, goal.reshape(shape) / np.maximum(sums, 1e-300), 0.0)
    return joint


def margin(joint, columns):
    """Return the table of some columns, ascending, of a joint table."""
    return joint.sum(axis=tuple(v for v in range(joint.ndim) if v not in columns))
