"""Channels inside Ray workers: served beside Flower's messages, one call at a time."""

import os
import stat
import tempfile
import threading
import time

import pytest
from channel_runs import echo_grid
from flwr.app import ConfigRecord, Context, RecordDict

from flwr_vertical import Federation
from flwr_vertical.channel import ChannelGrid, background


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"flwr-vertical-channel-{os.getuid()}"


@pytest.fixture
def worker(monkeypatch, folder):
    monkeypatch.setattr(background, "in_ray_worker", lambda: True)
    return folder


def federation(grid):
    opened = Federation(grid, aggregation="plain", min_nodes=3, retries=0)
    opened.open()
    return opened


def flower_forgets(inner):
    """What Flower keeps is the state as the channel's message left it: empty."""
    for context in inner.contexts.values():
        context.state = RecordDict()


def test_this_process_is_no_ray_worker():
    assert not background.in_ray_worker()


def test_state_after_the_goodbye_is_found_by_the_next_message(worker):
    with echo_grid() as inner:
        with ChannelGrid(inner, transport="channel") as grid:
            rounds = federation(grid)
            for _ in range(3):
                rounds.call("count")
        flower_forgets(inner)
        files = sorted(worker.iterdir())
        assert len(files) == 3
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert stat.S_IMODE(worker.stat().st_mode) == 0o700
        rounds.grid = inner
        assert [a["count"] for a in rounds.call("count").values()] == [4, 4, 4]
        assert not list(worker.iterdir())
        # A second channel goes on from there.
        with ChannelGrid(inner, transport="channel") as grid:
            rounds.grid = grid
            assert [a["count"] for a in rounds.call("count").values()] == [5, 5, 5]


def test_at_the_end_of_a_run_nothing_is_kept(worker):
    with echo_grid() as inner, ChannelGrid(inner, transport="channel", keep_state=False) as grid:
        federation(grid).call("count")
    assert not worker.exists()


def test_a_process_takes_one_call_at_a_time(worker):
    with echo_grid() as inner, ChannelGrid(inner, transport="channel") as grid:
        rounds = federation(grid)
        started = time.monotonic()
        rounds.call("nap", {"seconds": 0.3})
        assert time.monotonic() - started > 0.85
        held = [t.name for t in threading.enumerate() if t.name.startswith("channel-service")]
        assert len(held) == 3


def context(run_id=5, **values):
    return Context(run_id, 7, {}, RecordDict({"s": ConfigRecord(values)}), {})


def test_state_is_kept_by_run_and_node(folder):
    assert not background.restore(context())
    background.commit(context(x=1))
    background.commit(context(x=2))
    assert not background.restore(context(run_id=6))
    found = context(x=0)
    assert background.restore(found)
    assert found.state["s"]["x"] == 2
    assert not background.restore(found)


def test_state_of_runs_long_over_is_removed(folder):
    background.commit(context(run_id=1))
    (old,) = folder.iterdir()
    os.utime(old, (1e9, 1e9))
    background.commit(context(run_id=2))
    assert [path.name for path in folder.iterdir()] == ["2-7.state"]


def test_a_folder_that_others_can_read_is_refused(folder):
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="only its owner can read"):
        background.commit(context())
    assert not list(folder.iterdir())
    folder.rmdir()
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")
    with pytest.raises(PermissionError):
        background.commit(context())
