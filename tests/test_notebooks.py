"""The notebooks run from top to bottom, and are kept with the outputs of a full run."""

import ast
import json
import pathlib

import pytest

pytest.importorskip("torch")

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
# By notebook: what its full run takes, and what is enough to see that it runs.
QUICK = {
    "false_vfl.ipynb": ("PRETRAIN_EPOCHS, EPOCHS = 60, 60", "PRETRAIN_EPOCHS, EPOCHS = 1, 1"),
    "predict_with_trees.ipynb": ("N_TREES = 50", "N_TREES = 3"),
}


def code_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_is_one():
    assert {path.name for path in NOTEBOOKS} >= set(QUICK)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_as_a_full_run_left_it(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) / 2
    assert not any(o["output_type"] == "error" for cell in cells for o in cell["outputs"])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path):
    names = {"__name__": "notebook"}
    full, few = QUICK.get(path.name, ("", ""))
    sources = ["".join(cell["source"]) for cell in code_cells(path)]
    assert any(full in source for source in sources)
    for source in sources:
        exec(compile(ast.parse(source.replace(full, few)), path.name, "exec"), names)
    if path.name == "predict_with_trees.ipynb":
        assert names["rows"]["federated"]["all"] > 0.75
    if path.name == "false_vfl.ipynb":
        assert len(names["result"].predictions) > 800
        assert names["without"].notes == [
            "parties ['lower'] of the fit take no part; their blocks are missing"
        ]
