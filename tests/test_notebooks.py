"""The notebooks run from top to bottom, and are kept with the outputs of a full run."""

import ast
import contextlib
import json
import pathlib
import warnings

import pytest

from flwr_vertical.tables.findings import DataWarning

pytest.importorskip("torch")

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
NODES = NOTEBOOKS[0].with_name("two_nodes.ipynb")  # which starts processes
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


def sources_of(path):
    return ["".join(cell["source"]) for cell in code_cells(path)]


def run(source, path, names):
    exec(compile(ast.parse(source), path.name, "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if p != NODES], ids=lambda path: path.name)
def test_a_notebook_runs_without_a_warning(path):
    names = {"__name__": "notebook"}
    full, few = QUICK.get(path.name, ("", ""))
    assert any(full in source for source in sources_of(path))
    for source in sources_of(path):
        with warnings.catch_warnings():
            warnings.simplefilter("error", DataWarning)
            run(source.replace(full, few), path, names)
    if path.name == "predict_with_trees.ipynb":
        assert names["rows"]["federated"]["all"] > 0.75
    if path.name == "false_vfl.ipynb":
        assert len(names["result"].predictions) > 800
        assert names["without"].notes == [
            "parties ['lower'] of the fit take no part; their blocks are missing"
        ]


def processes_of(folder):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if str(folder).encode() in path.read_bytes() else []
    return found


@pytest.mark.deployment
def test_a_federation_from_a_notebook_runs_and_leaves_nothing(capsys):
    names = {"__name__": "notebook"}
    *first, last = sources_of(NODES)
    try:
        for source in first:
            run(source, NODES, names)
        truth = {"age": 0.5, "income": -0.3, "bmi": 1.2, "pulse": 0.1}
        for variable, value in truth.items():
            found = names["result"].coefficients.xs(variable, level="variable").iloc[0]
            assert found["ci_low"] < value < found["ci_high"]
        assert names["told"]("hospital")["n_rows"].max() > 500
        assert processes_of(names["home"])
        with pytest.raises(RuntimeError, match="nonsense"):  # a cell that fails ends all nodes
            names["federation"]("run", "nonsense")
        assert not processes_of(names["home"])
    finally:
        run(last, NODES, names)
    assert not names["folder"].exists()
    assert (
        "hospital keeps ['hospital.html', 'hospital.model.npz', 'hospital.names.parquet']"
        in capsys.readouterr().out
    )
