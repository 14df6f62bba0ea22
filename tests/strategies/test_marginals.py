"""MST and AIM: the model against brute force, tables against plain counts, and what is refused."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from oracles.marginals import largest_entropy, margin
from scipy import stats

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.privacy import Keystream, gaussian_delta, seeded_noise
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import VALUES
from strategies.copula.margins import Domain
from strategies.marginals import AIM, MST, MarginalsParty, domain, party, strategy
from strategies.marginals.budget import UNIT, Budget, n_bins
from strategies.marginals.domain import bins_of, levels_of
from strategies.marginals.graphical import Counted, GraphicalModel, JunctionTree
from strategies.marginals.selection import Opened, chosen_pairs, corrected, one_way, smoothed
from tests.kit.deviations import asked_for

SIZES = (3, 4, 2, 3, 2)
CYCLE = [(0, 1), (1, 2), (2, 3), (0, 3)]  # column 4 goes with none
N = 4000


def some_joint(seed):
    return np.random.default_rng(seed).dirichlet(np.full(np.prod(SIZES), 0.6)).reshape(SIZES)


@pytest.fixture(scope="module")
def fitted():
    joint = some_joint(0)
    tables = {pair: Counted(margin(joint, pair), 0.01) for pair in CYCLE}
    tables[4,] = Counted(margin(joint, (4,)), 0.01)
    model = GraphicalModel(SIZES, CYCLE).fit(tables, steps=20_000)
    return model, largest_entropy(SIZES, {c: t.shares for c, t in tables.items()})


# -- the model -------------------------------------------------------------------------------


def test_the_model_is_the_one_of_largest_entropy(fitted):
    model, joint = fitted
    found = model.pairs()
    assert set(found) == set(combinations(range(5), 2))
    for pair, table in found.items():
        np.testing.assert_allclose(table, margin(joint, pair), atol=2e-3)
    # Independent columns are told apart from those of the cycle.
    np.testing.assert_allclose(
        found[0, 4], np.outer(margin(joint, (0,)), margin(joint, (4,))), atol=1e-6
    )


def test_drawn_rows_are_as_many_as_expected(fitted):
    model, joint = fitted
    rows = model.sample(20_000, np.random.default_rng(1))
    for pair in CYCLE:
        shape = SIZES[pair[0]], SIZES[pair[1]]
        counts = np.zeros(shape)
        np.add.at(counts, (rows[:, pair[0]], rows[:, pair[1]]), 1)
        # Independent draws would be off by some 60.
        assert np.abs(counts - 20_000 * margin(joint, pair)).max() < 60
    again = model.sample(20_000, np.random.default_rng(1))
    np.testing.assert_array_equal(rows, again)


@pytest.mark.parametrize("seed", range(5))
def test_cliques_hold_the_pairs_and_share_what_runs_through_them(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 9, 12)
    pairs = [tuple(sorted(rng.choice(12, 2, replace=False))) for _ in range(18)]
    tree = JunctionTree(sizes.tolist(), [(int(a), int(b)) for a, b in pairs])
    for pair in pairs:
        assert any(set(pair) <= set(clique) for clique in tree.cliques)
    for v in range(12):
        holding = {i for i, clique in enumerate(tree.cliques) if v in clique}
        # Running intersection: they are one part of the tree, so one of them has no parent in it.
        assert sum(tree.parents[i] not in holding for i in holding) == 1
    for clique, parent, shared in zip(tree.cliques, tree.parents, tree.separators, strict=True):
        if parent >= 0:
            assert set(shared) == set(clique) & set(tree.cliques[parent])


def test_noise_is_weighed_where_tables_contradict_each_other():
    tables = {
        (0,): Counted(np.array([0.5, 0.5]), 0.01),
        (0, 1): Counted(np.array([[0.4, 0.4], [0.1, 0.1]]), 0.1),
    }
    found = GraphicalModel((2, 2), [(0, 1)]).fit(tables).pairs()[0, 1].sum(axis=1)
    # By hand: least squares of p and of two cells p / 2 each, a hundredth of the weight.
    p = (0.5 * 1.0 + 0.8 * 0.01 / 2) / (1.0 + 0.01 / 2)
    np.testing.assert_allclose(found, [p, 1 - p], atol=2e-3)


# -- what a release costs --------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 1e-5), (10.0, 1e-5)])
def test_all_releases_together_have_the_stated_epsilon(epsilon, delta):
    budget, tables, columns, pairs, chosen = Budget(epsilon, delta), 40, 14, 91, 20
    parts = [
        (tables, budget.domain_sigma(tables)),
        (columns, budget.column_sigma(columns)),
        (pairs, budget.pair_sigma(pairs, chosen=False)),
        (chosen, budget.pair_sigma(chosen, chosen=True)),
    ]
    strength = sum(2.0 * count / sigma**2 for count, sigma in parts)
    assert 0.25 * delta < gaussian_delta(strength**0.5, epsilon) <= delta / 2
    # The other half: the name of a level that one row holds, in any of 40 columns.
    passes = (budget.least_count(tables) - 1.0) / budget.domain_sigma(tables)
    assert tables * stats.norm.sf(passes) <= delta / 2 * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 10.0, 500.0])
def test_a_level_of_one_row_is_named_with_half_of_delta_at_most(epsilon):
    """By the discrete noise itself, whose steps are wide where epsilon is large."""
    budget, tables = Budget(epsilon, 1e-5), 3
    sigma = budget.domain_sigma(tables) * UNIT
    noise = np.arange(-np.ceil(30 * sigma), np.ceil(30 * sigma) + 1)
    chances = np.exp(-(noise**2) / (2 * sigma**2))
    passes = 1 + noise / UNIT >= budget.least_count(tables)
    assert tables * chances[passes].sum() / chances.sum() <= budget.delta / 2


def test_bins_grow_with_rows_and_shrink_with_noise():
    assert n_bins(8000, 126.0) == 5
    assert n_bins(800_000, 126.0) == 16
    assert n_bins(100, 126.0) == 4


# -- levels of columns -----------------------------------------------------------------------


def test_numbers_are_cut_where_they_are_and_come_back():
    rng = np.random.default_rng(2)
    x = np.where(rng.random(20_000) < 0.4, 0.0, np.rint(rng.lognormal(8, 1, 20_000)))
    found = bins_of(x, Domain(step=1.0), 16, 4.0, Keystream(bytes(16)))
    assert 8 <= found.size <= 20
    counts = np.bincount(found.codes, minlength=found.size)
    assert counts.max() == pytest.approx((x == 0).sum(), rel=0.01)  # the point mass stays alone
    drawn = found.draw(found.codes, rng)
    assert (drawn == np.rint(drawn)).all()
    ends = np.quantile(x, [0.5, 0.7, 0.9, 0.99])
    assert np.abs([(drawn <= e).mean() - (x <= e).mean() for e in ends]).max() < 0.02


@pytest.mark.parametrize("low", [1e-9, -1.1e-9, 0.5])
def test_values_of_few_cells_stay_in_their_cells(low):
    """Tails that a gap bends past their whole cell turned it round, and values lay far off."""
    x = low * np.linspace(1.0, 1.01, 2000)
    x[: 600 * (low > 0.1)] = 1000.0
    for k in range(20):
        found = bins_of(x, Domain(), 32, 0.2, Keystream(bytes([k]) * 16))
        assert (np.diff(found.margin.values) >= 0.0).all()
        drawn = found.draw(found.codes, np.random.default_rng(k))
        assert np.abs(drawn[600:] - x[600:]).max() < 0.01


def test_missing_cells_are_a_level_unless_noise_explains_them():
    x = np.r_[np.arange(3000.0), np.full(500, np.nan)]
    found = bins_of(x, Domain(step=1.0), 8, 5.0, Keystream(bytes(16)))
    assert (found.codes[3000:] == found.size - 1).all()
    assert np.isnan(found.draw(found.codes, np.random.default_rng(0))[3000:]).all()
    few = bins_of(x[:3005], Domain(step=1.0), 8, 5.0, Keystream(bytes(16)))
    assert not np.isnan(few.draw(few.codes, np.random.default_rng(0))).any()


def test_sizes_do_not_tell_that_a_level_is_held_by_one_row():
    codes = np.r_[np.zeros(500), np.ones(400)]
    budget = Budget(1.0, 1e-5)
    sigma, least = budget.domain_sigma(4), budget.least_count(4)
    for seed in range(40):
        key = bytes([seed] * 16)
        without = levels_of(np.append(codes, 0.0), 2, 2, least, sigma, Keystream(key))
        alone = levels_of(np.append(codes, 2.0), 3, 3, least, sigma, Keystream(key))
        assert 2.0 not in alone.values[:-1]
        assert without.size <= 3
        assert alone.size <= 3
        # Nor may the noise of a count: that of all rare levels is more, the more there are.
        if without.size == alone.size:
            assert without.precision.tolist() == alone.precision.tolist()
        ordered = levels_of(np.append(codes, 2.0), 3, None, least, sigma, Keystream(key))
        assert not ordered.precision[: np.isfinite(ordered.values).sum()].any()


def test_a_level_of_one_row_moves_no_row_of_others():
    """A level between two others made one nearer than the other to 90 rows of a rare level."""
    without = np.repeat([0.0, 1.0, 2.0], [1000, 90, 1000])
    alone = np.append(np.repeat([0.0, 2.0, 3.0], [1000, 90, 1000]), 1.0)
    for least in (95, 200):
        first, second = (
            levels_of(codes, 4, None, least, 0.1, Keystream(bytes(16))).codes
            for codes in (without, alone)
        )
        assert np.array_equal(first, second[:-1])


@pytest.mark.parametrize("what", ["stated", "named", "numbers"])
def test_counts_are_the_best_of_both_tables(what):
    """Unbiased, with no more noise than is said, and less than the second table alone has."""
    rng, errors, said, second = np.random.default_rng(4), [], [], 40.0
    x = rng.choice(4, 3000, p=[0.5, 0.3, 0.15, 0.05]).astype(float)
    x = np.where(
        rng.random(3000) < 0.2, np.nan, x if what != "numbers" else rng.normal(50, 9, 3000)
    )
    for seed in range(120):
        first, again = (Keystream(seed.to_bytes(2) + bytes([k] * 14)) for k in (0, 1))
        if what == "numbers":
            found = bins_of(x, Domain(0.0, 100.0, 1.0), 8, 20.0, first)
        else:
            least = -np.inf if what == "stated" else 200.0
            found = levels_of(x, 4, None if what == "stated" else 4, least, 20.0, first)
        counts, sigma = found.counted(second, again)
        errors.append(counts - np.bincount(found.codes, minlength=found.size))
        said.append(sigma)
    most = np.mean(said)
    every = np.concatenate(errors)
    assert 0.8 * most < np.sqrt(np.mean(every**2)) < 1.1 * most < 0.9 * second
    assert abs(every.mean()) < 0.15 * most
    if what == "stated":
        exact = np.sqrt(1 / (1 / 20.0**2 + 1 / second**2))
        assert most == pytest.approx(exact, rel=0.01)


def test_rare_levels_become_other_or_their_neighbour():
    codes = np.r_[np.zeros(500), np.ones(3), np.full(400, 2.0), np.full(6, 3.0)]
    named = levels_of(codes, 4, 4, 10, 2.0, Keystream(bytes(16)))
    assert named.values.tolist() == [0.0, 2.0, 4.0]
    assert named.codes[500] == named.codes[-1] == 2
    ordered = levels_of(codes, 4, None, 10, 2.0, Keystream(bytes(16)))
    assert ordered.values.tolist() == [0.0, 2.0]
    assert ordered.codes[-1] == 1


# -- over parties ----------------------------------------------------------------------------


def tables_of(seed=3, n=N, lacking=None):
    """Three parties: bank observes age, the others go with it, and lack rows by it."""
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 12, n).round()
    class_of = np.digitize(age + rng.normal(0, 6, n), [40, 55])
    level = np.array(["low", "mid", "high"])[class_of]
    visits = rng.poisson(1 + class_of)
    frame = pd.DataFrame(
        {"age": age, "level": level, "visits": visits}, index=[f"p{i}" for i in range(n)]
    )
    frame["flag"] = np.where(rng.random(n) < 0.2 * (1 + class_of), "yes", "no")
    parties = {"bank": frame[["age"]], "court": frame[["level", "visits"]], "town": frame[["flag"]]}
    if lacking:
        chance = 1 / (1 + np.exp(-(age - 50) / 6))
        parties["court"] = parties["court"][rng.random(n) > 0.7 * chance]
        parties["town"] = parties["town"][rng.random(n) > 0.5 * chance]
    if lacking == "all":
        parties["bank"] = parties["bank"][rng.random(n) > 0.25]
    return frame, parties


@pytest.fixture(scope="module")
def told():
    """A run at an epsilon that leaves all but no noise, and what was opened in it."""
    frame, parties = tables_of(lacking="MAR")
    seen = {}

    def opening(self, opened, pairs, chosen, real=strategy._Tables.open):
        seen[chosen] = real(self, opened, pairs, chosen)
        seen["opened"] = opened
        return seen[chosen]

    transcript = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategy._Tables, "open", opening)
        result = simulate(AIM(epsilon=1e5, delta=1e-9), parties, transcript=transcript)
    return result, frame, parties, seen, transcript


def test_tables_of_two_parties_are_those_of_the_joined_table(told):
    _, frame, parties, seen, _ = told
    both = frame.loc[parties["court"].index.intersection(parties["town"].index)]
    table = seen[False][1, 3].shares * len(both)  # level and flag: all their levels are kept
    expected = pd.crosstab(both["level"], both["flag"]).loc[sorted(["low", "mid", "high"])]
    np.testing.assert_allclose(table, expected, atol=0.7)
    for pair, other in seen[True].items():
        np.testing.assert_allclose(other.shares, seen[False][pair].shares, atol=1e-3)


def test_rounds_do_not_grow_and_nothing_of_a_row_is_open(told):
    result, *_, transcript = told
    assert result.ledger.rounds == 8
    steps = result.ledger.summary("step")
    assert steps.loc["open_counts", "messages"] == 2 * 3
    sent = [decode(r.content, VALUES) for r in transcript if r.direction == "up"]
    by_row = [
        (name, np.asarray(value))
        for values in sent
        for name, value in values.items()
        if np.ndim(value) and len(value) == N
    ]
    assert {name for name, _ in by_row} == {"ids", "masked"}  # of the plain alignment
    for masked in (value for name, value in by_row if name == "masked"):
        assert masked.dtype == np.uint64
        counts = np.bincount((masked >> np.uint64(60)).ravel().astype(int))
        assert stats.chisquare(counts).pvalue > 1e-9


def test_rows_missing_at_random_are_made_up_for(told):
    result, frame, parties, seen, _ = told
    held = parties["court"]["visits"].mean()
    assert held < frame["visits"].mean() - 0.2
    assert abs(result.tables["court"]["visits"].mean() - frame["visits"].mean()) < 0.06
    flags = frame["flag"] == "yes"
    assert flags[parties["town"].index].mean() < flags.mean() - 0.02
    assert abs((result.tables["town"]["flag"] == "yes").mean() - flags.mean()) < 0.015
    opened = seen["opened"]
    kept = corrected(opened, seen[False])
    high = one_way(opened, kept)[1].shares
    expected = frame["level"].value_counts(normalize=True)[sorted(["low", "mid", "high"])]
    np.testing.assert_allclose(high, expected, atol=0.02)


def test_rows_missing_at_random_are_made_up_for_where_no_party_has_all():
    frame, parties = tables_of(lacking="all")
    result = simulate(AIM(epsilon=1e5, delta=1e-9), parties)
    made = pd.concat([result.tables[name].reset_index(drop=True) for name in parties], axis=1)
    assert abs(made["age"].mean() - frame["age"].mean()) < 1.0  # 3 without weights
    assert abs(made["visits"].mean() - frame["visits"].mean()) < 0.06  # 0.2
    assert abs((made["flag"] == "yes").mean() - (frame["flag"] == "yes").mean()) < 0.02  # 0.06


def test_aim_chooses_what_depends_and_mst_a_forest():
    joint = some_joint(5)
    pairs = {p: Counted(margin(joint, p), 1e-3) for p in combinations(range(5), 2)}
    columns = {v: (margin(joint, (v,)), 1e-3) for v in range(5)}
    opened = Opened(SIZES, [0, 0, 1, 1, 2], np.ones((N, 3), dtype=bool), columns)
    singles = one_way(opened, pairs)
    tree = chosen_pairs(opened, pairs, singles, adaptive=False)
    assert len(tree) == 4
    more = chosen_pairs(opened, pairs, singles, adaptive=True)
    assert more[:4] == tree
    assert len(more) > 4
    independent = {p: Counted(np.outer(columns[p[0]][0], columns[p[1]][0]), 1e-3) for p in pairs}
    assert chosen_pairs(opened, independent, singles, adaptive=True) == []


def test_noise_of_tables_is_smoothed_as_far_as_it_explains_them():
    rng, at = np.random.default_rng(0), np.linspace(-1.5, 1.5, 8)
    smooth = np.exp(-((at[:, None] - at) ** 2))
    rough = np.kron(rng.permuted(np.eye(4), axis=1), np.ones((2, 2))) + 0.2
    flat = np.outer(np.arange(1.0, 9), np.arange(2.0, 6))
    for table, less in [(smooth, 0.5), (rough, 0.75), (flat, 0.25)]:
        table /= table.sum()
        ends = [Counted(table.sum(axis=axis), 0.0) for axis in (1, 0)]
        np.testing.assert_allclose(smoothed(Counted(table, 0.0), ends).shares, table, atol=1e-12)
        errors = np.zeros(2)
        for _ in range(100):
            told = Counted(table + rng.normal(0.0, 0.01, table.shape), 0.01)
            found = smoothed(told, ends)
            for axis, end in enumerate(ends):
                np.testing.assert_allclose(found.shares.sum(axis=1 - axis), end.shares, atol=1e-12)
            errors += [np.square(t.shares - table).sum() for t in (told, found)]
        assert errors[1] < less * errors[0]


def test_little_noise_does_not_favour_tables_of_few_levels():
    """Each two of four numbers depend on each other more than on a flag made of one of them."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, 1)) + rng.normal(size=(4000, 4))
    bank = pd.DataFrame(x[:, :2], columns=["a", "b"])
    bank["flag"] = np.where(x[:, 1] + rng.normal(size=4000) > 0.5, "yes", "no")
    parties = {"bank": bank, "court": pd.DataFrame(x[:, 2:], columns=["c", "d"])}
    agreed = {"max-epsilon": 100.0, "epsilon-total": 100.0}
    made = pd.concat(simulate(MST(epsilon=50.0), parties, policy=agreed).tables.values(), axis=1)
    found = made[list("abcd")].corr().to_numpy()[np.triu_indices(4, 1)]
    assert (found > 0.4).sum() >= 3  # edges of a tree; 0.5 in the tables


def test_aim_has_place_for_pairs_beyond_the_forest_with_little_noise():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 2)) @ rng.normal(size=(2, 6)) + rng.normal(size=(2000, 6))
    table = pd.DataFrame(z, columns=list("abcdef"))
    parties = {"left": table[list("abc")], "right": table[list("def")]}
    with seeded_noise(0):
        result = simulate(AIM(epsilon=200.0), parties, seed=0)
    made = pd.concat([of.reset_index(drop=True) for of in result.tables.values()], axis=1)
    gaps = (table.corr("spearman") - made.corr("spearman")).to_numpy()[np.triu_indices(6, 1)]
    assert np.sqrt(np.mean(np.square(gaps))) < 0.06  # 0.08 with 40 bins for each column


def test_one_party_alone_and_missing_cells():
    frame, _ = tables_of(n=1500)
    frame.loc[frame.index[:300], "visits"] = np.nan
    result = simulate(MST(epsilon=50.0, rows=500), {"all": frame})
    made = result.tables["all"]
    assert result.ledger.rounds == 7
    assert len(made) == 500
    assert made["visits"].isna().mean() == pytest.approx(0.2, abs=0.03)
    ages = made.groupby("level")["age"].mean()
    assert ages["low"] < ages["mid"] < ages["high"]


def test_whole_numbers_are_counted_in_bins_and_fractions_that_do_not_stand_out_are_missing():
    rng = np.random.default_rng(6)
    grade = rng.integers(0, 3, 200)
    table = pd.DataFrame({"grade": grade, "flag": grade > 0, "half": grade / 2})
    kinds = {"all": {"grade": "ordinal", "flag": "ordinal", "half": "ordinal"}}
    made = simulate(MST(epsilon=0.05), {"all": table}, kinds=kinds).tables["all"]
    assert made["half"].isna().all()
    assert not made["grade"].isna().all()
    # Names of true and false are public, whatever the noise.
    assert made["flag"].notna().any()
    exact = simulate(MST(epsilon=500.0), {"all": table}, kinds=kinds).tables["all"]
    assert (exact["flag"] == (exact["grade"] > 0)).mean() > 0.95


def test_stated_levels_are_all_named_and_no_others():
    rng = np.random.default_rng(8)
    town = rng.choice(["Ely", "Wells", "York"], 2000, p=[0.5, 0.49, 0.01])
    town[0] = "Thule"
    bank = pd.DataFrame({"town": pd.Categorical(town), "grade": rng.integers(0, 3, 2000)})
    court = pd.DataFrame({"debt": np.ones(2000), "open": np.ones(2000, dtype=bool)})
    levels = {"town": ["Wells", "Ely", "York", "Ripon"], "grade": [0, 1, 2]}
    parties = {"bank": bank, "court": court}
    result = simulate(MST(epsilon=30.0, levels=levels), parties)
    made = result.tables["bank"]["town"].value_counts()
    # Nor does the column's type name a level that one row alone has.
    assert {"Wells", "Ely", "York"} <= set(made.index) <= set(levels["town"])
    assert made["York"] == pytest.approx((town == "York").sum(), abs=8)
    assert made.get("Ripon", 0) <= 8
    assert set(result.tables["bank"]["grade"]) == {0, 1, 2}
    # A column of one value is no error, which would tell of the row that has another.
    assert result.tables["court"]["open"].mean() > 0.99
    assert result.tables["court"]["debt"].median() == 1


def test_a_row_moves_one_count_of_a_table_down_and_one_up(monkeypatch):
    """Replays: the noisy counts of a table are forced on another that differs in a row."""
    told, real = [], domain.noisy

    def recorded(counts, sigma, stream):
        told.append((np.asarray(counts), real(counts, sigma, stream)))
        return told[-1][1]

    def replayed(counts, sigma, stream):
        before, noised = told.pop(0)
        gap = counts - (before if len(before) == len(counts) else np.insert(before, place, 0))
        assert np.abs(gap).max() <= 1
        assert np.abs(gap).sum() <= 2
        return noised if len(before) == len(counts) else np.insert(noised, place, -1e6)

    for seed in range(4):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=1200)
        half = np.clip(np.round(2 * z) / 2, -2, 2) + 0.25 * (rng.random(1200) < 0.06)
        frame = pd.DataFrame({"half": half, "visits": rng.poisson(np.exp(z / 2))})
        frame["size"] = np.where(rng.random(1200) < 0.1, np.nan, np.exp(2 * z))
        other = frame.copy()
        other.loc[seed] = [-1.3, 50, 1e9]  # a level of its own, and two numbers far out
        place = int((np.unique(half) < -1.3).sum())
        for table, noisy in ((frame, recorded), (other, replayed)):
            monkeypatch.setattr(domain, "noisy", noisy)
            monkeypatch.setattr(party, "noisy", noisy)
            kinds = {"all": {"half": "ordinal", "visits": "count", "size": "continuous"}}
            simulate(MST(epsilon=3.0), {"all": table.astype({"visits": int})}, kinds=kinds)
        assert told == []


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ({"town": ["Ely"]}, "two or more different texts or numbers"),
        ({"town": "Ely"}, "two or more different texts or numbers"),
        ({"twon": ["Ely", "York"]}, "have 0 of the 1 columns that settings name: .'twon'."),
        ({"half": ["low", "high"]}, "column 'half': levels states texts"),
    ],
)
def test_levels_that_fit_no_column_are_refused(levels, said):
    table = pd.DataFrame({"town": ["Ely", "York"] * 100, "half": [0.5, 1.5] * 100})
    with pytest.raises((ConfigError, PartyError), match=said):
        simulate(MST(levels=levels), {"all": table})


@pytest.mark.fresh_noise
def test_two_runs_differ_and_say_what_they_promise():
    _, parties = tables_of(n=600)
    first, second = (simulate(MST(), parties) for _ in range(2))
    assert not first.tables["bank"]["age"].equals(second.tables["bank"]["age"])
    assert "replacing the values of one row, at all parties" in str(first.privacy)
    assert first.privacy.to_frame().loc["court", "epsilon"] == 1.0
    assert first.ledger.epsilon == {strategy.ALL: 1.0}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"chosen": True}, "all pairs of columns are told first"),
        ({"pairs": np.array([[0, 1]])}, "all pairs of columns are told first, got 1 of 6"),
        ({"pairs": np.array([[0, 1], [0, 1]] * 3)}, "each once"),
        ({"sizes": np.array([2, 2, 2, 2])}, "was told of other ones"),
    ],
)
def test_a_server_that_deviates_is_refused(wanted, said, monkeypatch):
    _, parties = tables_of(n=600)
    asked_for(monkeypatch, "open_counts", lambda common, own: common.update(wanted))
    with pytest.raises(PartyError, match=said):
        simulate(MST(), parties)


def test_a_party_that_sends_weights_reads_a_cell(monkeypatch):
    """Not covered: noise hides a row that counts once, and nobody sees whether it does."""
    real, row, weight = MarginalsParty._indicators, 11, np.array([400, -400]).astype(np.uint64)

    def weighted(self, start, stop):
        found = real(self, start, stop)
        found[row, :2] += weight * np.uint64(self.name == "mole")
        return found

    monkeypatch.setattr(MarginalsParty, "_indicators", weighted)
    for number, cell in enumerate(["no", "yes"]):
        rng = np.random.default_rng(number)
        ill = rng.choice(["no", "yes"], 2000)
        ill[row] = cell
        own = {
            "lever": rng.choice(["a", "b"], 2000),
            "hint": (ill == "yes") ^ (rng.random(2000) < 0.1),
        }
        parties = {"mole": pd.DataFrame(own), "ward": pd.DataFrame({"ill": ill})}
        made = simulate(MST(), parties).tables["mole"].groupby("lever")["hint"].mean()
        assert (made["a"] > made["b"]) == (cell == "yes")


def test_a_server_that_names_few_tables_gets_the_noise_of_a_partys_own(monkeypatch):
    _, parties = tables_of(n=600)
    real, counted = Budget.domain_sigma, set()
    monkeypatch.setattr(Budget, "domain_sigma", lambda self, n: counted.add(n) or real(self, n))
    lie = {"n_tables": 1}
    asked_for(monkeypatch, "send_levels", lambda common, own: common.update(lie))
    simulate(MST(), parties)
    numbers = {name: own.select_dtypes("number").shape[1] for name, own in parties.items()}
    assert counted == {own.shape[1] + 3 * numbers[name] for name, own in parties.items()}


def test_a_node_refuses_more_epsilon_than_it_agreed_to():
    _, parties = tables_of(n=600)
    with pytest.raises(PartyError, match=r"max-epsilon"):
        simulate(MST(), parties, policy={"max-epsilon": 0.5})


def test_columns_narrower_than_any_bin_need_bounds(caplog):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 4))
    bank = pd.DataFrame({"tiny": 1e-6 * z[:, 0], "usual": z[:, 1]})
    court = pd.DataFrame({"far": 1e5 + z[:, 2], "whole": 10**6 + np.rint(3 * z[:, 3])})
    bounds = {"tiny": (-5e-6, 5e-6), "far": (99995.0, 100005.0), "whole": (10**6 - 15, 10**6 + 15)}

    def widths(**settings):
        caplog.clear()
        with caplog.at_level("WARNING", "flwr_vertical"):
            made = simulate(MST(epsilon=8.0, **settings), {"bank": bank, "court": court}).tables
        middle = {}
        for name, real in {**bank, **court}.items():
            drawn = made["bank" if name in bank else "court"][name].dropna()
            own, found = (np.subtract(*np.percentile(v, (75, 25))) for v in (real, drawn))
            middle[name] = found / own
        return middle

    without = widths()
    assert "party 'bank': ['tiny']: without bounds, bins are half a percent" in caplog.text
    assert "party 'court': ['far', 'whole']: without bounds" in caplog.text
    assert 0.85 < without.pop("usual") < 1.15
    assert min(without.values()) > 20.0
    stated = widths(bounds=bounds)
    assert "without bounds" not in caplog.text
    assert all(0.75 < width < 1.3 for width in stated.values())
