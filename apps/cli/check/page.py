"""Show what was found: tables and colours on a terminal, lines elsewhere."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from flwr_vertical.counted import counted
from flwr_vertical.tables import Finding, Severity
from flwr_vertical.tables.findings import lines_of

from .tables import CheckedTable, Checks

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_MOST_NAMES = 6


def plain_lines(checks: Checks) -> Iterator[str]:
    """Return everything as lines of text."""
    for table in checks.tables:
        yield f"{table.party}: {_headline(table)}"
        yield from (f"  {kind}: {names}" for kind, names in _kinds(table))
        yield from _finding_lines(table.findings, "  ")
    if checks.overlap is not None:
        yield "samples by who has them:"
        shown = checks.overlap.replace({True: "yes", False: "-"})
        yield from (f"  {line}" for line in shown.to_string(index=False).splitlines())
    yield from _finding_lines(checks.findings, "")
    if checks.trials:
        yield "strategies:"
        yield from (f"  {trial.strategy}: {trial.text()}" for trial in checks.trials)
    yield _verdict(checks)


def show_page(checks: Checks, console: Console) -> None:
    """Print everything on a terminal."""
    for table in checks.tables:
        console.print(f"[bold]{escape(table.party)}[/]  {escape(_headline(table))}")
        if kinds := list(_kinds(table)):
            grid = Grid(box=box.SIMPLE, show_header=False, padding=(0, 1))
            for kind, names in kinds:
                grid.add_row(kind, escape(names))
            console.print(grid)
        _show_findings(table.findings, console)
        console.print()
    if checks.overlap is not None:
        grid = Grid(box=box.SIMPLE_HEAD, title="samples by who has them", title_justify="left")
        for name in checks.overlap.columns:
            grid.add_column(str(name), justify="right" if name == "samples" else "center")
        for row in checks.overlap.itertuples(index=False):
            grid.add_row(*(_cell(value) for value in row))
        console.print(grid)
    _show_findings(checks.findings, console)
    if checks.trials:
        grid = Grid(box=box.SIMPLE_HEAD)
        grid.add_column("strategy")
        grid.add_column("what a run would take, or why it refuses")
        for trial in checks.trials:
            grid.add_row(trial.strategy, escape(trial.text()), style="red" * trial.refused)
        console.print(grid)
    bad = checks.count(Severity.ERROR), checks.count(Severity.WARNING)
    colour = "bold red" if bad[0] else "yellow" if bad[1] else "green"
    console.print(f"[{colour}]{_verdict(checks)}[/]")


def _show_findings(findings: Sequence[Finding], console: Console) -> None:
    if not findings:
        return
    grid = Grid(box=box.SIMPLE_HEAD, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for severity in Severity:
        for line in lines_of([one for one in findings if one.severity is severity]):
            grid.add_row(f"[{_COLOURS[severity]}]{severity}[/]", escape(line))
    console.print(grid)


def _finding_lines(findings: Sequence[Finding], indent: str) -> Iterator[str]:
    for severity in Severity:
        for line in lines_of([one for one in findings if one.severity is severity]):
            yield f"{indent}{severity}: {line}"


def _headline(table: CheckedTable) -> str:
    if table.frame is None:
        return table.source
    rows, columns = table.frame.shape
    return f"{table.source}: {rows:,} rows, {columns:,} columns, {table.id_type} IDs"


def _kinds(table: CheckedTable) -> Iterator[tuple[str, str]]:
    by_kind: dict[str, list[str]] = {}
    for name, kind in table.kinds.items():
        by_kind.setdefault(kind, []).append(name)
    for kind, names in by_kind.items():
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        yield f"{len(names):,} {kind}", ", ".join(names[:_MOST_NAMES]) + more


def _cell(value: Any) -> str:
    return f"{value:,}" if not isinstance(value, bool) else "yes" if value else "-"


def _verdict(checks: Checks) -> str:
    errors, warnings = checks.count(Severity.ERROR), checks.count(Severity.WARNING)
    if not errors and not warnings:
        return "nothing suspicious found"
    return f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
