"""A joint normal model from one opening of pairwise sums: every party's rows and cells completed.

Sums of products of two parties' columns over the rows that both hold (`products.pairs`) give a
covariance of all columns, whatever the pattern of missing blocks is. A party's missing rows and
cells are the conditional means given what the others hold of the row (`equations`). Each of the
others sends its term; they are added in a private sum under a pad of the recipient:

====================  ==============================================================================
round                 what travels
====================  ==============================================================================
pair_key              up: a public key
seal_group_seed       one party: up, the group seed, sealed for each other one
send_masked           up: columns under the group's key stream; which rows are wanted, under another
open_pairs            down: who holds which rows; up: a private sum of small matrices
complete              down: each party's coefficients for each other one's columns, by pattern of
                      holders; up, summed: whole numbers for each row, under the recipient's pad
finish                down: to each party its own sum; up: how many cells it imputed
====================  ==============================================================================

So a run costs six rounds after greeting and alignment.
"""

from types import MappingProxyType
from typing import Any, ClassVar

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError
from flwr_vertical.products import GroupKey
from flwr_vertical.products.pairs import PAIRS_OPENING, PairProducts
from flwr_vertical.protocol.declaration import BITS, FACTS, NOTHING, Protocol, Round
from flwr_vertical.results import Progress
from strategies.normal.completion import ask_for_means, pairs_apart, slices_of
from strategies.normal.equations import JointModel, fit_model
from strategies.normal.party import JointNormalParty


class JointNormal(Strategy):
    """Complete every party's missing rows and cells by a joint normal model of all columns.

    Numbers get their conditional mean, ordinal levels the nearest level, other levels the one with
    the largest conditional share. No number of a sample is told to the server.

    Notes
    -----
    The covariance is from pairwise sums, so it uses every row that two parties share. It is for
    prediction: shrunk, and not for standard errors. Relations that are not linear are not seen:
    `FKNN` or trees see them.

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

    name: ClassVar[str] = "joint-normal"
    demo = MappingProxyType(
        {"demo.dataset": "breast-cancer", "demo.missing-cells": 0.1, "demo.missing-blocks": 0.05}
    )
    party = JointNormalParty
    protocol = Protocol(
        Round("pair_key", "a public key", tells=FACTS),
        PAIRS_OPENING,
        Round(
            "complete",
            "summed under the recipient's pad, terms of the rows that each party wants completed",
            tells=(NOTHING, BITS),
        ),
        Round("finish", "how many cells it imputed", tells=FACTS),
    )
    disclosure = (
        (
            "server",
            "of each party, sums of columns and of products of two of them over its rows; of two "
            "parties, sums of products of their columns over the rows that both hold",
        ),
        (
            "server",
            "each column's size to a power of two; columns of few values of which one is too rare "
            "to be told of; parties that share too few rows; whether a party lacks cells",
        ),
        ("server", "how many cells each party imputed"),
        ("every party", "which parties hold each row"),
        (
            "every party",
            "which rows each other one wants completed, for it lacks them or a cell of them",
        ),
        (
            "every party",
            "coefficients of its columns in the means of others', by who holds a row; of its own "
            "columns the covariance that is left given the others'",
        ),
        (
            "every party",
            "of each of its own rows that it wants completed, the mean of its columns given the "
            "others' columns, to a quarter of what is left of their standard deviation; where one "
            "other party alone holds the row, half as many numbers as that has columns at most",
        ),
        (
            "server together with any one party",
            "all parties' columns: the party has the seed that hides them from the server",
        ),
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
        progress.total = 4
        products = PairProducts(federation, GroupKey(federation), limbs=1)
        sent = products.send()
        progress.step("columns")
        moments = products.pairs(held)
        model = fit_model(moments, slices_of(products.widths))
        progress.step("moments")
        common, own = ask_for_means(federation, products, model, held, sent)
        progress.step("complete")
        told = federation.call("finish", common, per_party=own)
        progress.step("finish")
        self._report(result, told, model, moments.n_left_out, pairs_apart(names, moments.apart))

    def _report(
        self,
        result: Result,
        told: dict[str, dict[str, Any]],
        model: JointModel,
        n_left_out: int,
        apart: list[str],
    ) -> None:
        result.party_metrics = {
            name: {key: float(value) for key, value in values.items()}
            for name, values in told.items()
        }
        result.metrics["cells-imputed"] = sum(
            values["cells-imputed"] for values in result.party_metrics.values()
        )
        result.metrics["shrinkage"] = model.shrinkage
        result.metrics["rows-left-out"] = float(n_left_out)
        if apart:
            result.notes.append(
                f"{', '.join(apart)} share too few rows: their columns count as independent given "
                "all others"
            )
        if n_left_out:
            result.notes.append(
                f"{n_left_out} rows took no part in the sums, as they could have been told from "
                "others; they are completed all the same"
            )
