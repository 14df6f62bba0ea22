import numpy as np
import pandas as pd
import pytest
from app_runs import home  # noqa: F401

from flwr_vertical.pages.page import render_page
from flwr_vertical.reports import report


@pytest.fixture
def pages():
    """For tests that look at what a page shows."""


@pytest.fixture(autouse=True)
def _empty_pages(request, monkeypatch):
    """A page takes a second to draw, and a run makes one for the server and each party."""
    if "pages" not in request.fixturenames:
        monkeypatch.setattr(
            report, "report_html", lambda result, **_: render_page(result.strategy, [])
        )
        monkeypatch.setattr(report, "stage_sections", lambda *_, **__: ())


@pytest.fixture
def bank():
    index = pd.Index([f"c{i}" for i in range(40)], name="customer")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(40, 3)), columns=["u", "v", "w"], index=index)
    table.loc["c3", "u"] = np.nan
    return table


@pytest.fixture
def court(bank):
    rng = np.random.default_rng(1)
    return pd.DataFrame({"debts": rng.normal(size=40)}, index=bank.index).drop(index=["c5", "c9"])
