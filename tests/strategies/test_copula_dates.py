"""Dates in synthetic tables: taken as days, written back as they came; refused elsewhere."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp, spearmanr

from flwr_vertical import simulate
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.grading import quality_score
from flwr_vertical.privacy import seeded_noise
from flwr_vertical.tables import Kind, Table, check_table, read_table
from strategies.copula import EVCDS, VCDS
from strategies.copula.columns import read_columns
from strategies.copula.dates import DateForm, days_of, read_dates
from strategies.fknn import FKNN

N = 2000


def draw(n=N):
    """A bank's table: three years of dates, in several forms, one of them with gaps."""
    rng = np.random.default_rng(0)
    days = 18_600 + np.floor(1000 * rng.beta(2, 1, size=n)).astype(int)
    dates = pd.Series(pd.to_datetime(days, unit="D"), [f"s{i}" for i in range(n)])
    seconds = pd.to_datetime(86_400 * days + rng.integers(86_400, size=n), unit="s")
    return pd.DataFrame(
        {
            "opened": dates.where(rng.random(n) > 0.1),
            "signed": dates.dt.strftime("%d.%m.%Y"),
            "stamp": seconds.tz_localize("UTC").tz_convert("Europe/Berlin").as_unit("s"),
            "balance": days / 100 + rng.normal(size=n),
        },
        dates.index,
    )


def run(strategy, tables):
    with seeded_noise(0):
        return simulate(strategy, tables, seed=0, progress=False)


@pytest.fixture(scope="module")
def table():
    return draw()


def days(column):
    form = read_dates(column, Kind.CATEGORICAL, 20) if column.dtype.kind != "M" else None
    return days_of(column.dropna(), form).to_numpy()


@pytest.mark.parametrize(("epsilon", "limit"), [(1.0, 0.08), (100.0, 0.03)])
def test_dates_come_back_as_they_came(table, epsilon, limit):
    made = run(VCDS(epsilon), {"bank": table}).tables["bank"]
    assert made.dtypes.to_dict() == table.dtypes.to_dict()
    assert not made.isna().any().any()
    assert made["signed"].str.fullmatch(r"\d\d\.\d\d\.\d{4}").all()
    assert (made["opened"] == made["opened"].dt.normalize()).all()
    assert (made["stamp"].dt.second > 0).any()
    for name in ("opened", "signed", "stamp"):
        real, synthetic = days(table[name]), days(made[name])
        assert ks_2samp(real, synthetic, method="asymp").statistic < limit, name
    for name in ("opened", "signed"):
        found = spearmanr(days(made[name]), made["balance"]).statistic
        seen = table[name].notna()
        real = spearmanr(days(table[name]), table["balance"][seen]).statistic
        assert found == pytest.approx(real, abs=0.05)


def test_a_report_and_the_score_take_points_in_time(table, tmp_path):
    table = table.iloc[:500]
    parts = {"a": table[["opened", "balance"]], "b": table[["stamp"]]}
    result = run(EVCDS(1e6), parts)
    score = quality_score(parts, result.tables)
    assert score.shapes.min() > 0.95
    assert score.trends.min() > 0.95
    assert result.report(tmp_path / "run").exists()


@pytest.mark.parametrize(
    "pattern",
    ["%Y-%m-%d", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M"],
)
def test_text_is_read_and_written_in_its_form(pattern):
    rng = np.random.default_rng(1)
    times = pd.to_datetime(rng.integers(10**9, 16 * 10**8, size=200), unit="s")
    texts = pd.Series(times.strftime(pattern), name="x").mask(np.arange(200) == 7)
    columns = read_columns(Table.of(texts.to_frame()), {}, "party 'a'")
    form = columns.dates["x"]
    assert form.pattern == pattern
    assert columns.table.kinds["x"] is Kind.CONTINUOUS
    parts = 86_400 if "%S" in pattern else 1440 if "%M" in pattern else 1
    assert columns.steps["x"] == 1 / parts
    back = form.written(columns.table.frame["x"].dropna())
    pd.testing.assert_series_equal(back, texts.dropna())


def test_what_is_no_date_for_certain_stays_text():
    texts = {
        "ambiguous": [f"{d:02}/{m:02}/2024" for d in range(1, 13) for m in range(1, 13)],
        "short": [f"{d:02}.{m:02}.24" for d in range(1, 13) for m in range(1, 13)],
        "one is none": [f"2024-01-{d:02}" for d in range(1, 31)] + ["2024-02-31"],
        "names": [f"name {i}" for i in range(144)],
    }
    for name, values in texts.items():
        assert read_dates(pd.Series(values), Kind.CATEGORICAL, 20) is None, name
    few = pd.Series([f"2024-{m:02}-01" for m in range(1, 13)] * 20)
    assert read_dates(few, Kind.CATEGORICAL, 20) is None
    many = pd.Series([f"2024-01-{d:02}" for d in range(1, 32)])
    assert read_dates(many, Kind.CATEGORICAL, 20) is not None
    assert read_dates(many.astype("category"), Kind.CATEGORICAL, 20) is None
    with pytest.raises(DataError, match=r"144 levels in 144 rows.*dates, write the year first"):
        read_columns(Table.of(pd.DataFrame({"x": texts["ambiguous"]})), {}, "party 'a'")


def test_a_stated_resolution_of_dates_is_in_days(table):
    weeks = pd.to_datetime(7 * (days(table["signed"]) // 7), unit="D")
    frame = pd.DataFrame({"week": weeks, "balance": table["balance"].to_numpy()})
    made = run(VCDS(1.0, resolution={"week": 7}), {"bank": frame}).tables["bank"]
    assert (days(made["week"]) % 7 == 0).all()
    with pytest.raises(PartyError, match="column 'opened': its resolution is stated as 7"):
        run(VCDS(1.0, resolution={"opened": 7}), {"bank": table})


def test_what_pandas_cannot_hold_becomes_its_ends():
    far = pd.Series([-1e8, 0.25, 1e8])
    made = DateForm(np.dtype("datetime64[ns]"), "", 0.0).written(far)
    assert made.dt.year.tolist() == [1679, 1970, 2260]
    assert made[1] == pd.Timestamp("1970-01-01 06:00")
    # On 2023-03-26 clocks in Berlin go from 2 to 3; on 2023-10-29 from 3 back to 2.
    hours = pd.Series(pd.to_datetime(["2023-03-26 02:30", "2023-10-29 02:30"]))
    zone = pd.DatetimeTZDtype("ns", "Europe/Berlin")
    clock = DateForm(zone, "", 1 / 86_400).written(days_of(hours))
    assert clock.dt.hour.tolist() == [3, 2]


def test_other_methods_refuse_points_in_time(table):
    parts = {"a": table[["opened", "balance"]], "b": table[["balance"]]}
    with pytest.raises(DataError, match="'opened' of party 'a' holds dates, which this method"):
        simulate(FKNN(), parts, progress=False)


def test_a_file_with_points_in_time_is_read_and_the_check_notes_it(table, tmp_path):
    (note,) = [one for one in check_table(table) if one.code == "points-in-time"][:1]
    assert note.column == "opened"
    assert "only vcds, evcds and ievcds" in note.seen
    table.to_parquet(tmp_path / "bank.parquet")
    assert read_table(tmp_path / "bank.parquet").kinds["opened"] is Kind.DATE
