"""Trees: what server, parties and arbiter work out of the sides of splits, and of gains.

* The server knows the bin of each split and the side of each row: what codes a cell can still have.
* A party sees in which node each labelled row is, above the last split. It guesses labels by the
  eigenvectors of rows that share nodes, or by the nodes of 50 rows whose labels it knows.
* The arbiter sees the sums behind gains, each times a factor of its own.
* With open histograms the server has sums of its gradients over the bins of every node: equations
  of 0 and 1 for each bin, solved by least squares.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds
from sklearn.metrics import roc_auc_score

from flwr_vertical import Result, Strategy, Table
from flwr_vertical.arrays import Array, Bytes, Flags, Indices
from simulations.attacks.recording import Recording, record
from simulations.attacks.views import GOT, SENT, SERVER, View, views_of
from strategies.trees import arbiter as comparing
from strategies.trees.binning import unpacked
from strategies.trees.blinding import Factors
from strategies.trees.boosting import Grower
from strategies.trees.gain import Candidates, best_of, layouts_of, signed
from strategies.trees.model import TreePart
from strategies.trees.node_sums import nodes_below
from strategies.trees.rounds import LevelNodes, LevelRounds

_KNOWN = 50  # labels that a party may know


@dataclass
class TreesRun:
    """A recorded run, and what server and arbiter work with."""

    run: Recording
    # (g, h, node, active): of each level of a batch of trees: derivatives and nodes of shape
    # (n_trees, n_samples), and numbers of the nodes whose histograms are made
    levels: list[tuple[Array, Array, Indices, Indices]] = field(default_factory=list)
    # (numerator, left, right, legal): what the arbiter compared, each of shape (n_nodes,
    # n_candidates)
    compared: list[tuple[Array, Array, Array, Flags]] = field(default_factory=list)


def record_trees(
    strategy: Strategy, tables: Mapping[str, Any], labels: Any, **options: Any
) -> TreesRun:
    """Run a strategy of trees; keep all that passes, and what is summed and compared."""
    levels: list[Any] = []
    compared: list[Any] = []
    batch: list[Any] = [None, None]
    grow_of, winners_of = Grower.grow, LevelRounds.winners

    def grow(self: Grower, g: Array, h: Array, *args: Any) -> Any:
        batch[:] = [g, h]
        return grow_of(self, g, h, *args)

    def winners(self: LevelRounds, nodes: LevelNodes, *args: Any) -> Any:
        levels.append((*batch, nodes.node, nodes.active))
        return winners_of(self, nodes, *args)

    def best(*sums: Any) -> Any:
        compared.append(sums)
        return best_of(*sums)

    with (
        patch.object(Grower, "grow", grow),
        patch.object(LevelRounds, "winners", winners),
        patch.object(comparing, "best_of", best),
    ):
        run = record(strategy, tables, labels, **options)
    return TreesRun(run, levels, compared)


# -- the server -------------------------------------------------------------------------------


def possible_codes(trees: TreesRun) -> dict[str, list[Flags]]:
    """Return which codes each cell can still have, as far as the server knows.

    Shapes: returns (n_samples, n_codes): by party, of each of its columns.
    """
    view = views_of(trees.run)[SERVER]
    found = {}
    for name, part in parts_of(trees.run).items():
        layout = part.bins.layout
        kept = {(int(tree), int(node)): rest for tree, node, *rest in part.splits}
        possible = [np.ones((view.n_samples, bins + 1), dtype=bool) for bins in layout.n_bins]
        for names, split, left in _sides(view, name):
            for i, place in enumerate(names.tolist()):
                column, at, missing_left = kept[tuple(place)]
                codes = np.arange(layout.n_bins[column] + 1, dtype=np.uint8)
                goes = layout.goes_left(codes, column, at, missing_left > 0)
                tree, rows = np.nonzero(split == i)
                possible[column][rows] &= left[tree, rows][:, None] == goes
        found[name] = possible
    return found


def bits_told(trees: TreesRun) -> tuple[float, float, float]:
    """Return what the server knows of codes."""
    positions = views_of(trees.run)[SERVER].positions
    told, whole, known = [], [], []
    for name, columns in possible_codes(trees).items():
        for codes in columns:
            count = codes[positions[name]].sum(axis=1)
            most = np.log2(codes.shape[1])
            told.append(float(np.mean(most - np.log2(count))))
            whole.append(float(most))
            known.append(float(np.mean(count == 1)))
    return float(np.mean(told)), float(np.mean(whole)), float(np.mean(known))


def true_codes(trees: TreesRun) -> dict[str, Bytes]:
    """Return the codes of all samples by party, of shape (n_samples, n_columns)."""
    view = views_of(trees.run)[SERVER]
    found = {}
    for name, part in parts_of(trees.run).items():
        missing = np.array(part.bins.layout.n_bins, dtype=np.uint8)
        found[name] = np.tile(missing, (view.n_samples, 1))
        table = Table.of(trees.run.tables[name], party=name)
        found[name][view.positions[name]] = part.bins.codes(table, name)
    return found


def bins_recovered(trees: TreesRun) -> float:
    """Return the share of codes of fitted rows that follow from open histograms."""
    rows = np.unique(np.concatenate([np.nonzero(node >= 0)[1] for *_, node, _ in trees.levels]))
    place = np.full(trees.levels[0][2].shape[1], -1)
    place[rows] = np.arange(len(rows))
    equations = []
    for g, h, node, active in trees.levels:
        for q in active:
            tree, inside = np.nonzero(node == q)
            for values in (g, h):
                line = np.zeros(len(rows))
                line[place[inside]] = values[tree, inside]
                equations.append(line)
    design, right = np.array(equations), []
    for codes in true_codes(trees).values():
        for true in codes[rows].T:
            sums = design @ (true[:, None] == np.arange(int(codes.max()) + 1))
            found = np.linalg.lstsq(design, sums)[0]
            right.append(float(np.mean(found.argmax(axis=1) == true)))
    return float(np.mean(right))


# -- a party ----------------------------------------------------------------------------------


def labels_guessed(trees: TreesRun) -> tuple[float, float]:
    """Return the best party's AUC of labels of 0 and 1, from no label and from 50 that it knows."""
    views = views_of(trees.run)
    labels = views[SERVER].labels
    assert labels is not None
    told = [guess_labels(_last_nodes(views[name]), labels) for name in views[SERVER].parties]
    return max(blind for blind, _ in told), max(known for _, known in told)


def guess_labels(last: list[Indices], labels: Array) -> tuple[float, float]:
    """Return AUC of guesses from the nodes that rows are in.

    Shapes: last (n_samples,): of each tree, a number of the last node that is seen; 0 for rows
    that are not fitted; labels (n_samples,): 0 and 1; NaN where there is none.
    """
    rows = np.flatnonzero(~np.isnan(labels))
    y, n = labels[rows], len(rows)
    blocks = []
    for node in last:
        _, number, count = np.unique(node[rows], return_inverse=True, return_counts=True)
        blocks.append(sp.csr_matrix((1.0 / np.sqrt(count[number]), (np.arange(n), number))))
    z = sp.hstack(blocks).tocsr()
    degree = np.asarray(z @ np.asarray(z.sum(axis=0)).ravel())
    vectors = svds(sp.diags(1 / np.sqrt(degree)) @ z, min(4, min(z.shape) - 1), random_state=0)[0]
    blind = max(abs(roc_auc_score(y, v / np.sqrt(degree)) - 0.5) for v in vectors.T[:-1]) + 0.5
    some = np.random.default_rng(8).permutation(n)[:_KNOWN]
    score = z @ (z[some].T @ (y[some] - y[some].mean()))
    others = np.setdiff1d(np.arange(n), some)
    return float(blind), float(roc_auc_score(y[others], score[others]))


# -- the arbiter ------------------------------------------------------------------------------


def seen_by_arbiter(trees: TreesRun) -> tuple[float, float, float, float]:
    """Return how what the arbiter sees goes with the sums behind it.

    Returns
    -------
    tuple[float, float, float, float]
        The share of equal signs; the mean correlation with the sums, without its sign; mean and
        standard deviation of that mean over random signs, which is what chance gives.
    """
    rng = np.random.default_rng(0)
    right, correlations, by_chance = [], [], []
    factors = _factors(views_of(trees.run)[SERVER])
    for (numerator, _, _, legal), own in zip(trees.compared, factors, strict=True):
        scale = signed(own.placed(own.numerator)).astype(np.float64)
        for q, marks in enumerate(legal):
            seen, true = numerator[q][marks], (numerator[q] / scale[q])[marks]
            right += (np.sign(seen) == np.sign(true)).tolist()
            if len(seen) >= 10 and np.ptp(true) > 0:
                drawn = np.abs(seen) * rng.choice([-1.0, 1.0], (200, len(seen)))
                found = np.abs(np.corrcoef(np.vstack([true, seen, drawn]))[0, 1:])
                correlations.append(found[0])
                by_chance.append(found[1:])
    chance = np.mean(by_chance, axis=0)
    return (
        float(np.mean(right)), float(np.mean(correlations)), float(chance.mean()),
        float(chance.std()),
    )  # fmt: skip


# -- what travelled ---------------------------------------------------------------------------


def parts_of(run: Recording) -> dict[str, TreePart]:
    """Return the splits of every party, of a fit or of the fit that is predicted with."""
    fitted: Result = run.result
    if not fitted._party_models:
        fitted = run.strategy.model  # type: ignore[attr-defined]
    return {name: TreePart.from_bytes(data) for name, data in fitted._party_models.items()}


def _sides(view: View, party: str) -> Iterator[tuple[Indices, Indices, Flags]]:
    """Iterate over a party's answers: names of splits, which one rows come to, which go left."""
    asked: dict[str, Any] = {}
    node, fit = np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0), dtype=bool)
    for item in view.items:
        if item.other != party or item.step not in ("share", "route", "sides"):
            continue
        if item.way == SENT:
            asked[item.name] = item.value
        elif item.way == GOT and item.name == "owner":  # of a fit: a level begins
            node, begins = _node(view, asked, node)
            fit = node >= 0 if begins else fit
        elif item.way == GOT and item.name == "left":
            if item.step == "route":
                split = np.full(node.shape, -1, dtype=np.int64)
                for i, q in enumerate(np.asarray(asked["nodes"]).tolist()):
                    split[node == q] = i
                split[~fit] = unpacked(np.asarray(asked["others"]), int((~fit).sum()))[0]
            else:
                split = np.asarray(asked["split"])
            left = np.zeros(split.shape, dtype=bool)
            comes = split >= 0
            left[comes] = np.unpackbits(item.value, count=int(comes.sum())) == 1
            yield np.asarray(asked["names"]), split, left


def _last_nodes(view: View) -> list[Indices]:
    """Return, of each tree, the last node that a party saw each row in, as a number above 0."""
    found: list[Indices] = []
    of_round = _shares(view, GOT)
    now: list[Indices] = []
    node = np.zeros((0, 0), dtype=np.int64)
    for depth, at in enumerate(sorted(of_round)):
        node, begins = _node(view, of_round[at], node)
        if begins:
            now = [np.zeros(node.shape[1], dtype=np.int64) for _ in node]
            found += now
        for last, own in zip(now, node, strict=True):
            last[own >= 0] = 1 + own[own >= 0] + (depth << 20)
    return found


def _shares(view: View, way: str) -> dict[int, dict[str, Any]]:
    """Return what was told with requests for shares of histograms, by round."""
    of_round: dict[int, dict[str, Any]] = {}
    for item in view.items:
        if item.step == "share" and item.way == way:
            of_round.setdefault(item.at, {})[item.name] = item.value
    return of_round


def _node(view: View, told: Mapping[str, Any], above: Indices) -> tuple[Indices, bool]:
    """Return which node each row is in, by what a party is told of a level; whether trees begin."""
    parent = np.asarray(told["parent"])
    sides = np.unpackbits(np.asarray(told["sides"]), axis=1, count=view.n_samples)
    return nodes_below(above, parent, sides.astype(bool)).astype(np.int64), bool(parent[0] < 0)


def _factors(view: View) -> list[Factors]:
    """Return the factors of each comparison, which server and helpers have."""
    told = {bytes(args["order"]): args for args in _shares(view, SENT).values()}
    found = []
    for order, args in told.items():
        layouts = layouts_of(np.asarray(args["columns"]), len(args["names"]))
        n_candidates = len(Candidates.of(layouts).numbers)
        found.append(Factors.of(order, np.asarray(args["limits"]), n_candidates))
    return found
