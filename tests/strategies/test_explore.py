"""Exploration: pandas, scipy and statsmodels on the pooled table are the oracles."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats.contingency import association
from statsmodels.stats.outliers_influence import variance_inflation_factor

from flwr_vertical import Result, simulate
from flwr_vertical.errors import DataError, PartyError
from strategies.explore import Explore, columns
from tests.kit.deviations import asked_for

NUMBERS = ["income", "age", "debts", "cases"]


def tables_of(n=700, gaps=0.0, lost=0, seed=0):
    """Two parties' tables with numbers, flags and levels, that one factor relates."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=n)
    bank = pd.DataFrame({
        "income": np.exp(0.5 * factor + rng.normal(size=n)),
        "age": rng.integers(18, 90, n),
        "owner": np.where(factor + rng.normal(size=n) > 0, "yes", "no"),
        "region": rng.choice(["n", "e", "s", "w"], n, p=[0.3, 0.3, 0.2, 0.2]),
    })  # fmt: skip
    court = pd.DataFrame({
        "debts": factor + rng.normal(size=n),
        "cases": rng.poisson(np.exp(0.5 * factor)),
        "kind": np.where(factor > 0.6, "a", np.where(factor < -0.6, "b", "c")),
    })  # fmt: skip
    for table in (bank, court):
        for name in table.columns if gaps else ():
            table.loc[rng.random(n) < gaps, name] = np.nan
    return {
        "bank": bank.sample(n - lost, random_state=seed),
        "court": court.sample(n - lost, random_state=seed + 1),
    }


def explored(tables, **options):
    options = {"min_rows": 1, "progress": False, "alignment": "plain"} | options
    return simulate(Explore(), tables, **options)


def found(result, measure):
    """Return a measure as a mapping of pairs of variables."""
    frame = result.correlations[result.correlations["measure"] == measure]
    return {
        frozenset((line.variable, line.other_variable)): line
        for line in frame.itertuples(index=False)
    }


def pooled(tables):
    return tables["bank"].join(tables["court"], how="outer")


def eta(levels, values):
    """Eta by its definition, from the table itself."""
    kept = levels.notna() & values.notna()
    levels, values = levels[kept], values[kept].astype(float)
    means = values.groupby(levels).transform("mean")
    return np.sqrt(((means - values.mean()) ** 2).sum() / ((values - values.mean()) ** 2).sum())


@pytest.mark.parametrize(("gaps", "lost"), [(0.0, 0), (0.15, 120)])
def test_it_equals_the_pooled_table(gaps, lost):
    tables = tables_of(gaps=gaps, lost=lost)
    both, result = pooled(tables), explored(tables)
    both["owner"] = both["owner"].map({"no": 0.0, "yes": 1.0})
    names = [*NUMBERS, "owner"]
    r = both[names].corr()
    told = found(result, "correlation")
    assert len(told) == 10
    for a, b in itertools.combinations(names, 2):
        line = told[frozenset((a, b))]
        assert line.value == pytest.approx(r.loc[a, b], abs=1e-9)
        assert line.n == (both[a].notna() & both[b].notna()).sum()
        half = 1.959963984540054 / np.sqrt(line.n - 3)
        assert line.high == pytest.approx(np.tanh(np.arctanh(line.value) + half), abs=1e-9)
    ranks = both[names].rank().corr()  # each party's own ranks
    for a, b in itertools.combinations(names, 2):
        line = found(result, "rank correlation")[frozenset((a, b))]
        assert line.value == pytest.approx(ranks.loc[a, b], abs=1e-9)
        if not gaps:
            assert line.value == pytest.approx(both[[a, b]].corr("spearman").iloc[0, 1], abs=1e-9)
    for a, b in (("region", "kind"), ("owner", "kind"), ("owner", "region")):
        table = pd.crosstab(both[a], both[b]).to_numpy()
        value = found(result, "cramers v")[frozenset((a, b))].value
        assert value == pytest.approx(association(table, method="cramer"), abs=1e-9)
    for a, b in itertools.product(("region", "kind"), NUMBERS):
        value = found(result, "eta")[frozenset((a, b))].value
        assert value == pytest.approx(eta(both[a], both[b]), abs=1e-9)
    variables = result.variables
    for party, table in tables.items():
        for name in table.columns:
            line = variables.loc[party, name]
            assert line["n"] == table[name].notna().sum()
            assert line["missing"] == pytest.approx(table[name].isna().mean(), abs=1e-12)
            if name in NUMBERS:
                assert line["mean"] == pytest.approx(table[name].mean(), rel=1e-9)
                assert line["std"] == pytest.approx(table[name].std(), rel=1e-9)


def test_columns_of_32_bits_as_of_many_rows(monkeypatch):
    tables = tables_of(gaps=0.15)
    double = found(explored(tables, min_rows=30), "correlation")
    monkeypatch.setattr(columns, "_SINGLE", 100)
    single = found(explored(tables, min_rows=30), "correlation")
    assert single.keys() == double.keys()
    for pair, line in single.items():
        assert line.value == pytest.approx(double[pair].value, abs=1e-5)


def test_inflation_is_that_of_statsmodels():
    tables = tables_of()
    both, result = pooled(tables), explored(tables)
    both["owner"] = (both["owner"] == "yes").astype(float)
    design = both[["income", "age", "owner", "debts", "cases"]].assign(one=1.0).to_numpy(float)
    vif = result.variables["vif"].dropna().droplevel("party")
    for j, name in enumerate(["income", "age", "owner", "debts", "cases"]):
        assert vif[name] == pytest.approx(variance_inflation_factor(design, j), rel=1e-8)


def test_gaps_go_together_as_pandas_has_them():
    tables = tables_of(gaps=0.2)
    tables["court"].loc[tables["bank"].index[:200], "debts"] = np.nan
    tables["bank"].loc[tables["bank"].index[:200], "income"] = np.nan
    missing = pooled(tables).isna().astype(float).corr()
    told = found(explored(tables), "gaps")
    for a, b in (("income", "debts"), ("age", "kind"), ("owner", "cases"), ("income", "age")):
        assert told[frozenset((a, b))].value == pytest.approx(missing.loc[a, b], abs=1e-9)


def test_who_holds_the_same_samples_is_counted_and_small_sets_are_together():
    frame = pd.DataFrame({"x": np.arange(1000.0)})
    tables = {
        "a": frame.iloc[:700],
        "b": frame.iloc[100:].rename(columns={"x": "y"}) % 7,
        "c": frame.iloc[50:720].rename(columns={"x": "z"}) % 31,
    }
    labels = pd.Series(np.where(frame.index < 500, 1.0, np.nan))
    overlap = explored(tables, min_rows=60, labels=labels).overlap
    assert overlap["samples"].tolist() == [600, 280, 120]
    assert overlap["labelled"].tolist() == [400, 0, 100]
    assert overlap[["a", "b", "c"]].iloc[2].isna().all()
    assert explored(tables, min_rows=1).overlap["samples"].tolist() == [600, 280, 50, 50, 20]


def test_rounds_and_what_a_party_gets(monkeypatch):
    tables, kept = tables_of(gaps=0.1, lost=50), {}
    from strategies.explore.party import ExploreParty

    def save(self, frame, beside=""):
        kept[self.name, beside] = frame
        return ""

    monkeypatch.setattr(ExploreParty, "save_output", save)
    result = explored(tables)
    after = result.ledger.to_frame().drop_duplicates("round")["step"].tolist()[2:]
    assert after == [
        "prepare_exploration", "seal_group_seed", "send_masked", "open_pairs", "finish_exploration"
    ]  # fmt: skip
    page = kept["court", "correlations"]
    across = result.correlations.query("party == 'bank' and other_party == 'court'")
    assert len(page) == len(across)
    for line in across.itertuples():
        chosen = page.query(
            "variable == @line.other_variable and other == 'bank.' + @line.variable "
            "and measure == @line.measure"
        )
        assert abs(chosen["value"].item() - line.value) <= 0.5 / np.sqrt(line.n) + 1e-12


def test_levels_that_are_withheld_count_as_one():
    rng = np.random.default_rng(3)
    n = 3000
    level = rng.choice(list("abcd"), n, p=[0.5, 0.3, 0.15, 0.05])
    x = rng.normal(size=n) + (level == "a") - 2.0 * (level == "d")
    bank = pd.DataFrame({"x": x})[: n - 200]
    court = pd.DataFrame({"level": level})
    result = explored({"bank": bank, "court": court}, min_rows=None)
    # Of the 200 rows that only the court holds, some 10 have level d: sums over these may tell.
    assert result.variables.loc[("court", "level"), "levels"] == 4
    # So the bank's variable is told of by the other levels, and what is left.
    rest = court["level"].replace({"c": "rest", "d": "rest"})
    [line] = found(result, "eta").values()
    assert line.value == pytest.approx(eta(rest, bank["x"].reindex(court.index)), abs=1e-9)


def test_report_and_saved_result(tmp_path, drawn):
    """All of its figures are drawn here."""
    tables = tables_of(gaps=0.1)
    result = explored(tables, labels=labels_for(tables))
    assert len([svg for svg in result.figures.values() if "<path" in svg]) == 3
    page = result.report(tmp_path).read_text("utf-8")
    for title in ("Who holds the same samples", "How variables go together", "Variables"):
        assert title in page
    loaded = Result.load(result.save(tmp_path / "result"))
    pd.testing.assert_frame_equal(loaded.correlations, result.correlations)
    pd.testing.assert_frame_equal(loaded.variables, result.variables)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda court: court.assign(day=pd.Timestamp("2020-01-01")),
         "column 'day' of party 'court' holds dates, .*convert it to a number of days"),
        (lambda court: court.set_axis(range(5000, 5700)), "no common sample"),
        (lambda court: court.iloc[-40:], "share at most 40, and need 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_explored_is_said(change, words):
    tables = tables_of()
    with pytest.raises(DataError, match=words):
        explored({"bank": tables["bank"], "court": change(tables["court"])}, min_rows=None)


def test_constant_and_nearly_complete_columns_are_named():
    tables = tables_of()
    tables["bank"]["same"] = 1.0
    tables["bank"].loc[tables["bank"].index[0], "income"] = np.nan
    result = explored(tables, min_rows=None)
    notes = " ".join(result.notes)
    assert "missing cells of income are not told of" in notes
    assert np.isnan(result.variables.loc[("bank", "income"), "missing"])
    assert frozenset(("same", "debts")) not in found(result, "correlation")


def labels_for(tables, seed=5):
    both, rng = pooled(tables), np.random.default_rng(seed)
    score = both["debts"].fillna(0.0) + 0.02 * (both["age"].fillna(50.0) - 50.0)
    y = (score + rng.logistic(size=len(both)) > 0.3).astype(float)
    return y.where(rng.random(len(both)) < 0.7).rename("default")


def test_a_party_that_nothing_may_be_told_of_leaves_the_others_as_they_are():
    rng, n = np.random.default_rng(0), 150
    ids = [f"s{i}" for i in range(n)]
    rare = pd.DataFrame({"r": ["x"] * (n - 1) + ["y"]}, index=ids)
    known = pd.DataFrame(rng.normal(size=(n, 2)), columns=["v", "w"], index=ids)
    for parties in ({"a": rare, "b": known}, {"b": known, "c": rare}):
        result = simulate(Explore(), parties, progress=False)
        found = result.frames["correlations"].query("measure == 'correlation'")
        assert found[["party", "other_party"]].to_numpy().tolist() == [["b", "b"]]
        assert found["value"].item() == pytest.approx(known.corr().loc["v", "w"])
        assert any("nothing is told of r" in note for note in result.notes)
    with pytest.raises(DataError, match="nothing may be told of any variable"):
        simulate(Explore(), {"a": rare, "b": rare}, progress=False)


def test_information_value_is_counted_by_hand():
    tables = tables_of(n=1200, gaps=0.1, lost=200)
    labels = labels_for(tables)
    result = explored(tables, labels=labels)
    bins = result.weight_of_evidence
    for party, variable in (("court", "kind"), ("bank", "region")):
        y = labels.reindex(tables[party].index)
        cells = tables[party][variable].fillna("missing")
        events = pd.crosstab(cells[y.notna()], y.dropna())
        share = events / events.sum()
        own = bins.sort_index().xs((party, variable))
        assert own["n"].to_dict() == events.sum(axis=1).to_dict()
        assert own["events"].to_dict() == events[1.0].to_dict()
        woe = np.log(share[0.0] / share[1.0])
        pd.testing.assert_series_equal(
            own["woe"].sort_index(), woe.sort_index(), check_names=False, rtol=1e-9
        )
        iv = ((share[0.0] - share[1.0]) * woe).sum()
        assert result.information_value.loc[(party, variable), "iv"] == pytest.approx(iv, abs=1e-9)
        free = cells[y.isna()].value_counts(normalize=True)
        with_label = cells[y.notna()].value_counts(normalize=True)
        psi = ((with_label - free) * np.log(with_label / free)).sum()
        assert result.variables.loc[(party, variable), "psi"] == pytest.approx(psi, abs=1e-9)
    order = result.information_value["iv"].to_list()
    assert order == sorted(order, reverse=True)
    assert result.information_value.index[0] == ("court", "debts")


def test_numbers_as_labels_have_eta_by_bin_and_two_rounds_more():
    tables = tables_of(n=1200)
    both = pooled(tables)
    labels = (both["debts"] + 0.1 * both["cases"]).rename("loss")
    result = explored(tables, labels=labels)
    value = result.information_value.loc[("court", "kind"), "eta"]
    assert value == pytest.approx(eta(both["kind"], labels), abs=1e-9)
    far = explored(tables, labels=labels + 1e9)  # of which sums keep no digit of eta
    own, moved = (one.information_value["eta"].sort_index() for one in (result, far))
    pd.testing.assert_series_equal(own, moved, rtol=1e-6)
    mean = far.weight_of_evidence.sort_index().loc[("court", "kind"), "mean"]
    expected = (labels + 1e9).groupby(both["kind"]).mean()
    np.testing.assert_allclose(mean, expected, atol=1e-4)
    steps = result.ledger.to_frame().drop_duplicates("round")["step"].tolist()
    assert steps[-3:] == ["send_bins", "open_bins", "finish_exploration"]
    assert len(steps) - 2 == 7  # after greeting and alignment


@pytest.mark.slow
def test_rows_are_chosen_so_that_labels_tell_of_few_rows_neither():
    tables = tables_of(n=1200)
    few = pd.Series(1.0, index=range(1200))
    few[::2], few[:40] = 0.0, np.nan  # 40 rows without a label
    result = explored(tables, labels=few, min_rows=100)
    assert "40 rows took no part" in " ".join(result.notes)
    assert (result.weight_of_evidence["unlabelled"].isna()).all()
    assert result.weight_of_evidence.groupby(level=[0, 1])["n"].sum().eq(1160).all()
    scarce = few.where(few.index >= 1150)
    result = explored(tables, labels=scarce, min_rows=100)
    assert "information_value" not in result.frames
    assert "nothing is told of the labels" in " ".join(result.notes)
    same = explored(tables, labels=few * 0.0, min_rows=100)
    assert "all labels are the same" in " ".join(same.notes)


def test_where_few_lack_a_label_the_labels_are_told_of_over_fewer_rows_and_pairs_over_all():
    tables = tables_of(n=1600, lost=300)
    labels = pd.Series(np.arange(1600) % 2 * 1.0)
    labels[::8] = np.nan  # of the rows that one party alone holds, some 30
    result = explored(tables, labels=labels, min_rows=100)
    both = tables["bank"].index.intersection(tables["court"].index)
    assert f"labels is over {len(both):,} of" in " ".join(result.notes)
    told = result.weight_of_evidence.groupby(level=[0, 1])[["n", "unlabelled"]].sum()
    assert told["n"].eq(labels[both].notna().sum()).all()
    assert told["unlabelled"].eq(labels[both].isna().sum()).all()
    assert result.variables["n"].eq(1300).all()


def test_cells_of_which_few_are_missing_in_a_set_of_rows_count_as_the_mean():
    """160 of 1,600 could be told of, 32 of the 320 rows that one party alone holds could not."""
    tables = tables_of(n=2000, lost=400, gaps=0.1)
    result = explored(tables, min_rows=None)
    assert "missing cells of income, age" in " ".join(result.notes)
    filled = pooled({name: table.fillna(table.mean(numeric_only=True)) for name, table in
                     tables.items()})[["income", "debts"]].dropna()  # fmt: skip
    line = found(result, "correlation")[frozenset(("income", "debts"))]
    assert line.value == pytest.approx(filled.corr().iloc[0, 1], abs=1e-9)


def test_a_party_refuses_labels_that_single_out_few_of_the_shared_rows(monkeypatch):
    opened = Explore._open_labels

    def deviating(self, federation, group_key, labels, held, taken, result):
        chosen = np.array(held.all(axis=1))
        chosen[np.flatnonzero(chosen)[:3]] = False  # all shared rows but three
        labels = np.where(chosen, labels, np.nan)
        opened(self, federation, group_key, labels, held, np.ones_like(taken), result)

    monkeypatch.setattr(Explore, "_open_labels", deviating)
    labels = pd.Series(np.arange(1200) % 2 * 1.0)
    with pytest.raises(
        PartyError, match="sums that tell of 3 of its rows alone, with what was opened before"
    ):
        explored(tables_of(n=1200, lost=250), labels=labels, min_rows=50)


def test_ranks_and_gaps_are_left_out_where_rows_are_few():
    tables = tables_of(n=700, gaps=0.3)
    assert "too few rows" not in " ".join(explored(tables, min_rows=10).notes)
    ids = tables["bank"].index[:100]
    few = {name: table.loc[ids] for name, table in tables.items()}
    result = explored(few, min_rows=10)
    notes = " ".join(result.notes)
    assert "too few rows for ranks, or for telling which cells are missing" in notes
    assert not found(result, "rank correlation")
    filled = pooled(few)[["age", "debts"]]
    filled = filled.fillna(filled.mean())
    line = found(result, "correlation")[frozenset(("age", "debts"))]
    assert line.value == pytest.approx(filled.corr().iloc[0, 1], abs=1e-9)


def test_a_crafted_column_reads_a_cell_no_finer_than_a_standard_deviation(monkeypatch):
    """What docs/privacy.md says of parties that craft their tables."""
    from strategies.explore.party import ExploreParty

    pages = {}
    monkeypatch.setattr(
        ExploreParty, "save_output", lambda self, frame, beside="": pages.update({self.name: frame})
    )
    rng = np.random.default_rng(0)
    bank = pd.DataFrame({"income": rng.normal(size=900)})
    z = ((bank["income"] - bank["income"].mean()) / bank["income"].std()).to_numpy()
    rows = rng.choice(900, 20, replace=False)
    crafted = {f"row {i}": (np.arange(900) == i) + 1e-6 * rng.normal(size=900) for i in rows}
    explored({"bank": bank, "court": pd.DataFrame(crafted)})
    page = pages["court"].query("measure == 'correlation'").set_index("variable")["value"]
    read = np.array([page[f"row {i}"] for i in rows]) * 30.0
    np.testing.assert_allclose(read, np.rint(z[rows]), atol=0.1)


def test_a_server_cannot_tell_one_party_of_other_holders(monkeypatch):
    def deviating(common, own):
        held = np.array(common["held"])
        held[np.flatnonzero(held.all(axis=1))[:1], 1] = False  # one row of the court's less
        own["bank"] = {"held": held}

    asked_for(monkeypatch, "open_pairs", deviating)
    with pytest.raises(PartyError, match="are the same for all parties"):
        explored(tables_of(lost=100))
