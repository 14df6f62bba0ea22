"""The party half of sharing ADMM: its coefficients stay here, sums of its fits go out."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Party, StepGroup, Summands, step
from flwr_vertical.arrays import Array, Indices
from flwr_vertical.errors import DataError, PolicyError, ProtocolError
from flwr_vertical.policy.record import key_of
from flwr_vertical.products import PairKeySteps, rotate_for_peers
from strategies.glm.sums import EXCHANGE
from strategies.glm.sums.block import Block, Coefficients, Request, largest_correlation
from strategies.glm.sums.release import BOUND, Noise, composed
from strategies.linear import RegressionData

Flags = npt.NDArray[np.uint8]

_PURPOSE = "glm information"
# Under a prefix that the server may not write to.
_LEFT = "node.glm.noisy-fits-left"
NORM = 4
"""The server learns a norm of the parties' largest correlations, which bounds the largest."""


class SharingSteps(StepGroup):
    """Keeps the coefficients of every lambda, of columns standardised over the fit's samples.

    Only at nodes that agree to it: the sums of fits span what the columns span. Every step asks,
    since a server could begin with any of them. The party's state holds ``glm.used`` (which of the
    rows held take part), ``glm.free`` (columns that are never penalised), ``glm.strengths``, and
    `Coefficients` as ``glm.beta``, ``glm.weights`` and ``glm.recent``.
    """

    party: Party

    @property
    def data(self) -> RegressionData:
        """The party's columns."""
        return self.other(RegressionData)

    @step
    def begin(self, residual: Array, used: Flags, unpenalized: list[str]) -> Summands:
        """Learn which samples take part, and tell how strong a penalty must be.

        Message: residual (n_used,): label less its expectation without any column; used
        (n_observed,): 1 where all parties hold a row that this party holds; unpenalized: own
        columns that are never penalised; returns summed: ``reach``, a power of the largest
        correlation of a column with `residual`.
        """
        self._open()
        known = self.data.design.columns
        if unknown := sorted(set(unpenalized) - set(known)):
            raise DataError(
                f"party {self.name!r} has no columns {unknown} to leave unpenalised; it has {known}"
            )
        self.state["glm.used"] = used
        self.state["glm.free"] = np.isin(known, unpenalized).astype(np.uint8)
        for key in ("fit-block", "fit-scaling"):
            self.cache.pop(key, None)
        largest = largest_correlation(self._z, ~self._free, residual)
        constant = [
            name for name, flat in zip(known, np.ptp(self._z, axis=0) == 0.0, strict=True) if flat
        ]
        return Summands({"reach": np.array(largest**NORM)}, public={"constant": constant})

    @step
    def admm(
        self,
        fits: Indices,
        gradient: Array,
        curvature: Array,
        reweighted: Indices,
        checked: Indices,
        residual: Array,
        probe: Array,
        precision: float,
        combined: Indices,
        combination: Array,
        strengths: Array | None = None,
        penalty: str = "",
        shape: float = 0.0,
        noise: float = 0.0,
        delta: float = 0.0,
        rounds: int = 0,
    ) -> Summands:
        """Take a step of every fit that is asked for (see `Request`).

        Message: strengths (n_lambdas,): with the first message, the values of lambda; with it
        `penalty` and `shape`; noise: with the first message, if noise is to be added: its standard
        deviation; delta, rounds: with it, the delta of the promise, and in how many rounds noisy
        fits are released; returns see `Block.advance`.
        """
        self._open()
        key = self.party.secret_bytes("admm noise")
        if strengths is not None and noise > 0:
            self._spend(noise, delta, rounds * len(strengths), key)
        if strengths is not None:
            self.state["glm.strengths"] = strengths
            self.state["glm.penalty"], self.state["glm.shape"] = penalty, shape
            self.cache.pop("fit-block", None)
            if noise > 0:
                self.state["glm.noise"] = noise
            start = self._block.start()
            self._keep(start)
        request = Request(
            fits,
            gradient,
            curvature,
            reweighted,
            checked,
            residual,
            probe,
            precision,
            combined,
            combination,
        )
        kept, told = self._block.advance(self._kept, request)
        if "glm.noise" in self.state:
            self._release(len(fits))
            noise_on = Noise(float(self.state["glm.noise"]))
            kept.beta[:, fits] = noise_on.add(self._block, kept.beta[:, fits], key)
            told["fit"] = self._block.z @ kept.beta[:, fits]
            del told["penalty"]
        self._keep(kept)
        return Summands({name: np.asarray(value) for name, value in told.items()})

    @step
    def count(self) -> Summands:
        """Tell how many coefficients of each fit are not zero, where no test has told it."""
        self._open()
        counts = np.count_nonzero(self._final, axis=0).astype(np.uint32)
        return Summands({"selected": counts})

    @step
    def finish(self, chosen: int, whole_path: bool) -> Summands:
        """Hand over the coefficients of the chosen lambda, and fits of samples without a label.

        Message: chosen: number of the lambda; whole_path: whether the coefficients of all are
        wanted; returns summed: ``fit`` of shape (n_unlabelled,), 0 where the row is not held.
        """
        self._open()
        center, scale = self._fit_scaling
        path = self._final / scale[:, None]
        self.state["glm.chosen"] = path[:, chosen]
        public: dict[str, Any] = {
            "beta": path[:, chosen],
            "offset": float(center @ path[:, chosen]),
        }
        if whole_path:
            public |= {"path": path, "offsets": center @ path}
        raw, rows, n_unlabelled = self.data.raw_unlabelled
        if not n_unlabelled:
            return Summands({}, public)
        fit = np.zeros(n_unlabelled)
        fit[rows] = (raw - center) @ path[:, chosen]
        return Summands({"fit": fit}, public)

    @step
    def rotate_selected(self, weight: Array, nonce: bytes = b"", **keys: Any) -> dict[str, Any]:
        """Rotate the selected columns, once for each other party, and tell their own moments.

        Message: weight (n_used,): variance of each label under the model; nonce: of this run; left
        out, as the keys, if there is one party; **keys: the other arguments of
        `PairKeySteps.keep_pair_keys`; returns ``sums`` of shape (n_selected,) and ``gram`` of
        shape (n_selected, n_selected), and by the other party's name a matrix of shape (n_used,
        n_selected).
        """
        self._open()
        chosen = np.flatnonzero(np.asarray(self.state["glm.chosen"]))
        x = self._used_rows[:, chosen]
        rows = x * np.sqrt(weight)[:, None]
        told: dict[str, Any] = {"sums": x.T @ weight, "gram": rows.T @ rows}
        if not keys:
            return told
        self.other(PairKeySteps).keep_pair_keys(nonce=nonce, **keys)
        return told | rotate_for_peers(rows, self.other(PairKeySteps).seeds(nonce, _PURPOSE))

    def _spend(self, sigma: float, delta: float, n_releases: int, key: bytes) -> None:
        """Write down what all noisy fits of the run cost; or refuse."""
        name = f"party {self.name!r}"
        if _LEFT in self.state:
            raise ProtocolError(f"{name}: noisy fits have begun in this run already")
        if not 0 < delta < 1 or n_releases < 1:
            raise ProtocolError(
                f"{name}: expected a delta between 0 and 1 and a number of noisy fits, got "
                f"{delta!r} and {n_releases}"
            )
        epsilon = composed(sigma, delta, n_releases)
        most = self.party.policy.max_epsilon
        if most is not None and epsilon > most:
            raise PolicyError(
                name, key_of("max_epsilon"), f"epsilon {epsilon:g}", f"epsilon up to {most:g}"
            )
        self.party.budgets.spend_epsilon(
            epsilon,
            delta=delta,
            release=key,
            what=f"{n_releases:,} noisy fits of each sample, each within {BOUND:g} of 0",
        )
        self.state[_LEFT] = n_releases

    def _release(self, count: int) -> None:
        """Count noisy fits that leave; what was written down is for so many and no more."""
        left = int(self.state[_LEFT]) - count
        if left < 0:
            raise ProtocolError(
                f"party {self.name!r}: {-left} more noisy fits are asked for than this run has "
                "said it would need"
            )
        self.state[_LEFT] = left

    def _open(self) -> None:
        self.party.open_exchange(EXCHANGE, "fits of each sample, summed over parties, each round")

    def _keep(self, kept: Coefficients) -> None:
        for name, values in vars(kept).items():
            self.state[f"glm.{name}"] = values

    @property
    def _kept(self) -> Coefficients:
        return Coefficients(
            *(np.asarray(self.state[f"glm.{name}"]) for name in ("beta", "weights", "recent"))
        )

    # -- the own columns over the samples of the fit ----

    @property
    def _used_rows(self) -> Array:
        rows: Array = self.data.raw[np.asarray(self.state["glm.used"], dtype=bool)]
        return rows

    @property
    def _fit_scaling(self) -> tuple[Array, Array]:
        """Mean and spread of each column over the samples of the fit; 0 and 1 where not wanted."""
        if "fit-scaling" not in self.cache:
            rows = self._used_rows
            center, scale = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
            if self.data.intercept:
                center = rows.mean(axis=0)
            if self.state["standardize"]:
                spread = rows.std(axis=0)
                varies = spread > 1e-12 * np.maximum(np.abs(rows).max(axis=0), 1e-300)
                scale = np.where(varies, spread, 1.0)
            self.cache["fit-scaling"] = center, scale
        scaling: tuple[Array, Array] = self.cache["fit-scaling"]
        return scaling

    @property
    def _z(self) -> Array:
        center, scale = self._fit_scaling
        z = (self._used_rows - center) / scale
        # Rounding leaves a constant column with a tiny spread.
        flat = np.abs(z).max(axis=0) <= 1e-9 * np.maximum(np.abs(center / scale), 1.0)
        z[:, flat] = 0.0
        return np.asarray(z)

    @property
    def _final(self) -> Array:
        """Coefficients of the standardised columns; noisy ones below lambda count as zero."""
        beta: Array = np.asarray(self.state["glm.beta"])
        if "glm.noise" not in self.state:
            return beta
        return Noise.cut(beta, np.asarray(self.state["glm.strengths"]), self._free)

    @property
    def _free(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.state["glm.free"], dtype=bool)

    @property
    def _block(self) -> Block:
        if "fit-block" not in self.cache:
            self.cache["fit-block"] = Block(
                self._z,
                np.asarray(self.state["glm.strengths"]),
                ~self._free,
                str(self.state["glm.penalty"]),
                float(self.state["glm.shape"]),
            )
        block: Block = self.cache["fit-block"]
        return block
