import os
import pathlib

import pandas as pd
import pytest


@pytest.fixture(scope="session")
def motor():
    """The motor tables of guest and host, or a skip where they are absent."""
    root = pathlib.Path(__file__).parents[2]
    folder = pathlib.Path(os.environ.get("FLWR_VERTICAL_DATA", root / ".." / "shared" / "data"))
    if not (folder / "motor").is_dir():
        pytest.skip(f"no motor data in {folder}; set FLWR_VERTICAL_DATA")
    guest, host = (
        pd.read_csv(folder / "motor" / f"motor_hetero_{side}.csv.gz", index_col=0)
        for side in ("guest", "host")
    )
    return guest.drop(columns="motor_speed"), host
