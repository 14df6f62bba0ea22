"""What statsmodels' `PHReg` lacks: offsets, Breslow's baseline, proportionality, halved ties."""

import numpy as np
from scipy import optimize


def step_with_offset(beta, x, time, event, offset, steps=30):
    """Return coefficients that solve the score with offsets, from others, and the information."""
    order = np.argsort(-time)
    x, event, offset = x[order], event[order], offset[order]
    for _ in range(steps):  # without ties, rows at risk are those before
        weight = np.exp(x @ beta + offset)
        total = np.cumsum(weight)[:, None]
        means = np.cumsum(weight[:, None] * x, axis=0) / total
        square = np.cumsum(weight[:, None, None] * x[:, :, None] * x[:, None, :], axis=0)
        spread = square / total[:, :, None] - means[:, :, None] * means[:, None, :]
        information = spread[event].sum(axis=0)
        beta = beta + np.linalg.solve(information, (x - means)[event].sum(axis=0))
    return beta, information


def unseen_score(beta, x, time, event, unseen, pattern, mean, seen, jumps=None):
    """Return a score with a normal unseen part of the predictors, row by row, and hazards' jumps.

    At an event time a row of a pattern counts exp(x'beta) times the mean of g over those at risk,
    whose columns are then exchanged for those expected of hazards exp(x'beta) g given time and
    event, with predictors normal by pattern. unseen, seen (n_patterns, p, p), mean (n_patterns, p);
    no ties, each event time has a jump of the baseline hazard.
    """
    order = np.argsort(time)
    x, event, pattern = x[order], event[order], pattern[order]
    z, w = np.polynomial.hermite_e.hermegauss(25)
    w = w / w.sum()
    v = np.einsum("pij,i,j->p", unseen, beta, beta)
    eta = mean @ beta
    spread = np.sqrt(np.einsum("pij,i,j->p", seen, beta, beta))
    along = (seen @ beta) / spread[:, None] ** 2

    def later(values):
        return np.cumsum(values[::-1], axis=0)[::-1]  # over those at risk

    def at_risk(k):
        own = np.exp(x @ beta) * (pattern == k)
        return later(own), later(own[:, None] * x)

    sums = {k: at_risk(k) for k in np.unique(pattern)}
    jumps = event / later(np.exp(x @ beta)) if jumps is None else jumps
    for _ in range(200):
        hazard = np.maximum(np.cumsum(jumps), 1e-9)
        total, columns = np.zeros(len(x)), np.zeros_like(x)
        for k, (own_total, own_columns) in sums.items():
            rate, moved = np.ones(len(x)), 0.0
            if v[k] > 0:
                place = eta[k] + spread[k] * z
                here = np.exp(place + np.sqrt(v[k]) * z[:, None])  # (unseen, seen)
                left = np.exp(-hazard[:, None, None] * here)
                survived = np.maximum(np.einsum("nus,u->ns", left, w), 1e-300)
                slope = np.einsum("nus,us,u->ns", left, here, w) / survived  # exp(eta) g
                given = w * survived * np.where(event[:, None], slope, 1.0)
                given *= (pattern == k)[:, None] / np.maximum(given.sum(axis=1), 1e-300)[:, None]
                given = later(given)
                last = np.maximum(given @ np.exp(place), 1e-300)
                rate = (given * slope).sum(axis=1) / last
                change = given * (slope - rate[:, None] * np.exp(place))
                moved = (change @ (place - eta[k]))[:, None] * along[k]
            total += rate * own_total
            columns += rate[:, None] * own_columns + moved
        new = event / total
        done = np.abs(new - jumps)[event].max() < 1e-5 * jumps[event].min()
        jumps = (jumps + 2 * new) / 3
        if done:
            break
    return x[event].sum(axis=0) - jumps @ columns, jumps


def halved_ties(x, time, event, steps=30):
    """Return coefficients, errors and log likelihood: of c events at a time (c + 1) / 2 at risk.

    Efron's mean of c logarithms is the logarithm of a mean here.
    """
    times, count = np.unique(time[event], return_counts=True)
    tied = event & (time == times[:, None])
    at_risk = (time >= times[:, None]) - ((count - 1) / (2 * count))[:, None] * tied
    beta = np.zeros(x.shape[1])
    for _ in range(steps):
        weight = at_risk * np.exp(x @ beta)
        total = weight.sum(axis=1)
        means = weight @ x / total[:, None]
        square = np.einsum("s,si,ij,ik->jk", count / total, weight, x, x, optimize=True)
        information = square - (means.T * count) @ means
        beta = beta + np.linalg.solve(information, x[event].sum(axis=0) - count @ means)
    value = (x[event] @ beta).sum() - count @ np.log(at_risk @ np.exp(x @ beta))
    return beta, np.sqrt(np.diag(np.linalg.inv(information))), value


def baseline(beta, x, time, event, at):
    """Return Breslow's cumulative hazard of the columns' means at times `at`."""
    risk = np.exp((x - x.mean(axis=0)) @ beta)
    jumps = np.array([1.0 / risk[time >= t].sum() for t in time[event]])
    return np.array([jumps[time[event] <= t].sum() for t in at])


def proportional(fit, time, event):
    """Return the statistic of Grambsch and Therneau (1994) by column, by rank of time."""
    times, covariance = time[event], fit.cov_params()
    rank = np.array([np.mean(times < t) + np.mean(times <= t) for t in times]) * len(times) / 2
    centred = rank - rank.mean()
    scaled = fit.schoenfeld_residuals[event] @ covariance * len(times)
    return (centred @ scaled) ** 2 / (len(times) * np.diag(covariance) * (centred @ centred))


def with_knots(x, time, event, hats):
    """Maximise the likelihood of a baseline that is Nelson and Aalen's, times functions of time.

    hats (n_times, n_knots): their values at event times. Returns coefficients, and the log
    likelihood on the scale of the partial one.
    """
    times, count = np.unique(time[event], return_counts=True)
    jump = count / (np.array([(time >= t).sum() for t in times]) - (count - 1) / 2)
    before = (time[:, None] >= times) - (count - 1) / (2 * count) * (
        event[:, None] & (time[:, None] == times)
    )

    def lost(theta):
        beta, level = theta[: x.shape[1]], np.exp(theta[x.shape[1] :])
        shape = hats @ level
        eta = x @ beta
        hazard = before @ (shape * jump)
        at = np.searchsorted(times, time[event])
        return np.sum(hazard * np.exp(eta)) - np.sum(eta[event]) - np.sum(np.log(shape * jump)[at])

    theta = np.zeros(x.shape[1] + hats.shape[1])
    for _ in range(3):  # from where it stops, until rounding
        theta = optimize.minimize(lost, theta, method="BFGS", options={"gtol": 1e-8}).x
    constant = event.sum() - count @ np.log(count)
    return theta[: x.shape[1]], -lost(theta) + constant
