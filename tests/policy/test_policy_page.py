"""A party's own report says what has left its node, against the limits of its policy."""

import re
import stat

import pytest
from ledgered import Nodes, labels_of, tables

from apps.storage import AppStorage
from strategies.copula import VCDS
from strategies.fknn import FKNN
from strategies.predict import Predict
from strategies.vfem import VFEM


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Four runs: imputed, fitted, predicted, synthesised; and a fifth that is refused."""
    parties = tables()
    parties["bank"].iloc[::5, 0] = float("nan")
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), parties, AppStorage(), **{"min-rows": 20})
    nodes.state(policy_epsilon_total=40, policy_openings=150)
    nodes.run(FKNN(n_neighbors=2))
    nodes.write(tables())
    result = nodes.run(VFEM(), labels_of(tables(), unlabelled=20))
    nodes.run(Predict(result), fitted="run 2")
    nodes.refused("epsilon-total", VCDS(epsilon=2.0))
    nodes.run(VCDS(epsilon=0.1))
    return nodes


def text_of(page):
    """A page's rows of tables, without tags, one a line."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, flags=re.S)
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " | ", row)).strip() for row in rows]


def page_of(nodes, run, name="bank"):
    return (nodes.folder / "out" / name / f"run {run}" / f"{name}.html").read_text()


def test_a_report_says_where_the_node_stands(nodes):
    rows = "\n".join(text_of(page_of(nodes, 5)))
    bits = nodes.ledger().state["prediction_bits"]
    for what, so_far, allowed, key in (
        ("rows of the smallest of them", "130", "at least 20", "policy.min-rows"),
        ("most bits of one row in predictions", f"{bits:g}", "at most 24", "policy.predictions"),
        ("most bits of one row told otherwise", "128", "at most 150", "policy.openings"),
        ("epsilon spent", "7.589473268", "at most 40", "policy.epsilon-total"),
    ):
        line = next(row for row in rows.splitlines() if what in row)
        assert all(f"| {word} |" in line for word in (so_far, allowed, key)), line
    section = page_of(nodes, 5).split("<h2>What has left this node so far</h2>")[1]
    # Before the table, the share of each limit that is used.
    assert "data:image/svg" in section.split("<table>")[0]


def test_a_report_is_about_its_run_and_lists_all_before(nodes):
    first, fit, last = (page_of(nodes, run) for run in (1, 2, 5))
    assert "which 28 donors are nearest, in order" in first
    assert "terms of predictions" not in first
    assert "terms of predictions" in fit
    assert "which 28 donors" not in fit
    assert "Could see more by colluding" in fit
    assert "perturbed ranks and noisy margins of 2 columns" in last
    assert "All 5 runs, the latest first" in last
    assert "All 2 runs" in fit
    names = [row for row in text_of(last) if re.search(r"\| run \d \|", row)]
    assert [re.search(r"run (\d)", row)[1] for row in names] == ["5", "4", "3", "2", "1"]
    assert "vfem" in names[3]


def test_what_a_node_keeps_is_its_owner_s_alone(nodes):
    files = [path for path in (nodes.folder / "out").rglob("*") if path.is_file()]
    ends = {"".join(path.suffixes) for path in files}
    assert {".html", ".parquet", ".model.npz", ".privacy-ledger.sqlite"} <= ends
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
