"""Margins of real columns: trees of noisy counts, point masses, resolutions, levels, dates."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp, norm, spearmanr

from flwr_vertical import simulate
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.grading.quality_score import quality_score
from flwr_vertical.privacy import Keystream, seeded_noise
from flwr_vertical.registry import load_strategy
from flwr_vertical.tables import Kind, Table, check_table, read_table
from strategies import BUILTIN
from strategies.common.synthesis_columns import DateForm, days_of, read_columns, read_dates
from strategies.copula import EVCDS, VCDS, tree
from strategies.copula.histogram_cdf import smoothed
from strategies.copula.margins import Domain, level_margin
from strategies.copula.tree import decomposition, tree_margin
from strategies.fknn import FKNN
from strategies.marginals import MST

KEY = b"sixteen bytes ok"
INF = float("inf")
N = 2000


def draw(name, n=N):
    rng = np.random.default_rng(7)
    z = rng.normal(size=n)
    zero = rng.random(n) < 0.2
    return {
        "payments": np.where(zero, 0.0, np.round(np.exp(7 + 1.5 * z), 2)),
        "pareto": 1000 * rng.pareto(1.2, size=n),
        "cauchy": rng.standard_cauchy(n),
        "standard": z,
        "far": rng.normal(1000, 10, size=n),
        "rates": rng.beta(1, 200, size=n),
        "sentinel": np.where(zero, 999.0, rng.gamma(2, 20, size=n)),
        "counts": rng.negative_binomial(1, 0.2, size=n).astype(float),
        "years": rng.integers(1950, 2024, size=n).astype(float),
    }[name]


NAMES = ["payments", "pareto", "cauchy", "standard", "far", "rates", "sentinel", "counts", "years"]
SIMILAR = ["pareto", "standard", "rates", "counts"]  # to others of these
WHOLE = {"counts": 1.0, "years": 1.0, "payments": 0.01}


def distance(values, margin):
    made = margin.quantile((np.arange(len(values)) + 0.5) / len(values))
    return ks_2samp(values, made, method="asymp").statistic


# -- trees -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SIMILAR)) for name in NAMES]
)
def test_margins_fit_any_column_without_a_range(name):
    values, domain = draw(name), Domain(step=WHOLE.get(name, 0.0))
    assert distance(values, tree_margin(values, domain, INF, Keystream())) < 0.01
    stream = Keystream(KEY)
    assert distance(values, tree_margin(values, domain, 50.0, stream)) < 0.01
    found = [distance(values, tree_margin(values, domain, 0.5, stream)) for _ in range(5)]
    assert np.mean(found) < 0.05


@pytest.mark.parametrize("step", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("epsilon", [0.5, 50.0, INF])
def test_cells_cover_every_number_once(step, epsilon):
    values = draw("payments", 300)
    for low, high in ((-1e8, 1e8), (0.0, 1e8), (0.0, 1.0), (2.0, 5.0), (-3.0, 1e9)):
        domain = Domain(low, high, step)
        first, last = decomposition(np.sort(domain.snap(values)), domain, epsilon, Keystream(KEY))
        assert (first < last).all()
        np.testing.assert_array_equal(first[1:], last[:-1])
        for value in domain.snap([low, high, -1e12, 1e12, 0.0, 0.37, 5e7, -2.0]):
            assert np.count_nonzero((first <= value) & (value < last)) == 1


@pytest.mark.parametrize("epsilon", [0.5, 5.0, 50.0])
def test_cells_and_counts_spend_the_budget_together(monkeypatch, epsilon):
    """Whether cells are cut spends 4 / scale, however many levels there are; their counts 2."""
    scales = []

    def recorded(scale, count, stream):
        scales.append(float(scale))
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(tree, "laplace_integers", recorded)
    tree_margin(draw("payments"), Domain(), epsilon, Keystream())
    *cutting, counting = scales
    assert len(set(cutting)) == 1
    assert len(cutting) > 5
    assert 4 / cutting[0] + 2 / counting == pytest.approx(epsilon, rel=1e-4)
    assert 4 / cutting[0] + 2 / counting <= epsilon


def log_chance(values, domain, cells, epsilon):
    """Logarithm of the chance of one decomposition, by the definition of the algorithm."""
    ordered, scale = np.sort(domain.snap(values)), 4 / epsilon
    fall, total = max(int(np.ceil(scale * np.log(2))), 1), 0.0
    todo, a = [(*ends, 0) for ends in zip(*tree.roots(domain), strict=True)], np.exp(-1 / scale)
    while todo:
        low, high, depth = todo.pop()
        middle = float(tree.middles(np.array([low]), np.array([high]), domain)[0])
        if not low < middle < high or depth == 40:
            continue
        count = np.searchsorted(ordered, high) - np.searchsorted(ordered, low)
        x = max(count - depth * fall, -fall)
        # That x and integer noise of a scale together exceed 0.
        chance = a ** (1 - x) / (1 + a) if x < 1 else 1 - a**x / (1 + a)
        if (low, high) in cells:
            total += np.log1p(-chance)
            continue
        total += np.log(chance)
        todo += [(low, middle, depth + 1), (middle, high, depth + 1)]
    return total


@pytest.mark.parametrize(
    "epsilon", [1.0] + [pytest.param(e, marks=pytest.mark.slow) for e in (0.2, 8.0)]
)
@pytest.mark.parametrize("step", [0.0, 1.0])
def test_no_decomposition_tells_more_than_its_epsilon(epsilon, step):
    """Exact chances of what was drawn, under the table and one with a value replaced."""
    values, domain, stream = draw("payments", 60), Domain(step=step), Keystream(KEY)
    values[:20], largest = 7.0, 0.0
    for new in (7.0, 0.0, 1e7, -3.0):
        other = np.append(values[:-1], new)
        for table, neighbour in ((values, other), (other, values)):
            for _ in range(5):
                drawn = decomposition(np.sort(domain.snap(table)), domain, epsilon, stream)
                cells = set(zip(*drawn, strict=True))
                chances = [log_chance(t, domain, cells, epsilon) for t in (table, neighbour)]
                assert abs(chances[0] - chances[1]) <= epsilon + 1e-9
                largest = max(largest, abs(chances[0] - chances[1]))
    assert largest > 0.2 * epsilon


@pytest.mark.parametrize(("name", "mass"), [("payments", 0.0), ("sentinel", 999.0)])
def test_point_masses_are_found(name, mass):
    values = draw(name)
    share = (values == mass).mean()
    for epsilon, within in ((0.5, 0.06), (50.0, 0.005)):
        margin = tree_margin(values, Domain(), epsilon, Keystream(KEY))
        made = margin.quantile((np.arange(N) + 0.5) / N)
        assert (made == mass).mean() == pytest.approx(share, abs=within)
        assert np.diff(margin.atoms, axis=1).max() == pytest.approx(share, abs=within)
    # At an odd number, too, where the budget allows.
    values = draw("standard")
    values[:500] = 0.123456789
    made = tree_margin(values, Domain(), 50.0, Keystream(KEY)).quantile(np.linspace(0, 1, N))
    assert (made == 0.123456789).mean() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("centre", [0.0, 10.0])
def test_smooth_columns_stay_smooth_and_their_tails_short(centre):
    """What regressions on synthetic tables need: spread, and a straight line to the real values."""
    spread, straight = [], []
    for seed in range(6):
        values = np.sort(np.random.default_rng(seed).normal(centre, 1.0, N))
        margin = tree_margin(values, Domain(), 0.5, Keystream(bytes([seed] * 16)))
        made = margin.quantile((np.arange(N) + 0.5) / N)
        spread.append(made.std() / values.std())
        straight.append(np.corrcoef(values, made)[0, 1] ** 2)
        assert np.abs(made - centre).max() < 30  # noise may fill one cell more
    assert np.median(spread) == pytest.approx(1.0, abs=0.05)
    assert np.median(straight) > 0.99


def test_what_noise_does_not_explain_is_not_smoothed_away():
    scores = np.linspace(-2.0, 2.0, 30)
    bent = np.where(scores < 0, scores, scores + 3.0)  # a gap in the middle
    exact, curve = (smoothed(bent, norm.cdf(scores), error, (-9.0, 9.0)) for error in (1e-4, 0.2))
    assert (np.diff(curve, axis=0) >= 0).all()
    if exact is not None:
        missed = np.interp(bent, *exact.T) - norm.cdf(scores)
        assert np.abs(missed).max() < 1e-3


def test_values_keep_range_and_resolution():
    margin = tree_margin(draw("payments"), Domain(0.0, 5000.0, 0.01), 0.5, Keystream())
    made = margin.quantile(np.linspace(0, 1, 1001))
    assert made.min() == 0
    assert made.max() <= 5000
    np.testing.assert_array_equal(made, np.round(made, 2))


# -- kinds and levels ------------------------------------------------------------------------


def test_columns_are_read_as_what_they_hold():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "scaled": rng.choice([-0.7, 1.4], size=500),
            "grades": rng.choice([1.0, 1.3, 1.7, 2.0], size=500),
            "nearly": rng.integers(-5, 90, size=500) + 1e-9,
            "row": np.arange(7000, 7500),
            "x": rng.normal(size=500),
            "paid": np.round(rng.gamma(1, 50, size=500), 2),
        }
    )
    found = read_columns(Table.of(frame), {"paid": 0.01, "elsewhere": 1.0}, "party 'a'")
    assert found.recast == ["scaled", "grades"]
    assert found.table.kinds["grades"] is Kind.ORDINAL
    assert found.steps == {"nearly": 1.0, "row": 1.0, "x": 0.0, "paid": 0.01}
    assert found.like_ids == ["row"]
    named, stated = frame.assign(name=[f"n{i}" for i in range(500)]), {"row": "categorical"}
    for table, resolution, said in (
        (Table.of(frame), {"paid": 0.5}, r"'paid': its resolution is stated as 0\.5, but"),
        (Table.of(named), {}, r"'name' has 500 levels in 500 rows.*identifies people"),
        (Table.of(frame, stated), {}, r"'row' has 500 levels.*'continuous' or 'count'"),
    ):
        with pytest.raises(DataError, match=said):
            read_columns(table, resolution, "party 'a'")


def test_small_numbers_are_no_whole_ones():
    z = np.random.default_rng(3).normal(size=500)
    frame = pd.DataFrame({"tons": 1e-9 * z, "nothing": 1e-9 * (z > 9), "near": 1e-9 + np.rint(z)})
    found = read_columns(Table.of(frame, dict.fromkeys(frame, "continuous")), {}, "party 'a'")
    assert found.steps == {"tons": 0.0, "nothing": 1.0, "near": 1.0}
    assert found.like_ids == []


def test_values_beyond_the_range_are_said_before_anything_is_spent(caplog):
    z = np.random.default_rng(4).normal(size=600)
    revenue = pd.DataFrame({"revenue": np.exp(23 + z), "debt": np.exp(14 + 2 * z)})
    tables, labels = {"a": revenue, "b": pd.DataFrame({"x": z})}, 1e9 * pd.Series(z)
    run = {"seed": 3, "progress": False}
    said = "most values of ['revenue'] lie beyond"
    with pytest.raises(PartyError, match="'a'.*" + re.escape(said) + ".*state bounds"):
        simulate(VCDS(epsilon=20.0), tables, **run)
    with pytest.raises(DataError, match="the labels: most values of"):
        simulate(VCDS(epsilon=20.0), {"b": tables["b"]}, labels, **run)
    stated = VCDS(epsilon=20.0, bounds={"revenue": (0, 1e13)})
    made = simulate(stated, tables, **run).tables["a"]["revenue"]
    assert ks_2samp(made, revenue["revenue"]).statistic < 0.05
    assert "['debt']: values beyond +-1e+08" in caplog.text  # a few are
    simulate(VCDS(epsilon=20.0, margin="bernstein"), tables, **run)  # takes the range observed
    caplog.clear()
    simulate(MST(epsilon=20.0), tables, **run)  # may not tell by an error
    assert "party 'a': ['revenue', 'debt']: values beyond +-1e+08" in caplog.text


def test_rare_levels_are_put_together():
    codes, expected = np.repeat([0, 1, 2, 3, 4], [400, 3, 500, 2, 95]), {
        # least and number of "other": levels that are left, and the place of each among them
        (10, 5): ([0, 2, 4, 5], [0, 3, 1, 3, 2]), (10, None): ([0, 2, 4], [0, 0, 1, 1, 2]),
        (10, 3): ([0, 2, 3, 4], [0, 2, 1, 2, 3]), (0, 5): ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
    }  # fmt: skip
    for (least, other), (values, place) in expected.items():
        made = level_margin(codes, 5, INF, Keystream(), least=least, other=other)
        assert (made.margin.values.tolist(), made.place.tolist()) == (values, place)
        if (least, other) == (10, 5):
            np.testing.assert_allclose(made.margin.cumulative, [0.4, 0.9, 0.995, 1.0])


def test_a_level_of_one_row_moves_no_row_of_others():
    without = np.repeat([0, 1, 2], [100, 9, 100])
    alone = np.append(np.repeat([0, 2, 3], [100, 9, 100]), 1)
    first, second = (
        level_margin(codes, 4, INF, Keystream(), least=10, other=None).place[codes]
        for codes in (without, alone)
    )
    assert np.array_equal(first, second[:-1])


def test_the_stated_chance_of_a_name_is_that_of_the_noise():
    stream, codes = Keystream(KEY), np.array([0] * 300 + [1])
    told = [level_margin(codes, 2, 1.0, stream, least=5, other=2) for _ in range(1000)]
    share = np.mean([1 in made.margin.values for made in told])
    # Integer noise of scale 2: P(noise >= 4) = e^-2 / (1 + e^-1/2); 4 standard errors.
    assert share == pytest.approx(np.exp(-2) / (1 + np.exp(-0.5)), abs=0.035)
    assert told[0].chance == pytest.approx(np.exp(-2) / (1 + np.exp(-0.5)), rel=1e-9)


# -- as strategies ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    rng, n = np.random.default_rng(3), 600
    frame = pd.DataFrame(
        {
            "paid": draw("payments", n),
            "grade": rng.choice([1.0, 1.3, 2.0], size=n),
            "town": np.array(["Delft", "Gent", "Ulm"])[rng.integers(0, 3, size=n)],
            "size": pd.Categorical(["a", "b", "c"] * 200),
        }
    )
    frame.loc[:2, "town"] = "Atlantis"
    frame.loc[3, "size"] = "b"
    frame["size"] = frame["size"].cat.add_categories("rare")
    frame.loc[5, "size"] = "rare"
    return {"a": frame, "b": pd.DataFrame({"x": rng.normal(size=n), "y": rng.normal(size=n)})}


def test_a_run_says_what_it_doubts_and_names_nothing(real):
    settings = {"resolution": {"paid": 0.01}, "bounds": {"paid": (0, 1e6)}}
    result = simulate(VCDS(100.0, **settings), real)
    made = result.tables["a"]
    assert ks_2samp(made["paid"], real["a"]["paid"]).statistic < 0.03
    assert set(made["town"]) == {"Delft", "Gent", "Ulm", "other"}
    assert set(made["size"]) == {"a", "b", "c", "other"}
    assert set(made["grade"]) == {1.0, 1.3, 2.0}
    notes = " ".join(result.notes)
    assert "1 column of numbers with few values" in notes
    assert "observed range" not in notes
    assert "paid" not in notes
    low = simulate(VCDS(0.3), real)
    assert "epsilon 0.3 is too small for their rows. 0.45 would do" in " ".join(low.notes)
    assert simulate(VCDS(1.0), real).notes[-1] not in low.notes[-1:]


def test_nodes_must_agree_to_rows_that_follow_real_ones(real, monkeypatch):
    strategy = EVCDS(1.0, rearrange=True)
    with pytest.raises(PartyError, match="exchange 'rearranged-rows'"):
        simulate(strategy, real, policy={})
    result = simulate(strategy, real)
    assert result.needed_keys["a"]["policy.exchanges"] == "rearranged-rows"
    again = simulate(strategy, real, policy=result.needed_keys)
    assert "follows the perturbed ranks" in str(again.privacy)
    assert "policy.exchanges" not in str(simulate(EVCDS(1.0), real).needed_keys)
    # Refused by the release itself, too, where the run config did not say so at the greeting.
    monkeypatch.setattr(EVCDS, "exchanges_asked", ())
    with pytest.raises(PartyError, match=r"'perturb'.* exchange 'rearranged-rows'"):
        simulate(strategy, real, policy={})


# -- dates -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bank():
    """Three years of dates, in several forms, one of them with gaps."""
    rng = np.random.default_rng(0)
    days = 18_600 + np.floor(1000 * rng.beta(2, 1, size=N)).astype(int)
    dates = pd.Series(pd.to_datetime(days, unit="D"), [f"s{i}" for i in range(N)])
    seconds = pd.to_datetime(86_400 * days + rng.integers(86_400, size=N), unit="s")
    return pd.DataFrame(
        {
            "opened": dates.where(rng.random(N) > 0.1),
            "signed": dates.dt.strftime("%d.%m.%Y"),
            "stamp": seconds.tz_localize("UTC").tz_convert("Europe/Berlin").as_unit("s"),
            "balance": days / 100 + rng.normal(size=N),
        },
        dates.index,
    )


def run(strategy, tables):
    with seeded_noise(0):
        return simulate(strategy, tables, seed=0)


def days(column):
    form = read_dates(column, Kind.CATEGORICAL, 20) if column.dtype.kind != "M" else None
    return days_of(column.dropna(), form).to_numpy()


@pytest.mark.parametrize(
    ("epsilon", "limit"), [(1.0, 0.08), pytest.param(100.0, 0.03, marks=pytest.mark.slow)]
)
def test_dates_come_back_as_they_came(bank, epsilon, limit):
    made = run(VCDS(epsilon), {"bank": bank}).tables["bank"]
    assert made.dtypes.to_dict() == bank.dtypes.to_dict()
    assert not made.isna().any().any()
    assert made["signed"].str.fullmatch(r"\d\d\.\d\d\.\d{4}").all()
    assert (made["opened"] == made["opened"].dt.normalize()).all()
    assert (made["stamp"].dt.second > 0).any()
    for name in ("opened", "signed", "stamp"):
        assert ks_2samp(days(bank[name]), days(made[name]), method="asymp").statistic < limit, name
    for name in ("opened", "signed"):
        expected = spearmanr(days(bank[name]), bank["balance"][bank[name].notna()]).statistic
        correlation = spearmanr(days(made[name]), made["balance"]).statistic
        assert correlation == pytest.approx(expected, abs=0.05)


def test_a_report_the_score_and_a_file_take_points_in_time(bank, tmp_path):
    table = bank.iloc[:500]
    parts = {"a": table[["opened", "balance"]], "b": table[["stamp"]]}
    result = run(EVCDS(1e6), parts)
    score = quality_score(parts, result.tables)
    assert score.shapes.min() > 0.95
    assert score.trends.min() > 0.95
    assert result.report(tmp_path / "run").exists()
    note = next(one for one in check_table(bank) if one.code == "points-in-time")
    assert note.column == "opened"
    assert set(re.findall(r"\w+", note.seen)) & set(BUILTIN) == {
        name for name in BUILTIN if load_strategy(name).party.takes_dates
    }
    bank.to_parquet(tmp_path / "bank.parquet")
    assert read_table(tmp_path / "bank.parquet").kinds["opened"] is Kind.DATE
    with pytest.raises(DataError, match="'opened' of party 'a' holds dates, which this method"):
        simulate(FKNN(), parts)


@pytest.mark.parametrize(
    "pattern",
    ["%Y-%m-%d", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M"],
)
def test_text_is_read_and_written_in_its_form(pattern):
    times = np.random.default_rng(1).integers(10**9, 16 * 10**8, size=200)
    texts = pd.Series(pd.to_datetime(times, unit="s").strftime(pattern), name="x")
    texts = texts.mask(np.arange(200) == 7)
    columns = read_columns(Table.of(texts.to_frame()), {}, "party 'a'")
    assert columns.dates["x"].pattern == pattern
    assert columns.table.kinds["x"] is Kind.CONTINUOUS
    assert columns.steps["x"] == 1 / (86_400 if "%S" in pattern else 1440 if "%M" in pattern else 1)
    back = columns.dates["x"].written(columns.table.frame["x"].dropna())
    pd.testing.assert_series_equal(back, texts.dropna())


def test_what_is_no_date_for_certain_stays_text():
    many = pd.Series([f"2024-01-{d:02}" for d in range(1, 32)])
    assert read_dates(many, Kind.CATEGORICAL, 20) is not None
    ambiguous = [f"{d:02}/{m:02}/2024" for d in range(1, 13) for m in range(1, 13)]
    for name, values in {
        "ambiguous": ambiguous,
        "short": [f"{d:02}.{m:02}.24" for d in range(1, 13) for m in range(1, 13)],
        "one is none": [f"2024-01-{d:02}" for d in range(1, 31)] + ["2024-02-31"],
        "names": [f"name {i}" for i in range(144)],
        "few": [f"2024-{m:02}-01" for m in range(1, 13)] * 20,
        "stated levels": many.astype("category"),
    }.items():
        assert read_dates(pd.Series(values), Kind.CATEGORICAL, 20) is None, name
    with pytest.raises(DataError, match=r"144 levels in 144 rows.*dates, write the year first"):
        read_columns(Table.of(pd.DataFrame({"x": ambiguous})), {}, "party 'a'")


def test_a_stated_resolution_of_dates_is_in_days(bank):
    weeks = pd.to_datetime(7 * (days(bank["signed"]) // 7), unit="D")
    frame = pd.DataFrame({"week": weeks, "balance": bank["balance"].to_numpy()})
    made = run(VCDS(1.0, resolution={"week": 7}), {"bank": frame}).tables["bank"]
    assert (days(made["week"]) % 7 == 0).all()
    with pytest.raises(PartyError, match="column 'opened': its resolution is stated as 7"):
        run(VCDS(1.0, resolution={"opened": 7}), {"bank": bank})


def test_what_pandas_cannot_hold_becomes_its_ends():
    made = DateForm(np.dtype("datetime64[ns]"), "", 0.0).written(pd.Series([-1e8, 0.25, 1e8]))
    assert made.dt.year.tolist() == [1679, 1970, 2260]
    assert made[1] == pd.Timestamp("1970-01-01 06:00")
    # On 2023-03-26 clocks in Berlin go from 2 to 3; on 2023-10-29 from 3 back to 2.
    hours = pd.Series(pd.to_datetime(["2023-03-26 02:30", "2023-10-29 02:30"]))
    zone = pd.DatetimeTZDtype("ns", "Europe/Berlin")
    assert DateForm(zone, "", 1 / 86_400).written(days_of(hours)).dt.hour.tolist() == [3, 2]


def test_values_too_close_together_without_bounds_are_said(caplog):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 4)) * [1e-12, 1e-12, 1.0, 1e-4] + [0.0, 0.0, 1e7, 1e7]
    tables = {"a": pd.DataFrame(values, columns=["tiny", "ranged", "far", "farther"])}
    tables["b"] = tables["a"].rename(columns=str.upper)[["FAR"]]
    bounds = {"ranged": (-1e-11, 1e-11)}
    made = simulate(VCDS(epsilon=100, bounds=bounds), tables).tables["a"]
    [said] = [text for text in caplog.messages if "closer together" in text]
    assert said.startswith("party 'a': ['farther', 'tiny']: without bounds")
    # On a grid as was said, and where bounds are stated nearly as given.
    assert made["tiny"].nunique() < 10
    assert made["ranged"].quantile([0.25, 0.75]).to_numpy() == pytest.approx(
        np.quantile(values[:, 1], [0.25, 0.75]), abs=1e-13
    )
