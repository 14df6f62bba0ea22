"""Reports in a real browser: on a phone, and on paper."""

import html
import shutil
import subprocess

import pandas as pd
import pytest
from test_results_report import full_result

from flwr_vertical.reports.report import report_html

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def page():
    result = full_result(extra=3)
    result.settings["a_setting_with_a_long_name"] = "a_value_without_any_space_" * 8
    index = pd.MultiIndex.from_tuples([("bank", f"v{i}") for i in range(20)])
    estimates = [0.5 + i for i in range(19)] + [123.75]
    result.coefficients = pd.DataFrame({"estimate": estimates}, index=index)  # folded
    return report_html(result)


def browse(folder, text, *options):
    file = folder / "page.html"
    file.write_text(text, "utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--hide-scrollbars", *options, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    return done.stdout


@pytest.mark.parametrize("width", [400, 1000])
def test_the_page_does_not_scroll_sideways(page, width, tmp_path):
    frame = (
        f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{html.escape(page)}" '
        "onload=\"document.body.prepend('scrolls over ' + "
        "this.contentDocument.documentElement.scrollWidth + ' pixels')\"></iframe>"
    )
    assert f"scrolls over {width} pixels" in browse(tmp_path, frame, "--dump-dom")


def test_on_paper_folded_tables_are_open(page, tmp_path):
    pypdfium2 = pytest.importorskip("pypdfium2")
    browse(tmp_path, page, f"--print-to-pdf={tmp_path / 'page.pdf'}")
    with pypdfium2.PdfDocument(tmp_path / "page.pdf") as document:
        printed = " ".join(sheet.get_textpage().get_text_range() for sheet in document)
    assert "All 20 estimates" in printed
    assert "123.8" in printed  # a row of the folded table
