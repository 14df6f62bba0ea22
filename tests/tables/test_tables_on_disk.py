"""Large Parquet tables: numbers lie on disk, and nobody who reads the table sees a difference."""

import errno
import tempfile

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import scratch, simulate
from flwr_vertical.errors import DataError, StorageError
from flwr_vertical.privacy_ledger.row_identities import OwnRows
from flwr_vertical.sources.reading import read_source
from flwr_vertical.tables import on_disk, read_table
from strategies.glm import VerticalGLM

ON_DISK = ["x", "gaps", "n", "n gaps", "small", "single"]


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    n = 700
    whole = rng.integers(-9, 9, n)
    gap = rng.random(n) < 0.1
    return pd.DataFrame(
        {
            "text": rng.choice(["a", "b", "c"], n),
            "x": rng.normal(size=n),
            "gaps": np.where(gap, np.nan, rng.normal(size=n)),
            "n": whole,
            "flag": whole > 0,
            "n gaps": pd.array(whole).astype("Int64"),
            "small": whole.astype(np.int8),
            "single": rng.normal(size=n).astype(np.float32),
            "level": pd.Categorical(rng.choice(["u", "v"], n)),
        },
        index=pd.Index(np.arange(n) * 7, name="id"),
    ).assign(**{"n gaps": lambda f: f["n gaps"].mask(gap)})


@pytest.fixture
def few(monkeypatch):
    """A hundred rows at a time."""
    monkeypatch.setattr(scratch, "HOLD_BYTES", 0)
    for module in ("flwr_vertical.tables.readers", "flwr_vertical.sources.folders"):
        monkeypatch.setattr(f"{module}.BATCH_ROWS", 100)


def written(folder, frame, form, **how):
    if form == "file":
        frame.to_parquet(folder / "t.parquet", row_group_size=150, **how)
        return folder / "t.parquet"
    parts = folder / "parts"
    parts.mkdir()
    for k in range(0, len(frame), 250):
        frame.iloc[k : k + 250].to_parquet(parts / f"{k:03d}.parquet", row_group_size=150, **how)
    return parts


@pytest.mark.parametrize("form", ["file", "folder"])
@pytest.mark.parametrize("id_column", [None, "id", "text"])
def test_a_table_on_disk_is_the_table_in_memory(tmp_path, frame, request, form, id_column):
    if id_column == "text":  # the first column of a file without an index
        frame = frame.assign(text=[f"p{i}" for i in frame.index]).reset_index(drop=True)
    path = written(tmp_path, frame, form)
    expected = read_source(path, id_column=id_column)
    request.getfixturevalue("few")
    found = read_source(path, id_column=id_column)
    pd.testing.assert_frame_equal(found.frame, expected.frame)
    assert found.kinds == expected.kinds
    kept = [name for name in found.columns if on_disk.is_on_disk(found.frame[name])]
    assert kept == ON_DISK
    assert not any(on_disk.is_on_disk(column) for _, column in expected.frame.items())
    hashed = [OwnRows.of(t.ids, "s" * 16, t.frame).digest for t in (found, expected)]
    assert hashed[0] == hashed[1]


def test_columns_on_disk_cannot_be_written_to_and_have_no_name(tmp_path, frame, few, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    table = read_table(written(tmp_path, frame, "file"))
    with pytest.raises(ValueError, match="read-only"):
        table.frame["x"].to_numpy()[0] = 1.0
    assert not [*(tmp_path / "temporary").iterdir()]


def test_a_full_disk_is_named(tmp_path, frame, few, monkeypatch):
    path = written(tmp_path, frame, "folder")

    class Full:
        def __init__(self, **_):
            pass

        def seek(self, at):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(StorageError, match=r"No space left on device; make room there, or set TMP"):
        read_source(path)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, frame, few, monkeypatch):
    path = written(tmp_path, frame, "file")
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", lambda *_, **__: iter(()))
    with pytest.raises(DataError, match="0 rows were read of 700"):
        read_table(path)


def test_a_run_on_tables_on_disk_has_the_same_bits(tmp_path, frame, request):
    labels = (frame["x"] + 0.1 * frame["n"]).rename("y").where(frame.index % 3 > 0)
    other = frame[["n", "gaps", "single"]].sample(frac=1.0, random_state=1)  # in another order
    paths = {}
    for name, part in {"a": frame[["x", "small"]], "b": other}.items():
        (tmp_path / name).mkdir()
        paths[name] = written(tmp_path / name, part, "folder")

    def coefficients():
        tables = {name: read_source(path) for name, path in paths.items()}
        strategy = VerticalGLM(family="gaussian")
        return simulate(strategy, tables, labels=labels).coefficients

    expected = coefficients()
    assert (expected["estimate"] != 0).sum() >= 2
    files = []
    made = scratch.ScratchFile.__init__
    request.getfixturevalue("few")
    request.getfixturevalue("monkeypatch").setattr(
        scratch.ScratchFile, "__init__", lambda self, what: files.append(what) or made(self, what)
    )
    pd.testing.assert_frame_equal(coefficients(), expected, check_exact=True)
    assert files.count("the numbers of a large table") == 2
    assert files.count("a matrix of numbers") > 4  # all rows, those in order, complete, labelled


def test_an_array_without_cells_needs_no_file():
    assert scratch.ScratchFile("nothing").array(0, np.uint64, (5, 0)).shape == (5, 0)
