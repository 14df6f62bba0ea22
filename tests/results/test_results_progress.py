import builtins
import io
import logging

import pytest

from flwr_vertical.results import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="flwr_vertical")
    return caplog


def test_without_a_terminal_about_one_line_per_tenth(lines):
    with quiet("FKNN", total=1000) as p:
        for i in range(1000):
            p.step("distances", detail=f"block {i + 1}")
    assert 10 <= len(lines.messages) <= 12
    assert lines.messages[0] == "FKNN: distances 100/1000 (10%), block 100"
    assert lines.messages[-1].startswith("FKNN: done after 1000 steps")


def test_unknown_total_logs_by_time_only_and_may_be_set_later(lines):
    with quiet("VFEM") as p:
        for _ in range(50):
            p.step("iterate")
        assert lines.messages == []
        p.total = 60
        p.step("iterate", advance=5)
    assert lines.messages[0] == "VFEM: iterate 55/60 (92%)"


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: Clock.now)
    return Clock


def quiet(name, **options):
    return Progress(name, stream=io.StringIO(), **options)


def test_a_training_shows_loss_rate_and_time_left(lines, clock):
    with quiet("FALSE-VFL") as p:
        for i in range(400):
            clock.now += 0.125
            p.step(i + 1, 4000, loss=1 / (i + 1), learning_rate=0.5)
    assert lines.messages[0] == (
        "FALSE-VFL: 40/4000 (1%), loss 0.025, learning rate 0.5, 8 it/s, 8 min 15 s left"
    )
    assert len(lines.messages) == 10 + 1  # every five seconds, and the end
    assert lines.messages[-1] == "FALSE-VFL: done after 400 steps, 50.0 s"


def test_the_rate_is_that_of_late(lines, clock):
    with quiet("X", total=1000) as p:
        for seconds, count in ((0.0625, 500), (5.0, 50)):
            for _ in range(count):
                clock.now += seconds
                p.step("train")
    assert "16 it/s, " in lines.messages[0]
    assert lines.messages[-2] == "X: train 550/1000 (55%), 5.0 s/it, 37 min 30 s left"


def test_a_phase_begins_anew(lines, clock):
    with quiet("X") as p:
        for i in range(100):
            clock.now += 0.125
            p.step(i + 1, 100)
        p.step("stage two", 0)
        for i in range(20):
            clock.now += 1.0
            p.step(i + 1, 40, loss=float("nan"))
    late = [line for line in lines.messages if "stage two" in line]
    assert late[-1] == "X: stage two 17/40 (42%), loss nan, 1 it/s, 23.0 s left"


def test_values_are_read_only_when_they_are_shown(lines, clock, monkeypatch):
    read = []

    class OnAnAccelerator:
        def __float__(self):
            read.append(clock.now)
            return 0.25

    with quiet("X") as p:
        for i in range(640):
            clock.now += 0.015625
            p.step(i + 1, 100_000, loss=OnAnAccelerator())
    assert len(read) == 2  # in ten seconds
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    with Progress("X", stream=terminal) as p:
        for i in range(640):
            clock.now += 0.015625
            p.step(i + 1, 2000, loss=OnAnAccelerator())
    assert len(read) <= 2 + 100
    assert "640/2000" in terminal.getvalue()
    assert "loss 0.25, 64 it/s, 21.2 s left" in terminal.getvalue()


def test_a_value_that_is_no_number_stops_nothing(lines, clock):
    with quiet("X") as p:
        clock.now += 6  # a long wait is logged
        p.step("train", loss=None, size=[1, 2], detail="gap 0.1")
    assert lines.messages[0] == "X: train 1, loss None, size [1, 2], gap 0.1, 6.0 s/it"


def test_a_failing_run_says_so_and_passes_the_error_on(lines):
    with pytest.raises(ZeroDivisionError), quiet("VFEM"):
        _ = 1 / 0
    assert "stopped by ZeroDivisionError" in lines.messages[-1]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_disabled_is_silent(lines, stream):
    with Progress("X", total=2, enabled=False, stream=stream) as p:
        p.step("a", advance=2)
    assert (stream.getvalue(), lines.messages) == ("", [])


def test_bar_in_a_terminal(lines, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    with Progress("FK[NN]", total=2, stream=terminal) as p:
        p.step("dist[red]", detail="block [1]")
        p.total = 4
        p.step("dist[red]", advance=3, detail="block [2]")
    text = terminal.getvalue()
    assert "FK[NN]" in text
    assert "4/4" in text
    assert "dist[red]" in text
    assert "block [2]" in text
    assert lines.messages == []


def test_a_bar_inside_a_bar_is_not_drawn(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    outer, inner = Terminal(), Terminal()
    with Progress("study", total=1, stream=outer) as p:
        with Progress("run", total=1, stream=inner) as q:
            q.step("x")
        p.step("run")
    assert inner.getvalue() == ""
    assert "study" in outer.getvalue()
    third = Terminal()
    with Progress("next", total=1, stream=third) as p:
        p.step("x")
    assert "next" in third.getvalue()


def test_without_rich_lines_are_logged(lines, monkeypatch):
    real = builtins.__import__

    def no_rich(name, *args, **kwargs):
        if name.startswith("rich"):
            raise ImportError("no rich")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_rich)
    with Progress("FKNN", total=1, stream=Terminal()) as p:
        p.step("x")
    assert lines.messages[0] == "FKNN: x 1/1 (100%)"
