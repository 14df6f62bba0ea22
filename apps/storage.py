"""Storage of the app: a node's own file, or the demonstration data in a simulation."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from flwr.app import Context

from flwr_vertical import Result, Strategy, Table, make_strategy
from flwr_vertical.errors import ConfigError, VerticalError
from flwr_vertical.incomplete import hide_cells, put_back
from flwr_vertical.incomplete.demo import demo_names, demo_tables
from flwr_vertical.log import logger
from flwr_vertical.node.config import GRADE, HOLD_OUT
from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.node.party import NAMES
from flwr_vertical.node.storage import (
    node_in_words,
    output_home,
    party_folder,
    run_folder,
    run_name,
)
from flwr_vertical.pages.page import Section
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.record import Policy
from flwr_vertical.policy.requirements import open_to
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.summary import LedgerSummary
from flwr_vertical.protocol.disk import writing
from flwr_vertical.results.storage import holds_result
from flwr_vertical.server.journal import FILE_NAME as JOURNAL
from flwr_vertical.server.journal import Journal
from flwr_vertical.server.run_record import describe
from flwr_vertical.server.settings import RunSettings
from flwr_vertical.version import __version__

from .ledger_section import ledger_sections
from .party_page import PartyPage, graded
from .settings import DemoSettings

INTERVALS, DEPENDENCE = "intervals", "partial-dependence"  # beside the table

# Of the run config, on a party's page; settings of the strategy are the server's to show.
_SHOWN = ("aggregation", "alignment", "align-rows", "seed")

LABEL_SECRET = "label-secret"
"""File in the server's output folder; by it parties recognise labels of earlier runs."""

NODE_NAMES = "node-names.json"
"""File beside it; which node was which party last, to name one that is silent."""


class AppStorage(FileStorage):
    """Reads ``data`` from the node config; a simulated node without it uses demonstration data.

    Beside its table or model a party gets a report of its own, on its own disk: what was missing,
    how close the imputed values came where the truth is known, and what has left this node so far.
    """

    def __init__(self) -> None:
        # By node, as opened for its last run: with the policy that holds for the whole of it.
        self._ledgers: dict[int, tuple[int, PrivacyLedger | None]] = {}
        # Whose and where: by node the run, stage and name of the file.
        self._intervals: dict[int, tuple[int, str, str]] = {}

    def role(self, context: Context) -> str:
        """Role from the node config; where one is needed, the last simulated node is arbiter."""
        if context.run_config.get("nodes"):  # what a simulated node reads is taken out of it
            raise ConfigError(
                f"{node_in_words(context)}: the run config has 'nodes', the node configs of a "
                "simulation; this node reads no file that a server names. Leave 'nodes' away"
            )
        if _is_simulated(context) and _n_demo_parties(context) == _partition(context)[0]:
            return "arbiter"
        return super().role(context)

    def party_name(self, context: Context) -> str:
        """Name from the node config, or the demonstration's name for a simulated node."""
        if _is_simulated(context):
            return _demo_names(context)[_partition(context)[0]]
        return super().party_name(context)

    def load(self, context: Context) -> Table:
        """Read the node's file or make its share of the demonstration data."""
        if not _is_simulated(context):
            table = super().load(context)
            return self.hide(context, table) if "" in _imputing(context) else table
        name = self.party_name(context)
        return Table.of(_demo(context, 0)[name], party=name)

    def hide(self, context: Context, table: Table) -> Table:
        """Return the table without the cells that are held out of this run's imputations."""
        share = _hold_out(context)
        if not share:
            return table
        return hide_cells(table, share, run_name(context), self.party_name(context))

    def begin(self, context: Context) -> None:
        """Begin the party's own page; read the node's database, if it has one."""
        if self.role(context) != "arbiter":
            self._page(context).begin()
        if not _is_simulated(context):
            super().begin(context)

    def load_truth(self, context: Context) -> pd.DataFrame | None:
        """Return the complete table of a demonstration."""
        if not _is_simulated(context):
            return None
        return _demo(context, 1)[self.party_name(context)]

    def policy(self, context: Context) -> Policy:
        """Return the node's policy; a simulated node, whose data are public, agrees to any run."""
        if not _is_simulated(context):
            return super().policy(context)
        who = f"simulated node {_partition(context)[0]}"
        return read_policy(who, context.node_config, open_to(context.run_config))

    def privacy_ledger(self, context: Context) -> PrivacyLedger | None:
        """Return the node's ledger; demonstration data are public, and nothing is counted."""
        found = None if _is_simulated(context) else super().privacy_ledger(context)
        self._ledgers[context.node_id] = context.run_id, found
        return found

    def _ledger_of_run(self, context: Context) -> PrivacyLedger | None:
        run, found = self._ledgers.get(context.node_id, (None, None))
        return found if run == context.run_id else self.privacy_ledger(context)

    def data_version(self, context: Context) -> str:
        """Return a digest of the node's file, or what the demonstration's table follows from."""
        if not _is_simulated(context):
            version, share = super().data_version(context), context.node_config.get(HOLD_OUT)
            # Which cells are hidden differs by run, and ledgers have rows by this version.
            of = f" in {run_name(context)}" if "" in _imputing(context) else ""
            return f"{version} without {share} of the cells{of}" if share else version
        keys = ("demo.dataset", "demo.missing-cells", "demo.missing-blocks", "seed")
        parts = [_partition(context), *(context.run_config.get(key) for key in keys)]
        return " ".join(map(str, parts))

    def save(self, context: Context, frame: pd.DataFrame, beside: str = "", stage: str = "") -> str:
        """Write a table, and show it on the party's own page."""
        what = beside.removeprefix(f"{stage}.")  # of a pipeline, where a later one leaves the same
        drawn = what.startswith("draw-")
        given, compared = frame, (beside in ("", stage) or drawn) and bool(_hold_out(context))
        if compared:
            frame = put_back(frame, super().load(context))
        where = super().save(context, frame, beside)
        if what == INTERVALS:  # in the step that stores the table, and shown with it
            self._intervals[context.node_id] = context.run_id, stage, beside
        elif not (drawn or what == NAMES or (beside and beside == stage)):  # a copy for stages
            sections = self._shown(context, frame, what, stage, given)
            self._write_page(context, f"{stage}/{what}", sections)
        return where

    def save_model(self, context: Context, data: bytes) -> str:
        """Write the party's part of the model and, if it keeps a privacy ledger, its report."""
        where = super().save_model(context, data)
        if self._ledger_of_run(context) is not None:
            self._write_page(context)
        return where

    def _page(self, context: Context) -> PartyPage:
        name = self.party_name(context)
        return PartyPage(party_folder(context) / run_name(context) / f"{name}.html")

    def _own(self, context: Context) -> Result:
        """Return the run as far as the node's own table says."""
        name = self.party_name(context)
        return Result(
            str(context.run_config.get("strategy", "")),
            parties=[name],
            originals={name: self._given(context).frame},
            name=run_name(context),
            version=__version__,
            finished=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )

    def _given(self, context: Context) -> Table:
        return self.load(context) if _is_simulated(context) else super().load(context)

    def _shown(
        self, context: Context, frame: pd.DataFrame, beside: str, stage: str, given: pd.DataFrame
    ) -> Iterator[Section]:
        """Yield what is shown of a table, and how good it is where that is known."""
        # Figures take more than a second to import, and a SuperNode may start a process for
        # every message.
        from flwr_vertical.reports.report import stage_sections

        from .dependence_section import dependence_section

        if beside == DEPENDENCE:
            yield dependence_section(frame)
            return
        report = self._own(context)
        if beside:
            yield from stage_sections(Result(report.strategy, frames={beside: frame}))
            return
        (name,) = report.parties
        report.tables[name] = frame
        run, of, where = self._intervals.pop(context.node_id, (None, "", ""))
        if (run, of) == (context.run_id, stage):
            report.intervals[name] = pd.read_parquet(self._result(context, where))
        if (truth := self.load_truth(context)) is not None:
            report.truth[name] = truth
            before = {name: self._given(context).by_kind}
            report.compare_imputed(before, report.tables, report.truth)
        if _hold_out(context):
            hidden = {name: self.hide(context, super().load(context)).by_kind}
            report.compare_imputed(hidden, {name: given}, report.originals)
            report.settings["hold_out"] = _hold_out(context)
        grade = bool(context.node_config.get(GRADE, True))
        sections = stage_sections(report, graded(report, name) if grade else "")
        yield from (section for section in sections if section.heading != "Settings")

    def _write_page(
        self, context: Context, what: str = "", sections: Iterable[Section] = ()
    ) -> None:
        """Write the party's own page as far as the run has come."""
        page = self._page(context)
        with writing(f"party {self.party_name(context)!r}: its report", page.path):
            try:
                page.write(self._so_far(context), self._of_ledger(context), what, sections)
            except OSError:
                raise
            except Exception:  # the run's results do not depend on a page
                logger.exception("%s cannot be brought up to date", page.path)

    def _so_far(self, context: Context) -> Result:
        """Return the run as far as the node's own table, and what it has stored, say."""
        report, result = self._own(context), self._result(context)
        if result.is_file():
            report.tables = {report.parties[0]: pd.read_parquet(result)}
        report.settings = {k: context.run_config[k] for k in _SHOWN if k in context.run_config}
        if _hold_out(context):
            report.settings["hold_out"] = _hold_out(context)
        return report

    def _of_ledger(self, context: Context) -> Iterator[Section]:
        if (found := self._ledger_of_run(context)) is not None:
            run = str(context.run_config.get("run-name") or context.run_id)
            yield from ledger_sections(LedgerSummary.of(found.path), found.policy, run)


def _hold_out(context: Context) -> float:
    """Return which share of known cells a node hides from imputations, 0 in a run without one."""
    return float(context.node_config.get(HOLD_OUT, 0.0)) if _imputing(context) else 0.0


def _imputing(context: Context) -> frozenset[str]:
    """Return which stages impute cells of a node's own table; "" if the strategy itself does."""
    if not context.node_config.get(HOLD_OUT) or _is_simulated(context):
        return frozenset()
    return _imputing_stages(tuple(sorted(context.run_config.items())))


@lru_cache(maxsize=8)
def _imputing_stages(items: tuple[tuple[str, Any], ...]) -> frozenset[str]:
    config = dict(items)
    try:
        return make_strategy(str(config["strategy"]), config).party.imputing()
    except (KeyError, VerticalError):  # the server says what is wrong with it
        return frozenset()


def _is_simulated(context: Context) -> bool:
    """Whether the node belongs to the Simulation Runtime and has no data of its own."""
    return "data" not in context.node_config and "partition-id" in context.node_config


def _partition(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


def _n_demo_parties(context: Context) -> int:
    """Return how many simulated nodes are parties: all, or all but the arbiter."""
    total = _partition(context)[1]
    reason = _arbiter_for(context)
    parties = total - 1 if reason else total
    if parties < 1:
        raise ConfigError(
            f"{reason} needs a party and an arbiter: --federation-config 'num-supernodes=3'"
        )
    return parties


def _arbiter_for(context: Context) -> str | None:
    """Return what in a run config needs an arbiter, if anything does."""
    return _arbiter_asked(tuple(sorted(context.run_config.items())), earlier_folder(context))


@lru_cache(maxsize=8)  # asked in every message, and reading all settings takes 9 ms
def _arbiter_asked(items: tuple[tuple[str, Any], ...], earlier: Path | None) -> str | None:
    config = dict(items)
    if config.get("aggregation") == "ckks":
        return "aggregation 'ckks'"
    try:
        strategy = make_strategy(str(config["strategy"]), config)
        # Simulated nodes are on the server's machine, whose result says what was fitted.
        return (strategy if earlier is None else strategy.building_on(earlier)).needs_arbiter
    except (KeyError, VerticalError):  # the server says what is wrong with it
        return None


def _demo_names(context: Context) -> list[str]:
    """Return the names of simulated parties: those that the run asks for, then the usual ones."""
    named = {"parties": context.run_config.get("parties", "")}
    asked = RunSettings.from_config(named).parties or ()
    total = _n_demo_parties(context)
    return [*asked, *(name for name in demo_names(total) if name not in asked)][:total]


def _demo(context: Context, which: int) -> dict[str, pd.DataFrame]:
    """Return the demonstration's tables by party, with gaps (0) or complete (1)."""
    demo = DemoSettings.from_config(context.run_config, "demo.")
    tables = demo_tables(
        demo.dataset,
        _n_demo_parties(context),
        demo.missing_cells,
        demo.missing_blocks,
        int(context.run_config.get("seed", 0)),
    )[which]
    return dict(zip(_demo_names(context), tables.values(), strict=True))


def check_free(folder: Path) -> None:
    """Refuse a folder that holds what an earlier run of this name left, before a run."""
    Journal.refuse_unfinished(folder)
    if holds_result(folder):
        raise ConfigError(
            f"{folder} holds the result of an earlier run of this name, which this one would "
            "replace: use another run-name, or move that folder"
        )


def is_done(folder: Path, strategy: Strategy) -> bool:
    """Tell whether a run that is to be resumed came to its end; refuse that of another one."""
    if (folder / JOURNAL).exists() or not holds_result(folder):
        return False
    earlier = Result.load(folder)
    asked = {"strategy": strategy.name, **strategy.settings()}
    found = {"strategy": earlier.strategy, **earlier.settings}
    changed = [
        f"{key}: {describe(found.get(key))} then, {describe(value)} now"
        for key, value in asked.items()
        if describe(found.get(key)) != describe(value)
    ]
    if changed:
        raise ConfigError(
            f"the run in {folder} is finished, and was another one ({'; '.join(changed)}); use "
            "another run-name"
        )
    if not (folder / "report.html").exists():
        earlier.report(folder)
    return True


def save_result(result: Result, folder: Path) -> None:
    """Save result and report; only then is the journal of the run given up."""
    result.name = result.name or folder.name
    with writing("the server's result", folder):
        result.save(folder)
        result.report(folder)


def server_folder(context: Context) -> Path:
    """Folder of the server's own results: ``output`` of the run config, or a default."""
    return _server_home(context) / run_name(context)


def earlier_folder(context: Context) -> Path | None:
    """Folder of the server's own result of the run named ``fitted``; None if it names none.

    A name that leads out of its folder is refused by every node, and means none here.
    """
    earlier = context.run_config.get("fitted")
    if not earlier:
        return None
    try:
        return _server_home(context) / run_folder("fitted", earlier)
    except ConfigError:
        return None


def _server_home(context: Context) -> Path:
    configured = context.run_config.get("output")
    return Path(str(configured)).expanduser() if configured else output_home() / "server"
