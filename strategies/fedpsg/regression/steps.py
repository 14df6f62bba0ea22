"""Both halves of the regressions: the party's columns and terms, the server's coefficients."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Unpack

import numpy as np

from flwr_vertical import Federation, Progress, Result, StepGroup, Summands, step
from flwr_vertical.arrays import Array
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.privacy_ledger.budgets import bits_of_row
from flwr_vertical.products import HeldColumns
from flwr_vertical.protocol.arguments import DISTINCT, Shape, Within, check_fits
from flwr_vertical.tables.codes import to_codes
from strategies.common.imputing_party import ImputingParty
from strategies.fedpsg.blinding import BlindingSteps, pad_of
from strategies.fedpsg.comparison import Comparison
from strategies.fedpsg.messages import TermFields
from strategies.fedpsg.regression.features import RegressionColumns, draw_codes, n_trees_of
from strategies.fedpsg.regression.targets import MOST_JOBS, GroupSums, KnownColumns, jobs_of, solve
from strategies.fedpsg.run_plan import Plan
from strategies.linear.told_columns import LEAVES, beside_earlier, words_of

TERM = "term"
"""Name of a job's predictions, before its number."""

_CODES, _DRAWN, _TREES, _NAMES = (
    f"fedpsg.regression {name}" for name in ("codes", "drawn", "trees", "names")
)


class RegressionSteps(StepGroup):
    """Gives the columns that regressions are learnt from, and terms of what they predict.

    A job is a set of samples of which its target misses the same attributes, and all know the same
    others. The target gets the sum of all terms, under streams that the server lacks.
    """

    party: ImputingParty

    def start(
        self, codes: Array, n_rows: int, drawn: bool, n_trees: int, names: list[str]
    ) -> dict[str, Any]:
        """Keep the table that is to be completed, and tell what the server needs of it.

        Shapes: codes (n_samples, n_columns): NaN where a value is to be imputed.
        """
        width = int(np.maximum(self.party.level_counts, 1).sum())
        self.state[_CODES] = codes
        self.state[_DRAWN] = bool(drawn)
        self.state[_TREES] = n_trees_of(n_trees, n_rows, width)
        self.state[_NAMES] = list(names)
        self.cache.pop("fedpsg.regression features", None)
        features = self.features
        return {
            "attributes": features.attributes,
            "n_targets": features.n_targets,
            "missing": np.isnan(codes).astype(np.uint8),
        }

    @kept("fedpsg.regression features")
    def features(self) -> RegressionColumns:
        """How the own attributes are encoded."""
        # Of the whole table, whichever rows take part.
        return RegressionColumns.fit(
            to_codes(self.party.table, self.party.levels, self.name),
            self.party.level_counts,
            bool(self.state[_DRAWN]),
            int(self.state[_TREES]),
        )

    def columns(self, plan: Plan) -> HeldColumns:
        """Return the columns that are multiplied, in the rows that may be told of."""
        if _CODES not in self.state:
            raise ProtocolError(f"party {self.name!r} takes part in no regressions yet")
        rows = plan.held
        names = self.party.table.columns
        values, sources = self.features.encode(self.party.codes[rows]), self.features.sources(names)
        held = HeldColumns(values, rows, self.party.n_samples, sources=sources)
        words = words_of(LEAVES, names, self.state[_DRAWN], self.state[_TREES])
        return beside_earlier(self.party, held, words)

    @step
    def predict(
        self, targets: Annotated[list[str], Within(0, MOST_JOBS)], **message: Unpack[TermFields]
    ) -> Summands:
        """Send the own terms of all jobs under key streams that the server lacks.

        Message: targets: of each job; **message: by number of the job, ``rows:<number>``, its
        samples, and ``weights:<number>`` of shape (n_own_columns, n_target_columns); returns by
        job, ``term:<number>`` of shape (n_rows, n_target_columns), modulo 2^64.
        """
        given: dict[str, Any] = {**message}
        codes, found = self.codes, {}
        width = Shape(len(self.features.attributes), None)
        for number in range(len(targets)):
            rows = self._part(given, f"rows:{number}", Shape(None)).astype(np.int64)
            weights = self._part(given, f"weights:{number}", width).astype(np.float64)
            found[f"{TERM}:{number}"] = self.features.encode(codes[rows]) @ weights
        self._note(targets, given, found)
        return self.other(BlindingSteps).blinded(found)

    def _note(self, targets: list[str], given: dict[str, Any], found: dict[str, Array]) -> None:
        """Write down what other parties learn of single own rows, before it leaves."""
        most_of_row = bits_of_row(self.party.table)
        for receiver in sorted(set(targets) - {self.name}):
            bits, content = np.zeros(self.party.n_samples), hashlib.sha256()
            for number, target in enumerate(targets):
                if target == receiver:
                    term = found[f"{TERM}:{number}"]
                    bits[np.asarray(given[f"rows:{number}"])] += 64.0 * term.any() * term.shape[1]
                    content.update(term.tobytes())
            own = self.party.positions
            chosen = (own >= 0) & (bits[own] > 0)
            if chosen.any():
                self.party.open_bits(
                    chosen,
                    float(min(bits[own[chosen]].max(), most_of_row)),
                    content=content.digest(),
                    agreed=True,
                    what="terms of predictions for samples of which it misses something",
                    receiver=receiver,
                )

    def fill(self, pad: bytes, given: Mapping[str, Any]) -> int:
        """Put predictions into the missing cells; returns into how many.

        Message: pad: names the key streams that `predict` blinded by; given: see `FillFields`.
        """
        codes, count, owners = self.codes.copy(), 0, list(self.state[_NAMES])
        for name in [name for name in given if name.startswith("rows:")]:
            job = name.removeprefix("rows:")
            rows = self._part(given, name, Shape(None)).astype(np.int64)
            own = Shape(None), Within(0, codes.shape[1] - 1), DISTINCT
            columns = self._part(given, f"columns:{job}", *own).astype(np.int64).tolist()
            width = int(self.features.widths[columns].sum())
            sealed = self._part(given, f"{TERM}:{job}", Shape(len(rows), width))
            values = self.other(BlindingSteps).unblinded(f"{TERM}:{job}", sealed, pad, owners)
            values += self._part(given, f"offset:{job}", Shape(width))
            if bool(self.state[_DRAWN]):
                root = self._part(given, f"root:{job}", Shape(width, width)).astype(np.float64)
                found = draw_codes(self.features, values, columns, root, self.party.rng)
            else:
                found = self.features.decode(values, columns)
            codes[rows[:, None], columns] = found
            count += len(rows) * len(columns)
        self.state[_CODES] = codes
        return count

    def _part(self, given: Mapping[str, Any], name: str, *marks: Any) -> Any:
        """Return what belongs to a job; refuse one of which it is missing, or does not fit."""
        check_fits(self.name, name, given.get(name), *marks)
        return np.asarray(given[name])

    @property
    def codes(self) -> Array:
        """The table as it is now; shape (n_samples, n_columns)."""
        return np.asarray(self.state[_CODES], dtype=np.float64)


def regress_and_impute(
    federation: Federation,
    comparison: Comparison,
    common: Mapping[str, Any],
    targets: Mapping[str, Mapping[str, Any]],
    n_trees: int,
    result: Result,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Learn regressions over all parties, and have them fill what rules did not: five rounds."""
    names = federation.parties
    progress.total = (progress.total or 0) + 4
    replies = federation.call("take_up", {**common, "trees": n_trees}, per_party=targets)
    progress.step("take up")
    told = {
        name: KnownColumns(
            np.asarray(replies[name]["attributes"], dtype=np.int64),
            int(replies[name]["n_targets"]),
            np.asarray(replies[name]["missing"]).astype(bool),
        )
        for name in names
    }
    jobs, left = jobs_of(told)
    if left:
        result.notes.append(
            f"{left:,} samples miss sets of attributes beyond the {MOST_JOBS} commonest, each of "
            "which takes regressions of its own; there cells got what the party's own column says; "
            "impute single cells first (strategy 'joint-normal' or 'fknn')"
        )
    moments = comparison.multiply_features()
    sums = GroupSums(
        names, comparison.rows.sizes, comparison.rows.mask, moments.sums, moments.products,
        moments.withheld,
    )  # fmt: skip
    solved = [(job, found) for job in jobs if (found := solve(job, told, sums)) is not None]
    ends = np.cumsum([len(told[name].attributes) for name in names])
    asked: dict[str, dict[str, Any]] = {name: {} for name in names}
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for number, (job, (weights, regression)) in enumerate(solved):
        for name, part in zip(names, np.split(weights, ends[:-1]), strict=True):
            asked[name] |= {f"rows:{number}": job.rows, f"weights:{number}": part}
        given[job.target] |= {
            f"rows:{number}": job.rows,
            f"columns:{number}": job.columns,
            f"offset:{number}": regression.offset,
        }
        if common["rule"] == "draw":
            given[job.target][f"root:{number}"] = regression.root
    total = federation.sum(
        "predict", {"targets": [job.target for job, _ in solved]}, per_party=asked
    )
    progress.step("predict")
    for number, (job, _) in enumerate(solved):
        given[job.target][f"{TERM}:{number}"] = total[f"{TERM}:{number}"]
    return federation.call("fill", {"pad": pad_of(total)}, per_party=given)
