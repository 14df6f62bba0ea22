"""A joint normal model from one opening of pairwise sums: every party's rows and cells completed.

Sums of products of two parties' columns over the rows that both hold (`products.pairs`) give a
covariance of all columns, whatever the pattern of missing blocks is. A party's missing rows and
cells are the conditional means given what the others hold of the row (`equations`). Each of the
others sends its term; they are added in a private sum under a pad of the recipient. A run costs six
rounds after greeting and alignment. One that names an earlier fit (``fitted``) completes new rows
by its model, in five: parties say which rows they want, and no moments are opened.

Draws cost none: each follows from the mean, and from noise of a key stream that the parties share.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import GroupKey
from flwr_vertical.products.masked import OPENING
from flwr_vertical.products.pairs import PAIRS_OPENING, PairProducts
from flwr_vertical.protocol.declaration import BITS, FACTS, NOTHING, Either, Protocol, Round
from strategies.common.imputing_party import numbers_told
from strategies.linear.moment_party import PAIRS_OF_COLUMNS, SEED_OF_COLUMNS
from strategies.normal.completion import OfferedRows, ask_for_means, notes_apart, slices_of
from strategies.normal.equations import JointModel, Shown, fit_model
from strategies.normal.part import JointNormalModel
from strategies.normal.party import JointNormalParty
from strategies.normal.shared import SharedMoments


class JointNormal(Strategy):
    """Complete every party's missing rows and cells by a joint normal model of all columns.

    Numbers get their conditional mean, ordinal levels the nearest level, other levels the one with
    the largest conditional share. No number of a sample is told to the server.

    Notes
    -----
    The covariance is from pairwise sums, so it uses every row that two parties share. It is for
    prediction: shrunk, and not for standard errors of coefficients. Relations that are not linear
    are not seen: `FKNN` or trees see them.

    Each completed number has a standard error and a 95 % interval (`Result.intervals`; on a node,
    in ``<party>.intervals.parquet`` beside the table). An interval is withheld (NaN) where it
    depends on a covariance of two parties that share too few rows.

    With ``draws`` the parties also get completed tables in which cells are drawn instead of set to
    their mean (`Result.draws`; ``<party>.draw-1.parquet``): multiple imputations for Rubin's rules
    (`strategies.normal.rubin.pool`). The server's labels are no column of the model: parties must
    not learn them. So a regression of the server's labels on draws has slopes that are too small;
    use `VFEM` for it. Where the outcome is a column of a party, slopes are right to some 2 % if
    one party alone lacks cells, and too small by a tenth or so if several lack much.

    With ``fitted``, an earlier result (on nodes: the name of its run), new rows are completed by
    the model of that fit, by any two or more of its parties.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(400, 3)) @ np.array([[1.0, 0.6, 0.6], [0, 0.8, 0.4], [0, 0, 0.7]])
    >>> bank = pd.DataFrame(x[:300, :1], columns=["income"])
    >>> court = pd.DataFrame(x[:, 1:], columns=["debts", "cases"])
    >>> result = simulate(JointNormal(), {"bank": bank, "court": court}, progress=False)
    >>> len(result.tables["bank"])
    400
    """

    draws: int = setting(
        0,
        "How many completed tables with drawn cells each party gets beside the one with means.",
        at_least=0,
        at_most=1000,
    )

    name: ClassVar[str] = "joint-normal"
    demo = MappingProxyType(
        {"demo.dataset": "breast-cancer", "demo.missing-cells": 0.1, "demo.missing-blocks": 0.05}
    )
    party = JointNormalParty
    protocol = Protocol(
        Round("pair_key", "a public key", tells=FACTS),
        Either(
            PAIRS_OPENING,
            Protocol(
                OPENING.parts[0],
                Round(
                    "send_wanted",
                    "which new rows it wants completed, under the group's key stream; that is, by "
                    "the model of an earlier fit",
                    tells=FACTS,
                ),
            ),
        ),
        Round(
            "complete",
            "summed under the recipient's pad, terms of the rows that each party wants completed",
            tells=(NOTHING, BITS),
        ),
        Round(
            "finish", "how many cells it imputed, how many of them without interval", tells=FACTS
        ),
    )
    disclosure = (
        PAIRS_OF_COLUMNS,
        (
            "server",
            "each column's size to a power of two; columns of few values of which one is too rare "
            "to be told of, at all or with another party's; parties that share too few rows; "
            "whether a party lacks cells; how many numbers it tells of a row where it alone helps",
        ),
        (
            "server",
            "of each party that lacks cells, on average over its rows, how its missing cells "
            "follow from its other ones and what that leaves of covariances, to a quarter of "
            "n^-1/2; with new rows that are fewer than its min-rows, of the rows of the fit",
        ),
        ("server", "how many cells each party imputed, and how many of them have no interval"),
        ("every party", "which parties hold each row"),
        (
            "every party",
            "which rows each other one wants completed, for it lacks them or a cell of them",
        ),
        (
            "every party",
            "coefficients of its columns in the means of others', by who holds a row; of its own "
            "columns the covariance that is left given the others'; with draws, its rows of a root "
            "of that of all columns which the parties lack of a row",
        ),
        (
            "every party",
            "of each of its own rows that it wants completed, the mean of its columns given the "
            "others' columns, to a quarter of what is left of their standard deviation; where one "
            "other party alone holds the row, at most half as many numbers as that has columns "
            "which do not follow from its others. Draws follow from it, and tell nothing more",
        ),
        SEED_OF_COLUMNS,
        ("nobody", "a value of another party"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open the pairwise moments, fit the model, and have every party complete its rows."""
        names, held = federation.parties, ~alignment.mask
        if len(names) < 2:
            raise ConfigError(
                "joint-normal completes a party's rows from other parties' columns, so it needs "
                "two parties or more"
            )
        earlier: JointNormalModel | None = vars(self).get("_model")
        progress.total = 4 if earlier is None else 3
        offered: PairProducts | OfferedRows
        finish: dict[str, Any] = {"draws": self.draws}
        if earlier is None:
            offered = PairProducts(federation, GroupKey(federation), limbs=1)
            sent = offered.send()
            progress.step("columns")
            moments = offered.pairs(held)
            shown = _shown(sent, offered.widths)
            shared = SharedMoments.of(moments, offered.widths)
            model = fit_model(moments, slices_of(offered.widths), shown, shared)
            result.model = JointNormalModel.of(names, list(offered.widths.values()), model)
            finish["model"] = result.model.digest
            _note_left_out(result, moments.n_left_out)
            progress.step("moments")
        else:
            sent = _send_wanted(federation, earlier)
            model = earlier.joint(names)
            widths = {name: int(sent[name]["n_columns"]) for name in names}
            offered = OfferedRows(widths, [sent[name]["tag"] for name in names])
            shown = _shown(sent, widths)
            progress.step("rows")
        model = replace(model, n_alone=[int(sent[name]["n_alone"]) for name in names])
        common, own = ask_for_means(
            federation, offered, model, held, sent, shown, errors=True, draws=self.draws > 0
        )
        for name, here in zip(names, slices_of(offered.widths), strict=True):
            own[name]["known"] = ~np.asarray(model.withheld, dtype=bool)[here]
        progress.step("complete")
        told = federation.call("finish", common | finish, per_party=own)
        progress.step("finish")
        lone = float((held.sum(axis=1) == 1).mean())
        self._report(result, told, model, offered.widths, lone)

    def building_on(self, earlier: Result | Path) -> Self:
        """Complete new rows by the model of that fit."""
        result = earlier if isinstance(earlier, Result) else Result.load(earlier)
        if not isinstance(result.model, JointNormalModel):
            raise ConfigError(
                f"fitted names a result of {result.strategy!r} that holds no joint normal model; "
                "name a fit of 'joint-normal', and not a run that completed new rows by one"
            )
        made = self.clone()
        vars(made)["_model"] = result.model
        return made

    def _report(
        self,
        result: Result,
        told: dict[str, dict[str, Any]],
        model: JointModel,
        widths: Mapping[str, int],
        lone: float,
    ) -> None:
        result.party_metrics = numbers_told(told)
        result.metrics["cells_imputed"] = sum(
            values["cells_imputed"] for values in result.party_metrics.values()
        )
        result.metrics["shrinkage"] = model.shrinkage
        result.notes += notes_apart(
            widths,
            model.apart,
            "these columns count as independent given all others, and intervals that depend on "
            "that are withheld",
        )
        if self.draws and (lone > 0.05 or len(widths) == 2):
            result.notes.append(
                f"{lone:.0%} of the rows are held by one party alone, which tells at most half "
                "as many numbers of them as it has columns: there, draws depend on its columns too "
                "little for regressions of both"
            )
        if (n_columns := len(model.mean)) > model.n_rows:
            result.notes.append(
                f"{n_columns} columns are more than the {model.n_rows:.0f} rows that covariances "
                f"are of: correlations are shrunk by {model.shrinkage:.0%}, and intervals are rough"
            )


def _note_left_out(result: Result, n_left_out: int) -> None:
    result.metrics["rows_left_out"] = float(n_left_out)
    if n_left_out:
        result.notes.append(
            f"{counted(n_left_out, 'row')} took no part in the sums, as sums would have told "
            "of few rows; they are completed all the same"
        )


def _send_wanted(federation: Federation, earlier: JointNormalModel) -> dict[str, dict[str, Any]]:
    """Ask which new rows are to be completed; three rounds with those of the keys."""
    names, known = federation.parties, dict(zip(earlier.parties, earlier.widths, strict=True))
    if strangers := [name for name in names if name not in known]:
        raise ConfigError(
            f"parties {strangers} took no part in the fit, whose parties were {list(known)}; leave "
            "them out, or fit again with them"
        )
    keys = GroupKey(federation).arguments()
    sent = federation.call("send_wanted", {"model": earlier.digest}, per_party=keys)
    for name in names:
        if sent[name]["n_columns"] != known[name]:
            raise DataError(
                f"party {name!r} has {sent[name]['n_columns']} columns of the model, and had "
                f"{known[name]} in the fit"
            )
    return sent


def _shown(sent: Mapping[str, Mapping[str, Any]], widths: Mapping[str, int]) -> Shown:
    """Join what parties said they show of their columns; all of them where one said nothing."""
    parts = []
    for name, width in widths.items():
        shown, spread = np.eye(width), np.zeros((width, width))
        if "shown" in sent[name]:
            shown, spread = (np.asarray(sent[name][key], float) for key in ("shown", "spread"))
            right = shown.shape == spread.shape == (width, width)
            if not right or not _usable(shown, spread):
                raise DataError(
                    f"party {name!r} said of its missing cells what cannot be: matrices of shapes "
                    f"{shown.shape} and {spread.shape} for {width} columns"
                )
            values, vectors = np.linalg.eigh((spread + spread.T) / 2.0)  # rounded by the party
            spread = (vectors * np.maximum(values, 0.0)) @ vectors.T
        parts.append((shown, spread))
    return Shown.of(parts)


def _usable(shown: Array, spread: Array) -> bool:
    """Whether one matrix can be inverted and the other one is a covariance."""
    if not (np.isfinite(shown).all() and np.isfinite(spread).all()):
        return False
    least = np.linalg.svd(shown, compute_uv=False).min(initial=1.0)
    return bool(least > 0.05 and (np.diag(spread) >= 0.0).all())
