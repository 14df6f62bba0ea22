"""The rules on sets of rows and on vectors: what may be told after what was told before.

They are the same within a run, whose history lies in the party's state, and over all runs, whose
history lies in the privacy ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.counted import counted
from flwr_vertical.errors import PolicyError
from flwr_vertical.policy.defaults import max_vectors, min_rows
from flwr_vertical.policy.record import Policy, key_of
from flwr_vertical.privacy_ledger.row_sets import AtomVectors, Refined, refine


@dataclass(frozen=True)
class LabelSet:
    """Vectors that rows are multiplied with."""

    n_vectors: int  # How many
    # Whether the server knows them. Means of a model that it never sees, say, count against the
    # limit on vectors, and cannot single out the rows of a level.
    known: bool = True


@dataclass(frozen=True)
class RowHistory:
    """What was told of rows before."""

    # (n_rows,): number of each row's atom, from 1 without gaps; 0 for rows that nothing was told
    # of
    atoms: Integers
    vectors: AtomVectors  # Which label sets the rows of each atom were multiplied with
    labels: Mapping[int, LabelSet] = field(default_factory=dict)  # The label sets by their numbers

    @classmethod
    def unpack(
        cls, atoms: Integers, vectors: Integers, labels: Mapping[int, LabelSet]
    ) -> "RowHistory":
        """Return a history from arrays as they are kept; see `AtomVectors.pack`."""
        n_atoms = int(atoms.max(initial=0))
        return cls(np.asarray(atoms), AtomVectors.unpack(vectors, n_atoms), labels)


@dataclass(frozen=True)
class Judged:
    """A request that is allowed, and the history after it."""

    refined: Refined  # The atoms of all rows
    vectors: AtomVectors  # Which label sets their rows were multiplied with
    # n_vectors, n_known: (n_atoms + 1,): with how many vectors in all, and with how many that the
    # server knows
    n_vectors: Integers
    n_known: Integers
    n_sets: Integers  # (n_atoms + 1,): of how many sets these that the server knows are
    # Whether some rows are multiplied with vectors with which they were not before
    is_multiplied: bool


def judge(
    who: str,
    policy: Policy,
    before: RowHistory,
    group: Integers,
    label: int | None = None,
    *,
    n_columns: int = 0,
    at_least: int = 0,
    changed: Flags | None = None,
) -> Judged:
    """Decide whether sums over groups of rows may be told.

    Shapes: group (n_rows,): number of each row's group, -1 for rows that are not told of now;
    changed (n_rows,): rows whose cells have changed since they were told of.
    """
    refined = refine(before.atoms, group, changed)
    vectors = before.vectors.after(refined, label)
    totals = vectors.totals({key: found.n_vectors for key, found in before.labels.items()})
    known = vectors.totals(
        {key: found.n_vectors * found.known for key, found in before.labels.items()}
    )
    fresh = np.array(
        [
            len(now) > len(before.vectors.labels[parent]) if parent else bool(now)
            for now, parent in zip(vectors.labels, refined.parent.tolist(), strict=True)
        ]
    )
    asked = known[refined.group >= 0]
    rule = max(min_rows(n_columns, int(asked.max(initial=0))), at_least)
    _check_rows(who, refined, rule if policy.min_rows is None else policy.min_rows)
    _check_vectors(who, policy, refined, totals, fresh | refined.is_new)
    sets = vectors.totals({key: int(found.known) for key, found in before.labels.items()})
    return Judged(refined, vectors, totals, known, sets, bool(fresh.any()))


def _check_rows(who: str, refined: Refined, needed: int) -> None:
    smallest = refined.smallest_new
    if not smallest or smallest >= needed:
        return
    why = ", with what was opened before" if refined.parent.any() else ""
    if 0 < refined.n_changed_alone == smallest:
        why = ", as their cells have changed since sums of them were opened"
    raise PolicyError(
        who,
        key_of("min_rows"),
        f"sums that tell of {smallest} of its rows alone{why}",
        f"sets of at least {needed:,} rows, over all runs",
        "ask for the same rows as before, or for enough others; merge small groups of rows, or "
        "leave them out",
    )


def _check_vectors(
    who: str, policy: Policy, refined: Refined, totals: Integers, asked: Flags
) -> None:
    most = policy.vectors
    if most is None:
        sizes, of_size = np.unique(refined.size, return_inverse=True)
        limit = np.array([max_vectors(int(n)) for n in sizes], dtype=np.int64)[of_size]
    else:
        limit = np.full(len(totals), most)
    over = np.flatnonzero(asked & (totals > limit))
    if not len(over):
        return
    worst = over[np.argmin(refined.size[over])]
    rule = "" if most is not None else ", one for ten rows"
    raise PolicyError(
        who,
        key_of("vectors"),
        f"{counted(totals[worst], 'different vector')} of the server, over all runs, with a set of "
        f"{refined.size[worst]} of its rows",
        f"{limit[worst]} with such a set{rule}",
        "the same labels as before are free",
    )
