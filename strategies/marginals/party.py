"""The party half of MST and AIM: levels of own columns, tables of counts with noise, a table."""

import hashlib
from collections.abc import Collection
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, Unpack

import numpy as np
from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype

from flwr_vertical import Summands, Uses, step
from flwr_vertical.arrays import Array, Indices, Integers, Ring
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.log import logger
from flwr_vertical.node.kept import kept
from flwr_vertical.privacy import (
    KEY_BYTES,
    Keystream,
    fresh_keystream,
    noise_is_seeded,
    parse_bounds,
)
from flwr_vertical.products import GroupKeySteps, PairKeySteps
from flwr_vertical.products.arithmetic import BLOCK_ROWS
from flwr_vertical.products.noisy_sums import check_epsilon
from flwr_vertical.products.pair_keys import Names, Nonce, PairKeyFields
from flwr_vertical.products.streams import KeyStream, cancelling_pad, content_tag
from flwr_vertical.protocol.arguments import OWN, Is, Shape, Within
from flwr_vertical.tables import Kind, Table, is_numeric
from flwr_vertical.tables.codes import Levels, to_codes
from strategies.common.synthesis_columns import (
    LIMIT,
    SynthesisParty,
    beyond,
    other_level,
    parse_resolution,
    parse_stated,
)
from strategies.copula.margins import Domain
from strategies.copula.release import MIN_LEVEL
from strategies.marginals.budget import LEVELS, UNIT, Budget, n_bins, pair_places
from strategies.marginals.domain import ColumnLevels, bins_of, levels_of, narrowest, noisy
from strategies.marginals.tables import PairTables

_TOLD = "marginals.told "  # begins the key of what was asked for
_SIGMAS = "marginals.sigmas"
_WIDEST = 2**20
_NARROW = 4  # bins that the middle half of a column's values takes at least


class MarginalsParty(SynthesisParty):
    """Counts the levels of own columns, alone and with others', and adds noise to every table."""

    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)

    @step(repeatable=False)  # a key pair is drawn
    def prepare_marginals(
        self,
        nonce: Nonce,
        resolution: Annotated[str, Is("resolution")],
        bounds: Annotated[str, Is("bounds")],
        levels: Annotated[str, Is("levels")],
    ) -> dict[str, Any]:
        """Make the key pair of this run, and say how many columns there are of which kind.

        Message: nonce: of this run; resolution, bounds, levels: settings; returns what
        `PairKeySteps.pair_key` does, ``n_columns``, ``n_tables``, how many tables their levels are
        found from, and ``n_stated``, how many columns the settings name for their kind.
        """
        self.state["resolution"] = resolution
        self.state["marginals.bounds"], self.state["marginals.levels"] = bounds, levels
        kinds = self._columns.table.kinds
        numbers = {name for name, kind in kinds.items() if is_numeric(kind)}
        ranges = parse_resolution(resolution).keys() | parse_bounds(bounds).keys()
        # No error may tell that a value is far: the own log says so alone.
        beyond(self._columns, parse_bounds(bounds), f"party {self.name!r}")
        self._warn_of_narrow(numbers - parse_bounds(bounds).keys())
        listed = {name: own for name, own in parse_stated(levels).items() if name in kinds}
        for name, own in listed.items():
            if is_numeric_dtype(self.table.frame[name]) and any(isinstance(v, str) for v in own):
                raise DataError(
                    f"party {self.name!r}, column {name!r}: levels states texts, and the column "
                    "has numbers; state numbers"
                )
        stated = len(numbers & ranges) + len(listed.keys() - numbers)
        told = {"n_columns": len(kinds), "n_tables": self._n_tables, "n_stated": stated}
        return {**self.pair_keys.pair_key(nonce), **told}

    @step
    def send_levels(
        self,
        epsilon: Annotated[float, Is("epsilon")],
        delta: Annotated[float, Is("delta")],
        n_tables: Annotated[int, Within(1, _WIDEST)],
        n_columns: Annotated[list[Annotated[int, Within(1, _WIDEST)]], Within(1, "n_parties")],
        owner: Annotated[str, Within(0, 2**16)] = "",
        sealed: Annotated[bytes, OWN] = b"",
        **keys: Unpack[PairKeyFields],
    ) -> dict[str, Any]:
        """Find the levels of the own columns; hand over which each row has under a key stream.

        Message: epsilon, delta: settings; n_tables: that levels of all parties' columns are
        found from; n_columns: of each party; owner, sealed, absent where one party is alone, and
        **keys: see `GroupKeySteps.take`; returns ``sizes`` (n_columns,): levels of each column;
        ``counts``: of each level, with noise, one column after the other; ``sigmas`` (n_columns,):
        their noise; where others are, ``masked`` (n_samples, n_levels), uint64, and the ``tag`` of
        its content; ``seeded``: whether the noise is from a known seed.
        """
        check_epsilon(self, epsilon)
        own, total = self._columns.table.kinds, sum(n_columns)
        n_tables = max(n_tables, self._n_tables)
        asked = repr((epsilon, delta, n_tables, n_columns)).encode()
        self._once("levels", asked)
        self._spend(epsilon, delta)
        budget, many = Budget(epsilon, delta), pair_places(n_columns)
        self.state[_SIGMAS] = [
            budget.domain_sigma(n_tables),
            budget.column_sigma(max(total, len(own))),
            budget.pair_sigma(max(many, 1), chosen=False),
            budget.least_count(n_tables),
        ]
        self.state["marginals.n-columns"] = n_columns
        self.state["marginals.budget"] = [epsilon, delta]
        sizes = [column.size for column in self._found]
        noise = self._noise("columns", asked)
        sigma = float(self.state[_SIGMAS][1])
        counts, sigmas = zip(*(column.counted(sigma, noise) for column in self._found), strict=True)
        told = {
            "sizes": np.array(sizes, dtype=np.int64),
            "counts": np.concatenate(counts),
            "sigmas": np.array(sigmas),
            "seeded": noise_is_seeded(),
        }
        if not sealed and not owner:
            return told
        self.group_key.take(owner, sealed, dict(keys))
        n, width = self.n_samples, sum(sizes)
        tag = content_tag(self.group_key.seed, self._aligned_codes.astype(np.uint64))
        masks = KeyStream(self.group_key.seed, self._label(self.name), (n, width), tag)
        masked = np.empty((n, width), dtype=np.uint64)
        for start in range(0, n, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, n)
            masked[start:stop] = masks.rows(start, stop) + self._indicators(start, stop)
        return {**told, "masked": masked, "tag": tag}

    @step
    def open_counts(
        self,
        names: Names,
        n_columns: Annotated[list[Annotated[int, Within(1, _WIDEST)]], Within("names", "names")],
        sizes: Annotated[Indices, Shape(None), Within(1, _WIDEST)],
        tags: Annotated[list[bytes], Within("names", "names")],
        pairs: Annotated[Indices, Shape(None, 2), Within(0, "sizes - 1")],
        chosen: bool,
    ) -> Summands:
        """Count how often levels of two columns go together, with noise.

        Message: names: of all parties; n_columns: of each; sizes: levels of each column, one party
        after the other; tags: of what each sent; pairs (n_pairs, 2): places of two columns,
        ascending; chosen: whether these are chosen pairs or all; returns, summed, ``corrections``
        (n_cells,), uint64, which open the tables of two parties' columns, one after the other;
        publicly ``own`` (n_cells,), the tables of own columns.
        """
        place = names.index(self.name)
        first = sum(n_columns[:place])
        own_sizes = [column.size for column in self._found]
        here = [int(size) for size in sizes]
        known = self.state["marginals.n-columns"] == n_columns and len(here) == sum(n_columns)
        if not known or here[first : first + n_columns[place]] != own_sizes:
            raise ProtocolError(
                f"party {self.name!r} has columns of {own_sizes} levels, and was told of other ones"
            )
        tables = PairTables.of(pairs, here, n_columns)
        if not chosen and len(pairs) != pair_places(n_columns):
            raise ProtocolError(
                f"party {self.name!r}: all pairs of columns are told first, got {len(pairs)} of "
                f"{pair_places(n_columns)}"
            )
        release = "chosen pairs" if chosen else "all pairs"
        asked = repr((names, n_columns, here, tags, chosen)).encode()
        asked += np.ascontiguousarray(pairs).tobytes()
        if chosen and _TOLD + "all pairs" not in self.state:
            raise ProtocolError(f"party {self.name!r}: all pairs of columns are told first")
        self._once(release, asked)
        epsilon, delta = self.state["marginals.budget"]
        self._spend(epsilon, delta)
        noise = self._noise(release, asked)
        sigma = Budget(epsilon, delta).pair_sigma(len(pairs), chosen)
        own_tables = [
            noisy(self._table(i - first, j - first), sigma, noise) for i, j in tables.inside(place)
        ]
        own = np.concatenate([table.ravel() for table in own_tables]) if own_tables else np.zeros(0)
        total = np.zeros(tables.n_cells, dtype=np.uint64)
        if len(names) > 1:
            widths = [
                sum(here[end - count : end])
                for count, end in zip(n_columns, accumulate(n_columns), strict=True)
            ]
            seed = self.group_key.seed
            streams = [
                KeyStream(seed, self._label(name), (self.n_samples, width), bytes(tag))
                for name, width, tag in zip(names, widths, tags, strict=True)
            ]
            for start in range(0, self.n_samples, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, self.n_samples)
                masks = np.concatenate([s.rows(start, stop) for s in streams], axis=1)
                plain = np.zeros_like(masks)
                at = tables.levels(place)
                plain[:, at] = self._indicators(start, stop)
                # Of the later party of a pair, its masked levels, by those of the earlier one's
                # stream; of the earlier one, its levels.
                tables.add(total, masks, plain, place)
            total *= np.uint64(UNIT)
            total += tables.noise(place, sigma, noise)
            digest = hashlib.sha256(asked + self.services.binding()).hexdigest()
            total += cancelling_pad(seed, "marginals", digest, names, self.name, total.shape)
        return Summands({"corrections": total}, {"own": own}, modular=("corrections",))

    @step
    def synthesise(
        self, codes: Annotated[Integers, OWN, Shape("rows or n_samples", None), Within(0, _WIDEST)]
    ) -> dict[str, Any]:
        """Make the synthetic table of the own columns and write it to the own storage.

        Message: codes (n_rows, n_columns): levels of synthetic rows; returns nothing. The
        group seed is forgotten.
        """
        if codes.shape[1] != len(self._found) or any(
            int(own.max(initial=0)) >= column.size
            for own, column in zip(codes.T, self._found, strict=True)
        ):
            raise ProtocolError(
                f"party {self.name!r} has columns of {[c.size for c in self._found]} levels, and "
                f"got synthetic rows of {codes.shape[1]} columns with others"
            )
        if "node.group.seed" in self.state:
            self.group_key.erase_group_seed()
        rng = np.random.default_rng(list(self.own_bytes("values within bins")))
        drawn = [column.draw(own, rng) for own, column in zip(codes.T, self._found, strict=True)]
        self._save(np.stack(drawn, axis=1))
        return {}

    def _once(self, release: str, asked: bytes) -> None:
        """Refuse to tell another thing under the budget of one."""
        digest = hashlib.sha256(asked).digest()
        if self.state.setdefault(_TOLD + release, digest) != digest:
            raise ProtocolError(
                f"party {self.name!r} has told {release} in this run already; other ones would "
                "spend the budget again. Start another run"
            )

    def _spend(self, epsilon: float, delta: float) -> None:
        """Write down what the run spends, once, whatever it asks for."""
        self.privacy_ledger.spend_epsilon(
            epsilon,
            delta=delta,
            release=self.secret_of("marginals", repr((epsilon, delta)).encode(), KEY_BYTES),
            what="counts of levels of columns and of pairs of columns, with noise",
        )

    def _noise(self, release: str, asked: bytes) -> Keystream:
        key = self.secret_of(f"noise of {release}", asked, KEY_BYTES)
        return fresh_keystream(f"marginals {release} {self.name}", key)

    def _label(self, owner: str) -> str:
        return f"levels of {owner}"

    def _indicators(self, start: int, stop: int) -> Ring:
        """Return which levels rows have, of shape (stop - start, n_levels); 0 in rows not held."""
        codes = self._aligned_codes[start:stop]
        sizes = [column.size for column in self._found]
        found = np.zeros((stop - start, sum(sizes)), dtype=np.uint64)
        for first, own in zip(accumulate([0, *sizes]), codes.T, strict=False):
            rows = np.flatnonzero(own >= 0)
            found[rows, first + own[rows]] = 1
        return found

    def _table(self, i: int, j: int) -> Array:
        one, two = self._aligned_codes[:, [i, j]].T
        shape = self._found[i].size, self._found[j].size
        rows = one >= 0
        counts = np.bincount(one[rows] * shape[1] + two[rows], minlength=shape[0] * shape[1])
        return counts.reshape(shape).astype(np.float64)

    def _warn_of_narrow(self, numbers: Collection[str]) -> None:
        """Log, for the owner alone, which columns without bounds no bin is narrow enough for."""
        if narrow := self._columns.too_close(numbers, narrowest, _NARROW):
            logger.warning(
                "party %r: %s: without bounds, bins are half a percent of a value wide, 0.0005 "
                "near 0, and values lie closer together than a few of them: synthetic values will "
                "spread many times as wide. State bounds",
                self.name, narrow,
            )  # fmt: skip

    @property
    def _n_tables(self) -> int:
        """Tables that levels of own columns are found from."""
        kinds = self._columns.table.kinds.values()
        return len(kinds) + (LEVELS - 1) * sum(is_numeric(kind) for kind in kinds)

    @kept("marginals.found")
    def _found(self) -> list[ColumnLevels]:
        """Levels of own columns; the same noise whenever they are worked out."""
        if _SIGMAS not in self.state:
            raise ProtocolError(f"party {self.name!r} has no levels yet: 'send_levels' comes first")
        sigma, _, of_pairs, named = self.state[_SIGMAS]
        noise = self._noise("levels", repr([*self.state[_SIGMAS]]).encode())
        table, bounds = self._columns.table, parse_bounds(self.state["marginals.bounds"])
        codes = self._codes[self.positions >= 0]
        least = max(self.policy.min_rows or 0, MIN_LEVEL, float(named))
        # A table of two parties' columns has the noise of both.
        most = n_bins(self.n_samples, of_pairs * 2**0.5)
        found = []
        for (name, kind), own in zip(table.kinds.items(), codes.T, strict=True):
            if is_numeric(kind):
                low, high = bounds.get(name, (-LIMIT, LIMIT))
                domain = Domain(low, high, self._columns.steps[name])
                found.append(bins_of(own, domain, most, sigma, noise))
            else:
                public = name in self._stated
                other = None if public else other_level(table, name, self._levels)
                count, lowest = len(self._levels[name]), -np.inf if public else least
                found.append(levels_of(own, count, other, lowest, sigma, noise))
        return found

    @kept("marginals.aligned")
    def _aligned_codes(self) -> Integers:
        """Levels of aligned rows, shape (n_samples, n_columns); -1 in rows not held."""
        held = np.flatnonzero(self.positions >= 0)
        own = np.full((len(self.positions), len(self._found)), -1, dtype=np.int64)
        for j, column in enumerate(self._found):
            own[held, j] = column.codes
        return np.asarray(self.to_aligned(own, -1))

    @property
    def _stated(self) -> Levels:
        """Levels whose names are public, so that none needs many rows; no others are counted."""
        dtypes = self.table.frame.dtypes
        both: Levels = {str(n): [False, True] for n, own in dtypes.items() if is_bool_dtype(own)}
        return parse_stated(str(self.state["marginals.levels"])) | both

    @property
    def _levels(self) -> Levels:
        return super()._levels | self._stated

    @property
    def _taken(self) -> Table:
        """The own table; whole numbers are numbers, since their bins name no value that occurs."""
        kinds, stated = dict(self.table.kinds), self._stated
        for name, kind in kinds.items():
            if name in stated:
                kinds[name] = Kind.ORDINAL if is_numeric(kind) else kind
            elif is_integer_dtype(self.table.frame[name].dtype):
                kinds[name] = Kind.CONTINUOUS
        return replace(self.table, kinds=kinds)

    @property
    def _codes(self) -> Array:
        # No error may tell whether a value is among stated levels, so others are missing.
        frame = self._columns.table.frame.copy(deep=False)
        for name in self._stated.keys() & set(frame):
            frame[name] = frame[name].where(frame[name].isin(self._stated[name]))
        return to_codes(Table(frame, self._columns.table.kinds), self._levels, self.name)
