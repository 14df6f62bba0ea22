"""A node hides some of its cells from an imputation, and judges it by itself."""

import json

import numpy as np
import pandas as pd
from test_apps_inprocess import home, own_files, run_app  # noqa: F401

from flwr_vertical import RecordingGrid


def test_a_node_compares_held_out_cells_and_tells_nobody(home):  # noqa: F811
    rng = np.random.default_rng(0)
    n = 120
    index = pd.Index([f"c{i}" for i in range(n)], name="customer")
    common = rng.normal(size=n)
    bank = pd.DataFrame({name: common + 0.2 * rng.normal(size=n) for name in "uv"}, index)
    court = pd.DataFrame({"debts": common + 0.2 * rng.normal(size=n)}, index)
    nodes = own_files(home, bank=bank, court=court)
    nodes[0]["hold-out"] = 0.1
    grids = []

    def recorded(grid):
        grids.append(RecordingGrid(grid))
        return grids[0]

    run_app(nodes, wrap=recorded)
    folder = home / "bank-out" / "test"
    after = pd.read_parquet(folder / "bank.parquet")
    pd.testing.assert_frame_equal(after, bank, check_names=False, rtol=1e-12)
    page = (folder / "bank.html").read_text()
    assert "Cells were held out of the run for this, and put back." in page
    assert "rmse_mean" in page
    assert "bank: fknn" in page
    assert "rmse_mean" not in (home / "court-out" / "test" / "court.html").read_text()
    text = (home / "results" / "server" / "test" / "result.json").read_text()
    # The server learns how many cells are missing, as in any run, and nothing of the comparison.
    assert 20 <= json.loads(text)["metrics"]["cells-imputed"] <= 24
    assert "skill" not in text
    assert not any("skill" in repr(message) for message in grids[0].transcript)
