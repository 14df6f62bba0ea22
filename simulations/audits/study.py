"""The audits from options to page: many runs of every mechanism, and a table of bounds."""

import logging
import time
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.results import write_text_atomically
from simulations.audits import counts, releases, sums
from simulations.audits.mechanism import Mechanism, audit
from simulations.preset import StudyPreset
from simulations.study import FAIL, PASS, Options, Outcome, Output, print_tables
from simulations.tables_page import html_page, markdown_page

logger = logging.getLogger("flwr_vertical")

TITLE = "Audits of epsilon"
COMMAND = "python -m simulations audits --write docs/audits.md"
TITLES = {
    "audits": "What is told with noise",
    "refuted": "What is told with noise, but promises nothing",
}
REFUTED = "refuted"


class Preset(StudyPreset):
    """The settings of one run of the audits."""

    repeated = ()


def all_mechanisms() -> list[Mechanism]:
    """Return every mechanism there is."""
    return [*counts.mechanisms(), *releases.mechanisms(), *sums.mechanisms()]


def run(options: Options) -> Outcome:
    """Run the audits; see ``python -m simulations audits --help``."""
    started = time.monotonic()
    if options.seeds is not None:
        raise ConfigError("audits have no replications; say --set audit.runs=N for more runs")
    preset, output = Preset.load(options), Output(options.output)
    found = make_tables(preset)
    output.tables(found)
    page = output.page(html_page(TITLE, notes(preset), TITLES, found))
    if options.write is not None:
        write_text_atomically(
            options.write, markdown_page(TITLE, COMMAND, notes(preset), TITLES, found)
        )
        logger.info("wrote %s", options.write.absolute())
    print_tables(TITLES, found, page, started)
    reached = not found["audits"]["verdict"].str.startswith(FAIL).any()
    return Outcome(bool(reached), found, page)


def make_tables(preset: Preset) -> dict[str, pd.DataFrame]:
    """Audit everything; one row for each mechanism, in the table that it belongs to."""
    part = preset["audit"]
    rows: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in TITLES}
    for mechanism in all_mechanisms():
        made = audit(mechanism, part["runs"], part["seed"], part["confidence"])
        rows["audits" if mechanism.holds else "refuted"][mechanism.name] = {
            "tables differ in": mechanism.differ,
            "epsilon stated": round(mechanism.epsilon, 3),
            "delta": mechanism.delta,
            "epsilon at least": round(made.epsilon, 3),
            "runs": made.n_runs,
            "verdict": _verdict(mechanism, made.epsilon),
        }
    return {
        name: pd.DataFrame.from_dict(own, orient="index").rename_axis("what is told")
        for name, own in rows.items()
    }


def _verdict(mechanism: Mechanism, found: float) -> str:
    if not mechanism.holds:
        return REFUTED if found > mechanism.epsilon else "not found out"
    if found > mechanism.epsilon:
        return f"{FAIL}: more is spent than stated"
    if not mechanism.tight:
        return PASS
    return f"{PASS}, above half" if found > mechanism.epsilon / 2 else f"{FAIL}: not above half"


def notes(preset: Preset) -> list[str]:
    """Return what a reader must know."""
    part = preset["audit"]
    return [
        "Each mechanism runs many times on two tables that differ in one row, chosen so that the "
        "outcomes differ as much as they can. The first half of the runs chooses an outcome, the "
        "second half counts it (`flwr_vertical.grading.audit.audit_epsilon`): a lower bound of "
        f"epsilon at a confidence of {100 * part['confidence']:g} % each.",
        f"{PASS}: the bound is not above what is stated; above half of it where outcomes that "
        "attain epsilon are not rare. Elsewhere many numbers share the budget, and no single "
        "outcome shows it: there the bound is far below and shows little. "
        "`tests/privacy/test_privacy_audits.py` replays releases on neighbouring tables with the "
        "same outcome, which gives their loss exactly: it comes near what the ledger counts, and "
        "never exceeds it.",
        "Delta is large here, so that outcomes which attain epsilon are frequent enough to count.",
        "VFL-ADMM-DP (`glm-admm` with `epsilon`) is a baseline of a paper, not a protection: a fit "
        "lies in the span of the party's columns, and so does its noise. Who knows as many rows "
        "as there are columns solves for the noisy coefficients, and every other row's fit then "
        "tells of its columns. "
        "Use `glm` with `epsilon`.",
        f"Noise comes from the seed {part['seed']}, so that the command repeats the numbers.",
    ]
