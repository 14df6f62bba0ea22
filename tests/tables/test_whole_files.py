import os
import stat

import pandas as pd
import pytest

from flwr_vertical.whole_files import atomic_path, write_bytes_atomically, write_text_atomically


def test_text_and_bytes_are_written_and_folders_made(tmp_path):
    path = write_text_atomically(tmp_path / "new" / "a.txt", "Größe\n")
    assert path.read_bytes() == "Größe\n".encode()
    write_bytes_atomically(str(path), b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    frame = pd.DataFrame({"x": [1, 2]})
    with atomic_path(tmp_path / "t.csv.gz") as temporary:
        assert temporary.suffix == ".gz"  # other writers look at it
        frame.to_csv(temporary, index=False)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv.gz"), frame)


def test_an_error_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = write_text_atomically(tmp_path / "a.txt", "old")

    def write() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError("power cut")

    def refuse(*_):
        raise OSError("disk full")

    with pytest.raises(RuntimeError, match="power"):
        write()
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_text_atomically(tmp_path / "a.txt", "x")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_files_follow_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        path = write_text_atomically(tmp_path / "a.txt", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
