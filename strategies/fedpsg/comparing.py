"""A party whose attributes are compared with others': rank scores, then indicators of values.

Two sets of private products follow each other. Of both only the products of two columns that belong
together can be opened; every party makes the others random. Where attributes are imputed by
regressions, a third set follows, of all products.
"""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_vertical import Arbiter, Party, Summands, Uses, step
from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.products import (
    EncryptedGroupSteps,
    GroupKeySteps,
    HeldColumns,
    PairKeySteps,
    PrivateProductSteps,
    ProductKeySteps,
)
from flwr_vertical.products.columns import rank_scores
from flwr_vertical.products.pair_keys import Nonce
from flwr_vertical.products.streams import cancelling_pad, stream
from flwr_vertical.protocol.arguments import takes_as
from flwr_vertical.tables import is_numeric
from strategies.common.imputing_party import ImputingParty
from strategies.fedpsg.association_rules import NONE, ValueGroups, group_values, indicators
from strategies.fedpsg.run_plan import Part, Plan, multiplied


class FedPSGArbiter(Arbiter):
    """Opens blinded products where they come from ciphertexts."""

    products = Uses(ProductKeySteps)


class MaskedOfStage(PrivateProductSteps):
    """Products of ranks, of counts or of regressions: each has key streams of its own."""

    def __init__(self, party: Party) -> None:
        super().__init__(party, purpose=f"fedpsg {multiplied(party.state)}")


class CiphertextsOfStage(EncryptedGroupSteps):
    """The same where columns travel encrypted."""

    def __init__(self, party: Party) -> None:
        super().__init__(party, purpose=f"fedpsg {multiplied(party.state)}")


class ComparingParty(ImputingParty):
    """Offers its attributes to be compared; the server says with which others, and counts."""

    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    masked = Uses(MaskedOfStage)
    ciphertexts = Uses(CiphertextsOfStage)

    @step(repeatable=False)  # a key pair is drawn
    def prepare(self, nonce: Nonce) -> dict[str, Any]:
        """Tell the names of the attributes, and make the key pair of this run.

        Message: nonce: of this run; returns ``columns``; ``min_rows``, if the node's policy states
        it; and what `PairKeySteps.pair_key` tells.
        """
        if self.fitted is not None:
            raise DataError(
                f"party {self.name!r}: the run names an earlier one ('fitted'), and sample "
                "generation learns from the rows it is given; leave 'fitted' out"
            )
        for name, values in zip(self.table.columns, self.codes.T, strict=True):
            if np.isnan(values).all():
                raise DataError(
                    f"party {self.name!r}, column {name!r}: no row that takes part has a value; "
                    "leave the column out, or align other rows"
                )
        told: dict[str, Any] = {"columns": list(self.table.columns)}
        minimum = self.policy.min_rows
        if minimum is not None:
            told["min_rows"] = int(minimum)
        return told | self.pair_keys.pair_key(nonce)

    # -- products ----------------------------------------------------------------------------

    @property
    def _plan(self) -> Plan:
        return Plan(self.name, self.state)

    @step
    @takes_as(PrivateProductSteps.send_masked)
    def send_masked(self, **arguments: Any) -> dict[str, Any]:
        """See `PrivateProductSteps.send_masked`; of indicators also how many each pair has."""
        return self.masked.send_masked(**arguments) | self._sizes()

    @step
    @takes_as(EncryptedGroupSteps.count_columns)
    def count_columns(self, **arguments: Any) -> dict[str, Any]:
        """See `EncryptedGroupSteps.count_columns`; as `send_masked` of indicators."""
        return self.ciphertexts.count_columns(**arguments) | self._sizes()

    def _sizes(self) -> dict[str, Any]:
        """Return how many indicators each pair of attributes has."""
        plan = self._plan
        if not plan.counts_pairs or plan.regresses:
            return {}
        return {"groups": [len(self.groups_of_values(plan, part)) for part in plan.parts]}

    @step
    @takes_as(PrivateProductSteps.open_products)
    def open_products(
        self,
        limbs: int,
        names: list[str],
        widths: list[int],
        group: Indices,
        n_groups: int,
        missing: Flags | None = None,
        **rest: Any,
    ) -> Summands:
        """See `PrivateProductSteps.open_products`; only columns that belong together can be opened.

        Which these are the server says; all parties must have heard the same.
        """
        self._plan.check(group, missing)
        answer = self.masked.open_products(
            limbs=limbs, names=names, widths=widths, group=group, n_groups=n_groups,
            missing=missing, **rest,
        )  # fmt: skip
        if self._plan.regresses:
            return answer
        labels = self._plan.labels
        owner = np.repeat(np.arange(len(widths)), widths)
        place = names.index(self.name)
        self._check_labels(labels[owner == place] if len(labels) == len(owner) else labels)
        corrections = np.array(answer.values["corrections"], dtype=np.uint64)
        hidden = (labels[:, None] != labels) & ((owner == place)[:, None] | (owner == place))
        secret = self.secret_bytes("products that are not wanted")
        corrections[:, :, hidden] += stream(secret, "unwanted", corrections.shape)[:, :, hidden]
        # These cancel in the sum over the parties if all of them were told the same labels.
        seed, digest = self.group_key.seed, hashlib.sha256(labels.tobytes()).hexdigest()
        corrections += cancelling_pad(seed, "labels", digest, names, self.name, corrections.shape)
        values = {**answer.values, "corrections": corrections}
        return replace(answer, values=values, public=_without_own(answer.public))

    @step
    @takes_as(EncryptedGroupSteps.encrypt_groups)
    def encrypt_groups(self, group: Indices, missing: Any = None, **rest: Any) -> dict[str, Any]:
        """See `EncryptedGroupSteps.encrypt_groups`; tells nothing of the own columns alone."""
        self._plan.check(group, missing)
        return _without_own(self.ciphertexts.encrypt_groups(group=group, missing=missing, **rest))

    def _check_labels(self, told: Indices) -> None:
        """Refuse labels of the own columns that are not theirs."""
        plan = self._plan
        if plan.counts_pairs:
            sizes = [len(self.groups_of_values(plan, part)) for part in plan.parts]
            own = np.repeat([part.number for part in plan.parts], sizes)
            right = np.array_equal(told, own)
        else:  # a label for each other party; which number it has does not matter
            parts = told.reshape(len(plan.others), -1) if len(told) else told
            right = len({int(part[0]) for part in parts}) == len(plan.others) and all(
                (part == part[0]).all() for part in parts
            )
        if not right:
            raise ProtocolError(
                f"party {self.name!r}: the server says of its columns that they belong to others "
                "than they do"
            )

    def columns_to_multiply(self) -> HeldColumns:
        """Return rank scores, indicators of the chosen pairs' values, or columns of regressions."""
        plan = self._plan
        if plan.regresses:
            return self.regressed_columns(plan)
        key = f"fedpsg.columns {plan.counts_pairs}"
        if key not in self.cache:
            self.cache[key] = self._columns(plan)
        columns: HeldColumns = self.cache[key]
        return columns

    def regressed_columns(self, plan: Plan) -> HeldColumns:
        """Return what regressions are learnt from; a party that takes part in them has its own."""
        raise ProtocolError(f"party {self.name!r} takes part in no regressions")

    def _columns(self, plan: Plan) -> HeldColumns:
        held, blocks = plan.held, []
        if plan.counts_pairs:
            for part in plan.parts:
                numbers = np.full(self.n_samples, NONE, dtype=np.int64)
                rows = plan.shared_with(part.other)
                groups = self.groups_of_values(plan, part)
                numbers[rows] = groups.numbers(self.codes[rows, part.column])
                blocks.append(indicators(numbers[held], len(groups)))
        else:
            for other in plan.others:
                scores = np.zeros(self.codes.shape)
                rows = plan.shared_with(other)
                scores[rows] = rank_scores(self.codes[rows])
                blocks.append(scores[held])
        values = np.hstack(blocks) if blocks else np.zeros((len(held), 0))
        return HeldColumns(values, held, self.n_samples)

    def groups_of_values(self, plan: Plan, part: Part) -> ValueGroups:
        """Return the groups of the values of an own attribute, over the rows of the pair."""
        key = f"fedpsg.groups {part.number}"
        if key not in self.cache:
            # Whatever the server asks: the owner of the values has the last word.
            stated = self.policy.min_rows
            own = min_rows(0, 0) if stated is None else stated
            kind = self.table.kinds[self.table.columns[part.column]]
            self.cache[key] = group_values(
                self.codes[plan.shared_with(part.other), part.column],
                is_numeric(kind),
                part.most,
                max(plan.minimum, own),
            )
        groups: ValueGroups = self.cache[key]
        return groups


def _without_own(told: Any) -> dict[str, Any]:
    """Return what is told without the moments of a party's own columns: nobody needs them."""
    out = dict(told)
    for name in ("sums", "products"):
        out[name] = np.zeros_like(out[name])
    return out
