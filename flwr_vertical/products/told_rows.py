"""What a party has told of its rows so far, and what it tells when it is asked again.

Sums over sets of rows that overlap can be subtracted from each other. What can be had from all of
them are sums over *atoms*: rows that were in the same group each time. So the rules of
`privacy_ledger.rules` and `rare_levels` hold for atoms, whatever the server asks for. Where the
node keeps a privacy ledger, they hold over all runs, and the entry is on disk before the step
answers; where tables lie in memory, over the run, whose state the server cannot write.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.errors import DataError, PolicyError, ProtocolError
from flwr_vertical.node import Party
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.policy.record import key_of
from flwr_vertical.privacy_ledger.row_history import SHARED, ToldColumns
from flwr_vertical.privacy_ledger.row_sets import told_alone
from flwr_vertical.privacy_ledger.rules import Judged, LabelSet
from flwr_vertical.products.columns import OF_TREES, HeldColumns
from flwr_vertical.products.lone_rows import FEWEST, KnownSets, withhold_lone_rows
from flwr_vertical.products.rare_levels import LevelAtoms, counted_vectors, repeated_codes
from flwr_vertical.products.row_groups import distinct_rows

_KEPT = "node.products."
_ATTEMPTS, _COMMITTED = _KEPT + "attempts", _KEPT + "committed"

COMMITMENT_BYTES = 32
_ATTEMPT_BYTES = 16


class ToldRows:
    """The rules of one party on rows, vectors and columns of few values.

    All columns count as one: sums of other columns over other rows are still sums over the same
    people, and what a party knows of one column may help with another.
    """

    def __init__(self, party: Party, purpose: str, at_least: int = 0, label_sets: int = 1) -> None:
        self._party, self._name, self._state = party, party.name, party.state
        self._purpose, self._at_least, self._label_sets = purpose, at_least, label_sets
        # The owner of the data decides: the policy goes before what a strategy says.
        self.minimum: int | None = party.policy.min_rows

    @property
    def stated_minimum(self) -> dict[str, int]:
        """The fewest rows of a set that may be told of, ``min_rows``, if the policy states it."""
        return {} if self.minimum is None else {"min_rows": self.minimum}

    def commit(self, commitment: bytes) -> None:
        """Keep what the server commits to for its vectors, and refuse another one later."""
        kept = list(self._state.get(_COMMITTED, []))
        if commitment in kept:
            return
        if len(commitment) != COMMITMENT_BYTES:
            raise ProtocolError(
                f"party {self._name!r}: products with vectors of the server need its commitment to "
                f"them, {COMMITMENT_BYTES} bytes, got {len(commitment)}"
            )
        if len(kept) >= self._label_sets:
            raise ProtocolError(
                f"party {self._name!r}: the server's vectors (labels) differ from those that it "
                f"committed to in this run; this method multiplies with {self._label_sets} set(s) "
                "of vectors. Start another run for other labels"
            )
        self._state[_COMMITTED] = [*kept, commitment]

    def admit(
        self,
        held: HeldColumns,
        group: Indices,
        n_groups: int,
        missing: Flags | None = None,
        n_vectors: int = 0,
        attempt: bytes = b"",
        commitment: bytes | None = b"",
        recognised: bytes = b"",
        private: bool = False,
        n_others: int = 0,
    ) -> Flags:
        """Decide what may be told, and note it.

        Shapes: group (n_samples,): number of each row's group, -1 for rows in none; missing
        (n_groups,): groups in which the party's rows are not to be told of; returns (n_groups,
        n_columns): true where nothing of a column may be told of a group: the party has none of
        its rows (or is to leave them out), or the column has a level that is too rare there.
        Where the sums are `private`, by noise, levels may be rare; sets of rows may not be small.
        """
        group = np.asarray(group, dtype=np.int64)
        if group.shape != (held.n_samples,) or group.max(initial=-1) >= n_groups:
            raise ProtocolError(
                f"party {self._name!r}: group has shape {group.shape} and numbers up to "
                f"{group.max(initial=-1)}; expected ({held.n_samples},) and less than {n_groups}"
            )
        used = np.bincount(group[group >= 0], minlength=n_groups)
        if not used.all():
            raise ProtocolError(
                f"party {self._name!r}: group {int(np.argmin(used))} of {n_groups} has no row"
            )
        n_columns, self._at_least = held.values.shape[1], max(self._at_least, held.at_least)
        absent = self._absent(held, group, n_groups, missing)
        own = group[held.rows]
        own[own >= 0] = np.where(absent[own[own >= 0]], -1, own[own >= 0])
        withheld = np.repeat(absent[:, None], n_columns, axis=1)
        label = self._label(n_vectors, attempt, commitment, recognised)
        attempts = self._attempts(attempt) if n_vectors else None
        if len(held.rows) < self.fewest(n_columns, n_vectors if commitment else 0):
            withheld[:] = True
            self._party.privacy_ledger.note_nothing("rows")
        else:
            withheld |= self._judged(held, own, n_groups, label, attempt, private, n_others)
        if attempts is not None:
            self._state[_ATTEMPTS] = attempts
        return withheld

    def admit_pairs(
        self, held: HeldColumns, widths: Mapping[str, int], taken: Flags, who: Flags, wanted: Flags
    ) -> tuple[Flags, Flags, Flags]:
        """Decide on sums over the own rows, and over those that each other party holds, too.

        A column of another party may be constant, or a copy of an own one. So rows that the party
        shares with one other and not with a second, or with no other, are none or enough as well.
        What becomes of products may reach the other party, rounded to their errors: for it they
        are as many vectors that it knows, so there are ten rows for each, and levels are rarer.
        A column with a level that is too rare in the rows shared with a party, or in the others, is
        told of over the own rows, and not with that party's columns.

        Shapes: widths: by party, its number of columns; taken (n_samples,): rows that take part;
        who (n_samples, n_parties): which parties hold each row; wanted (n_parties,): with whose
        columns; returns (1, n_columns): as of `admit`; returns (n_parties,): parties with which
        nothing is told of, since they are not wanted or share too few rows; returns (n_parties,
        n_columns): columns of which nothing is told with a party's; all of these parties.
        """
        names, n_columns = list(widths), held.values.shape[1]
        self._at_least = max(self._at_least, held.at_least)
        place, who = names.index(self._name), np.asarray(who, dtype=bool)
        mine = np.zeros(held.n_samples, dtype=bool)
        mine[held.rows] = True
        if not np.array_equal(mine[taken], who[taken, place]):
            raise ProtocolError(
                f"party {self._name!r}: it holds other rows than the server says, so others would "
                "tell of other pairs of rows than this party counts"
            )
        own = np.asarray(taken, dtype=bool)[held.rows]
        shared = who[held.rows] & own[:, None]
        needed = [
            max(self.fewest(n_columns + width), *(10 * n for n in (n_columns, width)))
            for width in widths.values()
        ]
        far = ~np.asarray(wanted, dtype=bool) | (shared.sum(axis=0) < needed)
        far[place] = False
        apart: Flags = np.repeat(far[:, None], n_columns, axis=1)
        if own.sum() < self.fewest(sum(widths.values())):
            self._party.privacy_ledger.note_nothing("rows")
            far = np.arange(len(names)) != place
            return np.ones((1, n_columns), dtype=bool), far, np.tile(far[:, None], n_columns)
        others = [k for k in np.flatnonzero(~far).tolist() if k != place]
        for first, second in itertools.permutations(others, 2):
            lone = int((shared[:, first] & ~shared[:, second]).sum())
            if 0 < lone < self.fewest(n_columns):
                raise PolicyError(
                    f"party {self._name!r}",
                    key_of("min_rows"),
                    f"sums that may tell of {lone} of its rows alone, which {names[first]!r} "
                    f"holds, and {names[second]!r} does not",
                    f"sets of at least {self.fewest(n_columns):,} rows",
                    "leave these rows out, or products with one of these parties",
                )
        kinds, _, counts = distinct_rows(shared[own][:, [place, *others]])
        if lone := told_alone(kinds, counts, self.fewest(n_columns))[0]:
            raise PolicyError(
                f"party {self._name!r}",
                key_of("min_rows"),
                f"sums that tell of {lone} of its rows alone, over its rows and over those shared "
                "with others together",
                f"sets of at least {self.fewest(n_columns):,} rows",
                "leave these rows out, or products with one of these parties",
            )
        n_others = sum(widths.values()) - n_columns
        withheld = self._judged(held, np.where(own, 0, -1), 1, None, b"", False, n_others)
        for k in others:
            group = np.where(shared[:, k], 0, np.where(own, 1, -1))
            # The other party knows its own columns: rounded products are equations of these.
            bits = widths[names[k]] * (1.0 + 0.5 * math.log2(shared[:, k].sum()))
            found = self._judged(
                held, group, int(group.max()) + 1, None, b"", False, widths[names[k]],
                scope=f"{SHARED}{names[k]}", bits=bits,
            )  # fmt: skip
            apart[k] = found.any(axis=0)
        return withheld, far, apart

    def own_part(self, held: HeldColumns) -> HeldColumns:
        """Return the columns over rows that the party has: all, unless others complete some."""
        return held

    def fewest(self, n_columns: int, n_vectors: int = 0) -> int:
        """Return the fewest rows of a set that may be told of."""
        fewest = max(self._at_least, min_rows(n_columns, n_vectors))
        return fewest if self.minimum is None else self.minimum

    def _judged(
        self,
        held: HeldColumns,
        own: Indices,
        n_groups: int,
        label: tuple[bytes, LabelSet] | None,
        attempt: bytes,
        private: bool,
        n_others: int,
        scope: str = "",
        bits: float = 0.0,
    ) -> Flags:
        """Have the privacy ledger judge a request, and write it down.

        Shapes: own (n_held,): number of each row's group, -1 for rows that are not told of; returns
        (n_groups, n_columns): true where a column is withheld; the same whenever the same is asked.
        """
        party, n_columns = self._party, held.values.shape[1]
        # Noise hides which rows have a rare level, and does not hide that a set of rows is small.
        codes = {} if private else self._codes(held)
        at, rows = self.own_rows(held), party.rows_in_ledger()
        group = np.full(len(rows), -1, dtype=np.int64)
        group[at] = own

        def decide(judged: Judged, atom: Indices, columns: Callable[..., ToldColumns]) -> Flags:
            refined, beside = judged.refined, held
            if held.beside is not None:
                earlier = held.beside(columns(), group)
                sources = *held.sources, *earlier.sources
                beside = replace(held, sources=sources, earlier=earlier)
            n_vectors = counted_vectors(judged.n_known, judged.n_sets) + math.ceil(bits / 64.0)
            atoms = LevelAtoms(atom[at], refined.parent, refined.group, n_vectors)
            fewest = party.policy.min_rows
            withheld = atoms.withheld(codes, n_groups, n_columns, fewest)
            self._withhold_cells(beside, at, codes, withheld, atoms)
            if not private:
                needed = FEWEST if fewest is None else min(fewest, FEWEST)
                known = self._known_sets(beside)
                withhold_lone_rows(beside, at, withheld, atoms, needed, known)
            for v in () if held.variable is None else np.unique(held.variable[held.variable >= 0]):
                for told in withheld:
                    self._withhold_together(held, np.flatnonzero(held.variable == v), told, atoms)
            if held.made_by and not private:
                columns(held.made_by, np.flatnonzero(~withheld.all(axis=0)), group)
            return withheld

        def digest(codes: dict[int, Indices]) -> bytes:
            told = n_columns, held.names, n_groups, sorted(codes), private
            asked = hashlib.sha256(repr(told).encode())
            if held.squares is not None:  # squares and ranks of a column have its name
                # Rows in another order add up to other last digits.
                asked.update(repr([f"{square:.6g}" for square in held.squares]).encode())
            for j in sorted(codes):
                levels = codes[j][np.argsort(at)]
                asked.update(np.ascontiguousarray(levels, dtype=np.int64).tobytes())
            return asked.digest()

        commitment, labels, streams = b"", LabelSet(0), {}
        if label is not None:
            commitment, labels = label
            # The pads of an attempt hide one answer, which follows from what is asked.
            streams[f"pads of {attempt.hex()}"] = party.services.asked() + digest({})
        told = party.privacy_ledger.check_and_note_rows(
            group,
            self._at_least,
            rows=rows,
            n_vectors=labels.n_vectors,
            known=labels.known,
            commitment=commitment,
            n_columns=n_columns + n_others,
            decide=decide,
            about=digest(codes),
            streams=streams,
            scope=scope,
            what=f"sums of {n_columns} column(s) over {n_groups} group(s) of rows "
            f"({self._purpose}{', ' if scope else ''}{scope})",
        )
        assert told.answer is not None
        return told.answer.reshape(n_groups, n_columns).astype(bool)

    def _withhold_together(
        self, held: HeldColumns, levels: Indices, withheld: Flags, atoms: LevelAtoms
    ) -> None:
        """Withhold more levels of a variable until those withheld are safe as one: it follows."""
        by_rows = levels[np.argsort(held.values[:, levels].sum(axis=0), kind="stable")]
        for level in by_rows[~withheld[by_rows]] if withheld[levels].any() else ():
            rest = np.round(held.values[:, levels[withheld[levels]]].sum(axis=1), 6)
            codes, n_groups = np.unique(rest, return_inverse=True)[1], int(atoms.group.max()) + 1
            if not atoms.withheld({0: codes}, n_groups, 1, self._party.policy.min_rows).any():
                return
            withheld[level] = True

    def _withhold_cells(
        self,
        held: HeldColumns,
        own: Indices,
        codes: Mapping[int, Indices],
        withheld: Flags,
        atoms: LevelAtoms,
    ) -> None:
        """Withhold columns that tell rare values of the cells apart that they are made of."""
        for cells, made, before in held.of_cells():
            if cells == OF_TREES:  # Many leaves together have a value of each row.
                continue
            unsafe, fewest = set(range(len(withheld))), self._party.policy.min_rows
            while unsafe and made and codes.keys() >= set(made):
                columns = held.values[:, made]
                if len(made) + before.values.shape[1] > 1:
                    unsafe &= atoms.groups_of_cells(columns, before, own, fewest)
                    withheld[sorted(unsafe), made[-1]] = True
                made = made[:-1]

    def _known_sets(self, held: HeldColumns) -> KnownSets:
        """Return what was found of sets of rows of these columns."""
        cache, key = self._party.cache, f"{_KEPT}sets {self._purpose}"
        of = held.values, held.earlier
        if key not in cache or any(a is not b for a, b in zip(cache[key][0], of, strict=True)):
            cache[key] = of, {}
        known: KnownSets = cache[key][1]
        return known

    def _codes(self, held: HeldColumns) -> dict[int, Indices]:
        """Return the levels of columns of few values."""
        # By the columns themselves: others may have come in their place.
        cache, key, values = self._party.cache, f"{_KEPT}codes {self._purpose}", held.values
        if key not in cache or cache[key][0] is not values:
            codes = {j: repeated_codes(values[:, j]) for j in range(values.shape[1])}
            cache[key] = values, {j: code for j, code in codes.items() if code is not None}
        of_column: dict[int, Indices] = cache[key][1]
        return of_column

    def _absent(
        self, held: HeldColumns, group: Indices, n_groups: int, missing: Flags | None
    ) -> Flags:
        """Return in which groups the party tells of no row."""
        rows = np.bincount(group[group >= 0], minlength=n_groups)
        own = group[held.rows]
        mine = np.bincount(own[own >= 0], minlength=n_groups)
        absent: Flags = mine == 0
        if missing is not None:
            absent = absent | np.asarray(missing, dtype=bool)
        # Else products with another party's column would be sums over the rows that both have,
        # and these may be few.
        partly = np.flatnonzero(~absent & (mine < rows))
        if len(partly):
            g = int(partly[0])
            raise DataError(
                f"party {self._name!r}: it has {mine[g]} of the {rows[g]} rows of group {g}, and "
                "products are told of groups whose rows a party has all; put rows with the same "
                "blocks missing into one group, or count this party's block as missing there"
            )
        return absent

    def _attempts(self, attempt: bytes) -> list[bytes]:
        """Return all attempts after this one."""
        used = list(self._state.get(_ATTEMPTS, []))
        mark = hashlib.sha256(attempt).digest()
        if len(attempt) < _ATTEMPT_BYTES or mark in used:
            raise ProtocolError(
                f"party {self._name!r}: an attempt of products with vectors has a name of its "
                f"own, at least {_ATTEMPT_BYTES} random bytes; this one was used before: its pad "
                "would open an equation"
            )
        return [*used, mark]

    def _label(
        self, n_vectors: int, attempt: bytes, commitment: bytes | None, recognised: bytes
    ) -> tuple[bytes, LabelSet] | None:
        """Return what tells the vectors from others, and how they count."""
        if not n_vectors:
            return None
        # New ones at each attempt; asked again after an answer was lost, they are the same.
        new = b"attempt " + hashlib.sha256(attempt).digest()
        if commitment is None:
            return new, LabelSet(n_vectors, False)
        self.commit(commitment)
        if not self._party.remembers:
            return commitment, LabelSet(n_vectors)
        return recognised or new, LabelSet(n_vectors)

    def own_rows(self, held: HeldColumns) -> Indices:
        """Return which of the own rows the columns are of, shape (n_held,)."""
        if not len(held.rows):
            return np.zeros(0, dtype=np.int64)
        if held.own is not None:
            return np.asarray(held.own, dtype=np.int64)
        if held.n_samples != self._party.n_samples:
            raise ProtocolError(
                f"party {self._name!r}: its columns are numbered among {held.n_samples} samples, "
                f"and {self._party.n_samples} are aligned; `HeldColumns.own` has to say which of "
                "the own rows they are, for the privacy ledger"
            )
        return np.asarray(self._party.rows_of(held.rows)[1])
