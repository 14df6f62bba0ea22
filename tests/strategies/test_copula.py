"""VCDS, EVCDS and IEVCDS as strategies: against one place, in their limits, on bad input."""

import numpy as np
import pandas as pd
import pytest
from oracles import copula as oracle
from resuming import METHODS, Place, data
from scipy.stats import ks_2samp, norm, spearmanr

from flwr_vertical import Result, simulate
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.privacy import fresh_keystream, laplace_integers, rational, seeded_noise
from flwr_vertical.protocol import decode
from flwr_vertical.protocol.messages import VALUES
from strategies.copula import EVCDS, IEVCDS, VCDS
from strategies.copula.margins import ITERATIONS, degree
from strategies.copula.ranks import Flip, flip_tiles

ALL = [VCDS, EVCDS, IEVCDS]
HUGE = 1e6


def run(strategy, parties, labels=None, seed=0, **kwargs):
    return simulate(strategy, parties, labels, seed=seed, progress=False, **kwargs)


def pooled(result):
    labels = [] if result.labels is None else [result.labels]
    return pd.concat([*labels, *result.tables.values()], axis=1)


def mixed(n=4000, seed=0):
    """Columns of all kinds at two parties, and labels, by a Gaussian copula."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 7)) @ np.linalg.cholesky(0.5 * np.eye(7) + 0.5).T
    ids = [f"s{i}" for i in range(n)]
    size = pd.CategoricalDtype(["small", "mid", "large"], ordered=True)
    bank = pd.DataFrame(
        {
            "income": np.exp(z[:, 0]),
            "loans": np.floor(np.exp(z[:, 1])).astype(int),
            "member": z[:, 2] > 0.4,
        },
        index=ids,
    )
    court = pd.DataFrame(
        {
            "size": pd.Categorical.from_codes(np.digitize(z[:, 3], [-0.5, 1.0]), dtype=size),
            "town": np.array(["Delft", "Gent", "Ulm"])[np.digitize(z[:, 4], [-0.2, 0.6])],
            "debt": z[:, 5],
        },
        index=ids,
    )
    return {"bank": bank, "court": court}, pd.Series(z[:, 6], ids, name="y")


# -- against one place -----------------------------------------------------------------------


def central_margin(values, epsilon, stream):
    """The inverse margin of one column, literally, with the party's noise."""
    n = len(values)
    low, high, l = min(values), max(values), degree(n, epsilon / 2)  # noqa: E741
    f = [sum(v <= low + (high - low) * k / l for v in values) for k in range(l)] + [n]
    f = np.cumsum(
        np.diff(f, prepend=0) + laplace_integers(2 / rational(epsilon / 2), l + 1, stream)
    )
    operator = oracle.bernstein(lambda x: f[round(x * l)] / f[-1], l, ITERATIONS)
    grid = np.linspace(0, 1, 1001)
    margin = np.clip(oracle.monotone([operator(x) for x in grid]), 0, 1)
    margin[0], margin[-1] = 0, 1
    return lambda u: oracle.invert(low + (high - low) * grid, margin, u)


def central_ranks(values, epsilon, stream):
    """Debiased ranks of one column, literally, with the party's noise."""
    n, flip = len(values), Flip.of(epsilon / 2)
    ties = np.empty(n, dtype=int)
    ties[stream.shuffled(n)] = np.arange(n)
    turned = np.zeros((n + 256, n + 5000), dtype=int)
    for first, left, bits in flip_tiles(n, flip, stream):
        ones = np.unpackbits(bits.copy().view(np.uint8), axis=1, bitorder="little")
        turned[first : first + 256, left : left + ones.shape[1]] = ones
    place = np.lexsort((ties, values)).argsort()
    _, debiased = oracle.perturb(
        oracle.comparisons(values, ties),
        lambda i, k: turned[max(place[i], place[k]), min(place[i], place[k])],
        flip.theta,
    )
    return debiased


def test_parties_together_get_what_one_place_would_with_the_same_noise():
    n, epsilon, seed = 90, 4.0, 3
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4)) @ np.linalg.cholesky(0.6 * np.eye(4) + 0.4).T
    parties = {"a": pd.DataFrame(x[:, :1]), "b": pd.DataFrame(x[:, 1:3])}
    for frame in parties.values():
        frame.columns = frame.columns.astype(str)
    with seeded_noise(seed):
        method = VCDS(epsilon, margin="bernstein", rank_share=0.5)
        got = run(method, parties, pd.Series(x[:, 3]), seed=seed)
        columns = []
        for label, own in (("server", x[:, 3:]), ("party a", x[:, :1]), ("party b", x[:, 1:3])):
            stream = fresh_keystream(label)
            margins = [central_margin(values, epsilon, stream) for values in own.T]  # all first
            columns += [
                (central_ranks(own[:, j], epsilon, stream), margins[j]) for j in range(own.shape[1])
            ]
    omega = np.eye(4)
    for j in range(4):
        for k in range(j):
            rho = oracle.spearman(columns[j][0], columns[k][0])
            omega[j, k] = omega[k, j] = 2 * np.sin(np.pi * rho / 6)
    assert np.linalg.eigvalsh(omega)[0] > 0.01  # a correlation matrix as it is
    np.testing.assert_allclose(got.model, omega, atol=1e-9)
    rng = np.random.default_rng(seed).spawn(1)[0]
    z = rng.standard_normal((n, 4)) @ np.linalg.cholesky(omega).T
    u = (z.argsort(axis=0).argsort(axis=0) + rng.random((n, 4))) / n
    expected = [inverse(u[:, j]) for j, (_, inverse) in enumerate(columns)]
    np.testing.assert_allclose(pooled(got).to_numpy(), np.column_stack(expected), atol=1e-6)


@pytest.mark.parametrize("method", ALL)
def test_without_noise_margins_and_rank_correlations_converge(method):
    parties, labels = mixed()
    real = pd.concat([labels, *parties.values()], axis=1)
    made = pooled(run(method(HUGE, rows=20_000), parties, labels))
    made, real = (
        frame.assign(
            size=frame["size"].cat.codes, town=frame["town"].map(lambda t: "DGU".index(t[0]))
        ).astype(float)
        for frame in (made, real)
    )
    for name in ("y", "income", "debt"):
        assert ks_2samp(made[name], real[name]).statistic < 0.05, name
    for name in ("loans", "member", "size", "town"):
        shares = [frame[name].value_counts(normalize=True) for frame in (made, real)]
        assert shares[0].sub(shares[1], fill_value=0).abs().max() < 0.03, name
    difference = spearmanr(made).statistic - spearmanr(real).statistic
    assert np.abs(difference).max() < 0.06


def test_the_paper_s_noise_on_coefficients_works_too():
    parties, labels = mixed(1500)
    made = run(VCDS(4.0, margin="bernstein", margin_noise="coefficients"), parties, labels)
    assert ks_2samp(made.labels, labels).statistic < 0.1


# -- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL)
def test_one_party_without_labels(method):
    parties, _ = mixed(300)
    result = run(method(1.0, rows=50), {"bank": parties["bank"]})
    assert result.labels is None
    assert result.tables["bank"].shape == (50, 3)
    assert set(result.privacy.vdadp) == {"bank"}


def test_kinds_and_dtypes_are_kept():
    parties, labels = mixed(300)
    labels = (labels > 0).astype(int)
    result = run(VCDS(1.0), parties, labels)
    for name, given in parties.items():
        assert result.tables[name].dtypes.equals(given.dtypes)
    assert (result.tables["bank"]["loans"] >= 0).all()
    assert set(result.tables["court"]["town"]) <= {"Delft", "Gent", "Ulm"}
    assert result.labels.dtype == np.int64
    assert set(result.labels) == {0, 1}


def test_counts_of_a_wide_range_are_rounded():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"n": rng.poisson(500, size=400), "x": rng.normal(size=400)})
    made = run(VCDS(5.0), {"a": frame}).tables["a"]["n"]
    assert made.dtype == frame["n"].dtype
    assert ks_2samp(made, frame["n"]).statistic < 0.1
    made = run(VCDS(5.0, margin="bernstein"), {"a": frame}).tables["a"]["n"]
    assert made.dtype == frame["n"].dtype
    assert made.between(frame["n"].min(), frame["n"].max()).all()


def test_bounds_replace_the_observed_range():
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=400)})
    bounded = run(VCDS(1.0, bounds={"x": (-1, 20)}), {"a": frame})
    assert bounded.tables["a"]["x"].between(-1, 20).all()
    assert "used as it is" not in str(bounded.privacy)
    plain = run(VCDS(1.0, margin="bernstein"), {"a": frame})
    assert "observed range of 1 column was used" in str(plain.privacy)
    assert "observed range" not in str(run(VCDS(1.0), {"a": frame}).privacy)
    assert VCDS(bounds='{"x": [-1, 20]}').bounds == VCDS(bounds={"x": (-1, 20)}).bounds


def test_missing_blocks_may_be_dropped_imputed_or_used():
    parties, labels = mixed(600)
    parties["bank"] = parties["bank"].iloc[:400]
    labels.iloc[50:100] = np.nan
    spent = {
        missing: [c.n for c in run(VCDS(1.0, missing=missing), parties, labels).privacy.columns]
        for missing in ("pairwise", "complete-case", "impute")
    }
    assert spent["pairwise"] == [550, *[400] * 3, *[600] * 3]
    assert spent["complete-case"] == [350] * 7
    assert spent["impute"] == [600] * 7


def test_margins_and_correlations_under_missing_at_random():
    """The bank's rows are missing where labels are high: only IEVCDS mends both."""
    rng, n = np.random.default_rng(1), 6000
    z = rng.normal(size=(n, 3)) @ np.array([[1, 0.7, 0.7], [0, 0.714, 0.3], [0, 0, 0.648]])
    parties = {
        "bank": pd.DataFrame({"a": z[:, 1]})[rng.random(n) > norm.cdf(1.5 * z[:, 0])],
        "court": pd.DataFrame({"b": z[:, 2]}),
    }
    made = {m: pooled(run(m(HUGE), parties, pd.Series(z[:, 0]))) for m in ALL}
    means = {method: abs(table["a"].mean()) for method, table in made.items()}
    assert means[VCDS] > 0.3
    assert means[EVCDS] < 0.2
    assert means[IEVCDS] < 0.1
    real = np.corrcoef(z.T)
    off = {m: np.abs(np.corrcoef(table.to_numpy().T) - real).max() for m, table in made.items()}
    assert off[VCDS] > 0.1
    assert off[IEVCDS] < 0.06


def test_synthetic_rows_that_follow_real_ones_may_be_any_number():
    parties, labels = mixed(300)
    for rows in (100, 300, 700):
        result = run(EVCDS(1.0, rearrange=True, rows=rows), parties, labels)
        assert len(result.labels) == rows
        assert "follows the perturbed ranks of one real row" in str(result.privacy)


# -- privacy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(("budget", "each"), [("per-variable", 1.0), ("total", 1 / 3)])
def test_the_statement_counts_every_column(method, budget, each):
    parties, labels = mixed(200)
    result = run(method(1.0, budget), parties, labels)
    found = result.privacy.vdadp
    assert found["bank"] == pytest.approx(3 * each, rel=1e-3)
    assert found["bank"] <= 3 * each  # theta is rounded to the safe side
    assert found["server"] == pytest.approx(1.0, rel=1e-3)
    assert result.ledger.epsilon == found
    assert result.privacy.record["court"] == pytest.approx(3 * each * (199 / 4 + 3 / 4), rel=1e-3)


def test_two_runs_with_one_seed_differ_and_the_statement_tells_of_seeded_noise():
    parties, labels = mixed(200)
    one, other = run(VCDS(1.0), parties, labels), run(VCDS(1.0), parties, labels)
    assert not one.labels.equals(other.labels)
    assert "nothing of this run is private" not in str(one.privacy)
    with seeded_noise(0):
        assert "nothing of this run is private" in str(run(VCDS(1.0), parties, labels).privacy)


def test_the_statement_is_saved_and_reported(tmp_path):
    parties, labels = mixed(200)
    result = run(VCDS(1.0), parties, labels)
    assert result.notes[: len(result.privacy.sentences)] == result.privacy.sentences
    again = Result.load(result.save(tmp_path / "run"))
    assert str(again.privacy) == str(result.privacy)
    page = result.report(tmp_path / "run").read_text()
    assert "not differentially private for whole records" in page


def test_a_run_takes_two_rounds_after_alignment():
    parties, labels = mixed(200)
    for method in ALL:
        result = run(method(1.0), parties, labels)
        assert list(result.ledger.summary().index) == [
            "hello",
            "share_ids",
            "perturb",
            "synthesise",
        ]
        assert result.ledger.rounds == 4
        up = result.ledger.summary().loc["perturb", "bytes_up"]
        # Seven columns, of which one, of three towns, has three ranks.
        assert up < 200 * 8 * 4 + 2000


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL)
def test_too_few_joint_rows_name_the_pair(method):
    parties, labels = mixed(200)
    parties = {"bank": parties["bank"].iloc[:110], "court": parties["court"].iloc[90:]}
    with pytest.raises(DataError, match=r"only 20 rows .*('court' and 'bank'|'bank' and 'court')"):
        run(method(1.0), parties, labels)
    run(method(1.0, min_joint=20), parties, labels)


def test_a_constant_column_is_refused_by_name():
    frame = pd.DataFrame({"x": np.arange(50.0), "same": np.ones(50)})
    with pytest.raises(PartyError, match="column 'same' is constant"):
        run(VCDS(1.0), {"bank": frame})
    with pytest.raises(DataError, match="the labels, column 'label' is constant"):
        run(VCDS(1.0), {"bank": frame[["x"]]}, pd.Series(np.ones(50)))


def test_no_complete_sample():
    parties, _ = mixed(100)
    parties = {"bank": parties["bank"].iloc[:50], "court": parties["court"].iloc[50:]}
    parties["shop"] = mixed(100)[0]["bank"]
    with pytest.raises(DataError, match="no sample"):
        run(VCDS(1.0, missing="complete-case"), parties)


def test_a_level_that_one_sample_holds_is_warned_of(caplog):
    parties, labels = mixed(200)
    parties["court"].loc["s7", "town"] = "Atlantis"
    with caplog.at_level("WARNING", "flwr_vertical"):
        result = run(VCDS(1.0, min_level=0), parties, labels)
    assert "'court' has a level that a single sample holds in 1 column;" in str(result.privacy)
    assert "column 'town'" in caplog.text
    assert "Atlantis" not in caplog.text + str(result.privacy)
    merged = run(VCDS(1.0), parties, labels)
    assert "single sample holds is told with a chance of 0.02;" in str(merged.privacy)


def test_a_budget_too_small_for_comparisons():
    parties, _ = mixed(100)
    with pytest.raises(PartyError, match="pure noise"):
        run(VCDS(1e-4, "total"), parties)


def test_runs_on_ray(ray_in_process):
    parties, labels = mixed(100)
    result = run(VCDS(1.0), parties, labels, engine="ray", n_actors=2)
    assert result.tables["court"].dtypes.equals(parties["court"].dtypes)
    assert result.settings["engine"] == "ray"


def test_a_broken_run_goes_on_and_perturbs_nothing_twice(tmp_path, monkeypatch):
    """With noise of the operating system: what was released before the break stays as it was."""
    monkeypatch.setitem(METHODS, "vcds", (lambda: VCDS(1.0, min_joint=10), data))
    for at in (3, 4):  # after perturb, after synthesise
        place = Place(tmp_path / str(at), "vcds")
        place.broken(die_after=at)
        first = [r for r in place.transcript if r.direction == "up"]
        found = place.run(resume=True)
        kept = {
            decode(r.content, VALUES)["ranks"].tobytes()
            for r in [*first, *place.transcript]
            if r.direction == "up" and "ranks" in decode(r.content, VALUES)
        }
        assert len(kept) == 2  # one release by each party
        assert len(found.tables["bank"]) == len(found.result.labels) == 40
    for fate in ("before", "after"):
        place = Place(tmp_path / fate, "vcds")
        found = place.run(lose={3: fate})
        assert len(found.tables["court"]) == 40


def test_ranks_are_released_once_in_a_run():
    class Greedy(VCDS):
        def run(self, federation, alignment, result, progress):
            federation.call("perturb", self._arguments(None))
            super().run(federation, alignment, result, progress)

    with pytest.raises(PartyError, match="released its ranks in this run already"):
        run(Greedy(1.0), mixed(100)[0])


def test_bounds_that_name_no_column_are_noted():
    parties, labels = mixed(200)
    bounds = {"debt": (-5, 5), "dept": (0, 1), "y": (-6, 6)}
    result = run(VCDS(1.0, bounds=bounds), parties, labels)
    assert "1 of the bounds name no numeric column" in " ".join(result.notes)
    bounds.pop("dept")
    assert "bounds name no" not in " ".join(run(VCDS(1.0, bounds=bounds), parties, labels).notes)
