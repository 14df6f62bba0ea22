"""How many parties of a `LocalGrid` run at once, and how many threads each may use."""

import threading

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from threadpoolctl import ThreadpoolController, threadpool_limits

from flwr_vertical import LocalGrid
from flwr_vertical.errors import ConfigError
from flwr_vertical.grids import blas_threads, local
from flwr_vertical.protocol.messages import make_message


def nodes(n):
    return [{"party": f"p{k}"} for k in range(1, n + 1)]


def messages(*node_ids):
    return [make_message(RecordDict(), n) for n in node_ids]


def answered(replies):
    return sorted(reply.metadata.src_node_id for reply in replies)


class App:
    """Answers every message after `work`; counts who is at it."""

    def __init__(self, work=lambda node_id: None):
        self.work = work
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.order = []

    def __call__(self, message, context):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.order.append(context.node_id)
        try:
            self.work(context.node_id)
        finally:
            with self.lock:
                self.now -= 1
        return Message(RecordDict(), reply_to=message)


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("n_parallel", [1, 2, None])
def test_so_many_parties_run_at_once_and_no_more(monkeypatch, n_parallel):
    """By default as many as there are cores."""
    assert blas_threads.n_cores() >= 1
    monkeypatch.setattr(local, "n_cores", lambda: 3)
    # Nobody goes on before so many are there, so that fewer at once would not end.
    barrier = threading.Barrier(n_parallel or 3)
    app = App(lambda _: barrier.wait(20))
    with LocalGrid(app, nodes(6), max_parallel=n_parallel) as grid:
        for _ in range(5):
            replies = grid.send_and_receive(messages(*range(1, 7)), timeout=30)
            assert answered(replies) == [1, 2, 3, 4, 5, 6]
    assert app.most == (n_parallel or 3)


def test_parties_run_in_the_order_in_which_they_are_asked():
    app = App()
    with LocalGrid(app, nodes(5), max_parallel=1) as grid:
        list(grid.send_and_receive(messages(3, 1, 5, 2, 4), timeout=10))
    assert app.order == [3, 1, 5, 2, 4]


def test_a_party_that_hangs_keeps_the_only_core_for_a_moment(monkeypatch, release):
    monkeypatch.setattr(local, "_LONG", 0.05)
    app = App(lambda node_id: release.wait(20) if node_id == 1 else None)
    with LocalGrid(app, nodes(4), max_parallel=1) as grid:
        # No timeout: the others' answers alone must come.
        ids = list(grid.push_messages(messages(1, 2, 3, 4)))
        replies = []
        while len(replies) < 3:
            replies += grid._collect(ids, timeout=20)
        assert answered(replies) == [2, 3, 4]
        replies = grid.send_and_receive(messages(2, 3, 4), timeout=20)
        assert answered(replies) == [2, 3, 4]
        release.set()
        assert answered(grid._collect(ids, timeout=20)) == [1]


def test_what_was_not_begun_in_time_is_not_begun_later(monkeypatch, release):
    monkeypatch.setattr(local, "_LONG", 60.0)
    app = App(lambda node_id: release.wait(20) if node_id == 1 else None)
    with LocalGrid(app, nodes(3), max_parallel=1) as grid:
        assert list(grid.send_and_receive(messages(1, 2, 3), timeout=0.1)) == []
        release.set()
        assert answered(grid.send_and_receive(messages(3, 1), timeout=20)) == [1, 3]
        assert app.order == [1, 3, 1]  # nobody waits for what 2 was asked
        assert not grid._replies
        assert not grid._dropped


def test_a_node_answers_one_message_at_a_time():
    app = App()
    with LocalGrid(app, nodes(1), max_parallel=4) as grid:
        replies = list(grid.send_and_receive(messages(1, 1, 1), timeout=10))
    assert len(replies) == 3
    assert app.most == 1


def test_no_parallelism_is_refused():
    with pytest.raises(ConfigError, match="max_parallel must be at least 1, got 0"):
        LocalGrid(App(), nodes(1), max_parallel=0)


def blas():
    np.ones((2, 2)) @ np.ones((2, 2))
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return {library.get_num_threads() for library in libraries}


@pytest.fixture
def four_threads():
    with threadpool_limits(4, "blas"):
        if blas() != {4}:
            pytest.skip("this BLAS does not let its threads be set")
        yield


@pytest.mark.parametrize(("asked", "share"), [(1, 4), (2, 2), (3, 1), (8, 1)])
def test_each_party_has_its_share_of_the_cores_for_blas(monkeypatch, four_threads, asked, share):
    monkeypatch.setattr(local, "n_cores", lambda: 4)
    seen = []
    app = App(lambda _: seen.append(blas()))
    with LocalGrid(app, nodes(8)) as grid:
        for _ in range(2):
            list(grid.send_and_receive(messages(*range(1, asked + 1)), timeout=20))
            assert blas() == {4}
    assert seen == [{share}] * (2 * asked)


def test_threads_are_restored_after_a_failure(four_threads):
    with LocalGrid(App(), nodes(2), max_parallel=2) as grid:
        with pytest.raises(ConfigError, match="no node 9"):
            grid.send_and_receive(messages(1, 9), timeout=5)
        assert blas() == {4}


def test_whoever_set_the_limit_lifts_it(four_threads):
    inner, done = threading.Event(), threading.Event()

    def other():
        with blas_threads.thread_limits.limited(1):
            inner.set()
            done.wait(20)

    thread = threading.Thread(target=other)
    with blas_threads.thread_limits.limited(3):
        assert blas() == {3}
        thread.start()
        assert inner.wait(20)
        with blas_threads.thread_limits.limited(2):
            assert blas() == {3}
    assert blas() == {4}  # although the other one goes on
    with blas_threads.thread_limits.limited(2):
        assert blas() == {2}
    done.set()
    thread.join(20)
    assert blas() == {4}


def test_fewer_threads_than_a_share_stay_fewer():
    with threadpool_limits(1, "blas"), blas_threads.thread_limits.limited(3):
        assert blas() == {1}


def test_torch_has_its_share_in_the_parties_and_the_server_its_own(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(local, "n_cores", lambda: 4)
    before, seen = torch.get_num_threads(), []
    app = App(lambda _: seen.append(torch.get_num_threads()))
    try:
        torch.set_num_threads(4)
        with LocalGrid(app, nodes(4)) as grid:
            for asked in (4, 2, 1):
                list(grid.send_and_receive(messages(*range(1, asked + 1)), timeout=20))
                assert torch.get_num_threads() == 4
        assert seen == [1, 1, 1, 1, 2, 2, 4]
        # A thread that begins later has the number of before.
        threads = []
        late = threading.Thread(target=lambda: threads.append(torch.get_num_threads()))
        late.start()
        late.join()
        assert threads == [4]
    finally:
        torch.set_num_threads(before)
