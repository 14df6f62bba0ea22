"""What a report says of a grade of synthetic tables."""

from __future__ import annotations

from collections.abc import Iterator

from flwr_vertical.errors import DataError
from flwr_vertical.results.graded import MARGIN, Grade
from flwr_vertical.results.page import (
    Item,
    Section,
    bullet_list,
    dataframe_html,
    details_html,
    paragraph,
)
from flwr_vertical.results.quality import synthetic_pairs
from flwr_vertical.results.result import Result
from flwr_vertical.results.synthetic import grade_figure


def grade_if_synthetic(result: Result) -> str:
    """Grade synthetic tables beside real ones, if nobody has; return why that cannot be done."""
    if result.graded is None and synthetic_pairs(result.originals, result.tables):
        try:
            result.grade()
        except DataError as error:
            return f"Not graded: {error}."
    return ""


def sections(tried: Grade | None, ungraded: str) -> Iterator[Section]:
    """Return the section of a grade, or one that says why there is none."""
    if tried is None:
        if ungraded:
            yield Section("Grade", paragraph(ungraded))
        return
    items: list[Item] = [bullet_list(tried.sentences)]
    if tried.risks:
        table = dataframe_html(tried.to_frame())
        items += [grade_figure(tried), details_html(f"All {len(tried.risks)} attacks", table)]
    caption = (
        "Attacks on the synthetic rows by somebody who knows other things of people: how much "
        "oftener they succeed with people whose rows were used than by chance. Letters follow from "
        f"stated limits: of privacy, what is shown at 95 % (A up to {MARGIN:g}, B up to 0.05, C up "
        "to 0.15); of utility, quality (A from 0.9, B from 0.8, C from 0.7). A grade compares with "
        "real rows, and no epsilon covers it: keep it with them."
    )
    yield Section("Grade", items, caption)
