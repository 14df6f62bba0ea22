"""The party half of masked mean functions: sums ``X_k' mu(eta)`` without a number of a sample told.

Of n rows and H harmonics an evaluation takes 2 H n masked features, down to the first party, and n
masked numbers up from each helper; the information takes ``2 (2 p_k + 1) n`` of a party more.

What the server cannot come to, whatever it asks for: a key stream depends on what it hides, pads
are used once, sums are over rows that are enough, and each evaluation counts as a vector that the
columns are multiplied with, the information as half as many as there are columns
(`PrivateProductSteps` has these rules).
"""

import hashlib
from typing import Annotated, Any, Unpack

import numpy as np

from flwr_vertical import Party, StepGroup, Summands, step
from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.policy.defaults import vectors_of_products
from flwr_vertical.products import GroupKeySteps, HeldColumns, PrivateProductSteps
from flwr_vertical.products.arithmetic import own_place
from flwr_vertical.products.pair_keys import Names, PairKeyFields, Widths
from flwr_vertical.products.streams import KeyStream, content_tag, stream
from flwr_vertical.protocol.arguments import OWN, Shape, Within, check_fits
from strategies.linear.masked_means.fixed_point import N_DIGITS, N_LEADING, combine, to_digits
from strategies.linear.masked_means.fourier import CIRCLE, to_circle
from strategies.linear.masked_means.information import Answer, Roles

REACH_STEP = 0.25
"""Grid of what is told of the largest and the smallest fit."""
_FARTHEST = 64.0
"""Own fits that reach farther are not evaluated: steeper means come near to flags of rows."""

_MOST_PERIODS = 1 << 20
"""Of a circle: by none, or by 2^63, key streams would not hide what features are multiplied by."""

_MOST_WEIGHTINGS = 1 << 12

_ROWS, _WITHHELD, _PLACED = "means.rows", "means.withheld", "means.placed"


class MaskedMeanSteps(StepGroup):
    """A party's half of masked means over what its `columns_to_multiply` returns, centred.

    The party uses `GroupKeySteps` and `PrivateProductSteps`, too.
    """

    party: Party

    @step
    def send_digits(
        self,
        group: Annotated[Indices, Within(-1, 0)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[PairKeyFields],
    ) -> dict[str, Any]:
        """Hand over the own columns in digits, under the key stream of the group seed.

        Message: group (n_samples,): 0 for samples of the fit, all of which the party holds, else
        -1; owner, sealed, **keys: see `GroupKeySteps.take`; returns ``masked`` of shape (n,
        N_DIGITS * n_columns), uint64; the ``tag`` of its content; ``scale`` of shape (n_columns,),
        powers of two by which centred columns were divided; ``largest``, a power of two that no
        digit exceeds.
        """
        group_key = self.other(GroupKeySteps)
        group_key.take(owner, sealed, keys)
        chosen = np.asarray(group) >= 0
        if not np.isin(np.flatnonzero(chosen), self._columns().rows).all():
            raise DataError(
                f"party {self.name!r} lacks samples of the fit: mean functions need samples that "
                "all parties hold"
            )
        withheld = self.other(PrivateProductSteps).allow(group, 1, 0)[0]
        self.state[_ROWS] = chosen.view(np.uint8)
        self.state[_WITHHELD] = withheld.view(np.uint8)
        self.cache.pop("means.digits", None)
        digits, scale = self._digits
        tag = content_tag(group_key.seed, digits)
        mask = stream(group_key.seed, _digits_label(self.name), digits.shape, tag)
        largest = float(np.abs(digits.view(np.int64)).max(initial=1))
        return {
            "masked": digits + mask,
            "tag": tag,
            "scale": scale,
            "largest": 2.0 ** np.ceil(np.log2(largest)),
        }

    @step
    def place_fits(self, beta: Annotated[Array, OWN]) -> Summands:
        """Put the own fits on the circle, under a key stream of the group.

        Message: beta (n_columns,): own coefficients, in the columns' units; returns summed:
        ``angles`` of shape (n,), uint64; ``low`` and ``high``, the smallest and the largest fit in
        steps of `REACH_STEP`, outwards. How far fits reach tells of the row that reaches
        farthest: so those of which nothing is opened count as a vector. Whether something will be
        is not known, so the first of a run count, and others when those before were not opened.
        """
        check_fits(self.name, "beta", beta, Shape(self._centred.shape[1]))
        if self.state.get(_PLACED, 1):
            asked = str(self.party.services.sequence).encode() + self.party.services.asked()
            attempt = hashlib.sha256(b"placed " + asked).digest()
            group = np.where(self._chosen, 0, -1)
            self.other(PrivateProductSteps).allow(group, 1, 1, attempt)
        self.state[_PLACED] = 1
        fits = self._centred @ np.asarray(beta)
        low = np.floor(fits.min(initial=0.0) / REACH_STEP)
        high = np.ceil(fits.max(initial=0.0) / REACH_STEP)
        if not max(-low, high) * REACH_STEP < _FARTHEST:
            # Said as a reach, for the server to take a shorter step; nothing is placed.
            placed = np.zeros(len(fits), dtype=np.uint64)
            low, high = -CIRCLE / REACH_STEP, CIRCLE / REACH_STEP
        else:
            placed = to_circle(fits)
        seed = self.other(GroupKeySteps).seed
        tag = content_tag(seed, placed)
        values = {
            "angles": placed + stream(seed, _fits_label(self.name), placed.shape, tag),
            "low": np.array(int(low), dtype=np.int64),
            "high": np.array(int(high), dtype=np.int64),
        }
        return Summands(values, public={"tag": tag}, modular=("angles",))

    @step
    def open_means(
        self,
        attempt: bytes,
        names: Names,
        widths: Widths,
        column_tags: Annotated[list[bytes], Within("names", "names")],
        fit_tags: Annotated[list[bytes], Within("names", "names")],
        times: Annotated[int, Within(1, _MOST_PERIODS)],
        sine: Annotated[Array, Shape(None, None)],
        cosine: Annotated[Array, Shape("sine", None)],
        constant: Annotated[Ring, Shape("sine")],
        weight_bits: Annotated[list[int], Within("sine", "sine")],
        information: bool,
        features: Annotated[Ring | None, OWN, Shape(None, None)] = None,
        mask_seed: Annotated[bytes, OWN] = b"",
        n_weightings: Annotated[int, Within(1, _MOST_WEIGHTINGS)] = 1,
        n_digits: Annotated[int, Within(N_LEADING, N_DIGITS)] = N_LEADING,
    ) -> Summands:
        """Send what lets the server open sums of the columns with functions of the fits.

        Message: attempt: names the pads; used once; names, widths, column_tags, fit_tags: every
        party's name, number of columns, and tags of its columns and fits; times, sine, cosine: the
        Fourier sums, see `combine`: of the mean; of variance and cumulant, if the information is
        wanted; constant (n_functions,): their constants; weight_bits: fraction bits of the
        weights, by function; information: whether to open the columns' products weighted by the
        variance and the sum of the cumulant, or sums of the columns with the mean; features
        (n_weightings * 2 * n_terms, n): masked, for each weighting of the rows that one function is
        summed by, to the first party; mask_seed: the seed of the mask, to the others; returns
        summed, with information: ``information``, see `party_term`.
        """
        seed = self.other(GroupKeySteps).seed
        digits, scale = self._digits
        check_fits(self.name, "cosine", cosine, Shape(*sine.shape))
        n_values = len(sine) * n_weightings
        if n_values > max(len(sine), n_weightings) or (information and n_weightings > 1):
            raise ProtocolError(
                f"party {self.name!r}: several weightings of rows go with sums of one function, "
                f"got {n_weightings} with {len(sine)} functions"
            )
        own = own_place(self.name, names, widths, len(scale))
        if column_tags[own] != content_tag(seed, digits):
            raise ProtocolError(
                f"party {self.name!r}: its columns are no longer those that it sent; a key stream "
                "hides one content only"
            )
        group = np.where(self._chosen, 0, -1)
        n_vectors = n_values + information * (vectors_of_products(sum(widths)) - 1)
        withheld = self.other(PrivateProductSteps).allow(group, 1, n_vectors, attempt)[0]
        self.state[_PLACED] = 0
        if (withheld & ~self._withheld).any():
            raise DataError(
                f"party {self.name!r}: a value of one of its columns is too rare in the samples of "
                "the fit to be told of again; leave the column out or merge its levels"
            )
        n, roles, asked = len(digits), Roles(names), self.party.services.binding().hex()
        gamma = np.zeros(n, dtype=np.uint64)
        for name, tag in zip(names, fit_tags, strict=True):
            gamma += stream(seed, _fits_label(name), (n,), tag)

        def secret(what: str, shape: tuple[int, ...]) -> KeyStream:
            # Who is told something else than the others draws other pads, which do not cancel.
            return KeyStream(seed, f"means {what} {attempt.hex()} {asked}", shape)

        def added(helper: str) -> Ring:
            return secret(f"delta {helper!r}", (n_values, n)).rows(0, n_values)

        # The first has ``mu + q``, the others ``q``: with a fresh stream, a vector and its mask.
        held = self._features(roles, (n_weightings * 2 * sine.shape[1], n), features, mask_seed)
        share = combine(held, gamma, times, sine, cosine, weight_bits)
        if self.name == roles.first:
            share += constant[:, None]
        else:
            share = np.uint64(0) - share
        values = share + added(roles.helper[self.name])
        rho, public = np.zeros((n_values, 0), dtype=np.uint64), {}
        if self.name in roles.helper.values():
            rho = public["rho"] = added(self.name) - share
        streams = {
            name: KeyStream(seed, _digits_label(name), (n, N_DIGITS * width), tag)
            for name, width, tag in zip(names, widths, column_tags, strict=True)
        }
        width = dict(zip(names, widths, strict=True))
        answer = Answer(self.name, roles, width, digits, values, rho, streams, secret)
        if not information:
            return Summands({}, public | answer.shares("mean", slice(None), N_DIGITS))
        if len(sine) > 1:
            public |= answer.shares("cumulant", slice(1, 2), 0)
        told, term = answer.information(n_digits)
        return Summands({"information": term}, public | told, modular=("information",))

    def _features(
        self, roles: Roles, shape: tuple[int, ...], features: Ring | None, seed: bytes
    ) -> Ring:
        """Return masked features at the first party, at others their mask."""
        if (self.name == roles.first) != (features is not None) or (features is None) != bool(seed):
            raise ProtocolError(
                f"party {self.name!r}: masked features go to {roles.first!r}, the seed of their "
                "mask to every other party, and nobody may have both"
            )
        if features is None:
            return stream(seed, "features", shape)
        check_fits(self.name, "features", features, Shape(*shape))
        return features

    # -- the own columns over the samples of the fit ----

    def _columns(self) -> HeldColumns:
        columns: HeldColumns = self.party.columns_to_multiply()  # type: ignore[attr-defined]
        return columns

    @property
    def _chosen(self) -> Flags:
        if _ROWS not in self.state:
            raise ProtocolError(
                f"party {self.name!r} was not told the samples of the fit: 'send_digits' comes "
                "first"
            )
        return np.asarray(self.state[_ROWS], dtype=bool)

    @property
    def _withheld(self) -> Flags:
        """Columns of which nothing may be told; they count as 0."""
        return np.asarray(self.state[_WITHHELD], dtype=bool)

    @kept("means.centred")
    def _centred(self) -> Array:
        """Columns less their means, shape (n, n_columns)."""
        columns = self._columns()
        chosen = columns.values[self._chosen[columns.rows]]
        values: Array = chosen - chosen.mean(axis=0)
        values[:, self._withheld] = 0.0
        return values

    @kept("means.digits")
    def _digits(self) -> tuple[Ring, Array]:
        """Digits of the centred columns, and by what these were divided."""
        self.cache.pop("means.centred", None)
        centred = self._centred
        size = np.sqrt(np.mean(centred**2, axis=0))
        largest = np.abs(self._columns().values[:]).max(axis=0, initial=0.0)
        # Of a constant column rounding leaves a little.
        size = np.where(size > 1e-12 * largest, size, 1.0)
        # A power of two: more would tell of the rows beyond what is opened.
        scale = 2.0 ** np.ceil(np.log2(size))
        return to_digits(centred / scale), scale


def _digits_label(owner: str) -> str:
    return f"digits of {owner}"


def _fits_label(owner: str) -> str:
    return f"fits of {owner}"
