"""Maximum likelihood of the joint normal model, on the server alone.

EM (Dempster, Laird and Rubin, 1977) leads from the available moments to the neighbourhood of the
maximum; Newton's method finishes in a few steps, by Fisher scoring where the likelihood is not
concave. Both work on sums by pattern; their cost does not depend on the number of rows. Of many
columns, Fisher scoring without a matrix goes all the way (`many_columns`), or EM where the
covariance is restricted.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, sparse

from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from strategies.linear.moments.covariances import (
    CovarianceModel,
    FullCovariance,
    NoisePrior,
    Through,
)
from strategies.linear.moments.many_columns import (
    covariance_by_observed,
    covariance_given_columns,
    em_step,
    maximum,
)
from strategies.linear.moments.patterns import Patterns

_EM_STEPS = 25
_MOST_STEPS, _HALVINGS = 200, 30
_TOLERANCE = 1e-10
"""Of a row's log likelihood: a step that gains less is the last."""


@dataclass(frozen=True)
class Fit:
    """The fitted regression of the label on all columns."""

    mean: Array  # (n_columns,): of all columns, the label last
    covariance: Array  # (n_columns, n_columns)
    intercept: float
    beta: Array  # (n_columns - 1,)
    noise: float  # Variance of the label about its regression
    vcov: Array  # (n_columns, n_columns): covariance matrix of the estimates of (intercept, beta)
    # (n_columns,): share of the information on (intercept, beta) that is lost with the missing
    # cells, by coefficient: 1 less the ratio of the variance with complete rows to that estimated
    missing_information: Array
    # (2, n_columns, n_implied): how far (intercept, beta) move if the partial correlation of two
    # columns that no rows tell were 1/2, or -1/2, and not 0; for each element that the model
    # implies
    moved: Array
    log_likelihood: float
    iterations: int  # Of EM and of Newton's method together
    converged: bool  # Whether the last step changed the log likelihood by less than the tolerance
    prior: NoisePrior | None = None  # Of the noise variance
    # Whether no information on the covariance was formed; then predictions take mean and covariance
    # of the columns as known
    without_information: bool = False
    by_em: bool = False  # Whether `vcov` takes them as known, too, for EM went all the way

    @property
    def std_error(self) -> Array:
        """Standard errors of (intercept, beta)."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self.vcov), 0.0)))


def inverse_information(information: Array) -> Array:
    """Return the inverse of an information matrix, the pseudo-inverse if it has none."""
    scale = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(information)), 1e-300))
    scaled = information * np.outer(scale, scale)
    try:
        inverse = linalg.cho_solve(linalg.cho_factor(scaled), np.eye(len(scaled)))
    except linalg.LinAlgError:
        inverse = np.linalg.pinv(scaled, rcond=1e-12, hermitian=True)
    return np.asarray(inverse * np.outer(scale, scale))


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of a mean and of what is free in a covariance, by sums by pattern."""

    patterns: Patterns
    model: CovarianceModel
    prior: NoisePrior | None = None  # Of the noise variance
    through: Through | None = None  # What the label's mean follows from, without an intercept

    @property
    def n_rows(self) -> float:
        """Rows of all patterns."""
        return sum(p.n_rows for p in self.patterns.patterns)

    def start(self) -> tuple[Array, Array]:
        """Return mean and parameters near the moments of what rows are available."""
        mean, available = self.patterns.available()
        variances = np.diag(available)
        wrong = np.flatnonzero(~(variances > 0.0))
        if len(wrong):
            raise DataError(
                f"columns {wrong.tolist()} (counted from 0) do not vary over the rows in which "
                "they are observed; leave them out"
            )
        scale = np.sqrt(variances)
        correlation = available / np.outer(scale, scale)
        # Moments of different rows for different pairs may not fit together: shrink until they do.
        for share in (1.0, 0.9, 0.75, 0.5, 0.25, 0.0):
            shrunk = share * correlation + (1.0 - share) * np.eye(len(scale))
            parameters = self.model.nearest(shrunk * np.outer(scale, scale))
            try:
                covariance = self.model.covariance(parameters) / np.outer(scale, scale)
            except np.linalg.LinAlgError:
                continue
            if np.linalg.eigvalsh(covariance)[0] > 1e-3 * (1.0 - share) + 1e-12:
                if self.through is not None:
                    mean = self.through.mean(mean, parameters)
                return mean, parameters
        raise DataError("no positive definite covariance fits the moments; is a column a copy?")

    def value(self, mean: Array, parameters: Array) -> float:
        """Return its logarithm; minus infinity where the whole covariance is not positive."""
        try:
            covariance = self.model.covariance(parameters)
            np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return -np.inf
        density = 0.0 if self.prior is None else self.prior.log_density(float(parameters[-1]))
        return self.patterns.log_likelihood(mean, covariance) + density

    def information(self, mean: Array, parameters: Array, observed: bool) -> Array:
        """Return the information on (mean, parameters)."""
        model, covariance = self.model, self.model.covariance(parameters)
        on_mean, cross, on_covariance = self.patterns.information(mean, covariance, observed)
        # A parameter moves few elements of the covariance.
        directions = sparse.csc_array(model.directions(parameters).reshape(len(mean) ** 2, -1))
        on_parameters = np.asarray(directions.T @ (on_covariance @ directions))
        if observed:
            gradient = self.patterns.score(mean, covariance)[1]
            on_parameters -= model.curvature(parameters, gradient)
        if self.prior is not None:
            on_parameters[-1, -1] += self.prior.information(float(parameters[-1]), observed)
        between = np.asarray(cross @ directions)
        return np.block([[on_mean, between], [between.T, on_parameters]])

    def by_em(self, mean: Array, parameters: Array) -> tuple[Array, Array]:
        """Take some steps of EM."""
        for _ in range(_EM_STEPS):
            mean, parameters = em_step(self.patterns, self.model, mean, parameters, self.prior)
        return mean, parameters

    def by_em_alone(self, mean: Array, parameters: Array) -> tuple[Array, Array, int, bool]:
        """Go to the maximum by EM; returns how many steps it took, and whether it got there."""
        value, steps, converged = self.value(mean, parameters), 0, False
        while not converged and steps < _EM_STEPS * _MOST_STEPS:
            before = value
            mean, parameters = self.by_em(mean, parameters)
            steps, value = steps + _EM_STEPS, self.value(mean, parameters)
            converged = value - before < _TOLERANCE * self.n_rows
        return mean, parameters, steps, converged

    def by_newton(self, mean: Array, parameters: Array) -> tuple[Array, Array, int, bool]:
        """Go to the maximum by Newton's method; returns as `by_em_alone`."""
        value, steps, converged = self.value(mean, parameters), 0, False
        while steps < _MOST_STEPS and not converged:
            change, gain = self._step(mean, parameters)
            converged = gain < _TOLERANCE * self.n_rows
            length = 1.0
            for _ in range(_HALVINGS):
                trial_mean = mean + length * change[: len(mean)]
                trial = parameters + length * change[len(mean) :]
                if self.through is not None:
                    trial_mean = self.through.mean(trial_mean, trial)
                found = self.value(trial_mean, trial)
                if found >= value - 1e-12 * abs(value):
                    break
                length /= 2.0
            else:
                break
            mean, parameters, value = trial_mean, trial, max(found, value)
            steps += 1
        return mean, parameters, steps, converged

    def _step(self, mean: Array, parameters: Array) -> tuple[Array, float]:
        """Return a step and what it is expected to gain in log likelihood.

        Newton's where the likelihood is concave there, else that of Fisher scoring.
        """
        by_mean, by_covariance = self.patterns.score(mean, self.model.covariance(parameters))
        directions = self.model.directions(parameters).reshape(len(mean) ** 2, -1)
        score = np.concatenate([by_mean, directions.T @ by_covariance.reshape(-1)])
        if self.prior is not None:
            score[-1] += self.prior.score(float(parameters[-1]))
        through = self.through
        lift = np.eye(len(score)) if through is None else through.jacobian(mean, parameters)
        score = lift.T @ score
        for observed in (True, False):
            information = lift.T @ self.information(mean, parameters, observed) @ lift
            if through is not None and observed:
                information -= through.curvature(by_mean[-1], parameters)
            diagonal = np.diag(information)
            if (diagonal <= 0.0).any():
                continue
            scale = 1.0 / np.sqrt(diagonal)
            try:
                factor = linalg.cho_factor(information * np.outer(scale, scale))
            except linalg.LinAlgError:
                continue
            step = scale * linalg.cho_solve(factor, scale * score)
            return np.asarray(lift @ step), float(score @ step) / 2.0
        # Some direction is not identified at all: stay where the data do not say.
        scale = 1.0 / np.sqrt(np.maximum(np.diag(information), 1e-300))
        scaled = information * np.outer(scale, scale)
        step = scale * np.linalg.lstsq(scaled, scale * score, rcond=1e-12)[0]
        return np.asarray(lift @ step), float(score @ step) / 2.0

    def covariance_of_estimates(self, mean: Array, parameters: Array) -> Array:
        """Return the covariance of (intercept, beta): the inverse of the observed information."""
        covariance = self.model.covariance(parameters)
        inner = covariance[:-1, :-1]
        beta = np.linalg.solve(inner, covariance[:-1, -1])
        information = self.information(mean, parameters, True)
        # Delta method: d beta = inner^-1 (d outer - d inner beta), d intercept = d mean_y - ...
        directions = self.model.directions(parameters)
        moved = directions[:-1, -1] - np.einsum("ijk,j->ik", directions[:-1, :-1], beta)
        by_parameters = np.linalg.solve(inner, moved)
        d = len(mean)
        jacobian = np.zeros((d, d + len(parameters)))
        jacobian[1:, d:] = by_parameters
        jacobian[0, : d - 1], jacobian[0, d - 1] = -beta, 1.0
        jacobian[0, d:] = -mean[:-1] @ by_parameters
        if self.through is not None:
            lift = self.through.jacobian(mean, parameters)
            pull = float(self.patterns.score(mean, covariance)[0][-1])
            information = lift.T @ information @ lift - self.through.curvature(pull, parameters)
            jacobian = jacobian @ lift
        return np.asarray(jacobian @ inverse_information(information) @ jacobian.T)

    def fit(self, mean: Array, covariance: Array, vcov: Array, steps: int, converged: bool) -> Fit:
        """Return the regression of the label at a maximum; `vcov`: of (intercept, beta)."""
        inner, outer = covariance[:-1, :-1], covariance[:-1, -1]
        beta = np.asarray(np.linalg.solve(inner, outer), dtype=np.float64)
        noise = float(covariance[-1, -1] - beta @ outer)
        complete = noise * _with_complete_rows(mean, inner, self.through) / self.n_rows
        with np.errstate(divide="ignore", invalid="ignore"):
            lost = 1.0 - complete / np.diag(vcov)
        return Fit(
            mean=mean,
            covariance=covariance,
            intercept=float(mean[-1] - mean[:-1] @ beta),
            beta=beta,
            noise=noise,
            vcov=vcov,
            missing_information=np.clip(np.nan_to_num(lost), 0.0, 1.0),
            moved=_moved(self.model, mean, covariance, beta),
            log_likelihood=self.patterns.log_likelihood(mean, covariance),
            iterations=steps,
            converged=converged,
            prior=self.prior,
        )


def fit_normal(
    patterns: Patterns,
    model: CovarianceModel,
    *,
    through: Through | None = None,
    prior: NoisePrior | None = None,
    newton: bool = True,
) -> Fit:
    """Fit mean and covariance, and what they say of the label."""
    likelihood = Likelihood(patterns, model, prior, through)
    mean, parameters = likelihood.start()
    before = 0
    if through is None:
        mean, parameters = likelihood.by_em(mean, parameters)
        before = _EM_STEPS
    is_free = isinstance(model, FullCovariance) and not len(model.implied[0])
    by_em = not newton and not (is_free and prior is None and through is None)
    if newton:
        mean, parameters, steps, converged = likelihood.by_newton(mean, parameters)
        vcov = likelihood.covariance_of_estimates(mean, parameters)
    elif by_em:
        mean, parameters, steps, converged = likelihood.by_em_alone(mean, parameters)
        vcov = covariance_given_columns(patterns, mean, model.covariance(parameters), prior)
    else:
        mean, covariance, steps, converged = maximum(
            patterns, mean, model.covariance(parameters), _TOLERANCE, _MOST_STEPS
        )
        parameters = model.nearest(covariance)
        vcov = covariance_by_observed(patterns, mean, model.covariance(parameters))
    covariance = model.covariance(parameters)
    fit = likelihood.fit(mean, covariance, vcov, before + steps, converged)
    return replace(fit, without_information=not newton, by_em=by_em)


def _moved(model: CovarianceModel, mean: Array, covariance: Array, beta: Array) -> Array:
    """Return how far (intercept, beta) move with elements that no rows tell; see `Fit`."""
    pairs = np.stack(model.implied, axis=1)
    found = np.zeros((2, len(mean), len(pairs)))
    inverse = np.linalg.inv(covariance)
    for number, (i, j) in enumerate(pairs):
        # Given all others, two columns whose partial covariance is 0 have variances 1 / P_ii.
        half = 0.5 / np.sqrt(inverse[i, i] * inverse[j, j])
        for k, change in enumerate((half, -half)):
            inner = covariance[:-1, :-1].copy()
            inner[[i, j], [j, i]] += change
            found[k, 1:, number] = np.linalg.solve(inner, covariance[:-1, -1]) - beta
    found[:, 0] = -np.einsum("j,kjn->kn", mean[:-1], found[:, 1:])
    return found


def _with_complete_rows(mean: Array, inner: Array, through: Through | None) -> Array:
    """Return the variances of (intercept, beta) over noise, if each row were complete, times n."""
    if through is not None:
        gap = mean[:-1] - through.point
        return np.append(0.0, np.diag(np.linalg.inv(inner + np.outer(gap, gap))))
    second = np.ones((len(mean), len(mean)))
    second[0, 1:] = second[1:, 0] = mean[:-1]
    second[1:, 1:] = inner + np.outer(mean[:-1], mean[:-1])
    return np.asarray(np.diag(np.linalg.inv(second)))
