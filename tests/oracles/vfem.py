"""VFEM as Tang et al. write it (Section 3, Section 4.3), on all parties' columns at one place.

Loops over samples for Algorithm 1, whole conditional covariances instead of their summaries, the
joint normal density instead of its factors, and differences instead of derivatives. The parameters
in natural coordinates are (beta0, beta_1 ... beta_K, mu_1 ... mu_K, vech Sigma_1 ... vech Sigma_K,
sigma2), vech by rows of the lower triangle; in unconstrained coordinates each Sigma is its Cholesky
factor with the diagonal's logarithms and sigma2 its logarithm.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import minimize
from scipy.stats import multivariate_normal


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


def initial(pooled, beta="zeros", intercept=True, beta0=None):
    """Algorithm 1's input: moments of the observed rows, divided by m_k, and the variance of y.

    `beta` is "zeros" or a list of arrays; `beta0` the mean of y if there is an intercept, else 0,
    unless it is given.
    """
    mu, sigma = [], []
    for k in pooled.parties:
        observed = pooled.X[k][~pooled.mask[:, k]]
        m_k = len(observed)
        mean = sum(observed) / m_k
        mu.append(mean)
        sigma.append(sum(np.outer(row - mean, row - mean) for row in observed) / m_k)
    if isinstance(beta, str):
        beta = [np.zeros(size) for size in pooled.sizes]
    if beta0 is None:
        beta0 = pooled.y.mean() if intercept else 0.0
    sigma2 = np.mean((pooled.y - pooled.y.mean()) ** 2)
    return Theta(float(beta0), [np.array(b, dtype=float) for b in beta], mu, sigma, float(sigma2))


# Eqs. (4) to (8)


@dataclass
class Expectation:
    """What the E-step says about one sample.

    x_tilde is a list over parties; covariance is the paper's p x p block matrix, 0 at observed
    columns; alpha (p,) likewise.
    """

    x_tilde: list
    covariance: np.ndarray
    residual: float
    alpha: np.ndarray


def columns_of(pooled):
    """Each party's places among all p columns."""
    ends = np.cumsum(pooled.sizes)
    return [np.arange(e - p, e) for e, p in zip(ends, pooled.sizes, strict=True)]


def conditional(pooled, theta, i):
    """Eq. (4): mean (q_i,) and covariance (q_i, q_i) of what sample i misses."""
    missing = [k for k in pooled.parties if pooled.mask[i, k]]
    mu_mis = np.concatenate([theta.mu[k] for k in missing])
    beta_mis = np.concatenate([theta.beta[k] for k in missing])
    sigma_mis = block_diag(*[theta.sigma[k] for k in missing])
    mu_y = theta.beta0 + mu_mis @ beta_mis
    for k in pooled.parties:
        if not pooled.mask[i, k]:
            mu_y += pooled.X[k][i] @ theta.beta[k]
    variance = beta_mis @ sigma_mis @ beta_mis + theta.sigma2
    gain = sigma_mis @ beta_mis
    mean = mu_mis + gain * (pooled.y[i] - mu_y) / variance
    return mean, sigma_mis - np.outer(gain, gain) / variance


def expectation(pooled, theta, i):
    """The E-step for sample i: x tilde, its covariance, e_i and alpha_i."""
    columns = columns_of(pooled)
    p = sum(pooled.sizes)
    x_tilde = [np.array(block[i]) for block in pooled.X]
    covariance, alpha = np.zeros((p, p)), np.zeros(p)
    missing = [k for k in pooled.parties if pooled.mask[i, k]]
    if missing:
        mean, cov = conditional(pooled, theta, i)
        where = np.concatenate([columns[k] for k in missing])
        covariance[np.ix_(where, where)] = cov
        alpha[where] = cov @ np.concatenate([theta.beta[k] for k in missing])
        filled = np.full(p, np.nan)
        filled[where] = mean
        for k in missing:
            x_tilde[k] = filled[columns[k]]
    residual = pooled.y[i] - theta.beta0
    for x, b in zip(x_tilde, theta.beta, strict=True):
        residual -= x @ b
    return Expectation(x_tilde, covariance, residual, alpha)


def q_function(pooled, theta, at):
    """Eq. (5): Q(theta | at), without the constants that the paper leaves out."""
    n, columns = len(pooled.y), columns_of(pooled)
    q = -0.5 * np.log(theta.sigma2)
    q -= 0.5 * sum(np.log(np.linalg.det(sigma)) for sigma in theta.sigma)
    beta = np.concatenate(theta.beta)
    for i in range(n):
        sample = expectation(pooled, at, i)
        residual = pooled.y[i] - theta.beta0 - np.concatenate(sample.x_tilde) @ beta
        q -= (residual**2 + beta @ sample.covariance @ beta) / (2 * n * theta.sigma2)
        for k in pooled.parties:
            inverse = np.linalg.inv(theta.sigma[k])
            centred = sample.x_tilde[k] - theta.mu[k]
            own = sample.covariance[np.ix_(columns[k], columns[k])]
            q -= (centred @ inverse @ centred + np.trace(inverse @ own)) / (2 * n)
    return q


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


def gradient_em(pooled, theta, eta, n_iter, intercept=True):
    """Algorithm 1 with Eqs. (4) to (8), for a fixed number of iterations.

    The gradient (7) is sigma2 times that of Q (5). Without an intercept beta0 stays as it is.
    """
    n, columns, thetas = len(pooled.y), columns_of(pooled), []
    for _ in range(n_iter):
        samples = [expectation(pooled, theta, i) for i in range(n)]
        beta = []
        for k in pooled.parties:
            gradient = np.zeros(pooled.sizes[k])
            for sample in samples:
                gradient += sample.residual * sample.x_tilde[k] - sample.alpha[columns[k]]
            beta.append(theta.beta[k] + eta * gradient / n)
        beta0 = theta.beta0
        if intercept:
            beta0 += eta * float(sum(sample.residual for sample in samples)) / n
        theta = Theta(beta0, beta, *distribution_step(pooled, theta, samples))
        thetas.append(theta)
    return thetas


def exact_em(pooled, theta, n_iter, intercept=True, tol=0.0):
    """The same with beta by Eq. (6), the intercept as a column of ones.

    Ends sooner if no parameter changes by more than `tol`. No iteration lowers the observed
    likelihood, although Sigma and sigma2 use old values.
    """
    n, columns, thetas = len(pooled.y), columns_of(pooled), []
    p, first = sum(pooled.sizes), int(intercept)
    for _ in range(n_iter):
        samples = [expectation(pooled, theta, i) for i in range(n)]
        square, product = np.zeros((first + p,) * 2), np.zeros(first + p)
        for y_i, sample in zip(pooled.y, samples, strict=True):
            row = np.concatenate([np.ones(first), *sample.x_tilde])
            square += np.outer(row, row)
            square[first:, first:] += sample.covariance
            product += row * (y_i if intercept else y_i - theta.beta0)
        solution = np.linalg.solve(square, product)
        beta0 = float(solution[0]) if intercept else theta.beta0
        beta = [solution[first:][where] for where in columns]
        new = Theta(beta0, beta, *distribution_step(pooled, theta, samples))
        change = np.abs(flatten(new) - flatten(theta)).max()
        theta = new
        thetas.append(theta)
        if change <= tol:
            break
    return thetas


# The observed likelihood, Eq. (3)


def joint_moments(pooled, theta, missing):
    """Mean and covariance of (the columns that a sample has, y); `missing` is its row of mask."""
    observed = [k for k in pooled.parties if not missing[k]]
    mean_y = theta.beta0 + sum(theta.mu[k] @ theta.beta[k] for k in pooled.parties)
    var_y = theta.sigma2
    var_y += sum(theta.beta[k] @ theta.sigma[k] @ theta.beta[k] for k in pooled.parties)
    mean = np.concatenate([*[theta.mu[k] for k in observed], [mean_y]])
    with_y = np.concatenate([*[theta.sigma[k] @ theta.beta[k] for k in observed], [var_y]])
    covariance = block_diag(*[theta.sigma[k] for k in observed], [[var_y]])
    covariance[-1, :] = covariance[:, -1] = with_y
    return mean, covariance


def observed_loglik(pooled, theta):
    """Eq. (3), summed over the samples, with all constants."""
    total = 0.0
    for i, y_i in enumerate(pooled.y):
        mean, covariance = joint_moments(pooled, theta, pooled.mask[i])
        x_obs = [pooled.X[k][i] for k in pooled.parties if not pooled.mask[i, k]]
        total += multivariate_normal.logpdf(np.concatenate([*x_obs, [y_i]]), mean, covariance)
    return float(total)


def fast_loglik(pooled):
    """The same as a function of theta that takes all samples with the same parties at once."""
    groups = []
    for pattern in np.unique(pooled.mask, axis=0):
        rows = np.all(pooled.mask == pattern, axis=1)
        observed = [pooled.X[k][rows] for k in pooled.parties if not pattern[k]]
        groups.append((pattern, np.column_stack([*observed, pooled.y[rows]])))

    def loglik(theta):
        total = 0.0
        for pattern, values in groups:
            mean, covariance = joint_moments(pooled, theta, pattern)
            factor = np.linalg.cholesky(covariance)
            white = np.linalg.solve(factor, (values - mean).T)
            total -= 0.5 * np.sum(white**2) + 0.5 * values.size * np.log(2 * np.pi)
            total -= len(values) * np.sum(np.log(np.diag(factor)))
        return float(total)

    return loglik


# Coordinates


def flatten(theta):
    """Natural coordinates."""
    vech = [sigma[np.tril_indices(len(sigma))] for sigma in theta.sigma]
    return np.concatenate([[theta.beta0], *theta.beta, *theta.mu, *vech, [theta.sigma2]])


def _split(vector, sizes):
    """The groups of a vector of coordinates, the triangles as lower triangular matrices."""
    lengths = [1, *sizes, *sizes, *[p * (p + 1) // 2 for p in sizes], 1]
    parts = np.split(np.asarray(vector, dtype=float), np.cumsum(lengths)[:-1])
    K = len(sizes)
    triangles = []
    for p, part in zip(sizes, parts[1 + 2 * K : -1], strict=True):
        triangle = np.zeros((p, p))
        triangle[np.tril_indices(p)] = part
        triangles.append(triangle)
    return float(parts[0][0]), parts[1 : 1 + K], parts[1 + K : 1 + 2 * K], triangles, parts[-1][0]


def unflatten(vector, sizes):
    """Theta from natural coordinates."""
    beta0, beta, mu, triangles, last = _split(vector, sizes)
    sigma = [lower + np.tril(lower, -1).T for lower in triangles]
    return Theta(beta0, beta, mu, sigma, float(last))


def to_unconstrained(theta):
    """Unconstrained coordinates."""
    vech = []
    for sigma in theta.sigma:
        factor = np.linalg.cholesky(sigma)
        np.fill_diagonal(factor, np.log(np.diag(factor)))
        vech.append(factor[np.tril_indices(len(factor))])
    return np.concatenate([[theta.beta0], *theta.beta, *theta.mu, *vech, [np.log(theta.sigma2)]])


def from_unconstrained(vector, sizes):
    """Theta from unconstrained coordinates."""
    beta0, beta, mu, triangles, last = _split(vector, sizes)
    sigma = []
    for factor in triangles:
        np.fill_diagonal(factor, np.exp(np.diag(factor)))
        sigma.append(factor @ factor.T)
    return Theta(beta0, beta, mu, sigma, float(np.exp(last)))


# Differences: f'(x) = sum of weight * f(x + step * h) / h, with an error of order h^4
STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


def jacobian(function, point, coordinates=None, h=1e-3):
    """Central differences; row c is the derivative in coordinate c, so for a map F: dF_j/dx_c."""
    coordinates = range(len(point)) if coordinates is None else coordinates
    rows = []
    for c in coordinates:
        step = np.zeros(len(point))
        step[c] = h * max(1.0, abs(point[c]))
        rows.append(sum(w * function(point + s * step) for s, w in STENCIL) / step[c])
    return np.array(rows)


def hessian(function, point, h=3e-3):
    """Central differences in both coordinates."""
    d = len(point)
    steps = np.diag(h * np.maximum(1.0, np.abs(point)))
    out = np.zeros((d, d))
    for a in range(d):
        for b in range(a + 1):
            total = 0.0
            for s, v in STENCIL:
                for t, w in STENCIL:
                    total += v * w * function(point + s * steps[a] + t * steps[b])
            out[a, b] = out[b, a] = total / (steps[a, a] * steps[b, b])
    return out


def maximise(pooled, theta0, intercept=True):
    """The maximum of the observed likelihood by BFGS from theta0 and Newton steps at the end.

    Without an intercept beta0 stays as it is. For small cases.
    """
    sizes, loglik = pooled.sizes, fast_loglik(pooled)
    start = to_unconstrained(theta0)
    free = np.arange(0 if intercept else 1, len(start))
    scale = len(pooled.y)

    def full(vector):
        whole = start.copy()
        whole[free] = vector
        return from_unconstrained(whole, sizes)

    def loss(vector):
        try:
            value = -loglik(full(vector)) / scale
        except np.linalg.LinAlgError:  # a far step of the line search
            return np.inf
        return value if np.isfinite(value) else np.inf

    def gradient(vector):
        return jacobian(loss, vector)

    found = minimize(loss, start[free], jac=gradient, method="BFGS", options={"gtol": 1e-6}).x
    curvature = hessian(loss, found)
    for _ in range(20):
        step = np.linalg.solve(curvature, gradient(found))
        found = found - step
        if np.abs(step).max() < 1e-10:
            break
    return full(found)


def score(pooled, theta, everything=False):
    """Gradient of the observed likelihood in (beta0, beta), or in all natural coordinates."""
    sizes, loglik = pooled.sizes, fast_loglik(pooled)
    point = flatten(theta)
    coordinates = range(len(point) if everything else 1 + sum(sizes))
    return jacobian(lambda vector: loglik(unflatten(vector, sizes)), point, coordinates)


# Standard errors. Without an intercept beta0 is known, and its row of the covariance is 0.


def invert(information, intercept=True):
    """The covariance, also for an information that is not symmetric."""
    if intercept:
        return np.linalg.inv(information)
    out = np.zeros_like(information)
    out[1:, 1:] = np.linalg.inv(information[1:, 1:])
    return out


def of_coefficients(covariance, sizes):
    """Standard errors of (beta0, beta) from a covariance of all parameters."""
    return np.sqrt(np.diag(covariance)[: 1 + sum(sizes)])


def observed_information(pooled, theta):
    """Minus the Hessian of the observed likelihood, in unconstrained coordinates."""
    sizes, loglik = pooled.sizes, fast_loglik(pooled)
    point = to_unconstrained(theta)
    return -hessian(lambda vector: loglik(from_unconstrained(vector, sizes)), point)


def standard_errors(pooled, theta, intercept=True):
    """Standard errors of (beta0, beta) from the observed information; theta is the maximum."""
    return of_coefficients(invert(observed_information(pooled, theta), intercept), pooled.sizes)


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


def complete_information(pooled, theta):
    """I_oc of Eq. (10) at a fixed point of Eq. (6), where all blocks between groups are 0.

    The paper prints its beta block with the wrong sign.
    """
    n, p = len(pooled.y), sum(pooled.sizes)
    square = np.zeros((1 + p, 1 + p))
    for i in range(n):
        sample = expectation(pooled, theta, i)
        row = np.concatenate([[1.0], *sample.x_tilde])
        square += np.outer(row, row)
        square[1:, 1:] += sample.covariance
    normals = [normal_information(sigma, n) for sigma in theta.sigma]
    return block_diag(
        square / theta.sigma2,
        *[on_mu for on_mu, _ in normals],
        *[on_sigma for _, on_sigma in normals],
        [[n / (2 * theta.sigma2**2)]],
    )


def sem_covariance(pooled, theta, intercept=True):
    """Eq. (10) with the exact I_oc; theta is a fixed point of Eq. (6)."""

    def em_map(vector):
        return flatten(exact_em(pooled, unflatten(vector, pooled.sizes), 1, intercept)[0])

    gamma = jacobian(em_map, flatten(theta))
    first = 0 if intercept else 1
    covariance = invert(complete_information(pooled, theta), intercept)
    rest = np.eye(len(gamma) - first) - gamma[first:, first:]
    covariance[first:, first:] = covariance[first:, first:] @ np.linalg.inv(rest)
    return covariance


def sem_standard_errors(pooled, theta, intercept=True):
    """Standard errors of (beta0, beta) by Eq. (10)."""
    return of_coefficients(sem_covariance(pooled, theta, intercept), pooled.sizes)


# What the differences of Eq. (10) tell the server


def summed_fits(pooled, theta):
    """The sum of the parties' fits h bar (n,), their missing rows filled with mu."""
    fits = np.zeros(len(pooled.y))
    for i in range(len(fits)):
        for k in pooled.parties:
            x_bar = theta.mu[k] if pooled.mask[i, k] else pooled.X[k][i]
            fits[i] += x_bar @ theta.beta[k]
    return fits


def forced_em_columns(pooled, theta, h):
    """The summed fits that the server gets for each coefficient that Eq. (10)'s Jacobian moves.

    Shapes: returns (k, j), (n,): the fits with beta_kj + h.
    """
    out = {}
    for k in pooled.parties:
        for j in range(pooled.sizes[k]):
            beta = [b.copy() for b in theta.beta]
            beta[k][j] += h
            moved = Theta(theta.beta0, beta, theta.mu, theta.sigma, theta.sigma2)
            out[k, j] = summed_fits(pooled, moved)
    return out


def revealed_columns(pooled, theta, h):
    """The parties' columns from nothing but those sums: X, with mu in its missing rows."""
    unmoved = summed_fits(pooled, theta)
    moved = forced_em_columns(pooled, theta, h)
    return [
        np.column_stack([(moved[k, j] - unmoved) / h for j in range(p)])
        for k, p in enumerate(pooled.sizes)
    ]


# Fisher information given the observed covariates


def variance_of(pooled, theta, i):
    """d_i: variance of y_i given the observed covariates of sample i."""
    missing = [k for k in pooled.parties if pooled.mask[i, k]]
    return theta.sigma2 + sum(theta.beta[k] @ theta.sigma[k] @ theta.beta[k] for k in missing)


def _in_order(intercept, beta, mu, vech, last):
    """A vector over the natural coordinates from its groups."""
    return np.concatenate([[intercept], *beta, *mu, *vech, [last]])


def mean_derivative(pooled, theta, i):
    """a_i: derivative of m_i = E[y_i | x_i,obs] in natural coordinates."""
    mis = pooled.mask[i]
    beta = [theta.mu[k] if mis[k] else pooled.X[k][i] for k in pooled.parties]
    mu = [theta.beta[k] if mis[k] else np.zeros(p) for k, p in enumerate(pooled.sizes)]
    vech = [np.zeros(p * (p + 1) // 2) for p in pooled.sizes]
    return _in_order(1.0, beta, mu, vech, 0.0)


def variance_derivative(pooled, theta, i):
    """c_i: derivative of d_i in natural coordinates."""
    beta, mu, vech = [], [], []
    for k, p in enumerate(pooled.sizes):
        b, missing = theta.beta[k], float(pooled.mask[i, k])
        beta.append(missing * 2 * theta.sigma[k] @ b)
        mu.append(np.zeros(p))
        vech.append(missing * np.array([b @ unit @ b for unit in symmetric_units(p)]))
    return _in_order(0.0, beta, mu, vech, 1.0)


def mean_information(pooled, theta):
    """Sum of a_i a_i' / d_i, with all products between parties."""
    total = 0.0
    for i in range(len(pooled.y)):
        a = mean_derivative(pooled, theta, i)
        total = total + np.outer(a, a) / variance_of(pooled, theta, i)
    return total


def centred_mean_information(pooled, theta):
    """The same with those products that no party can compute replaced by their expectation, 0.

    With gamma0 = beta0 + sum of mu_k' beta_k in beta0's place, m_i = gamma0 + sum over observed k
    of (x_ik - mu_k)' beta_k. The derivatives in beta_k are the party's centred rows; a product of
    these with anything but themselves has expectation 0 and is left out. gamma0's row is turned
    back into beta0's at the end.
    """
    columns = columns_of(pooled)
    vech = [np.zeros(p * (p + 1) // 2) for p in pooled.sizes]
    none = [np.zeros(p) for p in pooled.sizes]
    total = 0.0
    for i in range(len(pooled.y)):
        d_i = variance_of(pooled, theta, i)
        observed = ~pooled.mask[i]
        mu = [-theta.beta[k] * observed[k] for k in pooled.parties]
        a = _in_order(1.0, none, mu, vech, 0.0)
        total = total + np.outer(a, a) / d_i
        for k in pooled.parties:
            if observed[k]:
                centred = pooled.X[k][i] - theta.mu[k]
                where = 1 + columns[k]
                total[np.ix_(where, where)] += np.outer(centred, centred) / d_i
    back = np.eye(len(total))  # d (gamma0, beta, mu, ...) / d (beta0, beta, mu, ...)
    back[0] = _in_order(1.0, theta.mu, theta.beta, vech, 0.0)
    return back.T @ total @ back


def expected_information(pooled, theta, cross="gram"):
    """Fisher information on all natural coordinates given the observed covariates."""
    parts = {"gram": mean_information, "expected": centred_mean_information}
    total = parts[cross](pooled, theta)
    for i in range(len(pooled.y)):
        c = variance_derivative(pooled, theta, i)
        total = total + 0.5 * np.outer(c, c) / variance_of(pooled, theta, i) ** 2
    normals = [
        normal_information(theta.sigma[k], np.sum(~pooled.mask[:, k])) for k in pooled.parties
    ]
    return total + block_diag(
        np.zeros((1 + sum(pooled.sizes),) * 2),
        *[on_mu for on_mu, _ in normals],
        *[on_sigma for _, on_sigma in normals],
        [[0.0]],
    )


def expected_standard_errors(pooled, theta, cross="gram", intercept=True):
    """Standard errors of (beta0, beta), and the covariance of all natural coordinates."""
    covariance = invert(expected_information(pooled, theta, cross), intercept)
    return of_coefficients(covariance, pooled.sizes), covariance
