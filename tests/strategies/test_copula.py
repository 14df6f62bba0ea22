"""VCDS, EVCDS and IEVCDS as strategies: against one place, in their limits, on bad input."""

import pickle

import numpy as np
import pandas as pd
import pytest
from oracles import copula as oracle
from resuming import METHODS, Place, data
from scipy.optimize import isotonic_regression
from scipy.stats import ks_2samp, spearmanr

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.privacy import fresh_keystream, laplace_integers, rational, seeded_noise
from flwr_vertical.protocol import decode
from flwr_vertical.protocol.messages import ARGUMENTS, VALUES, read_envelope
from strategies.copula import EVCDS, IEVCDS, VCDS
from strategies.copula.margins import ITERATIONS, degree
from strategies.copula.ranks import Flip

ALL = [VCDS, EVCDS, IEVCDS]
every_method = pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
HUGE = 1e6


def run(strategy, parties, labels=None, seed=0, **kwargs):
    return simulate(strategy, parties, labels, seed=seed, **kwargs)


def pooled(result):
    labels = [] if result.labels is None else [result.labels]
    return pd.concat([*labels, *result.tables.values()], axis=1)


def mixed(n=4000, seed=0):
    """Columns of all kinds at two parties, and labels, by a Gaussian copula."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 7)) @ np.linalg.cholesky(0.5 * np.eye(7) + 0.5).T
    ids = [f"s{i}" for i in range(n)]
    size = pd.CategoricalDtype(["small", "mid", "large"], ordered=True)
    loans = np.floor(np.exp(z[:, 1])).astype(int)
    bank = pd.DataFrame({"income": np.exp(z[:, 0]), "loans": loans, "member": z[:, 2] > 0.4}, ids)
    court = pd.DataFrame(
        {
            "size": pd.Categorical.from_codes(np.digitize(z[:, 3], [-0.5, 1.0]), dtype=size),
            "town": np.array(["Delft", "Gent", "Ulm"])[np.digitize(z[:, 4], [-0.2, 0.6])],
            "debt": z[:, 5],
        },
        ids,
    )
    return {"bank": bank, "court": court}, pd.Series(z[:, 6], ids, name="y")


@pytest.fixture(scope="module")
def small():
    return mixed(200)


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
    margin = np.clip(isotonic_regression([operator(x) for x in grid]).x, 0, 1)
    margin[0], margin[-1] = 0, 1
    return lambda u: np.interp(u, margin, low + (high - low) * grid)


def central_ranks(values, epsilon, stream):
    """Debiased ranks of one column, literally, with the party's noise."""
    n, flip = len(values), Flip.of(epsilon / 2)
    ties = np.empty(n, dtype=int)
    ties[stream.shuffled(n)] = np.arange(n)
    turned = oracle.dense_flips(n, flip, stream)
    place = np.lexsort((ties, values)).argsort()
    _, debiased = oracle.perturb(
        oracle.comparisons(values, ties),
        lambda i, k: turned[max(place[i], place[k]), min(place[i], place[k])],
        flip.theta,
    )
    return debiased


def test_parties_together_get_what_one_place_would_with_the_same_noise():
    n, epsilon, seed = 60, 4.0, 3
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


@pytest.mark.slow
@every_method
def test_without_noise_margins_and_rank_correlations_converge(method):
    parties, labels = mixed()
    real = pd.concat([labels, *parties.values()], axis=1)
    made = pooled(run(method(HUGE, rows=10_000), parties, labels))
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


# -- limits ----------------------------------------------------------------------------------


@every_method
def test_one_party_without_labels_and_the_rows_that_are_asked_for(method):
    result = run(method(1.0, rows=50), {"bank": mixed(300)[0]["bank"]})
    assert result.labels is None
    assert result.tables["bank"].shape == (50, 3)
    assert set(result.privacy.vdadp) == {"bank"}


def test_kinds_and_dtypes_are_kept():
    parties, labels = mixed(300)
    result = run(VCDS(1.0), parties, (labels > 0).astype(int))
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
    # The paper's margins, too, with either noise.
    for noise in ("increments", "coefficients"):
        found = run(VCDS(5.0, margin="bernstein", margin_noise=noise), {"a": frame}).tables["a"]
        assert found["n"].dtype == frame["n"].dtype
        assert found["n"].between(frame["n"].min(), frame["n"].max()).all()
        assert ks_2samp(found["x"], frame["x"]).statistic < 0.15


def test_what_fails_in_any_case_fails_before_anything_is_spent():
    parties, labels = mixed(300)
    few, none = labels.where(np.arange(300) < 9), labels * 0.0
    bank = parties["bank"].assign(one=1.0)
    for strategy, tables, own, message in (
        (VCDS(1.0, bounds={"income": (0, 9), "incme": (0, 9)}), parties, labels, "incme.*Nothing"),
        (VCDS(1.0, resolution={"town": 1.0}), parties, labels, "have 0 of the 1 columns of numb"),
        (VCDS(1.0), parties, few, "only 9 rows have the columns of"),
        (VCDS(1.0), parties, none, "the labels, column 'y' is constant"),
        (VCDS(1.0), parties | {"bank": bank}, labels, "column 'one' is constant"),
    ):
        records = []
        with pytest.raises((ConfigError, DataError, PartyError), match=message):
            run(strategy, tables, own, transcript=records)
        asked = [read_envelope(r.content)["step"] for r in records if r.direction == "down"]
        assert "perturb" not in asked


def test_bounds_replace_the_observed_range():
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=400)})
    bounded = run(VCDS(1.0, bounds={"x": (-1, 20)}), {"a": frame})
    assert bounded.tables["a"]["x"].between(-1, 20).all()
    assert "used as it is" not in str(bounded.privacy)
    plain = run(VCDS(1.0, margin="bernstein"), {"a": frame})
    assert "observed range of 1 column was used" in str(plain.privacy)
    tree = run(VCDS(1.0, bounds={"x": (-9, 9)}), {"a": frame})
    assert "observed range" not in str(tree.privacy)
    assert "bounds name no" not in " ".join(tree.notes)
    assert VCDS(bounds='{"x": [-1, 20]}').bounds == VCDS(bounds={"x": (-1, 20)}).bounds


def test_missing_blocks_may_be_dropped_imputed_or_used():
    parties, labels = mixed(600)
    parties["bank"] = parties["bank"].iloc[:400]
    labels.iloc[50:100] = np.nan
    for missing, spent in {
        "pairwise": [550, *[400] * 3, *[600] * 3], "complete-case": [350] * 7, "impute": [600] * 7,
    }.items():  # fmt: skip
        result = run(VCDS(1.0, missing=missing), parties, labels)
        assert [column.n for column in result.privacy.columns] == spent


def test_synthetic_rows_that_follow_real_ones_may_be_any_number(small):
    for rows in (100, 300, 700):
        result = run(EVCDS(1.0, rearrange=True, rows=rows), *small)
        assert len(result.labels) == rows
        assert "follows the perturbed ranks of one real row" in str(result.privacy)


# -- privacy ---------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize(("budget", "each"), [("per-variable", 1.0), ("total", 1 / 3)])
def test_the_statement_counts_every_column(method, budget, each, small):
    result = run(method(1.0, budget), *small)
    spent = result.privacy.vdadp
    assert spent["bank"] == pytest.approx(3 * each, rel=1e-3)
    assert spent["bank"] <= 3 * each  # theta is rounded to the safe side
    assert spent["server"] == pytest.approx(1.0, rel=1e-3)
    assert result.ledger.epsilon == spent
    assert result.privacy.record["court"] == pytest.approx(3 * each * (199 / 4 + 3 / 4), rel=1e-3)


@pytest.mark.fresh_noise
def test_two_runs_with_one_seed_differ_and_the_statement_is_kept(small, tmp_path):
    one, other = run(VCDS(1.0), *small), run(VCDS(1.0), *small)
    assert not one.labels.equals(other.labels)
    assert "nothing of this run is private" not in str(one.privacy)
    with seeded_noise(0):
        assert "nothing of this run is private" in str(run(VCDS(1.0), *small).privacy)
    assert one.notes[: len(one.privacy.sentences)] == one.privacy.sentences
    again = Result.load(one.save(tmp_path / "run"))
    assert str(again.privacy) == str(one.privacy)
    assert "not differentially private for whole records" in str(again.privacy)


@pytest.mark.parametrize(
    "strategy",
    [VCDS(1.0), EVCDS(1.0, rearrange=True), IEVCDS(1.0, iterations=2)],
    ids=lambda s: s.name,
)
def test_ranks_and_probabilities_alone_travel_in_three_rounds(strategy):
    parties, labels = mixed(300)
    parties["bank"], records, step_of, seen = parties["bank"].iloc[20:], [], {}, {}
    result = run(strategy, parties, labels, transcript=records)
    steps = ["hello", "share_ids", "prepare_release", "perturb", "synthesise"]
    assert list(result.ledger.summary().index) == steps
    assert result.ledger.rounds == 5
    # Seven columns, of which one, of three towns, has three ranks.
    assert result.ledger.summary().loc["perturb", "bytes_up"] < 300 * 8 * 4 + 2000
    words = [*parties["bank"], *parties["court"], *parties["court"]["town"].unique(), "large"]
    numbers = [*labels, *parties["bank"]["income"], *parties["court"]["debt"]]
    numbers += result.tables["court"]["debt"].tolist()
    secrets = [word.encode() for word in words if len(word) > 4]
    secrets += [of for x in numbers if len(set(of := np.float64(x).tobytes())) > 3]
    assert len(secrets) > 1000
    for record in records:
        if record.direction == "down":
            step_of[record.node_id] = str(read_envelope(record.content)["step"])
        if (step := step_of[record.node_id]) in ("hello", "share_ids"):
            continue
        content = pickle.dumps(record.content)
        assert not any(secret in content for secret in secrets), (record.direction, step)
        values = decode(record.content, VALUES if record.direction == "up" else ARGUMENTS)
        arrays = [value for value in values.values() if isinstance(value, np.ndarray)]
        assert all(array.tobytes()[:800] in content for array in arrays)
        seen.setdefault((record.direction, step), []).append(values)
    assert {key: set(values[0]) for key, values in seen.items()} == {
        ("down", "prepare_release"): {"bounds", "resolution", "margin"},
        ("up", "prepare_release"): {"n_stated"},
        ("down", "perturb"): {
            "epsilon", "budget", "rank_share", "margin_noise", "bounds", "impute", "margin",
            "resolution", "min_level", "rearrange", "nominal",
        },
        ("up", "perturb"): {
            "ranks", "widths", "flips", "epsilon_margins", "cuts", "n_cuts", "exact_range", "rare",
            "seeded", "atoms", "n_atoms", "n_recast", "n_like_ids",
            "name_chance", "least_epsilon",
        },
        ("down", "synthesise"): {"levels"},
        ("up", "synthesise"): set(),
    }  # fmt: skip
    made = [values["levels"].shape for values in seen["down", "synthesise"]]
    assert made == [(strategy.rows or 300, 3)] * 2
    sent = [values["ranks"] for values in seen["up", "perturb"]]
    assert {ranks.dtype for ranks in sent} == {np.dtype(np.int32)}
    (ranks,) = [ranks for ranks in sent if (ranks == 0).any()]  # the bank lacks samples
    ranks, n = ranks[(ranks > 0).all(axis=1), 0], 280
    theta = 1 / (1 + np.exp(0.25))
    exact = np.sort(parties["bank"]["income"].rank())
    shrunk = (n + 1) / 2 + (1 - 2 * theta) * (exact - (n + 1) / 2)
    assert np.std(np.sort(ranks) - shrunk) < 3 * np.sqrt(n * theta * (1 - theta))
    assert len(np.unique(ranks)) < n  # exact ranks are all different
    sd = np.sqrt((n - 1) * theta * (1 - theta)) / (1 - 2 * theta)
    stated = next(column for column in result.privacy.columns if column.party == "bank")
    assert stated.quantile_error == pytest.approx(sd / n, rel=1e-3)


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [VCDS, EVCDS, pytest.param(IEVCDS, marks=pytest.mark.slow)], ids=lambda m: m.name
)
def test_too_few_joint_rows_name_the_pair(method, small):
    parties, labels = small
    parties = {"bank": parties["bank"].iloc[:110], "court": parties["court"].iloc[90:]}
    with pytest.raises(DataError, match=r"only 20 rows .*('court' and 'bank'|'bank' and 'court')"):
        run(method(1.0), parties, labels)
    run(method(1.0, min_joint=20), parties, labels)


class Greedy(VCDS):
    def run(self, federation, alignment, result, progress):
        federation.call("perturb", self._arguments(None))
        super().run(federation, alignment, result, progress)


def test_what_cannot_be_released_is_refused(small):
    bank, court = small[0].values()
    apart = {"bank": bank.iloc[:50], "court": court.iloc[50:100], "shop": bank}
    for strategy, parties, labels, error, said in (
        (VCDS(1.0, missing="complete-case"), apart, None, DataError, "no sample"),
        (VCDS(1e-4, "total"), small[0], None, PartyError, "pure noise"),
        (Greedy(1.0), small[0], None, PartyError, "refuses step 'perturb'"),
    ):
        with pytest.raises(error, match=said):
            run(strategy, parties, labels)


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


def test_a_broken_run_goes_on_and_perturbs_nothing_twice(tmp_path, monkeypatch):
    """With noise of the operating system: what was released before the break stays as it was."""
    monkeypatch.setitem(METHODS, "vcds", (lambda: VCDS(1.0, min_joint=10), data))
    for at in (3, 4):  # after perturb, after synthesise
        place = Place(tmp_path / str(at), "vcds")
        place.broken(die_after=at)
        first = [r for r in place.transcript if r.direction == "up"]
        resumed = place.run(resume=True)
        sent = [*first, *(r for r in place.transcript if r.direction == "up")]
        replies = [decode(record.content, VALUES) for record in sent]
        ranks = {reply["ranks"].tobytes() for reply in replies if "ranks" in reply}
        assert len(ranks) == 2  # one release by each party
        assert len(resumed.tables["bank"]) == len(resumed.result.labels) == 40
    for fate in ("before", "after"):
        resumed = Place(tmp_path / fate, "vcds").run(lose={3: fate})
        assert len(resumed.tables["court"]) == 40
