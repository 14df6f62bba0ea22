"""VFEM as Tang et al. write it (Section 3, Section 4.3), on all parties' columns at one place.

Loops over samples for Algorithm 1, whole conditional covariances instead of their summaries, the
joint normal density instead of its factors. The parameters in natural coordinates are (beta0,
beta_1 ... beta_K, mu_1 ... mu_K, vech Sigma_1 ... vech Sigma_K, sigma2), vech by rows of the lower
triangle.
"""

from dataclasses import dataclass

import numpy as np
from oracles import normal
from scipy.linalg import block_diag


@dataclass
class Pooled:
    """All parties' rows."""

    X: list  # (n, p_k): naN rows where missing
    y: np.ndarray  # (n,)
    mask: np.ndarray  # (n, K): true = the party lacks the sample

    @property
    def sizes(self):
        return [block.shape[1] for block in self.X]

    @property
    def parties(self):
        return range(len(self.X))


@dataclass
class Theta:
    """The parameters; beta, mu and sigma have one array for each party."""

    beta0: float
    beta: list
    mu: list
    sigma: list
    sigma2: float


def generate(n, sizes, rates, seed, rho=0.3, mean=0.0, noise=1.0, cross=0.0, beta0=0.0):
    """Normal AR(1) blocks, blocks missing completely at random, coefficients from N(0, 1)."""
    rng = np.random.default_rng(seed)
    rates = np.broadcast_to(rates, len(sizes))
    beta = [rng.normal(size=size) for size in sizes]
    mu = [np.full(size, float(mean)) for size in sizes]
    ar1 = [rho ** np.abs(np.subtract.outer(np.arange(p), np.arange(p))) for p in sizes]
    factor = rng.normal(size=n)
    X = [
        rng.multivariate_normal(m, s, size=n) + cross * factor[:, None]
        for m, s in zip(mu, ar1, strict=True)
    ]
    y = beta0 + sum(x @ b for x, b in zip(X, beta, strict=True)) + noise * rng.normal(size=n)
    mask = rng.random((n, len(sizes))) < rates
    for k, block in enumerate(X):
        block[mask[:, k]] = np.nan
    sigma = [s + cross**2 for s in ar1]
    return Pooled(X, y, mask), Theta(float(beta0), beta, mu, sigma, float(noise) ** 2)


def initial(pooled):
    """Algorithm 1's input: moments of the observed rows, divided by m_k; mean and variance of y."""
    mu, sigma = [], []
    for k in pooled.parties:
        observed = pooled.X[k][~pooled.mask[:, k]]
        m_k = len(observed)
        mean = sum(observed) / m_k
        mu.append(mean)
        sigma.append(sum(np.outer(row - mean, row - mean) for row in observed) / m_k)
    beta, beta0 = [np.zeros(size) for size in pooled.sizes], pooled.y.mean()
    return Theta(float(beta0), beta, mu, sigma, float(np.mean((pooled.y - beta0) ** 2)))


# Eqs. (4) to (8)


@dataclass
class Expectation:
    """What the E-step says of a sample; covariance and alpha over all columns, 0 at observed."""

    x_tilde: list
    covariance: np.ndarray
    residual: float
    alpha: np.ndarray


def columns_of(pooled):
    """Each party's places among all p columns."""
    ends = np.cumsum(pooled.sizes)
    return [np.arange(e - p, e) for e, p in zip(ends, pooled.sizes, strict=True)]


def expectation(pooled, theta, i):
    """The E-step for sample i, Eq. (4): x tilde, its covariance, e_i and alpha_i."""
    columns, p = columns_of(pooled), sum(pooled.sizes)
    x_tilde = [np.array(block[i]) for block in pooled.X]
    covariance, alpha = np.zeros((p, p)), np.zeros(p)
    missing = [k for k in pooled.parties if pooled.mask[i, k]]
    if missing:
        mu_mis = np.concatenate([theta.mu[k] for k in missing])
        beta_mis = np.concatenate([theta.beta[k] for k in missing])
        sigma_mis = block_diag(*[theta.sigma[k] for k in missing])
        mu_y = theta.beta0 + mu_mis @ beta_mis
        mu_y += sum(pooled.X[k][i] @ theta.beta[k] for k in pooled.parties if k not in missing)
        variance, gain = beta_mis @ sigma_mis @ beta_mis + theta.sigma2, sigma_mis @ beta_mis
        cov = sigma_mis - np.outer(gain, gain) / variance
        where = np.concatenate([columns[k] for k in missing])
        covariance[np.ix_(where, where)] = cov
        alpha[where] = cov @ beta_mis
        filled = np.full(p, np.nan)
        filled[where] = mu_mis + gain * (pooled.y[i] - mu_y) / variance
        for k in missing:
            x_tilde[k] = filled[columns[k]]
    fits = sum(x @ b for x, b in zip(x_tilde, theta.beta, strict=True))
    return Expectation(x_tilde, covariance, pooled.y[i] - theta.beta0 - fits, alpha)


def distribution_step(pooled, theta, samples):
    """Eq. (6) for mu, Sigma (around the old mu) and sigma2 (with the old beta)."""
    n, columns = len(pooled.y), columns_of(pooled)
    mu, sigma = [], []
    for k in pooled.parties:
        total, square = np.zeros(pooled.sizes[k]), np.zeros((pooled.sizes[k],) * 2)
        for sample in samples:
            centred = sample.x_tilde[k] - theta.mu[k]
            total += sample.x_tilde[k]
            square += np.outer(centred, centred)
            square += sample.covariance[np.ix_(columns[k], columns[k])]
        mu.append(total / n)
        sigma.append(square / n)
    old = np.concatenate(theta.beta)
    sigma2 = sum(sample.residual**2 + old @ sample.covariance @ old for sample in samples) / n
    return mu, sigma, float(sigma2)


def gradient_em(pooled, theta, eta, n_iter):
    """Algorithm 1 with Eqs. (4) to (8); the gradient (7) is sigma2 times that of Q (5)."""
    n, columns, thetas = len(pooled.y), columns_of(pooled), []
    for _ in range(n_iter):
        samples = [expectation(pooled, theta, i) for i in range(n)]
        beta = []
        for k in pooled.parties:
            gradient = np.zeros(pooled.sizes[k])
            for sample in samples:
                gradient += sample.residual * sample.x_tilde[k] - sample.alpha[columns[k]]
            beta.append(theta.beta[k] + eta * gradient / n)
        beta0 = theta.beta0 + eta * float(sum(sample.residual for sample in samples)) / n
        theta = Theta(beta0, beta, *distribution_step(pooled, theta, samples))
        thetas.append(theta)
    return thetas


def complete_moments(pooled, samples):
    """Second moments of (1, the completed columns), and their products with the labels."""
    rows = np.array([[1.0, *np.concatenate(sample.x_tilde)] for sample in samples])
    square = rows.T @ rows
    square[1:, 1:] += sum(sample.covariance for sample in samples)
    return square, rows.T @ pooled.y


def exact_em_step(pooled, theta):
    """The same with beta by Eq. (6), once."""
    samples = [expectation(pooled, theta, i) for i in range(len(pooled.y))]
    solution = np.linalg.solve(*complete_moments(pooled, samples))
    beta = [solution[1:][where] for where in columns_of(pooled)]
    return Theta(float(solution[0]), beta, *distribution_step(pooled, theta, samples))


# The observed likelihood, Eq. (3)


def loglik(pooled, theta):
    """Eq. (3) with all constants: of rows of the joint normal (columns, y), some cells missing."""
    beta, sigma = np.concatenate(theta.beta), block_diag(*theta.sigma)
    mean = np.concatenate([*theta.mu, [theta.beta0 + np.concatenate(theta.mu) @ beta]])
    with_y = sigma @ beta
    covariance = np.block([[sigma, with_y[:, None]], [with_y, theta.sigma2 + beta @ with_y]])
    return normal.log_likelihood(np.column_stack([*pooled.X, pooled.y]), mean, covariance)


# Coordinates


def flatten(theta):
    """Natural coordinates."""
    vech = [sigma[np.tril_indices(len(sigma))] for sigma in theta.sigma]
    return np.concatenate([[theta.beta0], *theta.beta, *theta.mu, *vech, [theta.sigma2]])


def unflatten(vector, sizes):
    """Theta from natural coordinates."""
    lengths = [1, *sizes, *sizes, *[p * (p + 1) // 2 for p in sizes], 1]
    parts, K = np.split(np.asarray(vector, dtype=float), np.cumsum(lengths)[:-1]), len(sizes)
    sigma = []
    for p, part in zip(sizes, parts[1 + 2 * K : -1], strict=True):
        lower = np.zeros((p, p))
        lower[np.tril_indices(p)] = part
        sigma.append(lower + np.tril(lower, -1).T)
    return Theta(
        float(parts[0][0]), parts[1 : 1 + K], parts[1 + K : 1 + 2 * K], sigma, float(parts[-1][0])
    )


# Standard errors of (beta0, beta)


def symmetric_units(p):
    """The derivative of a symmetric matrix in each of its vech: one 1, or two off the diagonal."""
    units = []
    for a, b in zip(*np.tril_indices(p), strict=True):
        unit = np.zeros((p, p))
        unit[a, b] = unit[b, a] = 1.0
        units.append(unit)
    return units


def normal_information(sigma, n):
    """Information of n normal rows on mu and on vech Sigma; there is none between them."""
    inverse = np.linalg.inv(sigma)
    units = symmetric_units(len(sigma))
    on_sigma = [[0.5 * n * np.trace(inverse @ u @ inverse @ v) for v in units] for u in units]
    return n * inverse, np.array(on_sigma)


# Fisher information given the observed covariates


def variance_of(pooled, theta, i):
    """d_i: variance of y_i given the observed covariates of sample i."""
    missing = [k for k in pooled.parties if pooled.mask[i, k]]
    return theta.sigma2 + sum(theta.beta[k] @ theta.sigma[k] @ theta.beta[k] for k in missing)


def expected_information(pooled, theta, cross="gram"):
    """Fisher information on all natural coordinates given the observed covariates.

    Sums of a_i a_i' / d_i and c_i c_i' / (2 d_i^2), a_i and c_i being the derivatives of mean and
    variance of y_i, and that of normal rows. With `cross` "expected", products that no party can
    compute are replaced by their expectation, 0: with gamma0 = beta0 + sum of mu_k' beta_k in
    beta0's place, m_i = gamma0 + sum over observed k of (x_ik - mu_k)' beta_k; a product of a
    party's centred rows with anything but themselves is left out. gamma0's row is turned back into
    beta0's in the end.
    """
    columns, p = columns_of(pooled), sum(pooled.sizes)
    vech = [np.zeros(size * (size + 1) // 2) for size in pooled.sizes]
    none = [np.zeros(size) for size in pooled.sizes]
    d_theta = len(flatten(theta))
    by_mean, by_variance = np.zeros((d_theta, d_theta)), np.zeros((d_theta, d_theta))
    for i, missing in enumerate(pooled.mask):
        d_i = variance_of(pooled, theta, i)
        if cross == "gram":
            beta = [theta.mu[k] if missing[k] else pooled.X[k][i] for k in pooled.parties]
            mu = [theta.beta[k] * missing[k] for k in pooled.parties]
        else:
            beta, mu = none, [-theta.beta[k] * ~missing[k] for k in pooled.parties]
            for k in np.flatnonzero(~missing):
                centred = pooled.X[k][i] - theta.mu[k]
                where = 1 + columns[k]
                by_mean[np.ix_(where, where)] += np.outer(centred, centred) / d_i
        a = np.concatenate([[1.0], *beta, *mu, *vech, [0.0]])
        by_mean += np.outer(a, a) / d_i
        pairs = list(zip(theta.sigma, theta.beta, missing, strict=True))
        beta = [m * 2 * sigma @ b for sigma, b, m in pairs]
        units = [np.array([m * b @ u @ b for u in symmetric_units(len(b))]) for _, b, m in pairs]
        c = np.concatenate([[0.0], *beta, *none, *units, [1.0]])
        by_variance += np.outer(c, c) / (2 * d_i**2)
    if cross != "gram":
        back = np.eye(d_theta)  # d (gamma0, beta, mu, ...) / d (beta0, beta, mu, ...)
        back[0] = np.concatenate([[1.0], *theta.mu, *theta.beta, *vech, [0.0]])
        by_mean = back.T @ by_mean @ back
    held = (~pooled.mask).sum(axis=0)
    normals = [normal_information(s, n) for s, n in zip(theta.sigma, held, strict=True)]
    rows = [[on_mu for on_mu, _ in normals], [on_sigma for _, on_sigma in normals]]
    return by_mean + by_variance + block_diag(np.zeros((1 + p, 1 + p)), *rows[0], *rows[1], [[0.0]])


def expected_standard_errors(pooled, theta, cross="gram"):
    """Standard errors of (beta0, beta)."""
    information = expected_information(pooled, theta, cross)
    return np.sqrt(np.diag(np.linalg.inv(information))[: 1 + sum(pooled.sizes)])
