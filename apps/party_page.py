"""A party's own page: what each stage of a run left there, as it came; nobody else can read it.

What a stage leaves is drawn once, when it is stored; the next time it is read from the page. So the
page of a run that broke off shows what it got to.
"""

import logging
import re
from collections.abc import Iterable
from html import unescape
from pathlib import Path

from flwr_vertical import Result
from flwr_vertical.log import logger
from flwr_vertical.pages.page import Section, shown
from flwr_vertical.results.storage import is_own_report

_SECTION = re.compile(
    r'<section id="section-\d+"><h2>(?P<heading>[^<]*)</h2>(<p class="caption">(?P<caption>[^<]*)'
    r"</p>)?\n(?P<body><!--part (?P<part>[^>]*)-->.*?)</section>",
    flags=re.DOTALL,
)


class PartyPage:
    """The page of one party and run.

    A part of it is what was stored at once: by a stage of a pipeline, or by the run, which has no
    name there; or it is of the node's own table.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self) -> None:
        """Remove that of an earlier run of this name, which did not come to its end."""
        if self.path.exists() and is_own_report(self.path):
            self.path.unlink()

    def write(
        self,
        result: Result,
        ledger: Iterable[Section],
        what: str = "",
        sections: Iterable[Section] = (),
    ) -> None:
        """Write the page with one more part, and with what the ledger says by now.

        What is stored again, as its step was taken again, replaces itself.
        """
        # Figures take more than a second to import, and parties import this for every message.
        from flwr_vertical.reports.report import stage_sections, write_report

        parts = self._parts()
        if "" not in parts:
            own = Result(
                result.strategy,
                parties=result.parties,
                originals=result.originals,
                notes=["This page was made by the party from its own table and stays with it."],
                settings=result.settings,
            )
            parts[""] = _part("", stage_sections(own, without=()))
        if what:
            parts[what] = _part(what, sections)
        drawn = [section for part in parts.values() for section in part]
        drawn.sort(key=lambda section: section.heading == "Settings")  # the last of the run's
        write_report(
            result,
            self.path,
            party=result.parties[0],
            drawn=[*drawn, *shown("Privacy ledger", ledger)],
        )

    def _parts(self) -> dict[str, list[Section]]:
        """Read the parts so far from the page."""
        found: dict[str, list[Section]] = {}
        page = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        for match in _SECTION.finditer(page):
            texts = unescape(match["heading"]), match["body"], unescape(match["caption"] or "")
            found.setdefault(match["part"], []).append(Section(*texts))
        return found


def _part(what: str, sections: Iterable[Section]) -> list[Section]:
    """Mark sections as those of the part ``<stage>/<what it stored>``, headed by the stage."""
    stage = what.partition("/")[0]
    before = f"{stage}: " if stage else ""
    return [
        s._replace(heading=before + s.heading, body=f"<!--part {what}-->{s.body!s}")
        for s in shown("What was stored here", sections)
    ]


def graded(result: Result, party: str) -> str:
    """Grade a synthetic table for the party's own page and log; nothing of it leaves the node.

    Returns why there is no grade, if a synthetic table has none.
    """
    from flwr_vertical.reports.synthetic import grade_if_synthetic

    ungraded = grade_if_synthetic(result)
    if result.graded is not None:
        level = logging.WARNING if result.graded.privacy in "CD" else logging.INFO
        words = " ".join(result.graded.sentences)
        logger.log(level, "party %r, grade of its own columns: %s", party, words)
    return ungraded
