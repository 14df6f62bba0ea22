"""A party's noise on the sums of one request: what it spends, and how it is added."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.node import Party
from flwr_vertical.policy.record import key_of
from flwr_vertical.privacy import KEY_BYTES, fresh_keystream, gaussian_integers
from flwr_vertical.products.arithmetic import Layout, decode, fraction_bits, product
from flwr_vertical.products.columns import EncodedColumns
from flwr_vertical.products.noise import PRODUCTS, SQUARES, SUMS, VECTORS, PrivateRows, draw

# Under a prefix that the server may not write to.
ROOM = "node.products.room"
_RELEASES = "node.products.releases"
_PLAN = "node.products.noise "
_CONTENTS, _LEVELS, _N_VECTORS = _PLAN + "contents", _PLAN + "levels", _PLAN + "vectors"
_PURPOSE = "noise of moments"


def check_epsilon(party: Party, epsilon: float) -> None:
    """Refuse a release that spends more than the node allows for a run."""
    most = party.policy.max_epsilon
    if most is not None and epsilon > most:
        asked = f"epsilon {epsilon:g} on a row"
        raise PolicyError(f"party {party.name!r}", key_of("max_epsilon"), asked, f"{most:g}")


def fix_room(party: Party, room: int) -> None:
    """Keep how much room the columns of a run leave for noise, and refuse another."""
    if party.state.setdefault(ROOM, room) != room:
        raise ProtocolError(
            f"party {party.name!r}: columns were sent with {party.state[ROOM]} bits left free, and "
            f"are asked for with {room}; start another run"
        )


def noise_on_products(party: Party, g: int, n_given: int, n_own: int, unit: float) -> list[int]:
    """Draw the noise of products from ciphertexts, by the plan that was kept."""
    if _CONTENTS not in party.state:
        return [0] * (n_given * n_own)
    content, levels = bytes(party.state[_CONTENTS][g]), np.asarray(party.state[_LEVELS])[g]
    key = party.secret_of(f"{_PURPOSE}, from ciphertexts", content, KEY_BYTES)
    stream = fresh_keystream(f"products of {party.name} {g}", key)
    found: list[int] = []
    for i in range(n_given):
        is_vector = i >= n_given - int(party.state[_N_VECTORS])
        sigma = float(levels[VECTORS if is_vector else PRODUCTS]) / unit
        found += gaussian_integers(max(int(np.ceil(sigma)), 1), n_own, stream)
    return found


class NoisySums:
    """Noise for the sums of one request, and the own sums with it.

    Shapes: present (n_groups, n_parties): whose columns are in the sums of a group.
    """

    def __init__(
        self,
        party: Party,
        rule: PrivateRows,
        encoded: EncodedColumns,
        layout: Layout,
        sets: Sequence[bytes],
        present: Flags,
        n_vectors: int,
    ) -> None:
        if layout.limbs != 1:
            raise ProtocolError(
                f"party {party.name!r} adds noise to what is opened, and products in "
                f"{layout.limbs} limbs would show the exact sums; ask with limbs=1"
            )
        self._party, self._rule, self._layout = party, rule, layout
        self._sets, self._n_vectors, self._room = sets, n_vectors, encoded.room
        self._bits = fraction_bits(encoded.shape[0])
        step = 2.0 ** (self._room - self._bits)
        self._levels = rule.levels(list(layout.widths.values()), present, n_vectors, step)
        width, n_groups = layout.widths[party.name], len(present)
        self._sums = np.zeros((n_groups, width), dtype=np.uint64)
        self._products = np.zeros((n_groups, width, width), dtype=np.uint64)

    @classmethod
    def of(
        cls,
        party: Party,
        encoded: EncodedColumns,
        layout: Layout,
        group: Indices,
        n_groups: int,
        missing: Flags | None,
        n_vectors: int,
    ) -> "NoisySums | None":
        """Return the noise of a request to `PrivateProductSteps.open_products`; None without."""
        rule = encoded.held.noise
        if rule is None:
            return None
        flags = np.zeros((n_groups, len(layout.widths)), dtype=bool)
        if missing is not None:
            flags = np.asarray(missing, dtype=bool)
        sets = [
            hashlib.sha256(np.packbits(group == g).tobytes() + flags[g].tobytes()).digest()
            for g in range(n_groups)
        ]
        return cls(party, rule, encoded, layout, sets, ~flags, n_vectors)

    @property
    def scaled(self) -> Array:
        """Levels of columns as they are encoded, shape (n_groups, 4)."""
        smaller = np.zeros(4)
        smaller[[SUMS, VECTORS]], smaller[[SQUARES, PRODUCTS]] = self._room, 2 * self._room
        return np.asarray(self._levels * 2.0**-smaller)

    def release(self, columns: bytes, attempt: bytes) -> None:
        """Draw the noise of what is asked for, and write down what it spends."""
        common = columns + repr(self._n_vectors).encode() + self._rule.agreed
        contents = [hashlib.sha256(rows + common).digest() for rows in self._sets]
        self._check_once(contents, hashlib.sha256(attempt).digest())
        self._contents = contents
        name = self._party.name
        keys = [self._party.secret_of(_PURPOSE, content, KEY_BYTES) for content in contents]
        check_epsilon(self._party, self._rule.epsilon)
        self._party.privacy_ledger.spend_epsilon(
            self._rule.epsilon,
            delta=self._rule.delta,
            # Another run draws other noise for the same sums: that is another release.
            release=hashlib.sha256(b"moments" + b"".join(keys)).digest(),
            what="sums of columns, of products of columns, and of products with the labels, "
            "with noise",
        )
        # The label counts where noise is seeded: it must not follow from keys, which never are.
        streams = [
            fresh_keystream(f"moments of {name} {rows.hex()}", key)
            for rows, key in zip(self._sets, keys, strict=True)
        ]
        self._drawn = draw(self.scaled, self._bits, name, self._layout, self._n_vectors, streams)

    def keep_plan(self) -> None:
        """Keep what `noise_on_products` needs in a later message."""
        state = self._party.state
        state[_CONTENTS], state[_LEVELS] = self._contents, self.scaled
        state[_N_VECTORS] = self._n_vectors

    def _check_once(self, contents: list[bytes], attempt: bytes) -> None:
        state = self._party.state
        kept = [bytes(item) for item in state.get(_RELEASES, [])]
        released = {item[:32]: item[32:] for item in kept}
        new = [content for content in contents if content not in released]
        if any(released.get(content, attempt) != attempt for content in contents):
            raise ProtocolError(
                f"party {self._party.name!r} has told these sums with noise in this run; with "
                "vectors that may be others the same noise would cancel. Start the run again"
            )
        if kept and new:
            raise ProtocolError(
                f"party {self._party.name!r} has made its release of this run; other sums would "
                "spend the budget again. Start another run"
            )
        state[_RELEASES] = [*kept, *(content + attempt for content in new)]

    def add(self, own: Ring, groups: list[Indices]) -> None:
        """Add a block of the own encoded columns, of shape (n_rows, n_own), to the own sums."""
        for g, rows in enumerate(groups):
            if len(rows):
                part = own if len(rows) == len(own) else own[rows]
                self._sums[g] += part.sum(axis=0, dtype=np.uint64)
                self._products[g] += product(part, part)

    @property
    def across(self) -> Ring:
        """Noise on products with other parties' columns, in the places of the corrections."""
        return self._drawn.across

    @property
    def vectors(self) -> Ring:
        """Noise on products with vectors, shape (n_groups, n_own, n_vectors)."""
        return self._drawn.vectors

    def own_moments(self, withheld: Flags, scale: Array) -> dict[str, Any]:
        """Return `columns.own_moments` of columns divided by scale, noisy, with ``noise``."""
        noisy = (self._sums + self._drawn.sums).view(np.int64)
        sums = noisy.astype(np.float64) * 2.0**-self._bits * scale
        products = np.stack(
            [decode(found[None], self._bits) for found in self._products + self._drawn.own]
        ) * np.outer(scale, scale)
        sums[withheld], products[withheld] = 0.0, 0.0
        products.swapaxes(1, 2)[withheld] = 0.0
        return {"sums": sums, "products": products, "noise": self.scaled}
