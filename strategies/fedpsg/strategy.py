"""FedPSG-AR: samples that a party lacks, generated from the attributes of the others.

Liu, He, Tan, Chen, Qian, Wei and Zhu, "Participants sample generation based on association rules
and data imputation in vertical federated learning". Stage 1, association rules (VF-AR), with
``variant="ar"``; the default, ``"impute"``, begins with stage 2:

==============  ===================================================================================
round           what travels
==============  ===================================================================================
prepare         up: names of attributes, a public key
(group seed)    see `GroupKey`; one round
send_masked     down: which rows are shared; up: rank scores under a key stream
open_products   the matrix of rank correlations
send_masked     down: the chosen pairs; up: indicators of groups of values under a key stream
open_products   a table of counts for each pair
generate        down: rules; up: a code of two bytes for each generated cell, sealed for its party
complete        down: these
==============  ===================================================================================

So rules cost eight rounds after greeting and alignment, whatever the number of samples, attributes
or parties; in ``ckks`` mode `EncryptedProducts` take more. Where nobody lacks a sample, or without
rules, the first and the last are left.

Stage 2, the imputer of all other attributes. ``mean`` takes no round more. Regressions
(`regression`) take five in place of the last: ``take_up``, ``send_masked``, ``open_products``,
``predict``, ``fill``; the group seed is one more where no rules came before. Networks (`gan`) take
two a training step, four with joint generators.

==========================  =======================================================================
of the paper                here
==========================  =======================================================================
(1) to (3)                  `comparison.Comparison.correlate`, `comparison.rank_correlations`
Section 3.2 (2)             `attribute_pairs.choose_pairs`, `comparison.Comparison.count`
Section 3.2 (3)             `association_rules`
Section 3.3 (1)             `gan.encoding.Encoding`
(9), (14), (15)             `strategies.fedpsg.gan.networks`
(20) to (25)                `strategies.fedpsg.gan.networks`
Algorithm 1                 `gan.training.GanTraining`, `strategies.fedpsg.gan.halves`
VF-MICE, VF-MissFI          ``imputer="mice"``, ``"forest"``
FedPSG-AR-0                 ``variant="impute"``
FedPSG-AG, FedPSG-CAG       ``variant="ag"``, ``"cag"``
imputation at B alone       ``federated=False``
==========================  =======================================================================

Where this differs from the paper:

* Its formula (2), ``1 - 6 sum d^2 / (n (n^2 - 1))``, is Spearman's correlation without ties only.
  Here it is the correlation of average ranks, which is exact with ties.
* It matches encrypted values for equality, which CKKS ciphertexts do not allow. Here counts are
  private products of indicator columns, and no row's value is matched.
* Numeric attributes are cut at quantiles (`association_rules.ValueGroups`); the paper takes each
  distinct number.
* ``argmax`` loses to the mean in RMSE whatever the data, so there are ``mean`` and ``draw``. Rules
  know one attribute of one other party, regressions all of all parties: they are the default, as
  the study measures (``docs/fedpsg-study.md``).
* It does not say how MICE and MissForest become vertical. ``mice`` solves for the end of the
  chained equations from private moments (`regression.targets.regress`). MissForest's trees split
  where the values to be predicted say so, which another party must not see; ``forest`` draws trees
  at random and fits the weights of their leaves, from such moments, too. With ``rule="draw"`` both
  draw (`regression.drawing`).
* AG and CAG generate by TabDDPM; here a sample gets the attributes of an own one that is drawn at
  random (`FedPSGParty.generate_locally`, where a subclass may put a model).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flwr_vertical import Alignment, Federation, Progress, Result
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import PairKeys
from strategies.common.imputing_party import numbers_told
from strategies.fedpsg.association_rules import kept_counts, weights_of
from strategies.fedpsg.attribute_pairs import Correlations, Pair, choose_pairs, rows_of_pairs
from strategies.fedpsg.comparing import FedPSGArbiter
from strategies.fedpsg.comparison import Comparison
from strategies.fedpsg.gan.training import train_and_impute
from strategies.fedpsg.party import COUNTS, FedPSGParty
from strategies.fedpsg.regression.steps import regress_and_impute
from strategies.fedpsg.settings import LOCAL, NETWORKS, REGRESSIONS, FedPSGSettings


class FedPSGAR(FedPSGSettings):
    """Complete each party's table by samples that only others have.

    Each attribute of a missing sample is regressed on what the other parties know of it, on leaves
    of random trees too, learnt from the samples that they share: ``variant="impute"``. The paper's
    form is ``variant="ar"``: attributes that correlate with another party's are generated by
    association rules, and the imputer fills the others. A sample that a party has is not touched,
    but for cells missing in it, which the imputer fills as well.

    Notes
    -----
    Completed samples stand behind a party's own in its table. Rules generate an attribute from the
    one attribute of another party that correlates with it most, in absolute value; where that party
    lacks the sample, too, from the next party's best. Levels without an order are ranked by their
    names, as the paper's integer codes are.

    Regressions and networks learn numbers and levels as they are stated: of levels that are coded
    as numbers and stated as continuous (`Table.of`) they give expected codes.

    Tables that a classifier is to be trained on: draw values (``rule="draw"``), and let the party
    that holds the labels have them as an attribute, too.
    Means have less spread than the values a classifier meets later, and values that are made
    without the label do not tell of it beyond what the other attributes do (measured in
    ``docs/fedpsg-study.md``, by the number of aligned samples). Drawn values then depend on labels.

    Of ``bins`` groups of values so many are used that each cell of a table of counts holds the
    minimum of rows on average. Cells below it are left out of the rules.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(40, 10, size=600)
    >>> bank = pd.DataFrame({"age": age})
    >>> shop = pd.DataFrame({"spends": 2 * age + rng.normal(size=600)}).iloc[:400]
    >>> result = simulate(FedPSGAR(), {"bank": bank, "shop": shop}, progress=False)
    >>> len(result.tables["shop"])
    600
    """

    name: ClassVar[str] = "fedpsg-ar"
    party = FedPSGParty
    arbiter = FedPSGArbiter
    uses_labels = True
    demo = MappingProxyType({"demo.missing-blocks": 0.2})

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Compare attributes, count pairs of values, generate and complete."""
        names, mask = federation.parties, np.asarray(alignment.mask)
        if len(names) < 2:
            raise DataError(
                "samples that a party lacks are generated from other parties' attributes, and "
                f"{names[0]!r} is alone; add a party, or impute its own table"
            )
        if self.generator == "joint" and federation.aggregation == "ckks":
            raise ConfigError(
                "generator='joint' blinds embeddings modulo 2^64, which 'ckks' sums do not carry; "
                "use aggregation='masked', or generator='local'"
            )
        if self._learner in REGRESSIONS and federation.aggregation == "ckks":
            raise ConfigError(
                f"imputer={self.imputer!r} blinds predictions modulo 2^64, which 'ckks' sums do "
                "not carry; use aggregation='masked', or variant='ar' and imputer='mean'"
            )
        progress.total = 8
        keys = PairKeys(federation)
        told = federation.call("prepare", {"nonce": keys.nonce})
        keys.collect(told)
        progress.step("prepare")
        comparison = Comparison.of(federation, keys, told, mask, progress)
        columns = comparison.columns
        lacking = [name for k, name in enumerate(names) if mask[:, k].any()]
        self._note_number(columns, lacking, result)
        pairs: list[Pair] = []
        counts: list[Indices] = []
        compares = self.variant in ("ar", "ag")
        if compares or self._learner in REGRESSIONS:
            comparison.check_shared(lacking)
        if lacking and compares:
            correlations = comparison.correlate()
            result.model = {"correlations": correlation_table(correlations, columns)}
            pairs = choose_pairs(correlations, names, lacking, self.n_associated, self.threshold)
            if not pairs:
                result.notes.append(self._why_none(correlations))
        elif not lacking:
            result.notes.append("no party lacks a sample that another one has")
        if pairs and self.variant == "ar":
            counts = comparison.count(pairs, self.bins)
            result.model["rules"] = rule_tables(pairs, counts, columns)
        given: list[tuple[Pair, Indices, Indices]] = []
        if self.variant == "ar":
            rows_of = rows_of_pairs(pairs, names, mask)
            rules = [kept_counts(table, comparison.minimum) for table in counts]
            self._check_rules(rules, rows_of, comparison.minimum, result)
            given = list(zip(pairs, rules, rows_of, strict=True))
        locally = self._generated_locally(pairs, lacking)
        self._complete(federation, comparison, given, locally, result, progress)

    def _generated_locally(
        self, pairs: list[Pair], lacking: list[str]
    ) -> dict[str, dict[str, Any]]:
        """Return, by party, which attributes it generates from its own table alone."""
        if self.variant in ("impute", "ar"):
            return {}
        if self.variant == "cag":
            return {name: {"within": self.n_associated} for name in lacking}
        chosen: dict[str, list[int]] = {}
        for pair in pairs:
            if pair.column not in chosen.setdefault(pair.target, []):
                chosen[pair.target].append(pair.column)
        return {name: {"locally": columns} for name, columns in chosen.items()}

    def _note_number(
        self, columns: Mapping[str, list[str]], lacking: list[str], result: Result
    ) -> None:
        few = [
            f"{name!r} has {len(columns[name])}"
            for name in lacking
            if len(columns[name]) < self.n_associated
        ]
        if few and self.variant != "impute":
            result.notes.append(
                f"n_associated is {self.n_associated}, but of the parties that lack samples "
                f"{', '.join(few)} attributes: so many are generated first at most"
            )

    def _check_rules(
        self, rules: list[Indices], rows_of: list[Indices], minimum: int, result: Result
    ) -> None:
        """Refuse to go on where all counts are too small; note where some tables are."""
        wanted = [table for table, rows in zip(rules, rows_of, strict=True) if len(rows)]
        empty = sum(not table.any() for table in wanted)
        if wanted and empty == len(wanted):
            raise DataError(
                f"every count of a pair of values is below {minimum}, the parties' 'min-rows', "
                "so there is no rule; align more samples, lower 'bins', or have every party lower "
                "'min-rows' in its node config (simulate(min_rows=...))"
            )
        if empty:
            result.notes.append(
                f"{empty} pairs of attributes have no count of {minimum} or more and give no rule"
            )

    def _complete(
        self,
        federation: Federation,
        comparison: Comparison,
        given: list[tuple[Pair, Indices, Indices]],
        locally: Mapping[str, Mapping[str, Any]],
        result: Result,
        progress: Progress,
    ) -> None:
        """Hand out rules, hand on what they generate, and have the tables written."""
        names, group_key = federation.parties, comparison.group_key
        sources: dict[str, dict[str, Any]] = {name: {} for name in names}
        targets: dict[str, dict[str, Any]] = {name: dict(locally.get(name, {})) for name in names}
        for i, (pair, rule, rows) in enumerate(given):
            if not len(rows):
                continue
            weights = weights_of(rule, self.rule)
            sources[pair.source] |= {f"rows:{i}": rows, f"weights:{i}": weights}
            targets[pair.target][f"rows:{i}"] = rows
            if self.rule == "mean":
                targets[pair.target][f"weights:{i}"] = weights
        assert group_key.pairs is not None
        common = {"rule": self.rule, **group_key.pairs.arguments()}
        if asked := [name for name in names if sources[name]]:
            made = federation.call("generate", common, per_party=sources, parties=asked)
            for source, sealed in made.items():
                for target, content in sealed.items():
                    targets[target][f"sealed:{source}"] = content
            progress.step("generate")
        if self.imputer in LOCAL or not self.federated:
            common |= {"imputer": self.imputer, **self._alone}
            replies = federation.call("complete", common, per_party=targets)
        elif self.imputer in REGRESSIONS:
            trees = self.trees if self.imputer == "forest" else 0
            for name, count in comparison.rows_to_learn_from().items():
                targets[name]["n_rows"] = count
            replies = regress_and_impute(
                federation, comparison, common, targets, -(-trees // (len(names) - 1)), result,
                progress,
            )  # fmt: skip
        else:
            if self.generator == "joint":
                for name, opens in group_key.arguments().items():
                    targets[name] |= {key: opens[key] for key in ("owner", "sealed")}
            replies = train_and_impute(federation, self, common, targets, result.history, progress)
        progress.step("complete")
        result.party_metrics = numbers_told(replies)
        for key in ("samples_completed", *COUNTS, "cells_imputed"):
            result.metrics[key] = sum(of[key] for of in result.party_metrics.values())
        by_rules = {(pair.target, pair.column) for pair, *_ in given}
        result.metrics["attributes_by_rules"] = float(len(by_rules))
        if without := int(result.metrics["cells_without_rule"]):
            result.notes.append(
                f"{without:,} cells were to be generated from a value that is missing, rare or was "
                "not seen in shared samples; they got what the party's own column says"
            )

    @property
    def _alone(self) -> dict[str, Any]:
        """What a party needs to know that fills its table without the others."""
        if self.imputer in REGRESSIONS:
            return {"trees": self.trees if self.imputer == "forest" else 0}
        if self.imputer in NETWORKS:
            names = ("iterations", "batch", "learning_rate", "alpha", "hidden")
            return {name: getattr(self, name) for name in names}
        return {}

    def _why_none(self, correlations: Mapping[tuple[str, str], Any]) -> str:
        largest = max(
            (float(np.nanmax(np.abs(m))) for m in correlations.values() if np.isfinite(m).any()),
            default=0.0,
        )
        return (
            "no attribute is generated by rules: the largest absolute rank correlation across "
            f"parties is {largest:.3f} (threshold {self.threshold:g}); attributes with one value "
            "only, or with a value that is too rare, have none"
        )


def correlation_table(
    correlations: Correlations, columns: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """Return rank correlations, a row for each two attributes of different parties."""
    rows = [
        (a, columns[a][i], b, columns[b][j], float(matrix[i, j]))
        for (a, b), matrix in correlations.items()
        for i, j in np.ndindex(matrix.shape)
    ]
    names = ["party", "attribute", "other party", "other attribute", "correlation"]
    return pd.DataFrame(rows, columns=names)


def rule_tables(
    pairs: Sequence[Pair], counts: Sequence[Indices], columns: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """Return counts of pairs of values by number, a row for each cell that is not 0."""
    rows: list[tuple[Any, ...]] = []
    for p, table in zip(pairs, counts, strict=True):
        attribute, source = columns[p.target][p.column], columns[p.source][p.source_column]
        pair = p.target, attribute, p.source, source, p.correlation
        rows += [(*pair, k, q, int(table[k, q])) for k, q in np.argwhere(table > 0).tolist()]
    names = ["party", "attribute", "source party", "source attribute", "correlation"]
    return pd.DataFrame(rows, columns=[*names, "source value", "value", "samples"])
