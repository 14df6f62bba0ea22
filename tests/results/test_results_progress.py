import builtins
import io
import logging

import pytest

from flwr_vertical.results import Progress, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="flwr_vertical")
    return caplog


def test_without_a_terminal_about_one_line_per_tenth(lines):
    with Progress("FKNN", total=1000, stream=io.StringIO()) as p:
        for i in range(1000):
            p.step("distances", detail=f"block {i + 1}")
    assert 10 <= len(lines.messages) <= 12
    assert lines.messages[0] == "FKNN: distances 100/1000 (10%), block 100"
    assert lines.messages[-1].startswith("FKNN: done after 1000 steps")


def test_unknown_total_logs_by_time_only_and_may_be_set_later(lines):
    with Progress("VFEM", stream=io.StringIO()) as p:
        for _ in range(50):
            p.step("iterate")
        assert lines.messages == []
        p.total = 60
        p.step("iterate", advance=5)
    assert lines.messages[0] == "VFEM: iterate 55/60 (92%)"


def test_a_long_wait_is_logged(lines, monkeypatch):
    clock = iter([0.0, 0.0, *([11.0] * 50)])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with Progress("VFEM", stream=io.StringIO()) as p:
        p.step("iterate", detail="gap 0.1")
    assert lines.messages[0] == "VFEM: iterate 1, gap 0.1"


def test_a_failing_run_says_so_and_passes_the_error_on(lines):
    with pytest.raises(ZeroDivisionError), Progress("VFEM", stream=io.StringIO()):
        _ = 1 / 0
    assert "stopped by ZeroDivisionError" in lines.messages[-1]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_disabled_is_silent(lines, stream):
    with Progress("X", total=2, enabled=False, stream=stream) as p:
        p.step("a", advance=2)
    assert stream.getvalue() == ""
    assert lines.messages == []


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


def test_progress_function_is_the_short_form():
    with progress("FKNN", total=3, enabled=False) as p:
        p.step("x")
    assert isinstance(p, Progress)
    assert p.total == 3
