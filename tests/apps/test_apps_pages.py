"""A party's own page: all that a run left there, each part drawn once."""

import io
import json
import logging
import re

import numpy as np
import pandas as pd
import pytest
from app_runs import own_files, run_app

from apps import storage
from flwr_vertical import Result
from flwr_vertical.errors import DataError
from flwr_vertical.reports import imputation, report, synthetic

STAGES = [
    {"name": "explore"},
    {"name": "impute", "strategy": "joint-normal"},
    {"name": "impute-again", "strategy": "mean"},
    {"name": "fit", "strategy": "glm", "penalty": "none"},
]
OPEN = {"policy.min-rows": 1, "policy.vectors": 999, "policy.exchanges": "sums"}


@pytest.fixture
def nodes(home):
    rng = np.random.default_rng(4)
    ids = pd.Index([f"s{i:03}" for i in range(300)], name="id")
    bank = pd.DataFrame(rng.normal(size=(300, 2)), index=ids, columns=["b0", "b1"])
    court = pd.DataFrame(rng.normal(size=(300, 2)), index=ids, columns=["c0", "c1"])
    labels = (bank["b0"] - court["c1"] + rng.normal(size=300)).rename("y")
    labels.to_csv(home / "labels.csv")
    bank = bank.mask(rng.random((300, 2)) < 0.15)
    return [node | OPEN for node in own_files(home, bank=bank, court=court)]


def pipeline(home, nodes, stages=STAGES, **settings):
    given = {"pipeline.stages": json.dumps(stages), "labels": str(home / "labels.csv")}
    run_app(nodes, strategy="pipeline", **given, **settings)


def headings(home, party="bank"):
    page = (home / f"{party}-out" / "test" / f"{party}.html").read_text()
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_party_s_page_has_the_sections_of_all_stages(home, nodes, pages, monkeypatch):
    drawn, before = [], imputation.distributions_figure
    monkeypatch.setattr(
        imputation, "distributions_figure", lambda *given: (drawn.append(1), before(*given))[1]
    )
    pipeline(home, nodes)
    assert len(drawn) == 2  # the gaps of 'bank', by each stage that imputes, and each once
    found = headings(home)
    for heading in ("explore: Correlations", "impute: How sure imputed values are",
                    "impute: Imputed and observed values", "What this run was told"):  # fmt: skip
        assert found.count(heading) == 1, found
    assert found.index("explore: Correlations") < found.index("impute: How sure imputed values are")
    # What a stage does not have is not another's.
    assert "impute-again: How sure imputed values are" not in found
    assert found.count("What is missing") == found.count("Settings") == 1


def test_what_two_stages_leave_under_one_name_is_all_there(home, nodes, pages):
    normal = {"strategy": "joint-normal", "draws": 2}
    stages = [{"name": "explore"}, {"name": "impute-a", **normal},
              {"name": "impute-b", **normal, "draws": 1}, {"name": "explore-after"}]  # fmt: skip
    pipeline(home, nodes, stages)
    found = {p.name.removeprefix("bank.") for p in (home / "bank-out" / "test").glob("bank.*")}
    first = {"explore.correlations", "impute-a", "impute-a.intervals", "impute-a.draw-1",
             "impute-a.draw-2"}  # fmt: skip
    last = {"correlations", "impute-b", "intervals", "draw-1"}  # without draws of the first
    assert {n.removesuffix(".parquet") for n in found} == first | last | {"parquet", "html"} | (
        found & {"model.npz"}
    )
    headed = headings(home)
    for stage in ("explore", "explore-after"):
        assert headed.count(f"{stage}: Correlations") == 1
    for stage in ("impute-a", "impute-b"):
        assert headed.count(f"{stage}: How sure imputed values are") == 1
    page = (home / "bank-out" / "test" / "bank.html").read_text()
    of = [page.split(f"<h2>{stage}: How sure")[1].split("</section>")[0] for stage in
          ("impute-a", "impute-b")]  # fmt: skip
    assert "b0" in of[0]  # of the cells that this stage completed


def test_a_run_that_breaks_off_leaves_the_page_of_what_it_got_to(home, nodes, pages):
    stages = [*STAGES[:2], {"name": "fit", "strategy": "glm", "family": "binomial"}]
    with pytest.raises(DataError, match="binomial"):
        pipeline(home, nodes, stages)
    assert "impute: Imputed and observed values" in headings(home)
    for name in ("bank", "court"):  # that name is used once more
        for kind in ("parquet", "model.npz"):
            (home / f"{name}-out" / "test" / f"{name}.{kind}").unlink()
    pipeline(home, nodes, [STAGES[0], STAGES[3]])
    found = headings(home)
    assert "explore: Correlations" in found
    assert not [heading for heading in found if heading.startswith("impute")]


def broken(*_, **__):
    raise RuntimeError("the pen broke")


@pytest.mark.broken_page
@pytest.mark.parametrize("what", ["a figure", "a comparison", "the facts", "the ledger"])
def test_a_page_that_fails_ends_no_run_and_says_what_failed(home, nodes, pages, monkeypatch, what):
    where, name = {
        "a figure": (imputation, "scatter_figure"),
        "a comparison": (Result, "compare_imputed"),
        "the facts": (report, "_own_facts"),
        "the ledger": (storage, "ledger_sections"),
    }[what]
    monkeypatch.setattr(where, name, broken)
    nodes[0]["hold-out"] = 0.1
    logged = run_with_log(lambda: pipeline(home, nodes, STAGES[:2]))
    assert "RuntimeError: the pen broke" in logged
    assert "Traceback" in logged
    assert (home / "results" / "server" / "test" / "report.html").exists()
    folder = home / "bank-out" / "test"
    assert pd.read_parquet(folder / "bank.parquet").notna().all(axis=None)
    if what == "the facts":  # there is no page without
        assert not (folder / "bank.html").exists()
        return
    not_shown = {
        "a figure": "impute: Imputed values: not shown",
        "a comparison": "impute: What was stored here: not shown",
        "the ledger": "Privacy ledger: not shown",
    }[what]
    found = headings(home)
    assert not_shown in found
    assert "explore: Correlations" in found
    assert ("What this run was told" in found) == (what != "the ledger")
    assert "RuntimeError: the pen broke" in (folder / "bank.html").read_text()
    assert ("impute: How sure imputed values are" in found) == (what == "the ledger")


@pytest.mark.broken_page
def test_a_grade_that_fails_ends_no_run(home, nodes, pages, monkeypatch):
    monkeypatch.setattr(synthetic, "grade", broken)
    logged = run_with_log(lambda: run_app(nodes, strategy="mst"))
    assert "RuntimeError: the pen broke" in logged
    assert "Traceback" in logged
    page = (home / "bank-out" / "test" / "bank.html").read_text()
    assert "Not graded: RuntimeError: the pen broke" in page
    assert "Synthetic and observed values" in page


def run_with_log(run):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("flwr_vertical").addHandler(handler)
    run()
    logging.getLogger("flwr_vertical").removeHandler(handler)
    return stream.getvalue()


def test_rows_that_are_no_samples_are_not_called_so(home, nodes):
    labels = {"labels": str(home / "binary.csv")}
    (pd.read_csv(home / "labels.csv", index_col=0) > 0).astype(int).to_csv(labels["labels"])
    run_app(nodes, strategy="scorecard", **labels)
    run_app(nodes, strategy="explore", run_name="told")
    for path, index in (("test/bank.bins", "row"), ("told/bank.correlations", "row"),
                        ("test/bank.points", "id")):  # fmt: skip
        assert pd.read_parquet(home / "bank-out" / f"{path}.parquet").index.name == index
