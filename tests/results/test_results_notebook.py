"""Results, reports and progress in a notebook: what a real kernel is told to show."""

import re

import pandas as pd
import pytest
from test_results_page import Checker
from test_results_report import BAD, full_result

from flwr_vertical.pages.page import GENERATOR
from flwr_vertical.reports.notebook import ReportPath, result_html
from flwr_vertical.result import Result


def test_a_result_as_html_has_summary_notes_and_a_figure():
    html = result_html(full_result())
    checker = Checker(html)  # no script, nothing from elsewhere
    text = " ".join(checker.text)
    for part in ("FKNN", "2 parties", "4.3 kB up", "rmse", "0.9877", BAD):
        assert part in text
    assert "<script>" not in html
    assert checker.seen.count("img") == 1
    assert 'title="Root mean squared difference' in html


def test_the_smallest_result_and_one_with_an_odd_table_are_shown():
    assert "VFEM" in result_html(Result("VFEM"))
    odd = Result("X", coefficients=pd.DataFrame({"estimate": ["a"]}))
    assert "X" in result_html(odd)


def test_the_figure_is_the_one_that_says_most():
    result = full_result()
    assert "Imputed against true values" in result_html(result)
    result.tables = {}
    assert ">Coefficients<" in result_html(result)
    result.coefficients = None
    assert ">Convergence<" in result_html(result)


def test_a_report_is_a_path_that_shows_the_page(tmp_path):
    path = Result("X", history=[{"iteration": i, "loss": 0.5**i} for i in range(9)]).report(
        tmp_path
    )
    assert path == tmp_path / "report.html"
    assert path.is_file()
    assert isinstance(path, ReportPath)
    frame = path._repr_html_()
    assert frame is not None
    assert frame.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert " sandbox " in frame[-200:].replace('"', " ") or " sandbox " in frame
    assert "class=&quot;framed&quot;" in frame
    assert path.parent._repr_html_() is None  # a folder is no report
    path.unlink()
    assert path._repr_html_() is None


def test_a_file_of_somebody_else_is_not_shown(tmp_path):
    other = tmp_path / "report.html"
    other.write_text("<p>mine</p>")
    assert ReportPath(other)._repr_html_() is None
    other.write_text(f"{GENERATOR}<body>ours")
    assert "ours" in ReportPath(other)._repr_html_()


def test_the_repr_of_a_result_is_short():
    result = Result("X", metrics={f"m{i}": 0.5 for i in range(30)})
    assert "and 24 more metrics" in repr(result)
    assert len(repr(result)) < 300


# One kernel for all that only a kernel can show: it takes seconds to start.
_CELLS = (
    "from flwr_vertical import load_demo, simulate\n"
    "from flwr_vertical.results import Progress, displays\n"
    "from strategies.fknn import FKNN\n"
    "import time\n"
    "demo = load_demo('wine')\n"
    "result = simulate(FKNN(), demo.parties, progress=False)",
    "result",
    "with Progress('long', total=2) as p:\n"
    "    p.round(3, 'moments', ['bank', 'court'])\n"
    "    time.sleep(1.3)\n"
    "    p.step('fit')\n"
    "    drawn = []\n"
    "    p._display._handle.update, real = drawn.append, p._display._handle.update\n"
    "    time.sleep(1.3)\n"
    "    p._display._handle.update = real\n"
    "print([html.data for html in drawn])",
    "with Progress('short', total=1) as p:\n    p.step('x')",
    "with Progress('off', total=1, enabled=False) as p:\n    p.step('x')",
)


@pytest.fixture(scope="module")
def cells():
    """Outputs of each cell, as a kernel sent them."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in _CELLS])
    nbclient.NotebookClient(book, timeout=240, kernel_name="python3").execute()
    return [
        [o for o in cell.outputs if o.get("name") != "stderr"]  # a kernel's own warnings
        for cell in book.cells
    ]


@pytest.mark.slow
def test_a_kernel_shows_the_result_and_nothing_of_a_silent_run(cells):
    assert cells[0] == []
    (shown,) = cells[1]
    assert "fknn" in shown.data["text/plain"]
    assert "<img src=" in shown.data["text/html"]


@pytest.mark.slow
def test_a_kernel_shows_progress_while_it_changes(cells):
    line, printed = cells[2]
    assert re.fullmatch(r"<small>long: done after 2\.\d s</small>", line.data["text/html"])
    live = printed["text"]
    assert "round 3: moments at bank, court" in live
    assert "1/2" in live
    assert "left" in live  # the time that is left


@pytest.mark.slow
def test_a_short_run_leaves_no_line_and_one_without_progress_nothing(cells):
    assert [o.data["text/html"] for o in cells[3]] == [""]
    assert cells[4] == []
