"""A graphical model of columns of levels: fitted to tables of counts, and drawn from.

The model is the distribution of largest entropy among those that fit the tables best (McKenna,
Sheldon and Miklau 2019, "Graphical-model based estimation and inference for differential privacy",
Algorithm 1: mirror descent); its cliques are those of a junction tree of the pairs of columns.
`JunctionTree` orders these, messages between them give marginals (Shafer and Shenoy's form), and
`sample` draws from the root down, each time as many rows as the model expects, up to one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from flwr_vertical.arrays import Array, Integers

Clique = tuple[int, ...]

_STEPS = 500
_TURNS = 25  # halvings of a step
_SETTLED = 1e-5  # of the loss


@dataclass(frozen=True)
class Counted:
    """A table of counts with noise."""

    shares: Array  # (size, ...): an axis for each column of the clique; they add up to about 1
    sigma: float  # Standard deviation of each share


def average(tables: Sequence[Counted]) -> Counted:
    """Return the mean of tables of the same columns, weighted by their noise."""
    weights = np.array([table.sigma**-2 for table in tables])
    shares = sum(w * table.shares for w, table in zip(weights, tables, strict=True))
    return Counted(np.asarray(shares / weights.sum()), float(weights.sum() ** -0.5))


class JunctionTree:
    """Cliques that hold all given sets of columns, in an order in which parents come first.

    `cliques` have their columns ascending; `parents` are places, -1 of the root; `separators` are
    what a clique shares with its parent, nothing where columns are independent.
    """

    def __init__(self, sizes: Sequence[int], sets: Sequence[Clique]) -> None:
        self.sizes = tuple(sizes)
        made = _eliminate(sizes, sets)
        order, self.parents = [0], [-1]
        self.separators: list[Clique] = [()]
        # Prim's algorithm: the spanning tree with the largest separators.
        nearest = {i: (len(made[i] & made[0]), 0) for i in range(1, len(made))}
        while nearest:
            i = max(nearest, key=lambda i: (nearest[i][0], -i))
            place = nearest.pop(i)[1]
            self.parents.append(place)
            self.separators.append(tuple(sorted(made[i] & made[order[place]])))
            order.append(i)
            for j, (most, _) in nearest.items():
                if (shared := len(made[i] & made[j])) > most:
                    nearest[j] = shared, len(order) - 1
        self.cliques: list[Clique] = [tuple(sorted(made[i])) for i in order]

    def home(self, columns: Clique) -> int:
        """Return the place of the smallest clique that holds columns."""
        holding = [i for i, clique in enumerate(self.cliques) if set(columns) <= set(clique)]
        return min(holding, key=lambda i: prod(self.sizes[v] for v in self.cliques[i]))

    def shape(self, columns: Sequence[int], among: Sequence[int]) -> list[int]:
        """Return the shape in which a table of columns goes with one of more columns."""
        return [self.sizes[v] if v in columns else 1 for v in among]


def model_cells(sizes: Sequence[int], sets: Sequence[Clique]) -> int:
    """Return how many cells the cliques of a junction tree of these sets have together."""
    return sum(prod(sizes[v] for v in clique) for clique in _eliminate(sizes, sets))


def _eliminate(sizes: Sequence[int], sets: Sequence[Clique]) -> list[frozenset[int]]:
    """Return the cliques of taking out columns, each time the one with fewest cells."""
    near: list[set[int]] = [{v} for v in range(len(sizes))]
    for columns in sets:
        for v in columns:
            near[v] |= set(columns)
    cells = {v: prod(sizes[u] for u in near[v]) for v in range(len(sizes))}
    made: list[frozenset[int]] = []
    while cells:
        v = min(cells, key=lambda v: (cells[v], v))
        clique = frozenset(near[v])
        del cells[v]
        for u in clique - {v}:
            near[u] |= clique
            near[u].discard(v)
            cells[u] = prod(sizes[w] for w in near[u])
        if not any(clique <= other for other in made):
            made.append(clique)
    return made


class GraphicalModel:
    """A distribution over columns of levels, of which some sets depend on each other directly."""

    def __init__(self, sizes: Sequence[int], sets: Sequence[Clique]) -> None:
        self.tree = JunctionTree(sizes, sets)
        self.theta: dict[Clique, Array] = {}
        self._beliefs: list[Array] = []

    def fit(
        self,
        tables: Mapping[Clique, Counted],
        start: Mapping[Clique, Array] | None = None,
        steps: int = _STEPS,
    ) -> "GraphicalModel":
        """Fit tables by least squares, weighted by noise, in steps of mirror descent; return self.

        `start`: ``theta`` of a model of fewer tables. The columns of a table are in one clique.
        """
        homes = {columns: self.tree.home(columns) for columns in tables}
        weights = {columns: table.sigma**-2 for columns, table in tables.items()}
        least = 1.0 / max(weights.values())
        weights = {columns: weight * least for columns, weight in weights.items()}
        begun = start or {}
        theta = {c: begun.get(c, np.zeros(table.shares.shape)) for c, table in tables.items()}

        def look(theta: Mapping[Clique, Array]) -> tuple[list[Array], dict[Clique, Array], float]:
            beliefs = self._messages(theta, homes)
            errors = {
                c: self._sum(beliefs[i], self.tree.cliques[i], c) - tables[c].shares
                for c, i in homes.items()
            }
            loss = sum(weights[c] * float(np.square(e).sum()) for c, e in errors.items()) / 2
            return beliefs, errors, loss

        beliefs, errors, loss = look(theta)
        size = 1.0
        for _ in range(steps):
            for _ in range(_TURNS):
                tried = {c: theta[c] - size * weights[c] * e for c, e in errors.items()}
                found = look(tried)
                fall = sum(
                    weights[c] * float((e * (e - found[1][c])).sum()) for c, e in errors.items()
                )
                if loss - found[2] >= fall / 2:
                    break
                size /= 2
            settled = loss - found[2] < _SETTLED * loss
            if found[2] <= loss:
                theta, (beliefs, errors, loss) = tried, found
            size *= 1.5
            if settled:
                break
        self.theta, self._beliefs = dict(theta), beliefs
        return self

    def pairs(self) -> dict[Clique, Array]:
        """Return the distribution of every pair of columns, by both, ascending."""
        tree, near = self.tree, self._neighbours()
        found: dict[Clique, Array] = {}
        for v, size in enumerate(tree.sizes):
            start = tree.home((v,))
            axis = tree.cliques[start].index(v)
            joint = np.zeros((size, *self._beliefs[start].shape))
            each = np.arange(size)
            np.moveaxis(joint, axis + 1, 1)[each, each] = np.moveaxis(self._beliefs[start], axis, 0)
            waiting = [(start, -1, joint)]
            while waiting:
                i, before, joint = waiting.pop()
                clique = tree.cliques[i]
                for axis, u in enumerate(clique):
                    if u > v and (v, u) not in found:
                        others = tuple(x + 1 for x in range(len(clique)) if x != axis)
                        found[v, u] = joint.sum(axis=others)
                for j, shared in near[i]:
                    if j == before:
                        continue
                    carried = self._sum(joint, (-1, *clique), (-1, *shared))
                    carried = carried.reshape([size, *tree.shape(shared, tree.cliques[j])])
                    waiting.append((j, i, carried * self._given(j, shared)))
        return found

    def sample(self, n_rows: int, rng: np.random.Generator) -> Integers:
        """Draw rows, array of shape (n_rows, n_columns).

        Of every value of a clique there are as many rows as expected given its parent, to one.
        """
        tree = self.tree
        out = np.zeros((n_rows, len(tree.sizes)), dtype=np.int64)
        for i, (clique, shared) in enumerate(zip(tree.cliques, tree.separators, strict=True)):
            new = [v for v in clique if v not in shared]
            columns: Clique = (*shared, *new)
            axes = [clique.index(v) for v in columns]
            given = self._given(i, shared).transpose(axes)
            table = given.reshape(prod(tree.sizes[v] for v in shared), -1)
            of_row = np.zeros(n_rows, dtype=np.int64)
            for v in shared:
                of_row = of_row * tree.sizes[v] + out[:, v]
            counts = np.bincount(of_row, minlength=len(table))
            ends = np.cumsum(table, axis=1) * counts[:, None]
            ends = np.floor(ends + rng.random((len(table), 1)))
            ends[:, -1] = counts
            each = np.diff(np.minimum(ends, counts[:, None]), axis=1, prepend=0.0).astype(np.int64)
            cell = np.repeat(np.tile(np.arange(table.shape[1]), len(table)), each.ravel())
            found = np.empty(n_rows, dtype=np.int64)
            found[np.lexsort((rng.random(n_rows), of_row))] = cell
            for v in reversed(new):
                found, out[:, v] = np.divmod(found, tree.sizes[v])
        return out

    def _given(self, i: int, shared: Clique) -> Array:
        """Return the distribution of a clique given what it shares, even where that has none."""
        clique, beliefs = self.tree.cliques[i], self._beliefs[i]
        total = self._sum(beliefs, clique, shared).reshape(self.tree.shape(shared, clique))
        cells = prod(self.tree.sizes[v] for v in clique if v not in shared)
        return np.where(total > 0, beliefs / np.where(total > 0, total, 1.0), 1.0 / cells)

    def _neighbours(self) -> list[list[tuple[int, Clique]]]:
        near: list[list[tuple[int, Clique]]] = [[] for _ in self.tree.cliques]
        for i, (parent, shared) in enumerate(
            zip(self.tree.parents, self.tree.separators, strict=True)
        ):
            if parent >= 0:
                near[i].append((parent, shared))
                near[parent].append((i, shared))
        return near

    def _messages(self, theta: Mapping[Clique, Array], homes: Mapping[Clique, int]) -> list[Array]:
        """Return the distribution of each clique: messages to the root and back, in logarithms."""
        tree = self.tree
        logs = [np.zeros([tree.sizes[v] for v in clique]) for clique in tree.cliques]
        for columns, value in theta.items():
            clique = tree.cliques[homes[columns]]
            logs[homes[columns]] += value.reshape(tree.shape(columns, clique))
        up = {}
        for i in range(len(logs) - 1, 0, -1):
            shared, parent = tree.separators[i], tree.parents[i]
            up[i] = _log_sum(logs[i], tree.cliques[i], shared)
            logs[parent] += up[i].reshape(tree.shape(shared, tree.cliques[parent]))
        for i in range(1, len(logs)):
            shared, parent = tree.separators[i], tree.parents[i]
            down = _log_sum(logs[parent], tree.cliques[parent], shared) - up[i]
            logs[i] += down.reshape(tree.shape(shared, tree.cliques[i]))
        found = []
        for table in logs:
            table = np.exp(table - table.max())
            found.append(table / table.sum())
        return found

    @staticmethod
    def _sum(table: Array, columns: Sequence[int], kept: Sequence[int]) -> Array:
        axes = tuple(axis for axis, v in enumerate(columns) if v not in kept)
        return table.sum(axis=axes) if axes else table


def _log_sum(table: Array, columns: Sequence[int], kept: Sequence[int]) -> Array:
    axes = tuple(axis for axis, v in enumerate(columns) if v not in kept)
    if not axes:
        return table
    top = table.max(axis=axes, keepdims=True)
    return np.asarray(np.log(np.exp(table - top).sum(axis=axes)) + top.squeeze(axes))
