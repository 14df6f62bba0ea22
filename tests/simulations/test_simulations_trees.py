import numpy as np
import pandas as pd
import pytest
from data_sets import sources_with

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError
from simulations.__main__ import main
from simulations.fedpsg.data import Joint
from simulations.study import FAIL, PASS, Options
from simulations.trees import tables
from simulations.trees.data import binned, draw
from simulations.trees.experiments import judged
from simulations.trees.methods import METHODS, OURS, from_donors
from simulations.trees.preset import Preset
from strategies.imputation.fknn import FKNN

BLOCKS = {"seed": 0, "rows": 150, "test": 0.4, "share": 0.3}


@pytest.fixture(scope="module")
def joint():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 2))
    a = pd.DataFrame(z @ rng.normal(size=(2, 3)) + rng.normal(size=(200, 3)), columns=list("pqr"))
    b = pd.DataFrame(z @ rng.normal(size=(2, 2)), columns=list("st"))
    return Joint(a, b, pd.Series((z[:, 0] > 0).astype(float)), "made")


def test_tasks_hide_labels_blocks_or_cells(joint):
    task = draw(joint, BLOCKS, blocks=True)
    assert len(task.labels) == 150
    assert len(task.tables["b"]) == 150 - task.lacks.sum() < 130
    assert task.pooled.isna().any(axis=1).sum() == task.lacks.sum()
    assert task.hidden_labels.isna().sum() == task.test.sum() > 0
    cells = draw(joint, BLOCKS, blocks=False)
    assert not cells.lacks.any()
    assert 0.2 < cells.pooled.isna().to_numpy().mean() < 0.4


def test_bins_keep_order_and_gaps(joint):
    table = draw(joint, BLOCKS, blocks=False).pooled
    codes = binned(table, 8)
    assert (codes.isna() == table.isna()).all(axis=None)
    assert codes.nunique().max() == 8
    order = table["p"].dropna().sort_values().index
    assert codes.loc[order, "p"].is_monotonic_increasing


def test_donors_are_those_of_fknn(joint):
    task = draw(joint, BLOCKS, blocks=True)
    result = simulate(
        FKNN(n_neighbors=5, standardize=True), task.tables, task.hidden_labels, progress=False
    )
    found = result.tables["b"].loc[task.b.index]
    np.testing.assert_allclose(from_donors(task), found, atol=1e-6)


def test_figures_of_merit():
    y = np.array([0.0, 1.0, 1.0, 0.0])
    sure = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.5, 0.5]])
    assert judged(y, sure, 1.0) == {"AUC": 1.0}
    assert judged(y, y + 2.0, 4.0) == {"RMSE": pytest.approx(0.5)}
    classes = judged(np.array([0.0, 1.0, 2.0]), np.eye(3) * 0.7 + 0.1, 1.0)
    assert classes["accuracy"] == 1.0
    assert classes["log loss"] == pytest.approx(-np.log(0.8))


def numbers(part, values):
    """One row per number, as `to_frame` makes them."""
    keys = ["dataset", "share", "method", "seed", "metric"]
    rows = [dict(zip(keys, key, strict=True), value=v) for key, v in values.items()]
    return pd.DataFrame(rows).assign(part=part)


def test_differences_are_paired_and_in_favour_where_positive():
    found = numbers(
        "pooled",
        {
            ("motor", 0.1, "open", seed, name): value + seed / 10
            for seed in (0, 1)
            for name, value in (("ours RMSE", 0.52), ("central RMSE", 0.5), ("CPU seconds", 3.0))
        },
    )
    row = tables.pooled(found, 0.01).loc["motor", 0.1, "open", "RMSE"]
    assert row["difference"] == "-0.0200"
    assert row["within 0.01"] == FAIL
    assert tables.pooled(found, 0.03).iloc[0]["within 0.03"] == PASS
    for ours, verdict in ((0.525, PASS), (0.54, FAIL)):
        hidden = {("motor", 0.1, "hidden", 0, "ours RMSE"): ours}
        hidden |= {("motor", 0.1, "hidden", 0, "central RMSE"): 0.5}
        both = pd.concat([found, numbers("pooled", hidden)])
        row = tables.pooled(both, 0.01).loc["motor", 0.1, "hidden", "RMSE"]
        assert row["within 0.01"] == f"{verdict} (of open)"


def test_margins_pass_above_each_other_method():
    values = {("Bank", 0.5, OURS, seed, "AUC"): 0.9 + seed / 10 for seed in (0, 1)}
    values |= {("Bank", 0.5, "two models", seed, "AUC"): 0.89 + seed / 10 for seed in (0, 1)}
    values |= {("Bank", 0.5, "LASER-VFL", seed, "AUC"): 0.95 for seed in (0, 1)}
    found = tables.margins(numbers("blocks", values))
    (column,) = found.columns
    assert found.loc["two models", column].to_list() == [f"{PASS} +0.0100 (least +0.0100, 2 seeds)"]
    assert found.loc["LASER-VFL", column].to_list() == [f"{PASS} +0.0000 (least -0.0500, 2 seeds)"]
    values[("Bank", 0.5, "LASER-VFL", 1, "AUC")] = 1.2
    assert not tables.reached(tables.margins(numbers("blocks", values)))


def test_preset_asks_for_every_method_and_data_set(tmp_path):
    preset = Preset.load(Options(tmp_path))
    jobs = preset.jobs()
    blocks = [job for job in jobs if job.part == "blocks"]
    assert {job.settings["method"] for job in blocks} == set(METHODS)
    assert len(blocks) == 3 * 3 * len(METHODS)
    pooled = {job.settings["dataset"] for job in jobs if job.part == "pooled"}
    assert pooled == {"Bank", "Credit", "Letter", "motor"}
    few = Preset.load(Options(tmp_path, quick=True)).chosen(
        Options(tmp_path, chosen={"parts": ("blocks",), "methods": ("two models",)})
    )
    assert [job.settings["method"] for job in few] == ["two models"]
    with pytest.raises(ConfigError, match="--methods 'nothing' is unknown"):
        preset.chosen(Options(tmp_path, chosen={"methods": ("nothing",)}))


def test_study_makes_pages_and_resumes(tmp_path):
    sources_with("german/german_credit.csv")
    command = [
        "trees", "--quick", "--fresh", "--workers", "0", "--output", str(tmp_path / "out"),
        "--parts", "pooled", "--methods", "open", "--set", "pooled.trees.Credit=2",
        "--set", "blocks.runs=0", "--write", str(tmp_path / "docs" / "trees-study.md"),
    ]  # fmt: skip
    assert main([*command, "--set", "pooled.rows.Credit=400"]) == 0
    assert "| Credit | 0.1 | open | AUC |" in (tmp_path / "docs" / "trees-study.md").read_text()
    assert (tmp_path / "docs" / "records" / "trees.jsonl").read_text().count("\n") == 2
    (record,) = (tmp_path / "out" / "records").glob("*.json")
    written = record.stat().st_mtime_ns
    assert main([*command, "--set", "pooled.rows.Credit=400"]) == 0
    assert record.stat().st_mtime_ns == written
