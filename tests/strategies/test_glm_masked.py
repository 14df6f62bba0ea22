"""Masked means over a federation: what is fitted, in how many rounds, and what nobody learns."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.special import expit

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.products import HeldColumns
from flwr_vertical.protocol import decode
from strategies.glm import VerticalGLM
from strategies.glm.weighted import _ONE
from strategies.linear.families import family_named
from strategies.linear.masked_means.evaluate import Bound, MaskedMeans
from strategies.linear.masked_means.fixed_point import ByRow
from strategies.linear.masked_means.fourier import CIRCLE, expand, to_circle
from tests.kit.masked_runs import MeanParty, opened, pooled, split, statsmodels_fit


class Fitted:
    """A fit, its transcript and ledger."""

    def __init__(self, family, n, p, k, strength, mode="masked"):
        self.family, self.k = family, k
        self.x, self.y = pooled(family, n, p, seed=1, strength=strength)
        with opened(self.x, k, mode) as run:
            self.fit = run.fit(family, self.y)
            self.steps = run.federation.ledger.to_frame()[["round", "step"]].drop_duplicates()
            self.transcript = list(run.grid.transcript)
        self.truth = statsmodels_fit(family, self.x, self.y)


@pytest.fixture(scope="module", params=[("binomial", 2), ("binomial", 3), ("poisson", 2)])
def fitted(request):
    family, k = request.param
    n, p, strength = (3000, 8, 0.5) if family == "binomial" else (5000, 9, 0.2)
    return Fitted(family, n, p, k, strength)


def test_estimates_and_errors_are_those_of_the_pooled_table(fitted):
    found, truth = np.r_[fitted.fit.intercept, fitted.fit.beta], fitted.truth
    assert np.abs((found - truth.params) / truth.bse).max() < 1e-3
    assert np.abs(found - truth.params).max() < (1e-5 if fitted.family == "binomial" else 1e-4)
    np.testing.assert_allclose(np.sqrt(np.diag(fitted.fit.vcov)), truth.bse, rtol=3e-4)
    np.testing.assert_allclose(
        fitted.fit.vcov, truth.cov_params(), atol=1e-3 * np.outer(truth.bse, truth.bse).max()
    )
    assert fitted.fit.converged
    assert fitted.fit.log_likelihood == pytest.approx(truth.llf, abs=0.02)
    assert fitted.fit.deviance == pytest.approx(truth.deviance, abs=0.04)


# -- what nobody learns ----------------------------------------------------------------------


def arrays(fitted, direction):
    """Every array that went one way, with its step and name, and the peer."""
    for record in fitted.transcript:
        if record.direction != direction:
            continue
        for name in record.content.array_records:
            for key, value in decode(record.content, name.removesuffix(".arrays")).items():
                if isinstance(value, np.ndarray):
                    yield record.node_id, f"{name} {key}", value


def per_sample(fitted, direction):
    """Of these, those with a number for each sample, as vectors."""
    n = len(fitted.y)
    for peer, name, value in arrays(fitted, direction):
        if n not in value.shape or value.ndim > 2 or name.split()[-1] in ("ids", "positions"):
            continue  # those are of the alignment, which is plain here
        for vector in (
            np.moveaxis(value.reshape(value.shape), value.shape.index(n), 0).reshape(n, -1).T
        ):
            yield peer, name, vector


def secrets_of(fitted):
    wide = np.column_stack([np.ones(len(fitted.y)), fitted.x])
    eta = wide @ fitted.truth.params
    return np.column_stack([fitted.x, fitted.y, eta, fitted.truth.fittedvalues])


@pytest.mark.parametrize("direction", ["up", "down"])
def test_numbers_of_samples_are_uniform_and_tell_nothing(fitted, direction):
    """Up is what the server sees, down what the parties see (and the server made itself)."""
    secret, vectors = secrets_of(fitted), []
    for _, name, vector in per_sample(fitted, direction):
        if name.endswith("group"):
            assert not vector.any()
            continue
        assert vector.dtype == np.uint64, name
        vectors.append(vector)
    n, seen = len(secret), len(vectors)
    assert seen > (5 if direction == "up" else 20) * fitted.fit.evaluations
    together = np.column_stack(vectors)
    ranks = np.arange(1, n + 1)[:, None] / n
    shares = np.sort(together, axis=0) / 2.0**64
    gap = np.maximum(ranks - shares, shares - ranks + 1 / n).max(axis=0)
    assert stats.kstwo.sf(gap, n).min() > 1e-9 / seen  # Kolmogorov and Smirnov; keys are fresh
    secret = (secret - secret.mean(axis=0)) / secret.std(axis=0)
    for part in (together >> np.uint64(32), together & np.uint64(2**32 - 1)):
        part = part.astype(float)
        r = secret.T @ ((part - part.mean(axis=0)) / part.std(axis=0)) / n
        assert np.abs(r).max() < 6.5 / np.sqrt(n)


def test_no_label_and_no_number_of_the_server_s_own_reaches_a_party(fitted):
    """Beside uniform numbers a party gets its coefficients, tags and Fourier coefficients."""
    plain = {
        name.split()[-1]
        for _, name, value in arrays(fitted, "down")
        if value.dtype != np.uint64 and value.size > 1
    }
    assert plain <= {"group", "beta", "sine", "cosine", "positions", "tags"}, plain


def guess_flags(angle, candidates):
    """Which of the possible fits comes nearest to an angle, for each sample."""
    gap = (angle[:, None] - to_circle(candidates)[None, :]).view(np.int64)
    return np.argmin(np.abs(gap.astype(float)), axis=1)


def test_enumerating_flags_finds_them_from_open_predictors_and_not_from_masked_ones():
    """The attack on opened linear predictors: few combinations of 0/1 columns fit a number."""
    rng = np.random.default_rng(4)
    n, flags = 800, 6
    x = (rng.random((n, flags)) < 0.5).astype(float)
    beta = rng.standard_normal(flags)
    with opened(x, 2) as run:
        means = MaskedMeans(run.federation, run.group_key)
        means.send(run.everything)
        placed = means.place(beta)
        again, other = means.place(beta), means.place(2.0 * beta)
    patterns = ((np.arange(2**flags)[:, None] >> np.arange(flags)) & 1).astype(float)
    fits = (patterns - x.mean(axis=0)) @ beta
    truth = x @ 2 ** np.arange(flags)
    exact = to_circle((x - x.mean(axis=0)) @ beta)
    assert np.mean(guess_flags(exact, fits) == truth) == 1.0
    by_chance = 6 / np.sqrt(n * 2**flags) + 2.0**-flags
    assert np.mean(guess_flags(placed.alpha, fits) == truth) < by_chance
    # The same coefficients again tell the same; others are masked by another stream, so that
    # differences are uniform, too.
    np.testing.assert_array_equal(placed.alpha, again.alpha)
    difference = other.alpha - placed.alpha
    assert np.mean(guess_flags(difference, fits) == truth) < by_chance
    assert stats.kstest(difference.astype(float) / 2.0**64, "uniform").pvalue > 1e-9


def test_in_plain_mode_a_party_s_fits_are_masked_all_the_same():
    x, y = pooled("binomial", 400, 4, seed=2)
    found = Fitted.__new__(Fitted)
    found.x, found.y = x, y
    with opened(x, 2, "plain") as run:
        means = MaskedMeans(run.federation, run.group_key)
        means.send(run.everything)
        means.place(np.full(4, 0.1))
        found.transcript = list(run.grid.transcript)
    sent = [v for _, name, v in per_sample(found, "up") if name.endswith("angles")]
    assert len(sent) == 2
    for vector in sent:
        assert stats.kstest(vector.astype(float) / 2.0**64, "uniform").pvalue > 1e-9


# -- what is fitted --------------------------------------------------------------------------


def test_five_parties_without_intercept_and_with_samples_left_out():
    x, y = pooled("binomial", 1500, 10, seed=3)
    x = (x - x.mean(axis=0)) / x.std(axis=0) + 0.3
    group = np.where(np.arange(1500) < 1200, 0, -1)
    with opened(x, 5) as run:
        fit = run.fit("binomial", np.where(group == 0, y, np.nan), group, intercept=False)
    truth = statsmodels_fit("binomial", x[:1200], y[:1200], intercept=False)
    assert fit.intercept == 0.0
    np.testing.assert_allclose(fit.beta, truth.params, atol=1e-5)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.vcov))[1:], truth.bse, rtol=3e-4)


def test_the_sums_are_those_of_the_pooled_table_at_any_coefficients():
    x, _ = pooled("binomial", 900, 6, seed=5)
    beta = 0.7 / x.std(axis=0)
    centred = x - x.mean(axis=0)
    eta = centred @ beta
    with opened(x, 3) as run:
        means = MaskedMeans(run.federation, run.group_key)
        means.send(run.everything)
        placed = means.place(beta)
        assert placed.low <= eta.min() <= eta.max() <= placed.high
        functions = [
            lambda t: expit(t + placed.centre),
            lambda t: expit(t + placed.centre) * expit(-t - placed.centre),
            lambda t: np.logaddexp(0.0, t + placed.centre),
        ]
        mean, variance, cumulant = expand(functions, (placed.high - placed.low) / 2)
        (total,), (columns,) = means.open_sums(placed, placed.centre, mean, Bound(900.0, 1.0))
        information, psi = means.open_information(
            placed, placed.centre, [variance, cumulant], [Bound(225.0, 0.25), Bound(2e4, 20.0)]
        )
    mu = expit(eta)
    unit = x.std(axis=0) * np.sqrt(900)
    assert abs(total - mu.sum()) < 1e-3
    assert np.abs((columns - centred.T @ mu) / unit).max() < 1e-4
    wide = np.column_stack([np.ones(900), centred])
    exact = wide.T @ (wide * (mu * (1 - mu))[:, None])
    lengths = np.sqrt((wide**2).sum(axis=0))
    assert np.abs((information - exact) / np.outer(lengths, lengths)).max() < 1e-5
    assert psi == pytest.approx(np.logaddexp(0.0, eta).sum(), abs=0.01)


@pytest.mark.parametrize("intercept", [True, False])
def test_columns_that_follow_from_others_are_left_out(intercept):
    x, y = pooled("binomial", 800, 4, seed=6)
    x[:, 1] = y + x[:, 1] > 1
    x = np.column_stack([x[:, :3], x[:, 0] - 2.0 * x[:, 2], 1.0 - x[:, 1]])
    with opened(x, 2) as run:
        found = run.fit("binomial", y, intercept=intercept)
    # Without an intercept flags may add up to 1.
    assert found.follows.tolist() == [False, False, False, True, intercept]
    used = x[:, ~found.follows]
    exact = sm.Logit(y, sm.add_constant(used) if intercept else used).fit(disp=0)
    beta = np.append(found.intercept, found.beta[~found.follows])[not intercept :]
    assert np.abs((beta - exact.params) / exact.bse).max() < 0.02
    assert (found.beta[found.follows] == 0.0).all()


def test_columns_that_all_but_follow_from_others_are_left_out():
    """Coefficients a thousand times as large were taken for perfect separation."""
    x, y = pooled("binomial", 3000, 4, seed=6)
    noise = x[:, 0].std() * np.random.default_rng(0).normal(size=3000)
    x[:, 3] = x[:, 0] + 1e-3 * noise
    with opened(x, 2) as run:
        assert run.fit("binomial", y).follows.tolist() == [False, False, False, True]
    x[:, 3] = x[:, 0] + 1e-2 * noise
    truth = statsmodels_fit("binomial", x, y)
    with opened(x, 2) as run:
        found = run.fit("binomial", y)
    assert np.abs((np.r_[found.intercept, found.beta] - truth.params) / truth.bse).max() < 2e-3
    np.testing.assert_allclose(np.sqrt(np.diag(found.vcov)), truth.bse, rtol=2e-3)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_a_large_effect_of_a_small_difference_is_no_separation(family):
    x, _ = pooled(family, 3000, 4, seed=6)
    rng = np.random.default_rng(0)
    difference = rng.normal(size=3000)
    x[:, 3] = x[:, 0] + 0.02 * x[:, 0].std() * difference
    mean = family_named(family).mean(1.5 * difference)
    y = (rng.random(3000) < mean).astype(float) if family == "binomial" else np.rint(mean)
    with opened(x, 2) as run, pytest.raises(DataError) as caught:
        run.fit(family, y)
    text = str(caught.value)
    assert text.startswith("coefficients of p0:x0, p1:x3 cancel each other")
    assert text.endswith("or set a penalty")


@pytest.mark.parametrize("family", ["binomial", pytest.param("poisson", marks=pytest.mark.slow)])
def test_a_level_with_one_kind_of_labels_alone_has_a_ridge_and_the_rest_is_statsmodels(family):
    x, y = pooled(family, 1000, 4, seed=8, strength=0.3)
    flag = x[:, 1] == x[:, 1].max()
    y[flag] = 1.0 if family == "binomial" else 0.0
    with opened(x, 2) as run:
        fit = run.fit(family, y)
        vectors = (run.federation.ledger.to_frame()["step"] == "place_fits").sum() // 2
    kind = 1 if family == "binomial" else 0
    assert f"p0:x1: the label is {kind} in all {flag.sum()} samples with the higher" in fit.notes[0]
    assert len(fit.notes) == 1
    assert fit.bounded.tolist() == [False, True, False, False]
    assert fit.converged
    assert vectors == fit.evaluations <= 12
    # Where the level's coefficient is infinite, its rows tell nothing of the others.
    others = [0, 2, 3]
    truth = statsmodels_fit(family, x[~flag][:, others], y[~flag])
    assert np.abs((fit.beta[others] - truth.params[1:]) / truth.bse[1:]).max() < 0.05
    np.testing.assert_allclose(np.sqrt(np.diag(fit.vcov))[1:][others], truth.bse[1:], rtol=0.02)
    # The ridge is on the square of the coefficient in standard deviations.
    wide = np.column_stack([np.ones(1000), x])
    mean = family_named(family).mean(fit.intercept + x @ fit.beta)
    score = wide.T @ (y - mean)
    assert score[2] == pytest.approx(2 * 0.5 * x[:, 1].var() * fit.beta[1], rel=1e-2)
    y[np.flatnonzero(flag)[:3]] = 0.0 if family == "binomial" else 1.0  # few, but a maximum
    with opened(x, 2) as run:
        fit = run.fit(family, y)
    truth = statsmodels_fit(family, x, y)
    assert not fit.notes
    assert np.abs((np.r_[fit.intercept, fit.beta] - truth.params) / truth.bse).max() < 1e-3


def test_a_sum_of_columns_whose_estimate_is_infinite_has_a_ridge_on_each():
    """The level that has no column of its own: no moment of one column shows it."""
    rng = np.random.default_rng(2)
    town = rng.choice(3, 900, p=[0.2, 0.4, 0.4])
    x = np.column_stack([town == 1, town == 2, rng.standard_normal((900, 2))]).astype(float)
    y = (rng.random(900) < expit(x[:, 2] - 0.5)).astype(float)
    y[town == 0] = 0.0
    with opened(x, 2) as run:
        fit = run.fit("binomial", y)
    assert fit.bounded.tolist() == [True, True, False, False]
    assert "quasi-separation by p0:x0, p0:x1: some of their values" in fit.notes[0]
    rest = town > 0
    truth = statsmodels_fit("binomial", x[rest][:, 1:], y[rest])
    # At a finite estimate the 180 rows tell a little of the others.
    assert np.abs((fit.beta[2:] - truth.params[2:]) / truth.bse[2:]).max() < 0.15


def test_weighted_labels_in_a_column_are_refused_by_name():
    """With weights no level is found from moments, and at last no curvature is left."""
    rng = np.random.default_rng(0)
    labels = pd.Series((rng.random(400) < 0.12).astype(float))
    bank = pd.DataFrame(rng.normal(size=(400, 3)), columns=["a", "b", "c"])
    court = pd.DataFrame({"d": rng.normal(size=400), "same": labels})
    with pytest.raises(DataError, match=r"perfect separation.*largest are those of court:same"):
        simulate(
            VerticalGLM(family="binomial", penalty="none"),
            {"bank": bank, "court": court},
            labels,
            weights=1.0 + labels,
        )


@pytest.mark.parametrize("weighted", [False, True])
def test_a_column_that_gives_labels_away_is_chosen_and_named(weighted):
    """A penalty that is flat for large slopes dropped it where no information was left."""
    rng = np.random.default_rng(0)
    labels = pd.Series((rng.random(400) < 0.12).astype(float))
    bank = pd.DataFrame(rng.normal(size=(400, 3)), columns=["a", "b", "c"])
    court = pd.DataFrame({"d": rng.normal(size=400), "same": labels})
    weights = pd.Series(rng.uniform(0.5, 2.0, 400)) if weighted else None
    model = VerticalGLM(family="binomial", penalty="mcp")
    result = simulate(model, {"bank": bank, "court": court}, labels, weights=weights)
    estimate = result.coefficients["estimate"].drop(("server", "intercept"))
    assert estimate.index[estimate != 0.0].tolist() == [("court", "same")]
    # The best fit less a ridge of 0.5 on the square of the coefficient in standard deviations.
    known = pd.Series(1.0, labels.index) if weights is None else weights
    slope, level = estimate["court", "same"], result.coefficients["estimate"].iloc[0]
    score = (known * (labels - expit(level + slope * labels))) @ labels
    assert score == pytest.approx(known.mean() * labels.var(ddof=0) * slope, rel=0.02)
    assert result.metrics["converged"] == 1.0
    assert any("separation" in note and "court:same" in note for note in result.notes)


def test_predictors_far_out_that_separate_nothing_are_fitted():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3000, 6))
    x[:, 0], x[:, 3] = rng.standard_t(3, 3000), rng.exponential(size=3000)
    slopes = rng.standard_normal(6)
    y = (rng.random(3000) < expit(x @ slopes * 6.0 / np.linalg.norm(slopes))).astype(float)
    truth = statsmodels_fit("binomial", x, y)
    assert np.abs(sm.add_constant(x) @ truth.params).max() > 20
    with opened(x, 2) as run:
        fit = run.fit("binomial", y)
        down = run.federation.ledger.to_frame().query("step == 'open_means'")
    found = np.r_[fit.intercept, fit.beta]
    assert np.abs((found - truth.params) / truth.bse).max() < 1e-4
    # At most 2 * 112 numbers of 8 bytes for each row, evaluation and party.
    assert down.groupby("round")["bytes_down"].sum().max() < 1.05 * 2 * 112 * 8 * 3000 * 2


def test_counts_with_columns_far_out_are_refused_with_advice():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 4))
    x[:4, 0] = 400.0, 200.0, 300.0, 250.0  # one alone would be withheld
    y = rng.poisson(np.exp(0.3 * x[:, 1])).astype(float)
    y[0] = 3000.0
    with opened(x, 2) as run, pytest.raises(DataError, match="Transform columns with values far"):
        run.fit("poisson", y)


# -- what is refused -------------------------------------------------------------------------


def evaluated(run, x, times=1):
    means = MaskedMeans(run.federation, run.group_key)
    means.send(run.everything)
    placed = means.place(np.full(x.shape[1], 0.05) / x.std(axis=0))
    (mean,) = expand([expit], max(placed.high, -placed.low))
    for _ in range(times):
        means.open_sums(placed, 0.0, mean, Bound(len(x), 1.0))
    return means, placed, mean


def test_an_attempt_is_used_once(monkeypatch):
    x, _ = pooled("binomial", 400, 4)
    with opened(x, 3) as run:
        run.group_key.arguments()
        monkeypatch.setattr(run.federation, "random_bytes", lambda count: bytes(count))
        with pytest.raises(PartyError, match="this one was used before: its pad"):
            evaluated(run, x, times=2)


def test_evaluations_are_vectors_and_more_than_a_tenth_of_the_rows_are_refused():
    x, _ = pooled("binomial", 130, 2)
    with opened(x, 2) as run, pytest.raises(PartyError, match="14 different vectors"):
        evaluated(run, x, times=14)


def test_fits_of_which_nothing_is_opened_are_vectors_too():
    """How far they reach tells of the row that reaches farthest: a server could bisect for it."""
    x, _ = pooled("binomial", 130, 2)
    with opened(x, 2) as run:
        means = MaskedMeans(run.federation, run.group_key)
        means.send(run.everything)
        for size in range(1, 14):
            means.place(np.full(2, 0.01 * size))
        with pytest.raises(PartyError, match="14 different vectors"):
            means.place(np.ones(2))


def test_products_under_two_weightings_open_rows():
    """Eigenvectors of one relative to the other are rows, their eigenvalues say whose."""
    rng, n, p, n_seen = np.random.default_rng(1), 400, 24, 20
    x = rng.normal(size=(n, p))
    seen = rng.choice(n, n_seen, replace=False)
    weights = np.zeros((2, n))
    weights[0, seen], weights[1, seen] = 1.0, np.linspace(0.5, 1.0, n_seen)
    bound = Bound(float(n_seen), 1.0)
    with opened(x, 2) as run:
        means = MaskedMeans(run.federation, run.group_key)
        means.send(run.everything)
        placed = means.place(np.zeros(p))
        first, second = (
            means.open_by_row(placed, 0.0, ByRow([_ONE], of_rows[None]), bound, np.eye(p + 1) * n)
            for of_rows in weights
        )
        values, vectors = np.linalg.eigh(first)
        root = vectors[:, -n_seen:] * np.sqrt(values[-n_seen:])
        whiten = vectors[:, -n_seen:] / np.sqrt(values[-n_seen:])
        rows = (root @ np.linalg.eigh(whiten.T @ second @ whiten)[1]).T
        found = rows[:, 1:] / rows[:, :1] + x.mean(axis=0)
        np.testing.assert_allclose(found, x[seen], atol=0.01)
        # 13 vectors each, and one for the fits: with a third these are the 40 that parties allow.
        means.open_by_row(placed, 0.0, ByRow([_ONE], weights[:1]), bound, first)
        with pytest.raises(PartyError, match="53 different vectors of the server"):
            means.open_by_row(placed, 0.0, ByRow([_ONE], weights[:1]), bound, first)


def test_a_server_that_deviates_reads_flags_as_bits():
    """What no rule holds back: factors of rows, where linear predictors are known to be 0."""
    rng, n, at_once = np.random.default_rng(0), 400, 20
    x = np.column_stack([rng.random(n) < 0.3, rng.normal(size=n), rng.random(n) < 0.1])
    read, bits = np.zeros(x.shape), 2.0 ** -np.arange(at_once)
    with opened(x, 3) as run:
        means = MaskedMeans(run.federation, run.group_key)
        means.send(run.everything)
        placed = means.place(np.zeros(3))
        for first in range(0, n, at_once):
            here = slice(first, first + at_once)
            weights = np.zeros((1, n))
            weights[0, here] = bits
            _, sums = means.open_sums(placed, placed.centre, _ONE, Bound(2.0, 1.0), weights)
            whole = np.rint((sums[0] + x.mean(axis=0) * bits.sum()) / bits[-1]).astype(np.int64)
            read[here] = (whole >> np.arange(at_once)[::-1, None]) & 1
    np.testing.assert_array_equal(read[:, [0, 2]], x[:, [0, 2]])


def test_columns_that_changed_since_they_were_sent_are_refused():
    class Restless(MeanParty):
        moved = 0.0

        def take(self, name, arguments):
            self.cache.clear()  # as in a new process
            return super().take(name, arguments)

        def columns_to_multiply(self):
            held = super().columns_to_multiply()
            values = held.values + type(self).moved * np.arange(len(held.values))[:, None]
            return HeldColumns(values, held.rows, held.n_samples)

    x, _ = pooled("binomial", 400, 4)
    with opened(x, 2, party=Restless) as run:
        means, placed, mean = evaluated(run, x)
        Restless.moved = 1.0
        with pytest.raises(PartyError, match="no longer those that it sent"):
            means.open_sums(placed, 0.0, mean, Bound(400.0, 1.0))


def test_coefficients_far_too_large_are_said_as_a_reach_and_nothing_is_placed():
    x, _ = pooled("binomial", 400, 4)
    with opened(x, 2) as run:
        means = MaskedMeans(run.federation, run.group_key)
        means.send(run.everything)
        placed = means.place(np.full(4, 1e3))
        assert placed.high - placed.low > CIRCLE


def test_nobody_takes_masked_features_and_the_seed_of_their_mask(monkeypatch):
    x, _ = pooled("binomial", 400, 4)
    with opened(x, 3) as run:
        means, placed, mean = evaluated(run, x)
        ask = run.federation.sum
        for given in (
            {"p0": {"mask_seed": bytes(32)}},  # the mask in place of what it hides
            {"p1": {"features": np.zeros((2 * mean.n_terms, 400), dtype=np.uint64)}},
            {"p2": {}},
        ):

            def sum_otherwise(step, common, per_party, given=given):
                return ask(step, common, per_party=per_party | given)

            monkeypatch.setattr(run.federation, "sum", sum_otherwise)
            with pytest.raises(PartyError, match="'p0', the seed of their mask to every other"):
                means.open_sums(placed, 0.0, mean, Bound(400.0, 1.0))


def test_samples_labels_parties_and_steps_that_cannot_be_are_refused():
    x, y = pooled("binomial", 400, 2)
    tables = split(x, 2)
    short, lacks = tables | {"p1": tables["p1"][:300]}, "'p1' lacks samples of the fit"
    with opened(short, 2) as run, pytest.raises(PartyError, match=lacks):
        MaskedMeans(run.federation, run.group_key).send(run.everything)
    with opened(split(x, 1), 1) as run, pytest.raises(ConfigError, match="two parties or more"):
        MaskedMeans(run.federation, run.group_key)
    with opened(x, 2) as run, pytest.raises(DataError, match="needs labels 0 and 1"):
        run.fit("binomial", 2.0 * y)
    with opened(x, 2) as run:
        means = MaskedMeans(run.federation, run.group_key)
        with pytest.raises(ConfigError, match="call `send` first"):
            means.place(np.zeros(2))
        with pytest.raises(ConfigError, match="'gaussian' needs no masked means"):
            run.fit("gaussian", y)
        with pytest.raises(PartyError, match="'send_digits' comes first"):
            run.federation.sum("place_fits", {"beta": np.zeros(1)})
        with pytest.raises(PartyError, match="tell of 60 of its rows alone"):
            means.send(np.where(np.arange(400) < 60, 0, -1))
        assert "open_means" not in set(run.federation.ledger.to_frame()["step"])
        run.federation.aggregation = "ckks"
        with pytest.raises(ConfigError, match="use aggregation='masked'"):
            MaskedMeans(run.federation, run.group_key)


# -- going on after a failure ----------------------------------------------------------------
