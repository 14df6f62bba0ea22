"""Every attack on every view of a recorded run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from simulations.attacks.distances import anonymous, factors, lone_distances
from simulations.attacks.known import known_coefficients, moments_and_span
from simulations.attacks.labels import labels_from
from simulations.attacks.opened import atoms, projections, smallest_set, subset_sums
from simulations.attacks.pads import reused_pads
from simulations.attacks.recording import Recording
from simulations.attacks.score import Guess, score
from simulations.attacks.span import flags_in_span, known_rows, single_vectors
from simulations.attacks.vectors import Family, families
from simulations.attacks.views import OUTPUTS, SERVER, View, aligned_truth, views_of

Truth = Mapping[str, pd.DataFrame]
LABELS = "labels"


@dataclass(frozen=True)
class Material:
    """What attacks work on: a view, its vectors, the tables that guesses are compared with."""

    view: View
    vectors: list[Family]
    truth: Truth


@dataclass(frozen=True)
class Finding:
    """What an attack on a view found."""

    view: str  # Which
    attack: str  # Which
    cells: float  # Share of others' cells recovered; of labels, what R squared or AUC gains
    columns: int  # Columns recovered as a whole
    allowed: float = 0.0  # Share of cells that the same attack recovers from the outputs alone

    @property
    def beyond(self) -> float:
        """Share of cells beyond what the outputs allow."""
        return max(0.0, self.cells - self.allowed)


ATTACKS: dict[str, Callable[[Material], Iterable[Guess]]] = {
    "single vectors": lambda m: single_vectors(m.vectors),
    "span, half of the rows known": lambda m: known_rows(m.view, m.vectors, m.truth),
    "0/1 columns in the span": lambda m: flags_in_span(m.view, m.vectors),
    "known coefficients": lambda m: known_coefficients(m.view, m.vectors),
    "moments and span": lambda m: moments_and_span(m.view, m.vectors),
    "projections on labels": lambda m: projections(m.view),
    "subset sums": lambda m: subset_sums(m.view),
    "atoms of row sets": lambda m: atoms([m.view], columns_of(m.truth)),
    "distances": lambda m: _distances(m),
    "pads used twice": lambda m: _pads(m),
}

RULED = ("projections on labels", "subset sums", "atoms of row sets")
"""Attacks on sums over groups of rows: parties' rules on rows, vectors and flags leave them none.
The sums are outputs, but that excuses no find."""


def attack_run(run: Recording, only: Iterable[str] | None = None) -> list[Finding]:
    """Attack every view of a run."""
    views = views_of(run)
    truth = aligned_truth(run, views[SERVER].positions)
    names = list(ATTACKS if only is None else only)
    allowed = dict.fromkeys(names, 0.0)
    found: list[Finding] = []
    for who in (OUTPUTS, *(name for name in views if name != OUTPUTS)):
        material = Material(views[who], families(views[who]), truth)
        for name in names:
            if name == LABELS:
                continue
            got = score(ATTACKS[name](material), truth, exclude=who)
            if who == OUTPUTS:
                allowed[name] = got.cells
                continue
            limit = allowed[name] if who == SERVER else 0.0
            found.append(Finding(who, name, got.cells, got.columns, limit))
    labels = views[SERVER].labels
    if labels is not None and (only is None or LABELS in names):
        for party in views[SERVER].parties:
            gain = labels_from(views[party], labels).gain
            found.append(Finding(party, LABELS, gain, int(gain > 0.5)))
    return found


def columns_of(truth: Truth) -> list[tuple[str, str]]:
    """Return (party, column) in the order of the parties' names."""
    return [(party, str(name)) for party in sorted(truth) for name in truth[party]]


def smallest_opened(run: Recording) -> int | None:
    """Return the rows of the smallest set whose sums a run opened; None if it opened none."""
    return smallest_set([views_of(run)[SERVER]])


def _distances(material: Material) -> Iterable[Guess]:
    view, truth = material.view, material.truth
    spans = factors(view)
    yield from lone_distances(view)
    if spans:
        yield from flags_in_span(view, spans)
        yield from known_rows(view, spans, truth)
    yield from anonymous(view, truth)


def _pads(material: Material) -> Iterable[Guess]:
    found = reused_pads(material.view)
    yield from single_vectors(found)
    if found:
        yield from known_rows(material.view, found, material.truth)
