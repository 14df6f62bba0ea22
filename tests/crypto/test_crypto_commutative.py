"""Commutative blinding: that it is X25519, commutativity, what is refused."""

import itertools
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_vertical.crypto import _x25519_pool, _x25519_worker, commutative
from flwr_vertical.crypto.commutative import (
    MANY_POINTS,
    blind,
    check_points,
    generate_blinding_key,
    hash_ids,
)
from flwr_vertical.errors import ConfigError, ProtocolError, VerticalError

P = 2**255 - 19
SECRET = bytes(range(32))
IDS = [f"patient-{number}".encode() for number in range(200)]
LOW_ORDER = [
    0,
    1,
    P - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]

keys32 = st.binary(min_size=32, max_size=32)


def rows(*numbers):
    data = b"".join(number.to_bytes(32, "little") for number in numbers)
    return np.frombuffer(data, np.uint8).reshape(-1, 32)


def numbers(points):
    return [int.from_bytes(row.tobytes(), "little") for row in points]


def on_curve(u):
    return u < P and pow(u**3 + 486662 * u**2 + u, (P - 1) // 2, P) == 1


@settings(max_examples=20, deadline=None)
@given(key=keys32, sample=st.binary(max_size=40), context=st.binary(max_size=40))
def test_blind_is_x25519(key, sample, context):
    (point,) = hash_ids([sample], context)
    expected = X25519PrivateKey.from_private_bytes(key).exchange(
        X25519PublicKey.from_public_bytes(point.tobytes())
    )
    assert blind(point[None], key).tobytes() == expected


@settings(max_examples=20, deadline=None)
@given(keys=st.lists(keys32, min_size=2, max_size=5), data=st.data())
def test_any_order_of_the_keys_gives_the_same_points(keys, data):
    points = hash_ids(IDS[:3], b"run")
    results = []
    for order in (keys, data.draw(st.permutations(keys))):
        result = points
        for key in order:
            result = blind(result, key)
            check_points(result, "court")
        results.append(result)
    np.testing.assert_array_equal(*results)


def test_parties_find_their_common_ids():
    keys = [generate_blinding_key() for _ in range(3)]
    own = [IDS[:5], IDS[3:8], [*IDS[4:6], IDS[0]]]
    finals = []
    for ids, order in zip(own, itertools.permutations(range(3)), strict=False):
        points = hash_ids(ids, b"run", SECRET)
        for index in order:
            points = blind(points, keys[index])
        finals.append({row.tobytes() for row in points})
    assert len(set.intersection(*finals)) == len(set.intersection(*map(set, own))) == 1
    assert len(set.union(*finals)) == len(set.union(*map(set, own))) == 8


def test_hashed_points_lie_on_the_curve():
    for u in numbers(hash_ids(IDS, b"run", SECRET)):
        assert on_curve(u)
        assert u not in LOW_ORDER


def test_hashed_points_are_spread_over_all_bits():
    bits = np.unpackbits(hash_ids([b"%d" % i for i in range(4000)], b"run"), axis=1)
    share = bits.mean(axis=0)
    top = 31 * 8  # unpackbits puts a byte's high bit first; the number's 256th bit is never set.
    assert share[top] == 0
    assert np.all(np.abs(np.delete(share, top) - 0.5) < 0.05)


def test_same_id_same_point_and_others_never():
    points = hash_ids([*IDS, *IDS], b"run", SECRET)
    np.testing.assert_array_equal(points[: len(IDS)], points[len(IDS) :])
    kinds = [
        hash_ids(IDS, b"run"),
        hash_ids(IDS, b"run2"),
        hash_ids(IDS, b""),
        hash_ids(IDS, b"run", SECRET),
        hash_ids(IDS, b"run", SECRET[::-1]),
        hash_ids(IDS, b"run", SECRET + b"\0"),
    ]
    assert len({row.tobytes() for points in kinds for row in points}) == len(kinds) * len(IDS)
    assert not np.array_equal(hash_ids([b"bc"], b"a"), hash_ids([b"c"], b"ab"))


def test_blinded_values_of_two_keys_share_nothing():
    points = hash_ids(IDS, b"run")
    first, second = (blind(points, generate_blinding_key()) for _ in range(2))
    assert len({row.tobytes() for part in (points, first, second) for row in part}) == 3 * len(IDS)


def test_no_ids():
    points = hash_ids([], b"run")
    assert points.shape == (0, 32)
    assert blind(points, SECRET, processes=2).shape == (0, 32)
    check_points(points, "bank")


TWIST = next(u for u in range(2, 100) if not on_curve(u))


@pytest.mark.parametrize("bad", [TWIST, *LOW_ORDER, P, P + 9, 2**255 + 9, 2**256 - 1])
def test_points_of_no_honest_party_are_refused(bad):
    assert on_curve(9)
    check_points(rows(9, 9), "bank")
    with pytest.raises(ProtocolError, match="1 of 3 points of party 'bank'"):
        check_points(rows(9, bad, 9), "bank")


def test_all_bad_points_are_counted():
    with pytest.raises(ProtocolError, match="3 of 4 points of party 'court'"):
        check_points(rows(0, 9, P, TWIST), "court")


def test_what_is_no_points_key_or_secret_is_refused():
    points = hash_ids(IDS, b"run")
    cases = [
        (lambda: blind(points, SECRET[:-1]), ProtocolError, "key must be 32 bytes, got 31"),
        (lambda: blind(points, SECRET, processes=0), ConfigError, "processes"),
        (lambda: hash_ids(IDS, b"run", b"abc"), ConfigError, "at least 16 bytes, got 3"),
    ]
    for wrong in (np.zeros((2, 31), np.uint8), np.zeros(32, np.uint8), np.zeros((2, 32), np.int64)):
        cases.append(
            (lambda wrong=wrong: check_points(wrong, "bank"), ProtocolError, "'bank'.*shape")
        )
        cases.append((lambda wrong=wrong: blind(wrong, SECRET), ProtocolError, "shape"))
    for call, error, why in cases:
        with pytest.raises(error, match=why):
            call()


def test_points_need_not_be_contiguous():
    points = hash_ids(IDS, b"run")
    np.testing.assert_array_equal(blind(points[::2], SECRET), blind(points, SECRET)[::2])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(_x25519_pool, "BLOCK_POINTS", 7)


@pytest.mark.parametrize("processes", [2, 3, 100])
@pytest.mark.usefixtures("small_blocks")
def test_processes_give_the_same_points_in_the_same_order(processes, monkeypatch):
    points = hash_ids(IDS, b"run")
    expected = blind(points, SECRET, processes=1)
    # Whatever is blinded here would now fail.
    monkeypatch.setattr(_x25519_worker, "multiply", None)
    ids, count = (points, processes) if processes < 100 else (points[:20], 100)
    np.testing.assert_array_equal(blind(ids, SECRET, processes=count), expected[: len(ids)])


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.usefixtures("small_blocks")
def test_a_point_of_low_order_is_named_by_its_row(processes):
    points = hash_ids(IDS, b"run")
    points[101] = 0
    with pytest.raises(ProtocolError, match=r"point 101 of 200 .* low order"):
        blind(points, SECRET, processes=processes)


@pytest.mark.usefixtures("small_blocks")
def test_errors_in_a_process_and_its_early_end_surface(tmp_path, monkeypatch):
    points = hash_ids(IDS, b"run")
    out = memoryview(bytearray(points.size))
    with pytest.raises(VerticalError, match=r"ValueError.*32"):
        _x25519_pool.multiply(lambda a, b: points[a:b].tobytes(), b"short", out, 2)
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.stdin.buffer.read(100); sys.exit(7)")
    monkeypatch.setattr(_x25519_worker, "__file__", str(script))
    with pytest.raises(VerticalError, match="exit status 7"):
        blind(points, SECRET, processes=2)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
@pytest.mark.usefixtures("small_blocks")
def test_an_interrupt_does_not_wait_for_a_process_that_hangs(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(_x25519_worker, "__file__", str(script))
    points = hash_ids(IDS, b"run")
    previous = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    main = threading.get_ident()
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    start = time.monotonic()
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            blind(points, SECRET, processes=2)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, previous)
    assert time.monotonic() - start < 20


@pytest.mark.usefixtures("small_blocks")
def test_where_no_process_starts_this_one_does_the_work(monkeypatch, caplog):
    points = hash_ids(IDS, b"run")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    np.testing.assert_array_equal(blind(points, SECRET, processes=2), blind(points, SECRET))
    assert "can't start" in caplog.text


def test_by_default_many_points_are_shared_and_few_are_not(monkeypatch):
    asked = []

    def multiply(prepare, key, out, processes):
        asked.append(processes)

    monkeypatch.setattr(_x25519_pool, "multiply", multiply)
    monkeypatch.setattr(_x25519_pool, "usable_cpus", lambda: 5)
    for count in (MANY_POINTS, MANY_POINTS + 1):
        blind(np.zeros((count, 32), np.uint8), SECRET)
    assert asked == [1, 5]


def test_daemon_processes_and_scripts_without_main_guard_can_share_the_work():
    script = """
import multiprocessing
from flwr_vertical.crypto import _x25519_pool
from flwr_vertical.crypto.commutative import blind, hash_ids

_x25519_pool.BLOCK_POINTS = 10
points = hash_ids([b"%d" % i for i in range(50)], b"run")

def work(pipe):
    pipe.send(blind(points, bytes(range(32)), processes=2))

context = multiprocessing.get_context("fork")
mine, theirs = context.Pipe()
child = context.Process(target=work, args=(theirs,), daemon=True)
child.start()
same = mine.recv() == blind(points, bytes(range(32)), processes=2)
print(same.all() and same.shape)
child.join()
"""
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "(50, 32)"


def test_the_worker_ends_with_its_input():
    for sent in (b"", b"\0" * 12):
        command = [sys.executable, "-I", "-S", _x25519_worker.__file__]
        done = subprocess.run(command, input=sent, capture_output=True, check=True, timeout=30)
        assert done.stdout == b""


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 10, 11, 25, 30])
def test_blocks_change_nothing_and_processes_start_once(monkeypatch, count, processes):
    monkeypatch.setattr(_x25519_pool, "BLOCK_POINTS", 10)
    monkeypatch.setattr(_x25519_pool, "usable_cpus", lambda: processes)
    monkeypatch.setattr(commutative, "MANY_POINTS", 10)
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(1) or popen(*a, **k))
    ids = [f"id-{k}".encode() for k in range(count)]
    key = commutative.generate_blinding_key()
    points = commutative.hash_ids(ids, b"run")
    expected = commutative.blind(points, key)
    started.clear()
    np.testing.assert_array_equal(commutative.hash_and_blind(ids, b"run", key), expected)
    n_blocks = -(-count // 10)
    assert len(started) == (min(processes, n_blocks) if processes > 1 and n_blocks > 1 else 0)
    np.testing.assert_array_equal(commutative.check_and_blind(points, "p", key), expected)
    if count:
        points[-1] = 0
        with pytest.raises(ProtocolError, match="points of party 'p'"):
            commutative.check_and_blind(points, "p", key)
