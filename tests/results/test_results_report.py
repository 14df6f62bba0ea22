import warnings
from concurrent.futures import ThreadPoolExecutor

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from browser import browse, needs_chromium, scroll_width
from test_results_page import Checker

from flwr_vertical.errors import ConfigError, StorageError
from flwr_vertical.pages.figures import (
    coefficients_figure,
    history_figure,
    label,
    new_figure,
    plain,
    to_svg,
)
from flwr_vertical.reports import missingness
from flwr_vertical.reports.coefficients import path_figure, spread_of
from flwr_vertical.reports.report import report_html
from flwr_vertical.result import Result
from flwr_vertical.results import imputation
from flwr_vertical.results.ledger import Message

BAD = "<script>x</script> $a^$ & co"


def full_result(n: int = 80, extra: int = 0, with_truth: bool = True) -> Result:
    """A run with missing blocks, categories, string IDs and awkward names."""
    rng = np.random.default_rng(0)
    index = pd.Index([f"id-{i}" for i in range(n)])
    truth = {
        "bank": pd.DataFrame(
            {
                "income": rng.normal(50, 10, n),
                BAD: rng.normal(size=n),
                "sector": rng.choice(["farm", "trade", "state"], n),
                "owner": rng.random(n) < 0.5,
                **{f"v{j}": rng.normal(size=n) for j in range(extra)},
            },
            index=index,
        ),
        BAD: pd.DataFrame({"age": rng.integers(18, 90, n).astype(float)}, index=index),
    }
    originals, tables = {}, {}
    for party, table in truth.items():
        given = table.mask(rng.random(table.shape) < 0.2).drop(index[rng.random(n) < 0.1])
        originals[party] = given
        after = given.reindex(index)
        for column in after:
            common = given[column].mode().iloc[0]
            after[column] = after[column].astype(object).fillna(common).astype(table[column].dtype)
        tables[party] = after
    keys = [("bank", "income"), (BAD, "age"), ("server", "(Intercept)")]
    coefficients = pd.DataFrame(
        {
            "estimate": [0.25, -1.0, 900.0],
            "ci_low": [0.1, -1.5, 800.0],
            "ci_high": [0.4, -0.5, 1e3],
        },
        index=pd.MultiIndex.from_tuples(keys, names=["party", "variable"]),
    )
    result = Result(
        "FKNN",
        settings={"n_neighbors": 5, "note": BAD, "none": None},
        metrics={"rmse": 0.98765, BAD: float("nan")},
        party_metrics={"bank": {"rmse": 0.5}, BAD: {"accuracy": 0.75}},
        history=[{"iteration": i, "loss": 10.0**-i, "note": BAD, "flag": True} for i in range(9)],
        tables=tables,
        originals=originals,
        truth=truth if with_truth else {},
        coefficients=coefficients,
        notes=[BAD],
        disclosure=[("server", BAD)],
        figures={BAD: "<svg xmlns='x'></svg>", "dots": b"\x89PNG"},
    )
    result.ledger.add(Message(1, "fit", "call", "bank", 5, 4321, 10, 0.1))
    result.ledger.add(Message(2, "end", "open", "bank", 5, 9, 0, 0.1))
    result.ledger.spend("bank", 0.125, BAD)
    return result


@pytest.fixture(scope="module")
def page(drawing) -> str:
    with drawing():
        return report_html(full_result())


def test_page_is_self_contained_and_escaped(page):
    checker = Checker(page)  # also fails on any script tag and any outside link
    assert "<script" not in page
    assert checker.seen.count("img") == 7
    assert "<script>x</script>" in "".join(checker.text)


def test_page_holds_the_numbers(page):
    text = " ".join(Checker(page).text)
    for part in ("0.9877", "4.3 kB", "0.125", "n_neighbors", "0.25", "open", "total"):
        assert part in text
    for heading in (
        "Notes", "Metrics", "What is missing", "Imputed against true values", "Convergence",
        "Coefficients", "Figures of the strategy", "What it cost", "Who learned what", "Settings",
    ):  # fmt: skip
        assert f"<h2>{heading}</h2>" in page


def test_without_truth_distributions_are_shown(drawn):
    found = full_result(with_truth=False)
    page = report_html(Result("FKNN", originals=found.originals, tables=found.tables))
    Checker(page)
    assert "Imputed and observed values" in page
    assert "against true" not in page


def test_the_minimum_result_has_a_page(tmp_path):
    path = Result("VFEM").report(tmp_path)
    assert path == tmp_path / "report.html"
    assert "VFEM" in " ".join(Checker(path.read_text("utf-8")).text)
    assert "2 May 2031" in report_html(Result("X"), date="2 May 2031")


def test_mask_alone_shows_which_party_holds_which_sample(drawn):
    mask = np.random.default_rng(0).random((5000, 3)) < 0.3
    page = report_html(Result("VFEM", mask=mask))
    Checker(page)
    assert "Which party holds which sample" in page
    assert f"{mask.mean():.1%}" in page


@pytest.mark.slow
def test_large_runs_stay_below_three_megabytes(drawn):
    page = report_html(full_result(n=6000, extra=40))
    assert len(page.encode()) < 3_000_000
    Checker(page)


def test_report_may_name_the_file_and_refuses_files_of_others(tmp_path):
    path = Result("X").report(tmp_path / "mine.html")
    assert path.name == "mine.html"
    Result("X").report(path)  # ours: replaced
    (tmp_path / "report.html").write_text("<p>somebody's</p>")
    with pytest.raises(ConfigError, match="another file"):
        Result("X").report(tmp_path)
    assert (tmp_path / "report.html").read_text() == "<p>somebody's</p>"
    for place in (path, path / "x"):  # a folder cannot be where a file is
        with pytest.raises(StorageError, match=r"mine\.html is a file, expected a folder"):
            Result("X").report(place / "page.html")
        with pytest.raises(StorageError, match=r"mine\.html is a file, expected a folder"):
            Result("X").save(place / "result")


@pytest.mark.slow
def test_reports_may_be_drawn_in_threads_whatever_users_set_for_matplotlib(page, drawn):
    before = dict(mpl.rcParams)
    ours = {"text.usetex": True, "figure.facecolor": "black", "font.family": "none"}
    with mpl.rc_context(ours), ThreadPoolExecutor(2) as pool:
        pages = list(pool.map(lambda _: report_html(full_result()), range(2)))
    assert Checker(pages[0]).text == Checker(pages[1]).text == Checker(page).text
    assert dict(mpl.rcParams) == before


def test_states_tell_cells_from_blocks():
    a = pd.DataFrame({"x": [1.0, np.nan], "z": ["u", None]}, index=["p", "q"])
    b = pd.DataFrame({"y": [3.0, 4.0]}, index=["r", "q"])
    state, parties, columns = missingness.states({"a": a, "b": b})
    assert (parties, columns) == (["a", "a", "b"], ["x", "z", "y"])
    np.testing.assert_array_equal(state, [[0, 0, 2], [1, 1, 0], [2, 2, 0]])
    empty = pd.DataFrame({"x": pd.Series([], dtype=float)})
    state, _, _ = missingness.states({"a": empty, "b": pd.DataFrame({"y": [1.0]}, index=["s"])})
    np.testing.assert_array_equal(state, [[2, 0]])
    Checker(report_html(Result("X", originals={"a": empty})))


def test_errors_against_the_truth_by_hand():
    index = list("abcd")
    given = pd.DataFrame({"x": [1.0, np.nan, np.nan, 9.0], "c": ["u", None, None, "v"]}, index)
    after = pd.DataFrame({"x": [1.0, 4.0, 6.0, 9.0], "c": ["u", "u", "v", "v"]}, index)
    truth = pd.DataFrame({"x": [1.0, 3.0, 9.0, 9.0], "c": ["u", "u", "u", "v"]}, index)
    columns = imputation.imputed_columns({"p": given}, {"p": after}, {"p": truth})
    errors = imputation.imputation_quality(columns)
    x = errors.loc[("p", "x"), ["cells", "rmse", "rmse_mean"]].tolist()
    assert x == pytest.approx([2, np.sqrt((1 + 9) / 2), np.sqrt((4 + 16) / 2)])
    assert errors.loc[("p", "c"), "accuracy"] == 0.5
    # Levels of other types compare by value.
    given = pd.DataFrame({"b": [True, None, None]}, dtype=object)
    after = pd.DataFrame({"b": [1.0, 1.0, 0.0]})
    truth = pd.DataFrame({"b": [True, True, True]})
    (column,) = imputation.imputed_columns({"p": given}, {"p": after}, {"p": truth})
    assert not column.numeric
    assert imputation.imputation_quality([column]).loc[("p", "b"), "accuracy"] == 0.5


@pytest.mark.parametrize("known", [True, False])
def test_odd_imputed_values_are_drawn(known, drawn):
    odd = {"x": [np.inf, 2.0, 3.0], "y": [1.0, 1.0, 1.0], "z": [1e300, -1e300, 0.0]}
    given = pd.DataFrame({name: [np.nan] * 3 + [5.0] for name in odd} | {"never": [np.nan] * 4})
    after = {name: [*values, 5.0] for name, values in odd.items()}
    after = pd.DataFrame(after | {"never": [1.0, 2.0, 3.0, 4.0]})
    truth = {"p": pd.DataFrame({name: [1.0, 2.0, 3.0, 5.0] for name in odd})} if known else {}
    result = Result("X", originals={"p": given}, tables={"p": after}, truth=truth)
    page = Checker(report_html(result))  # raises where the page is not whole
    assert page.seen.count("img") >= 2  # what is missing, and the imputed values


def test_what_cannot_be_drawn_has_no_figure(drawn):
    for history in ([], [{"stage": "a"}, {"stage": "b"}], [{"round": 1, "loss": 1.0}]):
        assert history_figure(history) is None
    odd = [{"a": 1.0}, {"b": 2}, {"a": np.float32(3), "b": np.nan}, {"b": np.inf}]
    assert history_figure(odd).startswith("<svg")
    estimates = pd.DataFrame({"estimate": np.arange(300.0)})
    assert coefficients_figure(estimates).startswith("<svg")
    assert coefficients_figure(estimates.iloc[:0]) is None


def test_the_header_names_run_version_date_seed_and_call():
    result = Result("fknn", name="july", call="FKNN(n_neighbors=3)", version="9.8.7")
    result.finished, result.settings = "2031-05-02 10:00 UTC", {"seed": 4}
    text = " ".join(Checker(report_html(result)).text)
    assert "flwr-vertical 9.8.7 · run report · july · 2031-05-02 10:00 UTC · seed 4" in text
    assert "FKNN(n_neighbors=3)" in text


def test_metrics_are_explained_and_the_most_telling_one_comes_first():
    metrics = {"rows_merged": 0.0, "test_r2": 0.25, "own": 1.0}
    page = report_html(Result("glm", metrics=metrics))
    text = " ".join(Checker(page).text)
    assert "A run; test_r2 0.25." in text
    assert "1 is perfect, 0 is the mean; on samples held out of the fit." in text
    assert page.index(">test_r2<") < page.index(">rows_merged<")
    assert "meaning" not in report_html(Result("x", metrics={"own": 1.0}))


def test_tables_without_gaps_have_a_sentence_and_no_figure():
    whole = pd.DataFrame({"x": [1.0, 2.0]})
    page = report_html(Result("x", originals={"p": whole}))
    assert "No cell and no block is missing." in page
    assert "<img" not in page


def test_estimates_per_standard_deviation_stand_beside_those_per_unit():
    table = pd.DataFrame({"x": [0.0, 200.0], "town": ["a", "b"]})
    keys = [("p", "x"), ("p", "town=b"), ("q", "z")]
    index = pd.MultiIndex.from_tuples(keys, names=["party", "variable"])
    result = Result("x", coefficients=pd.DataFrame({"estimate": [0.5, 2.0, 1.0]}, index=index))
    assert "standard deviations" not in report_html(result)
    result.originals = {"p": table}
    assert "Standardised is by how much" in report_html(result)
    assert spread_of(table, "x") == pytest.approx(np.std([0, 200], ddof=1))
    assert spread_of(table, "town=b") == pytest.approx(np.std([0, 1], ddof=1))
    assert spread_of(table, "town") is None
    assert spread_of(table, "other") is None


def test_a_path_of_fits_is_drawn_with_the_lambda_that_was_chosen(drawn):
    path = pd.DataFrame({"bic": [3.0, 1.0, 2.0]}, index=[1.0, 0.5, 0.1])
    estimates = pd.DataFrame(np.arange(6.0).reshape(2, 3), index=[("p", "x"), ("p", "y")])
    assert path_figure(path, estimates, chosen=0.5).startswith("<svg")
    assert path_figure(path.iloc[:2], estimates.iloc[:, :2]) is None
    assert path_figure(path, 0.0 * estimates) is None


@pytest.mark.parametrize("name", ["销售额", "ग्राहक", "收入 $€"])
def test_a_name_that_the_font_lacks_stays_text_for_the_viewers_fonts(name, drawn):
    figure, (ax,) = new_figure(2.0)
    label(ax, plain(name), "x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of glyphs that are missing
        drawn = to_svg(figure)
    assert f">{name}</text>" in drawn
    assert "sans-serif" in drawn


# -- a party's own page ----------------------------------------------------------------------


def test_a_party_s_page_names_it_and_shows_the_rows_that_it_got():
    before = pd.DataFrame({"x": [1.0, None, 3.0], "y": [1.0, 2.0, 3.0]}, index=["a", "b", "c"])
    row = pd.DataFrame({"x": [7.5], "y": [8.5]}, index=["aligned-3"])
    synthetic = pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]}, index=["s1", "s2"])

    def text_of(after):
        tables = {} if after is None else {"bank": after}
        originals = {"bank": before}
        result = Result("fknn", parties=["bank"], originals=originals, tables=tables, name="r7")
        return " ".join(Checker(report_html(result, party="bank")).text)

    text = text_of(pd.concat([before.fillna(9.0), row]))
    for part in (
        "bank: fknn", "party report · r7", "Rows that it got", "aligned-3",
        "Party 'bank' gave 3 rows of 2 columns; 1 of its missing cells are filled in",
        "it got 1 row that only others had", "16.7%",  # one of six cells
    ):  # fmt: skip
        assert part in text
    text = text_of(synthetic)
    assert "got 2 synthetic rows" in text
    assert "Rows that it got" in text
    assert "its table is unchanged" in text_of(None)
    assert "Rows that it got" not in text_of(before.fillna(0.0))


# -- in a real browser: on a phone, and on paper ----------------------------------------------


@pytest.fixture(scope="module")
def wide_page(drawing):
    result = full_result(extra=3)
    result.settings["a_setting_with_a_long_name"] = "a_value_without_any_space_" * 8
    index = pd.MultiIndex.from_tuples([("bank", f"v{i}") for i in range(20)])
    estimates = [0.5 + i for i in range(19)] + [123.75]
    result.coefficients = pd.DataFrame({"estimate": estimates}, index=index)  # folded
    with drawing():
        return report_html(result)


@needs_chromium
@pytest.mark.parametrize("width", [320, 390, 1000])
def test_the_page_does_not_scroll_sideways(wide_page, width, tmp_path):
    assert scroll_width(tmp_path, wide_page, width) == width


@needs_chromium
def test_on_paper_folded_tables_are_open(wide_page, tmp_path):
    pypdfium2 = pytest.importorskip("pypdfium2")
    browse(tmp_path, wide_page, f"--print-to-pdf={tmp_path / 'page.pdf'}")
    with pypdfium2.PdfDocument(tmp_path / "page.pdf") as document:
        printed = " ".join(sheet.get_textpage().get_text_range() for sheet in document)
    assert "All 20 estimates" in printed
    assert "123.8" in printed  # a row of the folded table
