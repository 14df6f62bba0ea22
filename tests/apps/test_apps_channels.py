"""The Flower app over live channels on Flower's Simulation Runtime."""

import pandas as pd
import pytest

from flwr_vertical import simulate
from flwr_vertical.demo import demo_tables
from strategies.fknn import FKNN

pytestmark = [pytest.mark.flower, pytest.mark.timeout(400)]


def test_simulation_runtime_over_channels_gives_the_same_numbers(flower):
    answer = flower.run(
        "run", ".",
        "--federation-config", "num-supernodes=3 client-resources-num-cpus=1",
        "--run-config", 'alignment="plain" run-name="channels" transport="channel"',
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-2000:]
    assert "3 channels are open" in answer.stdout
    incomplete, _ = demo_tables(n_parties=3)
    expected = simulate(FKNN(standardize=True), incomplete, progress=False)
    for name, table in expected.tables.items():
        written = pd.read_parquet(flower.results / "parties" / "channels" / f"{name}.parquet")
        pd.testing.assert_frame_equal(
            written, table, rtol=1e-12, atol=1e-12, check_names=False, check_index_type=False
        )
