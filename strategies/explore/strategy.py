"""Explore: what parties share, how their variables go together, what labels add; one run.

Sums of products of two parties' columns over the rows that both hold (`products.pairs`) give
correlations, Cramér's V, eta and variance inflation (`associations`); indicators of the cells
observed among the columns give what is missing together.
"""

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.errors import DataError
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.products.pairs import PAIRS_OPENING, PairMoments, PairProducts
from flwr_vertical.products.row_groups import distinct_rows
from flwr_vertical.protocol.declaration import FACTS, Maybe, Protocol, Round
from strategies.binning.label_sums import LabelSums
from strategies.binning.steps import BINS_OPENING, MOST_BINS, TOLD_BINS
from strategies.explore.associations import (
    PartyVariables,
    Pooled,
    by_bin,
    by_variable,
    inflation,
    pairs,
    summaries,
)
from strategies.explore.columns import Variables
from strategies.explore.party import MEASURES, ExploreParty
from strategies.linear import settings as shared
from strategies.linear.moment_party import RECOGNISED, SEED_OF_COLUMNS
from strategies.linear.problem import need_key_stream
from strategies.normal.completion import pairs_apart

_TWO_LIMBS = 4e8
"""Rows times squared columns up to which products are exact to rounding: a second or two."""


class Explore(Strategy):
    """Look at a joint table before anything is fitted: overlap, correlations, missing cells.

    `Result.overlap` has which parties hold the same samples; `Result.variables` what is told of
    each variable, with its variance inflation; `Result.correlations` how every two variables go
    together, over the rows in which both are observed. Nothing is imputed. With labels,
    `Result.information_value` has what each variable tells of them, and how samples without a label
    differ from those with one; `Result.weight_of_evidence` has its bins.

    Notes
    -----
    Numbers have correlations of Pearson and of ranks, levels Cramér's V, numbers by level eta;
    ``gaps`` are correlations of which cells are missing. Ranks are those of the party's own rows:
    where rows are missing, they are not ranked again for each pair of variables. Levels that too
    few rows have count as one, ``other``. A variable of which too few cells are missing to be told
    of counts as its mean, or its most frequent level, there.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> income = rng.normal(size=400)
    >>> bank = pd.DataFrame({"income": income})[:300]
    >>> court = pd.DataFrame({"debts": income + rng.normal(size=400)})[50:]
    >>> result = simulate(Explore(), {"bank": bank, "court": court}, progress=False)
    >>> result.frames["overlap"]["samples"].tolist()
    [250, 100]
    """

    n_bins: int = setting(
        10, "Most bins of a variable for its information value.", at_least=2, at_most=MOST_BINS
    )

    name: ClassVar[str] = "explore"
    uses_labels = True
    needs_parties = 2
    demo = shared.demo(0.2, 0.3, "breast-cancer")
    party = ExploreParty
    protocol = Protocol(
        Round("prepare_exploration", "a public key, numbers of columns and bins", tells=FACTS),
        PAIRS_OPENING,
        Maybe(BINS_OPENING),
        Round("finish_exploration", "nothing", tells=FACTS),
    )
    disclosure = (
        (
            "server",
            "names and kinds of the parties' variables, and names of levels that enough rows have; "
            "a rough unit and level of each; which variables have missing cells, if enough to be "
            "told of",
        ),
        (
            "server",
            "of each party, sums of columns and of products of two of them over its rows; of two "
            "parties, sums of products of their columns over the rows that both hold, and each "
            "one's sums and sums of squares over these. Columns are values, ranks, levels, which "
            "cells are observed, and squares",
        ),
        (
            "server",
            "variables with a level too rare to be told of, at all or with another party's; "
            "parties that share too few rows",
        ),
        TOLD_BINS,
        *RECOGNISED,
        ("every party", "which parties hold each row, and with labels which rows have one"),
        (
            "every party",
            "names of the others' variables, and how its own ones go with them, to n^-1/2",
        ),
        SEED_OF_COLUMNS,
        (
            "a party and its helper together",
            "the labels: one has them under a mask, the other the seed of the mask",
        ),
        ("nobody", "a value of another party; of the parties, a label"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open pairwise moments of values, ranks and levels, and work out how they go together."""
        names, held = federation.parties, ~alignment.mask
        need_key_stream("explore", federation)
        progress.total = 5
        keys = PairKeys(federation)
        labels = _two_or_more(federation.labels, result)
        asked = {"nonce": keys.nonce, "most": 0 if labels is None else self.n_bins}
        prepared = federation.call("prepare_exploration", asked)
        keys.collect(prepared)
        shared = held.T.astype(np.int64) @ held.astype(np.int64)
        ranks, gaps, widths = _what_rows_allow(list(prepared.values()), shared)
        if not widths.any():
            raise DataError(
                "nothing may be told of any variable: each has one value, or values that are too "
                "rare; put levels together, or have every party lower 'min-rows' in its node config"
            )
        if not ranks:
            left = "ranks" if gaps else "ranks, or for telling which cells are missing"
            result.notes.append(
                f"two parties share too few rows for {left}: ten go with each column of a party"
            )
        limbs = 2 if len(held) * int(widths.sum()) ** 2 < _TWO_LIMBS else 1
        group_key = GroupKey(federation, keys)
        products = PairProducts(federation, group_key, limbs)
        progress.step("keys")
        sent = products.send(ranks=ranks, gaps=gaps, shared=shared, widest=int(widths.max()))
        progress.step("columns")
        known = None if labels is None else np.isfinite(labels)
        n_sums = [] if labels is None else [int(prepared[name]["bins"]) + 1 for name in names]
        moments = products.pairs(held, known, n_sums)
        pooled, fewest = _pooled(names, sent, moments), products.min_rows(1, 0)
        del products, sent  # As large as the tables
        progress.step("moments")
        result.frames["overlap"] = overlap_of(held, names, fewest, federation.labels)
        found = pairs(pooled)
        variables = summaries(pooled)
        factors = inflation(pooled)
        variables["vif"] = [factors.get(key, np.nan) for key in variables.index]
        result.frames |= {"variables": variables, "correlations": found}
        if labels is not None and (rows := pooled.moments.beside).any():
            self._open_labels(federation, group_key, labels, held, rows, result)
        elif labels is not None:
            result.notes.append(
                "nothing is told of the labels: too few rows of a party have one, or have none; a "
                "lower 'min-rows' at the nodes would allow it"
            )
        progress.step("labels")
        federation.call("finish_exploration", per_party=_pages(names, pooled, found))
        progress.step("finish")
        # Figures take a second to import.
        from strategies.explore.figures import correlations_figure, overlap_figure

        overlap = result.frames["overlap"]
        result.figures["Who holds the same samples"] = overlap_figure(overlap, names)
        if figure := correlations_figure(found, names):
            result.figures["How variables go together"] = figure
        self._report(result, pooled, found, held)

    def _open_labels(
        self,
        federation: Federation,
        group_key: GroupKey,
        labels: Array,
        held: Flags,
        taken: Flags,
        result: Result,
    ) -> None:
        """Open sums of labels by bin, and say what each variable tells of the labels."""
        from strategies.explore.figures import information_figure

        labels = np.where(taken, labels, np.nan)
        finite = labels[np.isfinite(labels)]
        two = len(np.unique(finite)) == 2
        middle = 0.0 if two else float(finite.mean())  # of large labels, sums keep no digit of eta
        centred = labels - middle
        sums = LabelSums(federation, group_key, 1 if two else 2)
        sums.send_bins(centred, self.n_bins, taken=taken)
        bins = by_bin(sums.open_bins(), finite, middle)
        squares = np.nansum(np.where(held, centred[:, None] ** 2, 0.0), axis=0).tolist()
        found = by_variable(bins, dict(zip(federation.parties, squares, strict=True)), middle)
        result.frames |= {"information_value": found, "weight_of_evidence": bins}
        added = found[[name for name in ("iv", "eta", "psi") if name in found]]
        result.frames["variables"] = result.frames["variables"].join(added)
        if figure := information_figure(found, federation.parties):
            result.figures["What variables tell of the labels"] = figure

    def _report(self, result: Result, pooled: Pooled, found: pd.DataFrame, held: Flags) -> None:
        result.metrics["n_samples"] = float(len(held))
        result.metrics["held_by_all"] = float(held.all(axis=1).mean())
        across = (found["measure"] == "correlation") & (found["party"] != found["other_party"])
        if across.any():
            squares = found.loc[across, "value"].to_numpy(dtype=float) ** 2
            result.metrics["correlation_rms"] = float(np.sqrt(squares.mean()))
        result.party_metrics = {
            part.party: {"rows_held": float(rows), "variables": float(len(part.variables.names))}
            for part, rows in zip(pooled.parts, held.sum(axis=0), strict=True)
        }
        widths = {part.party: part.sums.shape[1] for part in pooled.parts}
        apart = pairs_apart(widths, pooled.moments.apart)
        if apart:
            result.notes.append(
                f"{', '.join(apart)} share too few rows: nothing is told of how their variables go "
                "together"
            )
        if n_left_out := pooled.moments.n_left_out:
            result.notes.append(
                f"{n_left_out:,} rows took no part in the sums, as they could have been told from "
                "others: sets of rows that the same parties hold, or that have no label, that are "
                "too small. A lower 'min-rows' at the nodes would use more of them"
            )
        rows = pooled.moments.beside
        if 0 < (n_chosen := int(rows.sum())) < (n_rows := len(held) - n_left_out):
            result.notes.append(
                f"what is told of the labels is over {n_chosen:,} of {n_rows:,} rows: of the "
                "others, which the same parties hold, too few have a label, or have none"
            )
        for k, part in enumerate(pooled.parts):
            made = part.variables

            def hidden(b: int, k: int = k, made: Variables = made) -> list[str]:
                """Name variables of which nothing is told with those of a party."""
                told, levels = pooled.values_told(k, "value", b), made.n_levels
                return [
                    name
                    for i, name in enumerate(made.names)
                    if not (len(pooled.levels(k, i, b)) if levels[i] > 2 else told[i])
                ]

            never, rare = hidden(k), "a value is too rare"
            few = [name for name, filled in zip(made.names, made.filled, strict=True) if filled]
            said = [
                (never, f"nothing is told of {{}}: {rare}, or there is only one"),
                (few, "missing cells of {} are not told of, and count as the mean or commonest "
                 "level"),
            ]  # fmt: skip
            for b, other in enumerate(widths):
                if not {f"{part.party} and {other}", f"{other} and {part.party}"} & set(apart):
                    also = [name for name in hidden(b) if name not in never]
                    where = f"in the rows that {other} holds, too, or in the others"
                    said.append((also, f"with {other} nothing is told of {{}}: {rare} {where}"))
            for names_of, what in said:
                if names_of:
                    shown = ", ".join(names_of[:10]) + ", ..." * (len(names_of) > 10)
                    result.notes.append(f"{part.party}: {what.format(shown)}")


def _what_rows_allow(told: list[dict[str, Any]], shared: Integers) -> tuple[bool, bool, Integers]:
    """Choose whether ranks, and which cells are observed, are offered; return the columns as well.

    Both, unless fewer pairs of parties share enough rows then.
    Shapes: shared (n_parties, n_parties): rows that two hold; returns the columns of each party.
    """
    levels, numbers, masks = (
        np.array([int(one[key]) for one in told]) for key in ("levels", "numbers", "gaps")
    )
    found, most, any_gaps = (False, False, levels), -1, bool(masks.any())
    for ranks, gaps in ((True, any_gaps), (False, any_gaps), (False, False)):
        widths = levels + numbers * (1 + ranks) * (1 + gaps) + masks * gaps
        enough = shared >= 10 * np.maximum.outer(widths, widths)
        if (n_pairs := int(np.triu(enough, 1).sum())) > most:
            found, most = (ranks, gaps, widths), n_pairs
    return found


def _two_or_more(labels: Any, result: Result) -> Array | None:
    """Return labels, if there are two different ones."""
    if labels is None:
        return None
    if len(np.unique(labels[np.isfinite(labels)])) < 2:
        result.notes.append("all labels are the same, or there is none: they tell nothing")
        return None
    return np.asarray(labels)


def _pooled(names: list[str], sent: dict[str, dict[str, Any]], moments: PairMoments) -> Pooled:
    parts, start = [], 0
    shared = np.ascontiguousarray(moments.summed["shared"]).view(np.uint64).view(np.float64)
    for name in names:
        told = {
            key.removeprefix("variables."): value
            for key, value in sent[name].items()
            if key.startswith("variables.")
        }
        stop = start + int(sent[name]["n_columns"])
        # Behind the party's columns one of zeros, which -1 means: one that there is not.
        sums, squares = np.pad(np.moveaxis(shared[..., start:stop], 1, 0), ((0, 0), (0, 0), (0, 1)))
        parts.append(PartyVariables(name, Variables.from_plain(told, name), start, sums, squares))
        start = stop
    return Pooled(parts, moments)


def _pages(names: list[str], pooled: Pooled, found: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return, for each party, how its variables go with the others', rounded."""
    out: dict[str, dict[str, Any]] = {}
    turned = found.rename(
        columns={"party": "other_party", "variable": "other_variable"}
        | {"other_party": "party", "other_variable": "variable"}
    )
    both = pd.concat([found, turned])
    both = both[both["party"] != both["other_party"]]
    for part in pooled.parts:
        own = both[both["party"] == part.party].sort_values("value", key=abs, ascending=False)
        step = own["n"].to_numpy(dtype=float) ** -0.5
        rounded = np.clip(np.rint(own["value"].to_numpy() / step) * step, -1.0, 1.0)
        labels = own["other_party"] + "." + own["other_variable"]
        others = sorted(set(labels))
        number = {name: i for i, name in enumerate(part.variables.names)}
        out[part.party] = {
            "own": np.array([number[name] for name in own["variable"]], dtype=np.int64),
            "others": others,
            "other": np.searchsorted(others, labels).astype(np.int64),
            "measure": np.array([MEASURES.index(m) for m in own["measure"]], dtype=np.int64),
            "value": rounded.astype(np.float64),
        }
    return out


def overlap_of(
    held: Flags, names: list[str], fewest: int, labels: Any | None = None
) -> pd.DataFrame:
    """Count samples by who holds them, the most first; sets of fewer than `fewest` together.

    Shapes: held (n_samples, n_parties); labels (n_samples,): NaN = none.
    """
    kinds, member, counts = distinct_rows(held)
    known = np.zeros(len(held)) if labels is None else np.isfinite(labels).astype(float)
    frame = pd.DataFrame(kinds, columns=names).astype(object)
    frame["samples"] = counts
    if labels is not None:
        frame["labelled"] = np.bincount(member, known, len(kinds)).astype(np.int64)
    frame = frame.sort_values("samples", ascending=False, kind="stable")
    few = (frame["samples"] < fewest).to_numpy()
    if few.sum() > 1:
        rest = dict.fromkeys(names) | frame[few].drop(columns=names).sum().to_dict()
        frame = pd.concat([frame[~few], pd.DataFrame([rest])[frame.columns]])
    return frame.reset_index(drop=True)
