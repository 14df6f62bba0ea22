import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError
from simulations.__main__ import main
from simulations.fedpsg.data import Joint
from simulations.page import FAIL, PASS
from simulations.preset import Options
from simulations.trees.data import binned, draw
from simulations.trees.experiments import judged
from simulations.trees.methods import METHODS, from_donors
from simulations.trees.own import drawn, summary
from simulations.trees.preset import Preset
from strategies.fknn import FKNN

pytestmark = pytest.mark.studies

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
    result = simulate(FKNN(n_neighbors=5, standardize=True), task.tables, task.hidden_labels)
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


def test_preset_asks_for_every_method_and_data_set(tmp_path):
    preset = Preset.load("trees", Options(tmp_path))
    jobs = preset.jobs()
    blocks = [job for job in jobs if job.part == "blocks"]
    assert {job.settings["method"] for job in blocks} == set(METHODS)
    assert len(blocks) == 3 * 3 * len(METHODS)
    pooled = {job.settings["dataset"] for job in jobs if job.part == "pooled"}
    assert pooled == {"Bank", "Credit", "Letter", "motor"}
    quick = Preset.load("trees", Options(tmp_path, quick=True))
    of = {"parts": ("blocks",), "methods": ("two models",)}
    few = quick.chosen(quick.jobs(), Options(tmp_path, chosen=of))
    assert [job.settings["method"] for job in few] == ["two models"]
    with pytest.raises(ConfigError, match="--methods 'nothing' is unknown"):
        preset.chosen(jobs, Options(tmp_path, chosen={"methods": ("nothing",)}))


def test_study_makes_pages_and_resumes(tmp_path, sources_with):
    sources_with("german/german_credit.csv")
    command = [
        "trees", "--quick", "--fresh", "--workers", "0", "--output", str(tmp_path / "out"),
        "--parts", "pooled", "--methods", "open", "--set", "pooled.trees.Credit=2",
        "--set", "blocks.runs=0", "--write", str(tmp_path / "docs" / "trees-study.md"),
    ]  # fmt: skip
    assert main([*command, "--set", "pooled.rows.Credit=400"]) == 0
    assert "| Credit | 0.1 | open | AUC |" in (tmp_path / "docs" / "trees-study.md").read_text()
    assert (tmp_path / "docs" / "records" / "trees.jsonl").read_text().count("\n") == 2
    record = tmp_path / "out" / "records.jsonl"
    written = record.stat().st_mtime_ns
    assert main([*command, "--set", "pooled.rows.Credit=400"]) == 0
    assert record.stat().st_mtime_ns == written


@pytest.fixture(scope="module")
def own_file(tmp_path_factory):
    """Zero in most rows, heavy tails, text, gaps, an ID, rows without a label."""
    rng = np.random.default_rng(3)
    n = 1500
    gain = np.where(rng.random(n) < 0.9, 0.0, np.round(rng.lognormal(7.0, 1.0, n)))
    frame = pd.DataFrame(
        {
            "id": np.arange(n),
            "age": rng.normal(40.0, 9.0, n),
            "job": rng.choice(["clerk", "cook", "smith"], n),
            "gain": gain,
            "hours": rng.normal(size=n),
        }
    )
    chance = 1 / (1 + np.exp(2.0 - frame["age"] / 40 - 3.0 * (gain > 1500) - frame["hours"]))
    frame["income"] = np.where(rng.random(n) < chance, "high", "low")
    frame.loc[:9, "income"] = None
    frame.loc[20:60, "age"] = None
    frame["class"] = rng.choice(["a", "b", "c"], n)
    frame["one"] = "x"
    path = tmp_path_factory.mktemp("own") / "mine.csv"
    frame.to_csv(path, index=False)
    return path


def own(path, out, *more, label="income"):
    return [
        "trees", "--file", str(path), "--label", label, "--workers", "0", "--quick",
        "--output", str(out), *more,
    ]  # fmt: skip


@pytest.mark.parametrize("mechanism", ["cells", "blocks"])
def test_a_file_of_ones_own_beside_other_boosters(own_file, tmp_path, capsys, mechanism):
    command = own(
        own_file, tmp_path, "--positive", "high", "--missing", "0.1", "--mechanism", mechanism,
        "--parties", "age,job", "gain,hours",
    )  # fmt: skip
    assert main([*command, "--seeds", "2"]) == 0
    found = pd.read_csv(tmp_path / "own_by_seed.csv").set_index(["method", "seed"])
    methods = {"flwr-vertical", "HistGradientBoosting", "LightGBM", "LightGBM, tuned"}
    assert {"flwr-vertical", "HistGradientBoosting"} <= set(found.index.levels[0]) <= methods
    assert found.loc["flwr-vertical", "AUC"].between(0.6, 0.95).all()
    assert (found["log loss"] < 0.75).all()
    told = capsys.readouterr().out
    assert "flwr-vertical less it, within 0.001" in told
    assert "HistGradientBoosting" in told
    assert "1,490 rows with a label" in (tmp_path / "index.md").read_text()
    # What is there is not run again; other data would be.
    records = (tmp_path / "records.jsonl").read_bytes()
    assert main([*command, "--seeds", "2"]) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == records


def test_missing_cells_and_blocks_of_a_file_of_ones_own():
    tables = {name: pd.DataFrame({name: np.arange(1000.0)}) for name in "abc"}
    settings = {"seed": 0, "test": 0.3, "missing": 0.4, "mechanism": "cells"}
    cells, test = drawn(tables, settings)
    assert 250 < test.sum() < 350
    assert all(350 < own.isna().to_numpy().sum() < 450 for own in cells.values())
    blocks, same = drawn(tables, {**settings, "mechanism": "blocks"})
    np.testing.assert_array_equal(test, same)
    assert len(blocks["a"]) == 1000
    assert all(550 < len(blocks[name]) < 650 for name in "bc")


def test_sums_of_ones_own_tables_pass_within_a_margin():
    index = pd.MultiIndex.from_product(
        [["flwr-vertical", "LightGBM", "HistGradientBoosting"], [0, 1]], names=["method", "seed"]
    )
    wide = pd.DataFrame({"AUC": [0.9, 0.92, 0.902, 0.919, 0.91, 0.915]}, index=index)
    found = summary(wide.assign(**{"log loss": 0.3, "CPU seconds": 1.0}), 0.001)
    verdicts = found["flwr-vertical less it, within 0.001"]
    assert verdicts.to_list() == ["–", f"{PASS} -0.0005", f"{FAIL} -0.0025"]
    assert found.loc["LightGBM", "AUC"] == "0.9105 (0.0120)"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--file", "nowhere.csv"], "there is no file"),
        (["--label", "wealth"], "has no column 'wealth'; it has id, age, job"),
        (["--drop", "nr"], "has no column 'nr'"),
        (["--label", "one"], "expected two classes, got 'x' (1,500 rows)"),
        (["--label", "class"], "name the one to tell from all others by --positive"),
        (["--positive", "rich"], "--positive 'rich': label 'income' has 'low'"),
        (["--parties", "age,job,gain"], "expected a number of parties, or the columns of each"),
        (["--parties", "age,wage", "job"], "wage"),
        (["--mechanism", "mnar"], "--mechanism 'mnar' is unknown; there are cells, blocks"),
        (["--missing", "1.5"], "missing must be at least 0 and below 1, got 1.5"),
        (["--methods", "XGBoost"], "--methods 'XGBoost' is unknown"),
        (["--write", "page.md"], "--write is of the study's own data sets"),
        (["--datasets", "Bank"], "--datasets is of the study's own data sets"),
        (["--report"], "run some, without --report"),
    ],
)
def test_what_is_wrong_with_a_file_of_ones_own_is_said(own_file, tmp_path, capsys, more, says):
    assert main([*own(own_file, tmp_path), *more]) == 2
    assert says in capsys.readouterr().err


def test_options_of_a_file_need_one(tmp_path, capsys):
    assert main(["trees", "--label", "income", "--output", str(tmp_path)]) == 2
    assert "--label is of a table of your own; name it by --file" in capsys.readouterr().err
    assert main(["trees", "--file", str(tmp_path / "x.csv"), "--output", str(tmp_path)]) == 2
    assert "--file needs the name of the column to predict" in capsys.readouterr().err
