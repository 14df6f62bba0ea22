"""The party half of sharing ADMM: its coefficients stay here, sums of its fits go out."""

from typing import Annotated

import numpy as np

from flwr_vertical import Party, Summands, Uses, step
from flwr_vertical.arrays import Array, Bytes, Indices
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.policy.record import key_of
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Is, Shape, Within, check_fits
from strategies.glm_admm.admm import BOUND, ColumnBlock, composed, largest_correlation
from strategies.linear.data import RegressionData

EXCHANGE = "sums"
"""What a node config names to agree."""
NORM = 4
"""The server learns a norm of the parties' largest correlations, which bounds the largest."""

# Under a prefix that the server may not write to.
_LEFT = "node.glm.noisy-fits-left"


class GLMADMMParty(Party):
    """Keeps the coefficients of every lambda, of columns standardised over the fit's samples.

    Only at nodes that agree to it: the sums of fits span what the columns span. Every step asks,
    since a server could begin with any of them. The party's state holds ``glm.used`` (which of the
    rows held take part), ``glm.strengths`` (lambda), ``glm.beta`` and ``glm.weights``.
    """

    data = Uses(RegressionData, penalized=True)

    @step
    def begin(self, residual: Array, used: Annotated[Bytes, OWN, Within(0, 1)]) -> Summands:
        """Learn which samples take part, and tell how strong a penalty must be.

        Message: residual (n_used,): label less its expectation without any column; used
        (n_observed,): 1 where all parties hold a row that this party holds; returns summed:
        ``reach``, a power of the largest correlation of a column with `residual`.
        """
        self._agree()
        check_fits(self.name, "used", used, Shape(len(self.data.raw)))
        self.state["glm.used"] = used
        self.cache.pop("fit-z", None)
        z, _, _ = self._standardised
        check_fits(self.name, "residual", residual, Shape(len(z)))
        names = self.data.design.columns
        constant = [
            name for name, flat in zip(names, np.ptp(z, axis=0) == 0.0, strict=True) if flat
        ]
        reach = np.array(largest_correlation(z, residual) ** NORM)
        return Summands({"reach": reach}, public={"constant": constant})

    @step
    def admm(
        self,
        fits: Annotated[Indices, DISTINCT, Within(0, 2**20)],
        slope: Annotated[Array, Shape(None, "fits")],
        steep: Annotated[float, Within(1e-300, 1e300)],
        again: Annotated[Indices, DISTINCT, Within(0, 2**20)],
        strengths: Annotated[Array | None, Shape(None), Within(0.0, 1e300)] = None,
        penalty: Annotated[str | None, Is("penalty")] = None,
        noise: Annotated[float, Within(0.0, 1e300)] = 0.0,
        delta: Annotated[float | None, Is("delta")] = None,
        rounds: Annotated[int | None, Is("max_iter")] = None,
    ) -> Summands:
        """Take the step (4.4) of every fit that is asked for.

        Message: fits (n_fits,): which values of lambda; slope (n_samples, n_fits): ``gamma + phi
        h``; steep: of the quadratic; again: fits whose tangents are drawn again before;
        with the first message strengths (n_lambdas,): values of lambda, and `penalty`; of noisy
        fits the noise's standard deviation, the delta of the promise and in how many rounds noisy
        fits are released; returns summed: ``fit`` of shape (n_samples, n_fits).
        """
        self._agree()
        key = self.secret_bytes("admm noise")
        if strengths is not None:
            if penalty is None or (noise > 0 and (delta is None or rounds is None)):
                raise ProtocolError(
                    f"party {self.name!r}: values of lambda come with the penalty, and noise with "
                    "its delta and the number of rounds"
                )
            if delta is not None and rounds is not None and noise > 0:
                self._spend(noise, delta, rounds * len(strengths), key)
            self.state["glm.strengths"], self.state["glm.penalty"] = strengths, penalty
            self.state["glm.noise"] = noise
            self.cache.pop("fit-block", None)
            beta = np.zeros((len(self.data.design.columns), len(strengths)))
            self.state["glm.beta"] = beta
            self.state["glm.weights"] = self._block.weights(beta, np.arange(len(strengths)))
        block, known = self._block, Within(0, len(self._strengths) - 1)
        check_fits(self.name, "slope", slope, Shape(len(block.z), None))
        for name, chosen in (("fits", fits), ("again", again)):
            check_fits(self.name, name, chosen, known)
        beta, weights = np.array(self.state["glm.beta"]), np.array(self.state["glm.weights"])
        weights[:, again] = block.weights(beta[:, again], again)
        beta[:, fits] = block.step(beta[:, fits], weights[:, fits], fits, slope, steep)
        if self._noise > 0:
            self._release(len(fits))
            beta[:, fits] = block.with_noise(beta[:, fits], self._noise, key)
        self.state["glm.beta"], self.state["glm.weights"] = beta, weights
        return Summands({"fit": block.z @ beta[:, fits]})

    @step
    def count(self) -> Summands:
        """Tell how many coefficients of each fit are not zero."""
        self._agree()
        return Summands({"selected": np.count_nonzero(self._final, axis=0).astype(np.uint32)})

    @step
    def finish(self, chosen: Annotated[int, Within(0, 2**20)]) -> Summands:
        """Hand over the coefficients of the chosen lambda, and fits of samples without a label.

        Message: chosen: number of the lambda; returns summed: ``fit`` of shape (n_unlabelled,), 0
        where the row is not held.
        """
        self._agree()
        _, center, scale = self._standardised
        check_fits(self.name, "chosen", chosen, Within(0, len(self._strengths) - 1))
        beta = self._final[:, chosen] / scale
        public = {"beta": beta, "offset": float(center @ beta)}
        raw, rows, n_unlabelled = self.data.raw_unlabelled
        if not n_unlabelled:
            return Summands({}, public)
        fit = np.zeros(n_unlabelled)
        fit[rows] = (raw - center) @ beta
        return Summands({"fit": fit}, public)

    def _agree(self) -> None:
        self.open_exchange(EXCHANGE, "fits of each sample, summed over parties, each round")

    def _spend(self, sigma: float, delta: float, n_releases: int, key: bytes) -> None:
        """Write down what all noisy fits of the run cost; or refuse."""
        name = f"party {self.name!r}"
        if _LEFT in self.state:
            raise ProtocolError(f"{name}: noisy fits have begun in this run already")
        epsilon, most = composed(sigma, delta, n_releases), self.policy.max_epsilon
        if most is not None and epsilon > most:
            raise PolicyError(
                name, key_of("max_epsilon"), f"epsilon {epsilon:g}", f"epsilon up to {most:g}"
            )
        self.privacy_ledger.spend_epsilon(
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

    @property
    def _noise(self) -> float:
        return float(self.state["glm.noise"])

    @property
    def _final(self) -> Array:
        """Coefficients of the standardised columns; noisy ones below lambda count as zero."""
        strengths, beta = self._strengths, np.asarray(self.state["glm.beta"])
        return np.where((self._noise > 0) & (np.abs(beta) < strengths), 0.0, beta)

    @property
    def _strengths(self) -> Array:
        if "glm.strengths" not in self.state:
            raise ProtocolError(f"party {self.name!r}: 'strengths' come with the first step 'admm'")
        return np.asarray(self.state["glm.strengths"])

    @kept("fit-z")
    def _standardised(self) -> tuple[Array, Array, Array]:
        """The columns over the samples of the fit, and their mean and spread (or 1)."""
        rows = self.data.raw[np.asarray(self.state["glm.used"], dtype=bool)]
        center, spread = rows.mean(axis=0), rows.std(axis=0)
        # Rounding leaves a constant column with a tiny spread.
        varies = spread > 1e-12 * np.maximum(np.abs(rows).max(axis=0), 1e-300)
        scale = np.where(varies & bool(self.state["standardize"]), spread, 1.0)
        z = np.where(varies, (rows - center) / scale, 0.0)
        return z, center, scale

    @kept("fit-block")
    def _block(self) -> ColumnBlock:
        strengths, penalty = self._strengths, str(self.state["glm.penalty"])
        return ColumnBlock(self._standardised[0], strengths, penalty)
