"""VFEM on completed rows: the numbers of a step, what is opened, and what nodes refuse."""

import numpy as np
import pandas as pd
import pytest
from oracles import scoring as oracle

from flwr_vertical import simulate
from flwr_vertical.errors import PartyError
from flwr_vertical.privacy import seeded_noise
from strategies.linear.moments.covariances import FullCovariance
from strategies.linear.moments.fit import fit_normal
from strategies.linear.moments.many_columns import maximum
from strategies.linear.moments.patterns import Patterns
from strategies.vfem import VFEM, completed_steps, scoring, strategy
from strategies.vfem.completed_rounds import CompletedProducts, rows_to_complete
from strategies.vfem.completion import LEAST_EIGENVALUE
from tests.kit import resuming
from tests.kit.deviations import altered, asked_for, told_otherwise
from tests.kit.ledgered import Nodes
from tests.kit.vfem_runs import rounds_of

OPENING = 2  # greeting and alignment
AROUND = ["prepare_moments", "seal_group_seed", "send_masked", "finish_moments"]


def make(n=1200, k=4, q=2, missing=0.4, unlabelled=0, seed=0):
    """Tables, labels, the true slopes, and the rows of all; correlations of 0.4."""
    rng = np.random.default_rng(seed)
    p = k * q
    inner = 0.4 + 0.6 * np.eye(p)
    x = rng.multivariate_normal(np.zeros(p), inner, size=n)
    slopes = rng.normal(size=p)
    y = x @ slopes + rng.normal(size=n) * np.sqrt(slopes @ inner @ slopes / 3)
    ids = pd.Index([f"s{i:05}" for i in range(n)])
    rows, tables = np.column_stack([x, y]), {}
    for j in range(k):
        gone, own = rng.random(n) < missing, range(j * q, (j + 1) * q)
        tables[f"p{j}"] = pd.DataFrame(x[~gone][:, own], ids[~gone], [f"x{c}" for c in own])
        rows[np.ix_(gone, own)] = np.nan
    labels = pd.Series(y, ids, name="y")
    labels.iloc[:unlabelled] = np.nan
    return tables, labels, slopes, rows[unlabelled:]


class Seen:
    """A run of which the server's points, and what opened, are noted."""

    def __init__(self, monkeypatch, given, noise=True):
        self.points = []
        once, fit = CompletedProducts.completed, strategy.fit_by_scoring

        def completed(products, point):
            self.products = products
            told = once(products, point)
            self.points.append((point, told[0]))
            return told

        def prepared(prepared, taken):
            self.prepared, self.taken = prepared, taken
            return fit(prepared, taken)

        monkeypatch.setattr(CompletedProducts, "completed", completed)
        monkeypatch.setattr(strategy, "fit_by_scoring", prepared)
        if not noise:
            quiet = lambda sigma, stream: np.zeros(sigma.shape, dtype=np.uint64)  # noqa: E731
            monkeypatch.setattr(completed_steps, "normal_integers", quiet)
            monkeypatch.setattr(scoring, "noise_variance", lambda n_parties: 0.0)
        self.result = simulate(VFEM(), *given[:2])

    def rows(self, pooled, labels):
        """The pooled rows in the server's order and units; the label last."""
        y = self.prepared.problem.y
        order = pd.Series(np.arange(len(labels)), index=labels.to_numpy())[self.labels].to_numpy()
        center, unit = (self.prepared.of_columns(name) for name in ("center", "unit"))
        x = np.full((len(y), len(center)), np.nan)
        x[: len(order)] = (pooled[order][:, :-1] - center) / unit
        return np.column_stack([x, y / self.products.unit])

    @property
    def labels(self):
        known = self.prepared.federation.labels
        return known[np.isfinite(known)]


def test_a_step_has_the_numbers_of_the_pooled_rows(monkeypatch):
    given = make()
    seen = Seen(monkeypatch, given, noise=False)
    rows = seen.rows(given[3], given[1])
    both = seen.products.patterns.joint_rows
    assert 3 <= len(seen.points) <= 4
    for point, opened in seen.points:
        whole = oracle.completed(rows[seen.products.patterns.rows], point.centres,
                                 point.covariance(both))  # fmt: skip
        assert np.abs(opened.sums - whole.sum(axis=0)).max() < 2.0  # of 1,200 rows
        gap = opened.products - whole.T @ whole
        assert np.abs(gap).max() < 4e-3 * np.abs(whole.T @ whole).max()
    point, _ = seen.points[-1]
    _, covariance = oracle.step(rows, point.centres, point.covariance(both))
    slopes = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
    unit = seen.prepared.problem.y_scale * seen.products.unit / seen.prepared.of_columns("unit")
    table = seen.result.coefficients.iloc[1:]
    # Coefficients are rounded to 2^-9, and the step's equation takes that into account.
    assert (np.abs(table["estimate"] - unit * slopes) / table["std_error"]).max() < 0.03


def test_what_is_opened_has_noise_of_the_size_of_a_row(monkeypatch):
    given = make(seed=1)
    seen = Seen(monkeypatch, given)
    rows, both = seen.rows(given[3], given[1]), seen.products.patterns.joint_rows
    _, opened = seen.points[0]
    whole = np.nan_to_num(rows[seen.products.patterns.rows])
    upper = np.triu_indices(len(whole.T) - 1)
    gaps = (opened.products - whole.T @ whole)[:-1, :-1][upper]
    assert 0.7 < gaps.std() < 1.7  # 1.15 = (4 / 3)^1/2
    later, opened = seen.points[-1]
    again = oracle.completed(rows[seen.products.patterns.rows], later.centres,
                             later.covariance(both))  # fmt: skip
    sizes = np.outer(later.sizes, later.sizes)[:-1, :-1][upper] / 32.0**2
    more = (opened.products - again.T @ again)[:-1, :-1][upper] / sizes
    assert 0.7 < more.std() < 2.5
    assert abs(np.corrcoef(gaps, more)[0, 1]) < 0.6  # drawn anew


@pytest.mark.slow
def test_ten_parties_come_near_the_maximum_in_few_rounds():
    """20 columns, 35 % of the blocks missing: hardly two rows in a hundred have one pattern."""
    tables, labels, slopes, rows = make(2000, 10, 2, 0.35, unlabelled=40, seed=3)
    with seeded_noise(0):
        result = simulate(VFEM(), tables, labels)
    assert result.metrics["rows_merged"] == result.metrics["rows_left_out"] == 0
    steps = int(result.metrics["iterations"])
    assert 2 <= steps <= 3
    assert result.ledger.rounds == OPENING + len(AROUND) + 1 + steps <= 15
    assert [rounds_of(result)[step] for step in AROUND] == [1] * 4
    assert rounds_of(result)["open_completed"] == 1 + steps
    center, unit = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    patterns = Patterns.of((rows - center) / unit)
    _, covariance, _, converged = maximum(patterns, *patterns.available(), 1e-10, 100)
    best = unit[-1] * np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1]) / unit[:-1]
    table = result.coefficients.iloc[1:]
    assert converged
    errors = [np.sqrt(np.mean((found - slopes) ** 2)) for found in (table["estimate"], best)]
    assert errors[0] < 1.15 * errors[1]
    gap = np.abs(table["estimate"] - best) / table["std_error"]
    assert np.sqrt((gap**2).mean()) < 0.4
    inside = (np.abs(table["estimate"] - slopes) < 1.96 * table["std_error"]).mean()
    assert inside >= 0.8
    assert len(result.predictions) == 40
    assert np.isfinite(result.predictions["std_error"]).all()


def test_errors_without_a_matrix_are_those_of_newton_s_method():
    rows = make(800, 3, 3, 0.35, seed=2)[3]
    rows = (rows - np.nanmean(rows, axis=0)) / np.nanstd(rows, axis=0)
    patterns, model = Patterns.of(rows), FullCovariance(np.ones((10, 10), dtype=bool))
    exact, found = (fit_normal(patterns, model, newton=newton) for newton in (True, False))
    assert found.converged
    np.testing.assert_allclose(found.beta, exact.beta, atol=1e-5)
    np.testing.assert_allclose(found.std_error, exact.std_error, rtol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_sets_of_rows_that_are_told_of_are_none_or_enough(seed):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 7))
    held = rng.random((700, k)) > rng.uniform(0.02, 0.5)

    class Offer:
        class problem:  # noqa: N801
            mask = ~held

        widths = dict.fromkeys([f"p{j}" for j in range(k)], 1)
        minima = dict.fromkeys(widths, 40)

    taken = rows_to_complete(Offer)
    assert taken is not None
    kept = held[taken]
    for one in range(k):
        assert not 0 < (~kept[:, one]).sum() < 40
        for other in range(k):
            shared = kept[:, one] & kept[:, other]
            assert not 0 < shared.sum() < 40
            for third in range(k):
                assert not 0 < (shared & ~kept[:, third]).sum() < 40


# -- servers that deviate --------------------------------------------------------------------


def larger_coefficient(common, own):
    common["coefficients"][5] += 2


def nearly_a_copy(common, own):
    most = int(np.sqrt((common["held"].all(axis=1)).sum())) * 5
    common["correlations"][0, 2] = common["correlations"][2, 0] = most


def one_sided(common, own):
    common["correlations"][0, 2] += 1


def other_rows(common, own):
    common["taken"][:300] = False


def few_rows(common, own):
    lacking = np.flatnonzero(~common["held"][:, 0])
    common["taken"][lacking[5:]] = False


def other_holders(common, own):
    common["held"][:50, 0] ^= True


@pytest.mark.parametrize(
    ("change", "at", "says"),
    [
        (larger_coefficient, 2, "are not those of the covariance that comes with them"),
        (larger_coefficient, 1, "are not those of the covariance that comes with them"),
        (altered("tags", lambda tags: [bytes(16), *tags[1:]]), 2,
         "of other columns than those that this party sent"),
        (nearly_a_copy, 2, "smallest eigenvalue is"),
        (one_sided, 2, "smallest eigenvalue is nan"),
        (altered("sizes", lambda sizes: np.full_like(sizes, 7)), 2, "smaller than a row"),
        (altered("mean", lambda mean: np.full(mean.shape, np.nan)), 2,
         "'mean' is an array of float64, expected"),
        (other_rows, 2, "other rows are to be completed than before"),
        (few_rows, 1, "(which are few)|(coefficients)"),
        (other_holders, 1, "(holds other rows)|(coefficients)"),
    ],
)  # fmt: skip
def test_a_node_refuses(monkeypatch, change, at, says):
    asked_for(monkeypatch, "open_completed", change, at)
    with pytest.raises(PartyError, match=says):
        simulate(VFEM(), *make(900, 3, 1, seed=4)[:2])


def test_a_fourth_step_is_refused(monkeypatch):
    """By the protocol, and by the node itself, which counts less here than the server."""
    given = make(900, 3, 1, seed=4)[:2]
    monkeypatch.setattr(scoring, "STEPS", 9)
    monkeypatch.setattr(scoring, "_has_settled", lambda *_: False)
    with pytest.raises(PartyError, match="may come 4 times in this run, and has"):
        simulate(VFEM(), *given)
    monkeypatch.setattr(completed_steps, "STEPS", 1)
    with pytest.raises(PartyError, match="completed 1 times in this run, which is the most"):
        simulate(VFEM(), *given)


def test_the_first_sums_are_of_pairs(monkeypatch):
    given = make(900, 3, 1, seed=4)[:2]
    monkeypatch.setattr(completed_steps.CompletedRowSteps, "_check_point", lambda *_: None)

    def completes(common, own):
        common["correlations"] = common["correlations"] + 3 * (1 - np.eye(4, dtype=np.int64))

    asked_for(monkeypatch, "open_completed", completes, at=1)
    with pytest.raises(PartyError, match="these come first"):
        simulate(VFEM(), *given)


def test_parties_that_are_told_of_other_points_open_noise(monkeypatch):
    """Else what two points differ by would open a pattern's sums."""
    told_otherwise(monkeypatch, "open_completed", "p1", lambda asked: {"mean": asked["mean"] + 1})
    opened, call = [], CompletedProducts.completed

    def noted(self, point):
        opened.append(call(self, point)[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(CompletedProducts, "completed", noted)
    with pytest.raises(KeyboardInterrupt):
        simulate(VFEM(), *make(900, 3, 1, seed=4)[:2])
    assert np.median(np.abs(opened[0].products[:3, :3])) > 1e4  # uniform; true ones are below 900


# -- counted, withheld, resumed --------------------------------------------------------------


def test_a_ledger_counts_each_step_and_one_label(tmp_path):
    tables, labels, *_ = make(900, 3, 1, seed=4)
    nodes = Nodes(tmp_path, tables)
    first = nodes.run(VFEM(), labels)
    noted = [entry["what"] for entry in nodes.entries("rows", "p0")]
    opened = 1 + int(first.metrics["iterations"])
    assert sum("with p1" in what for what in noted) == opened
    assert sum("again" in what for what in noted if "with p1" in what) == opened - 1
    state = nodes.ledger("p0").state
    assert state["smallest_set"] >= 100
    assert state["vectors"] == 1  # the label is the same in each step


def test_a_rare_flag_is_withheld_and_has_no_coefficient():
    tables, labels, *_ = make(900, 3, 1, seed=4)
    rng = np.random.default_rng(0)
    tables["p1"]["flag"] = 0.0
    tables["p1"].loc[rng.choice(tables["p1"].index, 6, replace=False), "flag"] = 1.0
    result = simulate(VFEM(), tables, labels)
    table = result.coefficients
    assert np.isnan(table.loc[("p1", "flag"), "estimate"])
    assert np.isfinite(table["estimate"].drop(("p1", "flag"))).all()
    assert any("p1.flag" in note and "told of" in note for note in result.notes)
    assert result.metrics["columns_withheld"] == 1


@pytest.mark.parametrize(("n", "step"), [(240, "open_products"), (2400, "open_completed")])
def test_steps_are_taken_where_they_tell_more_than_noise_costs(n, step):
    """Rows that one party alone holds tell little: of 240 rows they are not worth the noise."""
    tables, labels, *_ = make(n, 3, 2, seed=11)
    options = {"min_rows": n // 8, "alignment": "plain", "progress": False}
    result = simulate(VFEM(), tables, labels, **options)
    assert result.ledger.summary().loc[step, "rounds"] > 0


def test_a_run_that_was_killed_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    given = make(500, 3, 1, seed=4)[:2]
    monkeypatch.setitem(resuming.METHODS, "scoring", (VFEM, lambda: given))
    monkeypatch.setattr(strategy.VFEM, "_completed_rows", lambda self, p: rows_to_complete(p))
    with seeded_noise(0):
        whole = resuming.Place(tmp_path / "whole", "scoring").run()
        steps = whole.result.ledger.to_frame().groupby("round")["step"].first()
        first = int(steps.index[steps == "open_completed"][0])
        for fault, kill in (("die_after", first), ("die_before", first + 2)):
            place = resuming.Place(tmp_path / f"{fault}{kill}", "scoring")
            with pytest.raises(resuming.ServerKilled):
                place.run(**{fault: kill})
            again = place.run(resume=True)
            one, other = again.result.coefficients, whole.result.coefficients
            np.testing.assert_allclose(one["estimate"], other["estimate"], rtol=1e-9)
            np.testing.assert_allclose(one["std_error"], other["std_error"], rtol=1e-9)


# -- what the opened sums tell of a single row -----------------------------------------------


def told_of_one_row(noise, steps=3, chosen=False, n=400, parties=4, seed=0):
    """Share of a lone row's variance that the best linear guess explains, of all that opens.

    The server knows who holds which rows, the distribution, and all coefficients. Unknown to it are
    sums and products of each pattern, normal about what it expects of them. One row is the only one
    of its pattern. Points are what the fit comes to, or chosen by the server.
    """
    rng = np.random.default_rng(seed)
    truth = 0.4 + 0.6 * np.eye(parties)
    kinds = np.array(np.meshgrid(*[[0, 1]] * parties)).reshape(parties, -1).T.astype(bool)[1:]
    counts = rng.multinomial(n, np.full(len(kinds), 1 / len(kinds))).astype(float)
    alone = int(np.flatnonzero(kinds.sum(axis=1) == 2)[0])
    counts[alone] = 1.0
    upper = np.triu_indices(parties)
    matrices = [np.eye(parties)]  # pairs, then covariances that differ by their errors
    for _ in range(steps):
        error = rng.normal(size=(parties, parties)) / np.sqrt(n)
        root = rng.normal(size=(parties, parties + 1))
        wild = root @ root.T / np.outer(*[np.linalg.norm(root, axis=1)] * 2)
        least = np.linalg.eigvalsh(wild)[0]
        share = max(0.0, LEAST_EIGENVALUE - least) / (1.0 - least)  # of the identity, at least
        wild = (1.0 - share) * wild + share * np.eye(parties)
        matrices.append(wild if chosen else truth + (error + error.T) / 2)
    spread, sides = [], [[] for _ in matrices]
    for kind, count in zip(kinds, counts, strict=True):
        own = np.where(np.outer(kind, kind), truth, 0.0)
        pairs = np.einsum("ik,jl->ijkl", own, own) + np.einsum("il,jk->ijkl", own, own)
        block = np.zeros((parties + len(upper[0]),) * 2)
        block[:parties, :parties] = count * own
        block[parties:, parties:] = count * pairs[upper][:, *upper]
        spread.append(block)
        for side, matrix in zip(sides, matrices, strict=True):
            lift = np.zeros((parties, parties))
            o = np.flatnonzero(kind)
            lift[:, o] = matrix[:, o] @ np.linalg.inv(matrix[np.ix_(o, o)])
            several = np.einsum("ik,jl->ijkl", lift, lift)
            several = several + several.transpose(0, 1, 3, 2)
            several[..., np.arange(parties), np.arange(parties)] /= 2.0
            whole = np.zeros_like(block)
            whole[:parties, :parties] = lift
            whole[parties:, parties:] = several[upper][:, *upper]
            side.append(whole)
    equations = np.concatenate([np.concatenate(side, axis=1) for side in sides])
    width = len(spread[0])
    prior = np.zeros((width * len(kinds),) * 2)
    for g, block in enumerate(spread):
        here = slice(g * width, (g + 1) * width)
        prior[here, here] = block
    seen = equations @ prior @ equations.T + noise**2 * np.eye(len(equations))
    across = equations @ prior
    known = across.T @ np.linalg.lstsq(seen, across, rcond=1e-10)[0]
    at = alone * width + np.flatnonzero(kinds[alone])
    return float(np.diag(known)[at].sum() / np.diag(prior)[at].sum())


def test_what_opens_hardly_tells_of_the_only_row_of_its_pattern():
    """With 3 parties a server that chooses the points would have it exactly, but for the noise."""
    shares = [told_of_one_row(1.0, seed=seed) for seed in range(5)]
    assert max(shares) < 0.04
    few = {"chosen": True, "n": 300, "parties": 3}
    assert max(told_of_one_row(1.0, seed=seed, **few) for seed in range(5)) < 0.2
    assert min(told_of_one_row(1e-5, seed=seed, **few) for seed in range(5)) > 0.99
    assert told_of_one_row(1.0, steps=20, chosen=True) > 0.3  # so there are three
    # What several runs with the same labels add up to, which no ledger refuses: of the fits' points
    # nothing; of five runs' chosen ones much.
    assert told_of_one_row(1.0 / np.sqrt(30.0)) < 0.04
    assert told_of_one_row(1.0, steps=15, chosen=True) > 0.4
    assert told_of_one_row(1.0, steps=15, **few) > 0.6
