"""The server half of masked mean functions: it opens ``X_k' mu(eta)``, never eta or mu.

An evaluation takes two rounds. First the parties' fits are summed on a circle, under key streams
that they share: the server gets ``alpha = eta + gamma``, uniform. Then it sends sines and cosines
of alpha under a mask r to the first party, and r's seed to the others. Who knows gamma has ``mu +
q`` from the first, ``q`` from the second: shares of mu, which is all that a product with a vector
needs (`flwr_vertical.products.arithmetic`). Of every owner and its helper one is the first party.
For the first's columns the masked vector is ``mu + q`` and the helper's mask ``q``; for others'
columns it is ``-q`` and the helper's mask ``-(mu + q)``. Owner and helper add the same fresh stream
to both, one for each helper, since helpers tell the server the masks. Then ``X_k' mu`` is opened.

No node gets masked features and the seed of their mask. Server and one party together could read
all columns; so they can with private products. An owner and its helper together read mu, but no
label.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Array, Indices, Ring
from flwr_vertical.errors import ConfigError, PartyError, ProtocolError
from flwr_vertical.products.arithmetic import Layout, open_vector_products
from flwr_vertical.products.group_key import GroupKey
from flwr_vertical.products.streams import SEED_BYTES, stream
from strategies.linear.masked_means.fixed_point import (
    DIGIT_BITS,
    N_DIGITS,
    N_LEADING,
    ByClass,
    ByRow,
    Precision,
    choose_precision,
    from_digit_products,
    from_digits,
    server_features,
)
from strategies.linear.masked_means.fourier import Expansion, to_circle
from strategies.linear.masked_means.information import Roles, open_information, with_ones
from strategies.linear.masked_means.steps import REACH_STEP
from strategies.linear.problem import need_key_stream

_ATTEMPT_BYTES = 16
_ROOM = 1.5  # for the rounding of digits, and between one place and the next
_FINER = 4.0  # times smaller sums are worth another round


@dataclass(frozen=True)
class Placed:
    """Linear predictors on the circle, behind the group's key streams."""

    alpha: Ring  # (n,)
    tags: list[bytes]  # By party, of its fits
    low: float  # All predictors lie between, without an intercept of the server
    high: float  # All predictors lie between, without an intercept of the server

    @property
    def centre(self) -> float:
        """Half way between both."""
        return (self.low + self.high) / 2.0


@dataclass(frozen=True)
class Bound:
    """How large a function's values are over the samples of the fit."""

    total: float  # What the sum of their absolute values is expected not to exceed
    largest: float  # What none exceeds
    heaviest: float = 1.0  # What no weight of a row exceeds, where weights are 1 on average

    def over(self, top: float) -> "Bound":
        """Return the bound of values divided by a number."""
        return Bound(self.total / top, self.largest / top)

    def of_sum(self, n: int, digit: float, degree: int) -> float:
        """Return what no sum of values times products of digits exceeds."""
        # Leading digits have a root mean square of at most 2^8 and rounding (Cauchy, Schwarz).
        root = 1.01 * 2.0**DIGIT_BITS
        by_total, by_largest = (
            self.total * digit**degree,
            self.largest * self.heaviest * n * root**degree,
        )
        # The sum of the values themselves must be right even where they exceed what is expected.
        return max(min(by_total, by_largest), self.largest * n)


@dataclass
class MaskedMeans:
    """Sums of the parties' columns with functions of linear predictors that nobody sees."""

    federation: Federation  # Of the run; two parties or more, sums ``masked`` or ``plain``
    group_key: GroupKey  # Hands the group seed to the parties
    _masked: dict[str, Ring] = field(default_factory=dict)
    _tags: dict[str, bytes] = field(default_factory=dict)
    _scale: dict[str, Array] = field(default_factory=dict)
    _largest: float = 1.0
    _group: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _asked_at: int = 0  # place in the course where the columns were asked for

    def __post_init__(self) -> None:
        need_key_stream("a masked mean function", self.federation)

    def send(self, group: Indices) -> None:
        """Have parties hand over columns in digits, by group: 0 in the fit, else -1; one round."""
        self._asked_at = self.federation.course
        replies = self.federation.call(
            "send_digits",
            {"group": group},
            per_party=self.group_key.arguments(),
            unkept=["masked"],  # beside the group seed it would be the table
        )
        self._group = group = np.asarray(group, dtype=np.int64)
        n = int((group >= 0).sum())
        for name, reply in replies.items():
            self._tags[name] = reply["tag"]
            self._scale[name] = np.asarray(reply["scale"])
            self._largest = max(self._largest, float(reply["largest"]))
            if "masked" not in reply:
                continue  # from the journal of a run that is resumed
            shape = n, N_DIGITS * len(self._scale[name])
            if reply["masked"].shape != shape:
                raise PartyError(
                    name, "send_digits", f"sent shape {reply['masked'].shape}, expected {shape}"
                )
            self._masked[name] = reply["masked"]

    def place(self, beta: Array) -> Placed:
        """Put linear predictors on the circle, by coefficients in columns' units; one round."""
        names = self._names()
        widths = [len(self._scale[name]) for name in names]
        parts = np.split(np.asarray(beta, dtype=float), np.cumsum(widths)[:-1])
        own = {name: {"beta": part} for name, part in zip(names, parts, strict=True)}
        total = self.federation.sum("place_fits", per_party=own)
        return Placed(
            np.asarray(total["angles"]).view(np.uint64),
            [total.public[name]["tag"] for name in names],
            float(total["low"]) * REACH_STEP,
            float(total["high"]) * REACH_STEP,
        )

    def open_sums(
        self,
        placed: Placed,
        shift: float,
        function: Expansion | ByClass,
        bound: Bound,
        weights: Array | None = None,
    ) -> tuple[Array, Array]:
        """Open sums of a function, and of each centred column times it, by weighting; one round.

        Where it differs by class, all of it less ``half_difference`` for samples of the second
        class and plus it for the others.

        Shapes: weights (n_weightings, n): secret, 1 on average at most, of a function without a
        constant; by default 1 throughout; returns (n_weightings,) and (n_weightings, n_columns).
        """
        sizes = [bound.of_sum(len(placed.alpha), self._largest, 1)]
        functions = [function] if isinstance(function, Expansion) else function
        found = self._ask(placed, shift, functions, sizes, information=False, weights=weights)
        return np.asarray(found["total"]), np.asarray(found["columns"])

    def open_information(
        self,
        placed: Placed,
        shift: float,
        expansions: list[Expansion],
        bounds: list[Bound],
        weights: Array | None = None,
    ) -> tuple[Array, float | None]:
        """Open products of 1 and centred columns with the variance, and the cumulant; one round.

        Shapes: weights (1, n): secret, 1 on average at most; of one function without a constant.
        """
        n = len(placed.alpha)
        sizes = [b.of_sum(n, self._largest, d) for b, d in zip(bounds, (2, 0), strict=False)]
        found = self._ask(placed, shift, expansions, sizes, information=True, weights=weights)
        return np.asarray(found["information"]), found.get("cumulant")

    def open_by_row(
        self,
        placed: Placed,
        shift: float,
        functions: ByRow,
        bound: Bound,
        like: Array | None = None,
        again: bool = True,
    ) -> Array:
        """Open products of 1 and centred columns, weighted by a function by row, none below 0.

        One round where it is known how large the sums are (`like`), as that decides how precise
        they can be; else mostly two, if they may be asked for `again`.

        Shapes: like, returns (1 + n_columns, 1 + n_columns).
        """

        def ask(size: float) -> Array:
            found = self._ask(placed, shift, functions, [size], information=True, n_digits=N_DIGITS)
            return np.asarray(found["information"])

        def size_of(sums: Array) -> float:
            squares = np.diag(sums)[1:] / np.concatenate(list(self._scale.values())) ** 2
            first, later = 4.0**DIGIT_BITS * squares.max(), 4.0 ** (DIGIT_BITS - 1) * sums[0, 0]
            return float(max(_ROOM * first, later, bound.largest))

        safe = bound.of_sum(len(placed.alpha), self._largest, 2)
        if like is not None:
            return ask(min(safe, _ROOM * size_of(like)))
        found = ask(safe)
        finer = size_of(found)
        return ask(finer) if again and finer < safe / _FINER else found

    def open_total(self, placed: Placed, shift: float, functions: ByRow, size: float) -> float:
        """Open the sum of a function by row, which does not exceed `size`; one round."""
        found = self._ask(placed, shift, functions, [size], information=False)
        return float(found["total"][0])

    def _ask(
        self,
        placed: Placed,
        shift: float,
        functions: list[Expansion] | ByClass | ByRow,
        sizes: list[float],
        *,
        information: bool,
        weights: Array | None = None,
        n_digits: int = N_LEADING,
    ) -> dict[str, Any]:
        names, roles = self._names(), Roles(self._names())
        expansions = functions if isinstance(functions, list) else [functions.common]
        precision = choose_precision(expansions, sizes)
        first = expansions[0]
        alpha = placed.alpha - to_circle(np.array(shift))
        if isinstance(functions, ByClass | ByRow):
            features = functions.features(alpha, precision.feature)
        else:
            features = server_features(
                alpha, first.times, first.n_terms, precision.feature, weights
            )
        constants = [
            round(one.constant * 2.0 ** precision.of(f)) % 2**64 for f, one in enumerate(expansions)
        ]
        common: dict[str, Any] = {
            "attempt": self.federation.random_bytes(_ATTEMPT_BYTES),
            "names": names,
            "widths": [len(self._scale[name]) for name in names],
            "column_tags": [self._tags[name] for name in names],
            "fit_tags": placed.tags,
            "times": first.times,
            "sine": np.stack([one.sine for one in expansions]),
            "cosine": np.stack([one.cosine for one in expansions]),
            "constant": np.array(constants, dtype=np.uint64),
            "weight_bits": list(precision.weight),
            "information": information,
            "n_weightings": 1 if weights is None else len(weights),
            "n_digits": n_digits,
        }
        seed = self.federation.random_bytes(SEED_BYTES)
        own: dict[str, dict[str, Any]] = {name: {"mask_seed": seed} for name in names}
        own[roles.first] = {"features": features + stream(seed, "features", features.shape)}
        total = self.federation.sum("open_means", common, per_party=own)
        # A resumed run has the shares, but not what they are opened with.
        while not self._masked and self.federation.next_step() in (None, "send_digits"):
            with self.federation.asking_again(self._asked_at):
                self.send(self._group)
        opened = partial(self._information, n_digits) if information else self._mean
        return self.federation.keep(
            "means", lambda: opened(total.values, total.public, roles, precision)
        )

    def close(self) -> None:
        """Drop what could be read with the group seed; `GroupKey.close` has that erased."""
        self._masked.clear()
        self._tags.clear()

    def _names(self) -> list[str]:
        if not self._tags:
            raise ConfigError("the parties' columns have not been sent: call `send` first")
        return self.federation.parties

    def _mean(
        self,
        _: dict[str, Any],
        public: dict[str, dict[str, Any]],
        roles: Roles,
        precision: Precision,
    ) -> dict[str, Any]:
        unit = 2.0 ** -precision.of(0)
        columns, totals = [], {}
        for name in roles.names:
            shares = self._shares(public, roles, name, "mean", slice(None), N_DIGITS)
            columns.append(from_digits(shares[:-1], N_DIGITS).T * unit * self._scale[name])
            totals[name] = shares[-1].view(np.int64).tolist()
        if len(set(map(tuple, totals.values()))) > 1:
            raise ProtocolError(
                f"the parties come to different sums of the same means ({totals}); do all nodes "
                "run the same version of the strategy?"
            )
        total = np.array(totals[roles.first]) * unit
        return {"columns": np.concatenate(columns, axis=1), "total": total}

    def _information(
        self,
        n_digits: int,
        sums: dict[str, Any],
        public: dict[str, dict[str, Any]],
        roles: Roles,
        precision: Precision,
    ) -> dict[str, Any]:
        opened = open_information(
            roles,
            self._layout(n_digits),
            {name: with_ones(masked, n_digits) for name, masked in self._masked.items()},
            {name: public[name]["rho"][0] for name in set(roles.helper.values())},
            public,
            np.asarray(sums["information"]).view(np.uint64),
        )
        found: dict[str, Any] = {
            "information": self._assembled(opened, n_digits) * 2.0 ** -precision.of(0)
        }
        if len(precision.weight) > 1:
            shares = self._shares(public, roles, roles.first, "cumulant", slice(1, 2), 0)
            found["cumulant"] = float(shares[0, 0].view(np.int64)) * 2.0 ** -precision.of(1)
        return found

    def _shares(
        self,
        public: dict[str, dict[str, Any]],
        roles: Roles,
        name: str,
        label: str,
        which: slice,
        n_digits: int,
    ) -> Ring:
        """Open what an owner and its helper sent; (n_digits * n_columns + 1, n_values)."""
        helper = roles.helper[name]
        return open_vector_products(
            with_ones(self._masked[name], n_digits),
            np.asarray(public[helper]["rho"])[which].T,
            public[name][f"owner:{label}"],
            public[helper][f"helper:{label}:{name}"],
        )

    def _layout(self, n_digits: int) -> Layout:
        return Layout({n: n_digits * len(s) + 1 for n, s in self._scale.items()})

    def _assembled(self, opened: Ring, n_digits: int) -> Array:
        """Put digits together; every party's block has a column of 1, of which one is kept."""
        layout, scale = self._layout(n_digits), self._scale
        starts = 1 + np.cumsum([0, *(len(s) for s in scale.values())])
        here = {n: slice(starts[k], starts[k + 1]) for k, n in enumerate(scale)}
        out = np.zeros((starts[-1], starts[-1]))
        for a in scale:
            for b in scale:
                block = opened[layout.slice(a), layout.slice(b)]
                values = from_digit_products(block[:-1, :-1], n_digits)
                out[here[a], here[b]] = values * np.outer(scale[a], scale[b])
            own = opened[layout.slice(a), layout.slice(a)]
            out[0, here[a]] = from_digits(own[:-1, -1], n_digits) * scale[a]
            out[here[a], 0] = out[0, here[a]]
            out[0, 0] = float(own[-1, -1].view(np.int64))
        return out
