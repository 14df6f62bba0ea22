"""The party half of FedPSG-AR: generated cells, sealed by one party for another."""

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Unpack

import numpy as np

from flwr_vertical import Uses, step
from flwr_vertical.arrays import Array, Indices, Unsigned16
from flwr_vertical.crypto.pair_seeds import framed
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products import HeldColumns
from flwr_vertical.products.columns import rank_scores
from flwr_vertical.products.pair_keys import PairKeyFields
from flwr_vertical.protocol.arguments import OWN, Is, Shape, Within, check_fits
from flwr_vertical.tables import is_numeric
from strategies.fedpsg.association_rules import (
    NONE,
    draw_groups,
    rest_values,
    values_of_groups,
    values_of_sources,
    with_rule,
)
from strategies.fedpsg.attribute_pairs import choose_within
from strategies.fedpsg.blinding import BlindingSteps
from strategies.fedpsg.comparing import ComparingParty
from strategies.fedpsg.gan.encoding import Encoding
from strategies.fedpsg.gan.steps import GanSteps
from strategies.fedpsg.messages import (
    AloneFields,
    FillFields,
    GeneratedFields,
    NetworkFields,
    Pad,
    Rule,
    RuleFields,
)
from strategies.fedpsg.regression.features import made_again
from strategies.fedpsg.regression.steps import RegressionSteps
from strategies.fedpsg.regression.targets import regress_alone
from strategies.fedpsg.run_plan import Part, Plan

GENERATED = "generated"
"""The exchange by which one party tells another of single samples that this one lacks."""

_PURPOSE = "fedpsg codes"
_KEYS = tuple(PairKeyFields.__annotations__)
COUNTS = ("cells_by_rules", "cells_without_rule", "cells_drawn")
SHAPE = ("kind", "joint", "n_labels", "seed", "learning_rate", "alpha", "hidden")
_NO_CODE = np.iinfo(np.uint16).max


class FedPSGParty(ComparingParty):
    """Generates attributes of samples that other parties lack, and completes its own table."""

    blinding = Uses(BlindingSteps)
    gan = Uses(GanSteps)
    regression = Uses(RegressionSteps)
    made_again = staticmethod(made_again)  # See `told_columns`

    @step(repeatable=False)  # what is sealed begins with fresh random bytes
    def generate(self, rule: Rule, **message: Unpack[RuleFields]) -> dict[str, Any]:
        """Generate attributes of samples that other parties lack, sealed for these.

        Message: rule: with ``mean`` the group of the own attribute is told, and the target takes
        the mean; **message: what `PairKeySteps.keep_pair_keys` takes; by number
        of the pair, ``rows:<number>``, samples that the target lacks, and ``weights:<number>``,
        see `rules.weights_of`; returns by target, a code of 16 bits for each sample of each pair,
        under the seed of the two.
        """
        self.check_exchange(GENERATED)
        given, plan = self._taken(message), self._plan
        codes: dict[str, list[Unsigned16]] = {}
        told: dict[str, list[tuple[Indices, float]]] = {}
        for part in plan.parts:
            if part.is_target or f"rows:{part.number}" not in given:
                continue
            rows = np.asarray(given[f"rows:{part.number}"], dtype=np.int64)
            self._check_rows(plan, part, rows)
            groups = self.groups_of_values(plan, part)
            own = groups.numbers(self.codes[rows, part.column])
            weights = self._weights(given, part, len(groups), None)
            out = with_rule(weights, own) if rule == "mean" else draw_groups(weights, own, self.rng)
            codes.setdefault(part.other, []).append(
                np.where(out == NONE, _NO_CODE, out).astype("<u2")
            )
            bits = math.log2(1 + (len(weights) if rule == "mean" else weights.shape[1]))
            told.setdefault(part.other, []).append((rows, bits))
        seeds = self.pair_keys.seeds(given["nonce"], _PURPOSE)
        sealed = {}
        for other, parts in codes.items():
            content = b"".join(part.tobytes() for part in parts)
            self._note(other, told[other], content)
            sealed[other] = seal(seeds[other], content, _place(self.name, other))
        return sealed

    def _taken(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the parties' keys that come with a message; return it."""
        self.pair_keys.keep_pair_keys(**{name: message[name] for name in _KEYS})
        return {**message}

    def _weights(self, given: dict[str, Any], part: Part, *shape: int | None) -> Unsigned16:
        """Return the rules of a pair: by groups of values of its source, and of its target."""
        name = f"weights:{part.number}"
        weights = np.asarray(given.get(name, np.zeros((0, 0))), dtype=np.uint16)
        check_fits(self.name, name, weights, Shape(*shape))
        return weights

    def _check_rows(self, plan: Plan, part: Part, rows: Indices) -> None:
        """Refuse to tell of a sample that the other party has."""
        shared = np.isin(rows, plan.shared_with(part.other))
        if shared.any() or (len(rows) and not 0 <= rows.min() <= rows.max() < self.n_samples):
            raise ProtocolError(
                f"party {self.name!r}: attributes are to be generated of {int(shared.sum())} "
                f"samples that party {part.other!r} has; only those that it lacks are told of"
            )

    def _note(self, other: str, told: list[tuple[Indices, float]], content: bytes) -> None:
        """Write down what the other party learns of single rows, before it leaves."""
        most = np.zeros(self.n_samples)
        for rows, bits in told:
            most[rows] += bits
        own = self.positions
        chosen = (own >= 0) & (most[own] > 0)
        if chosen.any():
            self.open_bits(
                chosen,
                float(most[own[chosen]].max()),
                content=hashlib.sha256(content).digest(),
                agreed=True,
                what="attributes generated for samples that it lacks",
                receiver=other,
            )

    @step
    def complete(
        self, rule: Rule, imputer: Annotated[str, Is("imputer")], **message: Unpack[AloneFields]
    ) -> dict[str, Any]:
        """Put generated attributes into the samples that this party lacks, and write the table.

        Message: rule: as of `generate`; imputer: what fills the cells that are still
        missing, by the own table alone; **message: what `PairKeySteps.keep_pair_keys` takes;
        ``rows:<number>`` and, with ``mean``, ``weights:<number>`` of the pairs whose target this
        party is; ``sealed:<source>``, what their sources generated; ``locally``, attributes that
        are generated here, or ``within``, how many; of regressions ``trees``, of networks
        ``iterations``, ``batch``, ``learning_rate``, ``alpha`` and ``hidden``; returns how many
        samples were completed, and how many cells by rules, without a rule, and by the imputer;
        where the truth is known here, how well.
        """
        given = self._taken(message)
        codes, counts = self._by_rules(rule, given)
        imputed = np.isnan(codes)
        if imputer not in ("mean", "none") and imputed.any():
            codes = self._alone(imputer, rule, codes, given)
        if imputer != "none":
            self._fill_rest(codes)
        return self._written(codes, counts, int(imputed.sum()) if imputer != "none" else 0)

    @step
    def receive(self, rule: Rule, **message: Unpack[NetworkFields]) -> dict[str, Any]:
        """Put generated attributes into the samples that this party lacks, for networks to go on.

        Message: rule, **message: as of `complete`; also ``owner`` and ``sealed`` of the
        group seed, and the fields of `strategies.fedpsg.gan.halves.GanShape`; returns see
        `GanSteps.start`.
        """
        given = self._taken(message)
        if "owner" in given:
            keys = {name: given[name] for name in _KEYS}
            self.group_key.take(given["owner"], given.get("sealed", b""), keys)
        codes = self._begun(rule, given)
        self.state["fedpsg.open"] = int(np.isnan(codes).sum())
        return self.gan.start(codes, {name: given[name] for name in SHAPE}, given["names"])

    @step
    def finish(self) -> dict[str, Any]:
        """Write the table that the networks completed; returns what `complete` does."""
        return self._written(self.gan.codes, self._counts, int(self.state["fedpsg.open"]))

    @step
    def take_up(
        self,
        rule: Rule,
        trees: Annotated[int, Is("ceil(trees / (n_parties - 1)) if imputer == 'forest' else 0")],
        n_rows: Annotated[int, OWN, Within(0, "n_samples")],
        **message: Unpack[GeneratedFields],
    ) -> dict[str, Any]:
        """Put generated attributes into the samples that this party lacks, for regressions.

        Message: rule, **message: as of `complete`; trees: random trees, whose leaves are
        columns as well; n_rows: see `RegressionSteps.start`; returns see `RegressionSteps.start`.
        """
        self.check_exchange(GENERATED)
        given = self._taken(message)
        codes = self._begun(rule, given)
        return self.regression.start(codes, n_rows, rule == "draw", trees, given["names"])

    @step
    def fill(self, pad: Pad, **message: Unpack[FillFields]) -> dict[str, Any]:
        """Fill missing cells by what the regressions predict, and write the table.

        Message: pad, **message: see `RegressionSteps.fill`; returns see `complete`.
        """
        imputed, codes = self.regression.fill(pad, {**message}), self.regression.codes
        # Samples that no regression reaches, for nobody shares enough of them.
        imputed += self._fill_rest(codes)
        return self._written(codes, self._counts, imputed)

    def _begun(self, rule: str, given: dict[str, Any]) -> Array:
        """Return the table with the cells that rules generated; keep how many these are."""
        codes, counts = self._by_rules(rule, given)
        for name, count in counts.items():
            self.state[f"fedpsg.{name}"] = count
        return codes

    @property
    def _counts(self) -> dict[str, int]:
        return {name: int(self.state[f"fedpsg.{name}"]) for name in COUNTS}

    def regressed_columns(self, plan: Plan) -> HeldColumns:
        """See `ComparingParty.regressed_columns`."""
        return self.regression.columns(plan)

    def _by_rules(self, rule: str, given: dict[str, Any]) -> tuple[Array, dict[str, int]]:
        """Return the table with the cells that rules generated, and how many these are."""
        codes, counts = self.codes.copy(), dict.fromkeys(COUNTS, 0)
        drawn = rule == "draw"
        if "locally" in given or "within" in given:
            columns = self._chosen(given)
            absent = np.flatnonzero(self._absent)
            codes[absent[:, None], columns] = self.generate_locally(columns, len(absent))
            counts["cells_drawn"] = len(absent) * len(columns)
        if not any(name.startswith("rows:") for name in given):
            return codes, counts
        left: dict[int, list[Indices]] = {}
        for part, rows, numbers in self._generated(given):
            groups = self.groups_of_values(self._plan, part)
            if rule == "mean":
                kind = self.table.kinds[self.table.columns[part.column]]
                weights = self._weights(given, part, None, len(groups))
                if numbers.max(initial=NONE) >= len(weights):  # by how many, the server is not told
                    raise ProtocolError(
                        f"party {self.name!r}: of pair {part.number} {len(weights)} rules came, "
                        "fewer than its source has groups of values"
                    )
                values = values_of_sources(groups, weights, numbers, kind)
            else:
                values = values_of_groups(groups, numbers, drawn, self.rng)
            codes[rows, part.column] = values
            counts["cells_by_rules"] += int(np.count_nonzero(numbers != NONE))
            left.setdefault(part.column, []).append(rows[numbers == NONE])
        for column, parts in left.items():
            rest = np.concatenate(parts)
            counts["cells_without_rule"] += len(rest)
            codes[rest, column] = self._rest(column, len(rest), drawn)
        return codes, counts

    def _chosen(self, given: dict[str, Any]) -> list[int]:
        """Return the own attributes that are generated here, without another party."""
        if "locally" in given:
            return [int(j) for j in given["locally"]]
        own = self.codes[~self._absent]
        scores = rank_scores(own)
        return choose_within(scores.T @ scores / len(own), int(given["within"]))

    def generate_locally(self, columns: list[int], count: int) -> Array:
        """Generate some attributes of new samples from the own table alone (FedPSG-AG, -CAG).

        Each new sample gets those of an own one, drawn at random, so that attributes go together as
        they do here. A subclass may put a model of its own in this place, as the paper does.

        Shapes: returns (count, n_columns): codes.
        """
        own = self.codes[:, columns]
        whole = np.flatnonzero(~np.isnan(own).any(axis=1))
        if len(whole):
            return np.asarray(own[self.rng.choice(whole, count)])
        return np.column_stack([self._rest(j, count, drawn=True) for j in columns])

    def _written(self, codes: Array, counts: dict[str, int], imputed: int) -> dict[str, Any]:
        frame = self.write(codes, complete_blocks=True)
        self.group_key.erase_group_seed()
        return {
            "samples_completed": int(self._absent.sum()),
            **counts,
            "cells_imputed": imputed,
            **self.accuracy(frame),
        }

    def _generated(self, given: dict[str, Any]) -> list[tuple[Part, Indices, Indices]]:
        """Return pairs, samples and codes as the sources generated them."""
        seeds = self.pair_keys.seeds(given["nonce"], _PURPOSE)
        opened = {}
        for source, seed in seeds.items():
            if sealed := given.get(f"sealed:{source}", b""):
                secret = open_sealed(seed, sealed, _place(source, self.name), source)
                opened[source] = np.frombuffer(secret, dtype="<u2").astype(np.int64)
        found = []
        for part in self._plan.parts:
            if not part.is_target or f"rows:{part.number}" not in given:
                continue
            rows = np.asarray(given[f"rows:{part.number}"], dtype=np.int64)
            told = opened.get(part.other, np.zeros(0, dtype=np.int64))
            numbers, opened[part.other] = told[: len(rows)], told[len(rows) :]
            check_fits(self.name, f"sealed:{part.other}", numbers, Shape(len(rows)))
            found.append((part, rows, np.where(numbers == _NO_CODE, NONE, numbers)))
        return found

    def _alone(self, imputer: str, rule: str, codes: Array, given: dict[str, Any]) -> Array:
        """Return the table filled by what is learnt from the own table alone."""
        counts, drawn = self.level_counts, rule == "draw"
        if imputer in ("mice", "forest"):
            trees = int(given["trees"])
            return regress_alone(self.codes, codes, counts, drawn, trees, self.rng)
        from strategies.fedpsg.gan.halves import GanShape, impute_alone

        options: dict[str, Any] = {n: float(given[n]) for n in ("learning_rate", "alpha", "hidden")}
        shape = GanShape(imputer, seed=int(self.rng.integers(2**31)), **options)
        encoding = Encoding.fit(self.codes, counts)
        steps = int(given["iterations"]), int(given["batch"])
        return impute_alone(codes, encoding, shape, *steps, self.rng, self.name)

    def _fill_rest(self, codes: Array) -> int:
        """Fill what is left from each column alone; returns how many cells."""
        imputed = np.isnan(codes)
        for column in np.flatnonzero(imputed.any(axis=0)).tolist():
            rest = np.flatnonzero(imputed[:, column])
            codes[rest, column] = self._rest(column, len(rest), drawn=False)
        return int(imputed.sum())

    def _rest(self, column: int, count: int, drawn: bool) -> Array:
        """Return values of an attribute from its own observed ones alone."""
        own = self.codes[:, column]
        numeric = is_numeric(self.table.kinds[self.table.columns[column]])
        return rest_values(own[~np.isnan(own)], count, numeric, drawn, self.rng)


def _place(source: str, target: str) -> bytes:
    return framed(_PURPOSE.encode(), source.encode(), target.encode())
