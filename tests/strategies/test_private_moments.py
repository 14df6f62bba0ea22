"""Fits to noisy moments: their noise, their estimates, and what leaves."""

import itertools
import logging
import threading

import numpy as np
import pandas as pd
import pytest
from oracles import adassp
from repeating import every_sum_twice
from statsmodels.api import OLS, add_constant

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.privacy import gaussian_sigma, seeded_noise
from flwr_vertical.products import noise as noise_module
from flwr_vertical.products import noisy_sums
from flwr_vertical.products.noise import PrivateRows
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import VALUES
from simulations.attacks.cases import Case, make_case_tables, make_strategy_of
from simulations.attacks.recording import record
from simulations.attacks.suite import LABELS, attack_run
from strategies.glm import VerticalGLM
from strategies.least_squares import CompleteCase, MeanImpute, Single
from strategies.least_squares import strategy as baseline
from strategies.linear.moments import dp_opening
from strategies.linear.moments.dp_moments import noisy_least_squares, norm_bound
from strategies.linear.moments.dp_opening import GroupNoise
from strategies.linear.moments.patterns import Pattern

NAMES = ("bank", "court", "hospital", "shop", "town")
LABEL_RANGE = (-12.0, 16.0)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


def make(n=3000, k=3, width=2, seed=0, missing=0.0):
    """Tables of columns within four standard deviations, labels, and public bounds."""
    rng = np.random.default_rng(seed)
    ids = [f"s{i:05}" for i in range(n)]
    x = rng.normal(size=(n, k * width)) + 0.3 * rng.normal(size=(n, 1))
    y = 2.0 + x @ np.linspace(-1.0, 1.0, k * width) + rng.normal(size=n)
    tables, bounds = {}, {"y": LABEL_RANGE}
    for j in range(k):
        columns = [f"x{c}" for c in range(j * width, (j + 1) * width)]
        frame = pd.DataFrame(x[:, j * width : (j + 1) * width], ids, columns)
        tables[NAMES[j]] = frame[rng.random(n) >= missing] if j else frame
        bounds |= dict.fromkeys(columns, (-4.0, 5.0))
    return tables, pd.Series(y, ids, name="y"), bounds


def run(strategy, tables, labels, seed=1, **options):
    with seeded_noise(seed):
        return simulate(strategy, tables, labels, **options)


def estimates(result):
    return result.coefficients["estimate"].to_numpy()


class Watched:
    """Keeps what noise the parties and the server drew, in half ranges."""

    def __init__(self, monkeypatch):
        self.parties, self.labels, self._lock = {}, [], threading.Lock()
        draw, integers = noise_module.draw, dp_opening.gaussian_integers

        def drawing(scaled, bits, party, layout, n_vectors, streams):
            found = draw(scaled, bits, party, layout, n_vectors, streams)
            with self._lock:
                self.parties[party] = found, bits, layout
                self.scaled = scaled
            return found

        def drawing_labels(sigma, count, stream):
            found = integers(sigma, count, stream)
            self.labels += [value / sigma for value in found]
            return found

        monkeypatch.setattr(noisy_sums, "draw", drawing)
        monkeypatch.setattr(dp_opening, "gaussian_integers", drawing_labels)

    def matrix(self, scale, g=0):
        """The noise on ``Z'Z``, Z = [1, x, y], of a group, given the scales of the server's."""

        def number(ring, digits, factors=2):
            return ring.view(np.int64).astype(float) * 2.0 ** (factors * room - digits)

        (_, bits, layout), *_ = self.parties.values()
        # Columns were made smaller by so many bits.
        room = round(np.log2(scale[0] / self.scaled[g, 0]))
        d = layout.total
        found = np.zeros((d + 2, d + 2))
        across = sum(drawn.across[g, 0] for drawn, *_ in self.parties.values())
        # The corrections are subtracted.
        found[1:-1, 1:-1] -= number(across, 2 * bits) + number(across, 2 * bits).T
        for name, here in layout.slices.items():
            drawn = self.parties[name][0]
            at = slice(here.start + 1, here.stop + 1)
            found[at, at] += number(drawn.own[g], 2 * bits)
            found[0, at] = found[at, 0] = number(drawn.sums[g], bits, 1)
            found[-1, at] = found[at, -1] = number(drawn.vectors[g][:, 0], 2 * bits, 1)
        at = g * (d + 2)
        of_columns = scale[3] * np.array(self.labels[at : at + d])
        found[-1, 1:-1] += of_columns
        found[1:-1, -1] += of_columns
        found[0, -1] = found[-1, 0] = scale[4] * self.labels[at + d]
        found[-1, -1] = scale[5] * self.labels[at + d + 1]
        return found


def variance_of(scale, widths):
    """Variances of that matrix, by what the documentation says."""
    owner = np.repeat(np.arange(len(widths)), widths)
    d = len(owner)
    found = np.zeros((d + 2, d + 2))
    inner = np.where(owner[:, None] == owner, 1.0, 2.0) * scale[2] ** 2
    inner[np.diag_indices(d)] = scale[1] ** 2
    found[1:-1, 1:-1] = inner
    found[0, 1:-1] = found[1:-1, 0] = scale[0] ** 2
    found[-1, 1:-1] = found[1:-1, -1] = 2 * scale[3] ** 2
    found[0, -1] = found[-1, 0] = scale[4] ** 2
    found[-1, -1] = scale[5] ** 2
    return found


# -- the same as in one place ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "intercept", "epsilon", "row_norm"),
    [(2, True, 1.0, 1.0), (3, False, 1.0, 0.6), (5, True, 600.0, 1.0)],
)
def test_equals_the_fit_in_one_place_with_the_same_noise(
    monkeypatch, k, intercept, epsilon, row_norm
):
    tables, labels, bounds = make(1000, k)
    watched = Watched(monkeypatch)
    settings = {"epsilon": epsilon, "delta": 1e-5, "row_norm": row_norm, "bounds": bounds}
    result = run(CompleteCase(intercept=intercept, **settings), tables, labels)
    parts = [
        adassp.half_ranges(t.to_numpy(), [bounds[c] for c in t], intercept) for t in tables.values()
    ]
    x = np.column_stack([adassp.shrunk(part, row_norm) for part, *_ in parts])
    y, middle, half = adassp.half_ranges(labels.to_numpy()[:, None], [bounds["y"]], intercept)
    scale = adassp.scales(2 * k, epsilon, 1e-5, row_norm)
    noise = watched.matrix(scale)
    variance = variance_of(scale, [2] * k)
    turn = adassp.about_means(x, y[:, 0], noise, intercept)[-1]
    limit = norm_bound([GroupNoise(variance, turn)], np.r_[intercept, [True] * 2 * k, False])
    level, slopes, ridge = adassp.fit(x, y[:, 0], noise, limit, intercept)
    units = np.concatenate([unit for *_, unit in parts])
    beta = half[0] * slopes / units
    centers = np.concatenate([center for _, center, _ in parts])
    expected = [middle[0] + half[0] * level - centers @ beta] * intercept + [*beta]
    np.testing.assert_allclose(estimates(result), expected, rtol=1e-6, atol=1e-6)
    assert result.metrics["ridge"] == pytest.approx(ridge, rel=1e-5, abs=1e-6)
    assert (ridge > 0.0) == (epsilon == 1.0)
    # The noise has the size that was stated.
    z = noise[np.triu_indices(len(noise))] / np.sqrt(
        np.maximum(variance_of(scale, [2] * k)[np.triu_indices(len(noise))], 1e-300)
    )
    z = z[1:]  # the number of rows has none
    assert 0.55 < np.mean(z**2) < 1.6, np.mean(z**2)


@pytest.mark.parametrize(
    ("strategy", "k"), [(CompleteCase, 2), (CompleteCase, 5), (MeanImpute, 3), (VerticalGLM, 3)]
)
def test_without_noise_it_is_least_squares(strategy, k):
    tables, labels, bounds = make(1500, k, missing=0.2 if strategy is MeanImpute else 0.0)
    wide = {name: (-30.0, 34.0) if name == "y" else (-8.0, 9.0) for name in bounds}
    given = {"epsilon": 1e9, "delta": 1e-3, "bounds": wide}
    exact = {}
    if strategy is VerticalGLM:
        given, exact = {**given, "penalty": None}, {"penalty": None}
    private = run(strategy(**given), tables, labels)
    plain = run(strategy(**exact), tables, labels)
    close = {"rtol": 0, "atol": 2e-2 * plain.coefficients["std_error"].max()}
    np.testing.assert_allclose(estimates(private), estimates(plain), **close)
    np.testing.assert_allclose(
        private.coefficients["std_error"], plain.coefficients["std_error"], rtol=2e-2
    )
    assert private.ledger.rounds == plain.ledger.rounds


def test_one_party_s_columns_with_the_help_of_another():
    tables, labels, bounds = make(4000, 2)
    result = run(Single("court", epsilon=1e7, bounds=bounds), tables, labels)
    x = np.clip(tables["court"].to_numpy(), -4, 5)
    fitted = OLS(labels.to_numpy(), add_constant(x)).fit()
    np.testing.assert_allclose(estimates(result), fitted.params, atol=5e-3)
    assert list(result.privacy.parties) == ["court"]


def test_intervals_cover_with_the_noise_in_them():
    """Without it, by design here, hardly half of them would."""
    rng = np.random.default_rng(5)
    n, d, sd = 2000, 4, 12.0
    beta = np.array([0.4, -0.3, 0.2, 0.0])
    covered, without = [], []
    for _ in range(300):
        x = rng.uniform(-1, 1, size=(n, d)) + 0.1
        y = 0.2 + x @ beta + 0.3 * rng.normal(size=n)
        z = np.column_stack([np.ones(n), x, y])
        variance = np.full((d + 2, d + 2), sd**2)
        variance[0, 0] = 0.0
        drawn = np.triu(rng.normal(size=variance.shape) * np.sqrt(variance))
        moments = z.T @ z + drawn + np.triu(drawn, 1).T
        mean = moments[0, 1:-1] / n
        turn = np.eye(d + 2)
        turn[1:-1, 0] = -mean
        moments = turn @ moments @ turn.T
        rows = Pattern(np.arange(d + 1), float(n), moments[0, 1:], moments[1:, 1:])
        found = noisy_least_squares(rows, [GroupNoise(variance, turn)], True)
        assert found.ridge == 0.0
        vcov = found.fit.vcov[1:, 1:]
        gap = np.abs(found.fit.beta - beta)
        covered.append(gap < 1.96 * np.sqrt(np.diag(vcov)))
        without.append(gap < 1.96 * np.sqrt(np.diag(vcov - found.fit.added[1:, 1:])))
    assert 0.93 < np.mean(covered) < 0.97
    assert np.mean(without) < 0.7


def test_the_norm_of_the_noise_is_bounded_as_often_as_stated():
    rng = np.random.default_rng(1)
    d = 6
    variance = rng.uniform(0.5, 2.0, size=(d, d))
    variance = (variance + variance.T) / 2
    turn = np.eye(d)
    turn[1:-1, 0] = rng.normal(size=d - 2)
    bound = norm_bound([GroupNoise(variance, turn)], np.r_[[True] * (d - 1), False])
    norms = []
    for _ in range(2000):
        e = np.triu(rng.normal(size=(d, d)) * np.sqrt(variance))
        e = turn[:-1] @ (e + np.triu(e, 1).T) @ turn[:-1].T
        norms.append(np.linalg.norm(e, 2))
    assert 0.02 < np.mean(np.array(norms) > bound) < 0.09


@pytest.mark.parametrize(("mode", "k"), [("masked", 2), ("plain", 3), ("ckks", 2), ("masked", 1)])
def test_every_way_to_the_sums_has_the_noise_that_is_stated(monkeypatch, mode, k):
    """One party alone and an arbiter's mode get them from ciphertexts."""
    if mode == "ckks" or k == 1:
        pytest.importorskip("tenseal")
    found = []

    def watching(rows, noise, intercept):
        found.append((rows, noise))
        return noisy_least_squares(rows, noise, intercept)

    monkeypatch.setattr(baseline, "noisy_least_squares", watching)
    tables, labels, bounds = make(500, k, width=4)
    run(CompleteCase(epsilon=2.0, bounds=bounds, intercept=False), tables, labels, aggregation=mode)
    ((rows, (noise, *_)),) = found
    parts = [t.to_numpy() for t in tables.values()] + [labels.to_numpy()[:, None]]
    ranges = [[bounds[c] for c in t] for t in tables.values()] + [[bounds["y"]]]
    z = np.column_stack(
        [adassp.half_ranges(x, b, False)[0] for x, b in zip(parts, ranges, strict=True)]
    )
    scale = adassp.scales(4 * k, 2.0, 1e-6, 1.0)
    deviation = np.sqrt(variance_of(scale, [4] * k))[1:, 1:]
    np.testing.assert_allclose(np.sqrt(noise.variance)[1:, 1:], deviation, rtol=1e-4)
    gap = ((rows.products - z.T @ z) / deviation)[np.triu_indices(4 * k + 1)]
    assert 0.5 < np.mean(gap**2) < 1.7
    assert np.abs(gap).min() > 1e-5
    sums = (rows.sums - z.sum(axis=0)) / np.r_[[scale[0]] * 4 * k, scale[4]]
    assert 0.2 < np.mean(sums**2) < 3.0


# -- the promise -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("widths", "row_norm"),
    [((1, 1), 1.0), ((3, 2, 4), 0.5), pytest.param((20, 30), 0.3, marks=pytest.mark.slow)],
)
def test_no_two_rows_are_further_apart_than_the_noise_allows(widths, row_norm):
    """In standard deviations of the noise, over all sums together: the definition."""
    rng = np.random.default_rng(0)
    d = sum(widths)
    rule = PrivateRows(1.0, 1e-6, row_norm)
    present = np.ones((1, len(widths)), dtype=bool)
    sums, squares, products, vectors = rule.levels(widths, present, 1)[0]
    total, square = (float(v[0]) for v in rule.of_vectors(widths, present, 1))
    deviation = np.full((d + 2, d + 2), products)
    deviation[np.diag_indices(d + 2)] = squares
    deviation[0, :] = deviation[:, 0] = sums
    deviation[-1, :] = deviation[:, -1] = vectors
    deviation[0, -1] = deviation[-1, 0] = total
    deviation[-1, -1] = square
    upper = np.triu_indices(d + 2)

    def rows():
        x = rng.choice([-1.0, 0.0, 1.0], size=(2, d)) * rng.choice([0.3, 1.0], size=(2, 1))
        x[rng.random(2) < 0.5] = rng.uniform(-1, 1, size=d)
        starts = np.cumsum([0, *widths])
        for a, b in itertools.pairwise(starts):
            x[:, a:b] = adassp.shrunk(x[:, a:b], row_norm)
        return np.column_stack([np.ones(2), x, rng.choice([-1.0, 0.5, 1.0], size=2)])

    def apart(z):
        gap = np.outer(z[0], z[0]) - np.outer(z[1], z[1])
        return np.sqrt(np.sum((gap[upper] / deviation[upper]) ** 2))

    allowed = 1.0 / gaussian_sigma(1.0, 1e-6)
    assert max(apart(rows()) for _ in range(3000)) <= allowed
    # And nearly so far: as c^2 = a^2 = |x|^2 / 2, rows with products that cancel exist.
    x = np.full(d, row_norm)
    worst = np.array([[1.0, *x, 1.0], [1.0, *-x, 1.0]])
    other = np.array([[1.0, *x, 1.0], [1.0, *-x, -1.0]])
    assert max(apart(worst), apart(other)) > 0.8 * allowed


@pytest.fixture(scope="module")
def recorded():
    """A run with a small epsilon, and one that is opened as it is."""
    tables, labels, bounds = make(600, 3, width=2, seed=4)
    found = {}
    for name, settings in {"private": {"epsilon": 1.0, "bounds": bounds}, "exact": {}}.items():
        transcript = []
        result = run(CompleteCase(**settings), tables, labels, transcript=transcript)
        found[name] = result, transcript
    return tables, labels, bounds, found


def told_by(transcript, key):
    """By party, what it told under a key."""
    found, names = {}, {}
    for message in transcript:
        values = decode(message.content, VALUES) if message.direction == "up" else {}
        if "columns" in values:
            names[message.node_id] = NAMES[int(values["columns"][0].removeprefix("x")) // 2]
        if key in values:
            found[message.node_id] = values[key]
    return {names[node]: value for node, value in sorted(found.items(), key=str)}


def test_no_message_has_an_exact_moment_or_anything_else_of_the_values(recorded):
    tables, _, bounds, found = recorded
    _, transcript = found["private"]
    sums, products = (told_by(transcript, key) for key in ("sums", "products"))
    assert set(sums) == set(tables)
    scale = adassp.scales(6, 1.0, 1e-6, 1.0)
    for name, table in tables.items():
        x, *_ = adassp.half_ranges(table.to_numpy(), [bounds[c] for c in table])
        gaps = (sums[name][0] - x.sum(axis=0)) / scale[0], (products[name][0] - x.T @ x) / scale[2]
        for gap in gaps:
            assert np.abs(gap).min() > 1e-3
            assert np.abs(gap).max() < 6.0
    # The scale leaves room for noise of that size over so many rows.
    for key, public in {"center": 0.5, "unit": 4.5, "scale": 2.0}.items():
        for value in told_by(transcript, key).values():
            np.testing.assert_array_equal(value, public)
    assert all(value == [] for value in told_by(transcript, "collinear").values())
    # How coarse terms are follows from the bounds and the coefficients.
    shifted = {name: table + 1e-9 for name, table in tables.items()}
    again = []
    run(CompleteCase(epsilon=1.0, bounds=bounds), shifted, recorded[1], transcript=again)
    assert told_by(again, "bits") == told_by(transcript, "bits")


def test_flags_are_not_withheld_since_that_would_tell_of_them():
    tables, labels, bounds = make(600, 2, width=1)
    tables["bank"]["rare"] = (np.arange(600) < 2).astype(float)
    bounds["rare"] = (0.0, 1.0)
    assert run(CompleteCase(), tables, labels).metrics["columns_withheld"] == 1.0
    result = run(CompleteCase(epsilon=1.0, bounds=bounds), tables, labels)
    assert result.metrics["columns_withheld"] == 0.0


def test_the_same_message_again_gets_the_same_bytes():
    tables, labels, bounds = make(400, 3, width=1)
    with every_sum_twice() as seen:
        simulate(CompleteCase(epsilon=1.0, bounds=bounds), tables, labels)
    assert "open_products" in seen.steps
    assert seen.differences == []


@pytest.mark.fresh_noise
def test_two_runs_have_different_noise():
    tables, labels, bounds = make(400, 2, width=1)
    strategy = CompleteCase(epsilon=1.0, bounds=bounds)
    first, second = (simulate(strategy, tables, labels) for _ in range(2))
    assert np.abs(estimates(first) - estimates(second)).min() > 1e-6


def test_attacks_find_nothing():
    case = Case("complete-case", "complete-case", {})
    tables, labels = make_case_tables(case, 420, 3)
    bounds = {"label": (-5.0, 12.0)}
    for name in tables:
        bounds |= {f"{name}.number": (0.0, 8000.0), f"{name}.count": (0.0, 12.0)}
        bounds |= {f"{name}.flag": (0.0, 1.0)}
    private = Case("complete-case", "complete-case", {"epsilon": 2.0, "bounds": bounds})
    strategy = make_strategy_of(private, tables, labels)
    for finding in attack_run(record(strategy, tables, labels, "masked")):
        assert finding.cells <= (0.01 if finding.attack == LABELS else 0.0), finding


# -- what is said, and refused ---------------------------------------------------------------


def test_what_the_result_says(tmp_path, recorded):
    result, _ = recorded[3]["private"]
    said = str(result.privacy)
    assert "Epsilon 1, delta 1e-06: replacing the values of one row" in said
    assert "known seed" in said  # the runs of these tests are repeatable
    assert result.ledger.epsilon == {"rows, over all parties": 1.0}
    assert all(sentence in result.notes for sentence in result.privacy.sentences)
    assert any("ridge" in sentence for sentence in result.privacy.sentences)
    loaded = Result.load(result.save(tmp_path))
    assert loaded.privacy == result.privacy
    assert "one release, which is spent once" in result.report(tmp_path / "page.html").read_text()


def test_samples_without_a_label_are_not_predicted():
    tables, labels, bounds = make(700, 2, width=1)
    labels.iloc[:30] = np.nan
    result = run(CompleteCase(epsilon=1.0, bounds=bounds), tables, labels)
    assert result.predictions is None
    assert any("are not predicted" in note for note in result.notes)
    assert result.metrics["n_samples"] == 670


MISTAKES = [
    (lambda b: CompleteCase(bounds=b), "bounds: only with epsilon"),
    (lambda b: CompleteCase(epsilon=1.0, bounds={"x0": (-4, 5)}), "bounds of the label"),
    (lambda b: CompleteCase(epsilon=1.0, bounds={**b, "x0": (3, 3)}), "a low and a higher high"),
    (lambda b: CompleteCase(epsilon=1e-7, bounds=b), "nothing would be left of them"),
    (lambda b: VerticalGLM(epsilon=1.0, family="poisson", bounds=b), "gaussian labels"),
    (lambda b: VerticalGLM(epsilon=1.0, rows="all", bounds=b), "complete rows"),
    (lambda b: VerticalGLM(bounds=b), "bounds: only with epsilon"),
    (lambda b: VerticalGLM(epsilon=2.0, penalty="ridge", bounds=b), "and another penalty"),
]


def test_settings_that_do_not_go_together_and_columns_without_bounds():
    tables, labels, bounds = make(120, 2, width=1)
    for strategy, match in MISTAKES:
        with pytest.raises(ConfigError, match=match):
            run(strategy(bounds), tables, labels)
    with pytest.raises(ConfigError, match="bounds has none named 'label'; add"):
        run(MISTAKES[1][0](bounds), tables, labels.rename("label"))
    levels = tables["court"].assign(town=np.where(tables["court"]["x1"] > 0, "Bonn", "Kiel"))
    with pytest.raises(PartyError, match=r"party 'court'.*\['town'\] hold levels") as raised:
        run(CompleteCase(epsilon=1.0, bounds=bounds), tables | {"court": levels}, labels)
    assert "Kiel" not in str(raised.value)
    del bounds["x1"]
    with pytest.raises(PartyError, match=r"party 'court'.*\['x1'\] have none"):
        run(CompleteCase(epsilon=1.0, bounds=bounds), tables, labels)


def test_a_server_cannot_leave_out_the_epsilon_that_nodes_agreed_to(monkeypatch):
    from flwr_vertical.errors import PartyError
    from strategies.linear.moments.dp_opening import FitBudget

    rng = np.random.default_rng(0)
    tables = {
        "bank": pd.DataFrame({"a": rng.uniform(size=800)}),
        "court": pd.DataFrame({"b": rng.uniform(size=800)}),
    }
    labels = pd.Series(rng.uniform(size=800), name="y")
    bounds = {"a": [0, 1], "b": [0, 1], "y": [0, 1]}
    glm = VerticalGLM(penalty="none", epsilon=1.0, bounds=bounds)
    simulate(glm, tables, labels)
    monkeypatch.setattr(FitBudget, "arguments", property(lambda self: {}))
    with pytest.raises(PartyError, match="'epsilon' is left out, and settings have another value"):
        simulate(glm, tables, labels)
