"""Columns and missing blocks for `flwr-datasets`, against its own partitioners."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr_datasets", reason="the extra 'datasets' is not installed")

from datasets import Dataset
from flwr_datasets.partitioner import (
    IidPartitioner,
    VerticalEvenPartitioner,
    VerticalSizePartitioner,
)

from flwr_vertical import load_strategy, simulate
from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete.partition import MissingBlockPartitioner, tables_of

N = 2000


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(5)
    made = pd.DataFrame(rng.normal(size=(N, 6)), columns=list("abcdef"))
    return made.assign(customer=[f"c{k}" for k in rng.permutation(N)])


def partitioned(frame, columns=None, **settings):
    made = MissingBlockPartitioner(columns or VerticalEvenPartitioner(3), **settings)
    made.dataset = Dataset.from_pandas(frame, preserve_index=False)
    return made


def test_parties_have_their_columns_and_the_rows_that_the_mask_says(frame):
    made = partitioned(frame, id_column="customer", missing=[0.3, 0.1, 0.0], seed=7)
    whole = frame.set_index("customer")
    tables = tables_of(made, ["x", "y", "z"])
    dealt = [column for table in tables.values() for column in table.columns]
    assert sorted(dealt) == list("abcdef")
    for k, table in enumerate(tables.values()):
        here = frame["customer"][~made.mask[:, k]]
        assert set(table.index) == set(here)
        assert list(table.index) != list(here)  # in an order of its own
        pd.testing.assert_frame_equal(
            table, whole.loc[table.index, list(table.columns)], check_names=False
        )


def test_shares_are_those_that_were_asked_for(frame):
    made = partitioned(frame, missing=[0.3, 0.1, 0.0])
    np.testing.assert_array_equal(made.mask.sum(axis=0), [600, 200, 0])
    both = made.mask[:, 0] & made.mask[:, 1]  # independent: four standard deviations
    assert abs(both.mean() - 0.03) <= 4 * np.sqrt(0.03 * 0.97 / N)


def test_a_share_of_the_rows_is_everybodys(frame):
    made = partitioned(frame, missing=0.3, overlap=0.5, seed=1)
    assert (~made.mask).all(axis=1).sum() >= N // 2
    np.testing.assert_array_equal(made.mask.sum(axis=0), [600, 600, 600])
    with pytest.raises(ConfigError, match=r"missing \+ overlap must be 1 at most"):
        partitioned(frame, missing=0.6, overlap=0.5)
    assert not partitioned(frame, missing=0.0, overlap=1.0).mask.any()


def test_there_is_no_row_that_all_lack(frame):
    made = partitioned(frame, missing=0.6)
    assert set().union(*(made.load_table(k).index for k in range(3))) == {
        f"sample-{k:06d}" for k in range(N)
    }
    np.testing.assert_array_equal(made.mask.sum(axis=0), [1200] * 3)
    with pytest.raises(ConfigError, match="leave rows that no party has"):
        partitioned(frame, missing=0.9).load_partition(0)


def test_the_same_seed_gives_the_same_partitions(frame):
    first, second, other = (partitioned(frame, seed=seed) for seed in (3, 3, 4))
    assert first.load_partition(1).to_dict() == second.load_partition(1).to_dict()
    assert first.load_partition(1).to_dict() != other.load_partition(1).to_dict()


def test_labels_go_where_the_inner_partitioner_puts_them(frame):
    columns = VerticalSizePartitioner(
        [3, 2], active_party_columns="f", active_party_columns_mode="create_as_last"
    )
    made = partitioned(frame, columns, id_column="customer", missing=[0.2, 0.2, 0.0])
    assert made.num_partitions == 3
    assert made.load_partition(2).column_names == ["customer", "f"]
    assert len(made.load_partition(2)) == N


def test_partitions_can_be_imputed(frame):
    made = partitioned(frame.head(200), id_column="customer")
    result = simulate(load_strategy("fknn")(), tables_of(made, ["x", "y", "z"]))
    assert {len(table) for table in result.tables.values()} == {200}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"missing": 1.0}, "expected shares in"),
        ({"missing": []}, "expected shares in"),
        ({"overlap": 1.5}, "overlap = 1.5"),
        ({"columns": IidPartitioner}, "expected a partitioner"),
    ],
)
def test_settings_that_cannot_be_used(settings, why):
    with pytest.raises(ConfigError, match=why):
        MissingBlockPartitioner(**{"columns": VerticalEvenPartitioner(2)} | settings)


def test_ids_and_names_that_cannot_be_used(frame):
    with pytest.raises(ConfigError, match="no column 'client' in the dataset"):
        partitioned(frame, id_column="client").load_partition(0)
    with pytest.raises(ConfigError, match="0 empty IDs and 1999 that occur before"):
        partitioned(frame.assign(customer="c"), id_column="customer").load_partition(0)
    with pytest.raises(ConfigError, match="say id_column='id'"):
        partitioned(frame.assign(id=1)).load_partition(0)
    with pytest.raises(ConfigError, match="missing has 2 values for 3 partitions"):
        partitioned(frame, missing=[0.1, 0.2]).load_partition(0)
    with pytest.raises(ConfigError, match="IidPartitioner deals rows, not columns"):
        partitioned(frame, IidPartitioner(3)).load_partition(0)
    with pytest.raises(IndexError, match="partition 3 of 3"):
        partitioned(frame).load_partition(3)
    with pytest.raises(ConfigError, match="not the names of 3 different parties"):
        tables_of(partitioned(frame), ["x", "x", "y"])
