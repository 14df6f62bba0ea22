"""The paper's data sets, split between its parties A and B, and the samples that B lacks.

Liu, He, Tan et al., Section 4.1. The paper gives B "bank information" and A "customer information"
and prints how many attributes each has, not which; the lists here are ours. Letter and News are
halved in the order of their columns, as in the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import DataError
from flwr_vertical.incomplete import sample_missing
from simulations.data import Sources, fingerprint, load_motor
from simulations.replications import Job
from simulations.study import Study

CODES, LEVELS = "codes", "levels"
"""How tables are handed over: every attribute as an integer code, which is a number (the paper's),
or levels as levels."""

_BANK = (
    ["age", "job", "marital", "education", "day", "month", "duration", "pdays"],
    ["default", "balance", "housing", "loan", "contact", "campaign", "previous", "poutcome"],
)
_CREDIT = (
    [
        "present_employment_since", "personal_status_and_sex", "present_residence_since",
        "age_years", "housing", "job", "number_people_liable", "telephone", "foreign_worker",
    ],
    [
        "checking_account_status", "duration_months", "credit_history", "purpose",
        "credit_amount", "savings_account_bonds", "installment_rate_pct_income",
        "other_debtors_guarantors", "property", "other_installment_plans",
        "number_existing_credits",
    ],
)  # fmt: skip
_POPULAR = 1400  # shares from which an article of News counts as popular (its authors' cut)

NEWS_NAME = "News"


@dataclass(frozen=True)
class Joint:
    """A complete data set of two parties."""

    a: pd.DataFrame  # The parties' attributes on one index; levels are text
    b: pd.DataFrame  # The parties' attributes on one index; levels are text
    labels: "pd.Series[float]"  # 0 and 1, or numbers of classes
    fingerprint: str  # Of the values


def with_data(jobs: Sequence[Job], data: Mapping[str, Joint]) -> list[Job]:
    """Return the jobs whose data set is here, with its fingerprint among their settings."""
    return [
        Job(job.part, {**job.settings, "data": data[job.settings["dataset"]].fingerprint})
        for job in jobs
        if job.settings["dataset"] in data
    ]


class JointStudy(Study):
    """A study of data sets of two parties."""

    shared: dict[str, Joint]

    def jobs(self) -> list[Job]:
        """Return all replications of data sets that are here."""
        return with_data(self.preset.jobs(), self.shared)


def load(name: str, sources: Sources) -> Joint:
    """Load ``Bank``, ``Credit``, ``Letter``, ``News``, ``Motor`` or ``Breast cancer``."""
    if name == "Motor":
        motor = load_motor(sources)
        a, b, y = motor.parties["guest"], motor.parties["host"], motor.labels
        return _joint(a, b, y > y.median())
    if name == "Breast cancer":
        frame, y = load_breast_cancer(return_X_y=True, as_frame=True)
        return _joint(frame.iloc[:, ::2], frame.iloc[:, 1::2], y)
    if name == "Bank":
        frame = pd.read_csv(sources.path("bank/bank_full.csv"))
        first, second, labels = *_BANK, frame.get("y", pd.Series(dtype=object)).eq("yes")
    elif name == "Credit":
        frame = pd.read_csv(sources.path("german/german_credit.csv"))
        first, second, labels = *_CREDIT, frame.get("class", pd.Series(dtype=object)).eq(2)
    elif name == "Letter":
        frame = pd.read_csv(sources.path("letter/letter_recognition.csv"))
        names = [str(column) for column in frame if column != "lettr"]
        first, second = names[:8], names[8:]
        labels = frame.get("lettr", pd.Series(dtype=object)).map(lambda letter: ord(str(letter)))
    elif name == NEWS_NAME:
        frame = pd.read_csv(sources.path("news/OnlineNewsPopularity.csv"))
        frame.columns = frame.columns.str.strip()
        names = [str(column) for column in frame if column not in ("url", "shares")]
        first, second = names[: len(names) // 2], names[len(names) // 2 :]
        labels = frame.get("shares", pd.Series(dtype=float)) >= _POPULAR
    else:
        raise DataError(
            f"there is no data set {name!r}; there are Bank, Credit, Letter, News, Motor and "
            "Breast cancer"
        )
    absent = [column for column in (*first, *second) if column not in frame]
    if absent or len(labels) != len(frame):
        raise DataError(
            f"the file of {name} lacks the columns {absent or 'of its label'}; it has "
            f"{list(frame.columns)[:30]}"
        )
    return _joint(frame[first], frame[second], labels)


def _joint(a: pd.DataFrame, b: pd.DataFrame, labels: "pd.Series[Any]") -> Joint:
    y = labels.astype(float).rename("label")
    return Joint(a, b, y, fingerprint([a, b, y.to_frame()]))


def is_level(column: "pd.Series[Any]") -> bool:
    """Whether a column holds levels rather than numbers."""
    return not pd.api.types.is_numeric_dtype(column)


def coded(frame: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Return every attribute as a number: levels by their place in the order of their names."""
    out = {}
    for name in like:
        column = frame[name]
        if is_level(like[name]) and is_level(column):
            codes = {level: float(i) for i, level in enumerate(sorted(like[name].unique()))}
            column = column.map(codes)
        out[name] = column.astype(float)
    return pd.DataFrame(out, index=frame.index)


def spans(like: pd.DataFrame) -> Array:
    """Return the range of each attribute's codes, 1 if it has one value; shape (n_columns,)."""
    codes = coded(like, like)
    found = (codes.max() - codes.min()).to_numpy(dtype=float)
    return np.where(found > 0, found, 1.0)


@dataclass(frozen=True)
class Task:
    """What is to be generated: B's rows of the samples that A alone has."""

    a: pd.DataFrame  # All samples
    seen: pd.DataFrame  # B's rows of the aligned samples
    truth: pd.DataFrame  # B's rows that are missing, in the order of A's
    labels: "pd.Series[float]"  # Of all samples, held by A's side
    whole: pd.DataFrame  # B's complete table, for the ranges and names of levels

    @property
    def missing(self) -> pd.Index:
        """The samples that B lacks."""
        return self.truth.index

    def encoded(self, encoding: str, a: pd.DataFrame) -> "Task":
        """Return the task with all attributes as codes, if ``encoding`` asks for it."""
        if encoding == LEVELS:
            return self
        seen, truth, whole = (
            coded(frame, self.whole) for frame in (self.seen, self.truth, self.whole)
        )
        return Task(coded(self.a, a), seen, truth, self.labels, whole)


def draw_task(joint: Joint, ratio: float, seed: int, rows: int = 0) -> Task:
    """Take B's rows of some samples away."""
    index = joint.a.index
    if rows and rows < len(index):
        chosen = np.random.default_rng([seed, rows]).choice(len(index), rows, replace=False)
        index = index[np.sort(chosen)]
    gone = sample_missing(len(index), ratio, seed=seed)
    return task_of(joint, index, index[~gone])


def lacking(a: pd.DataFrame, ratio: float, mechanism: str, seed: int) -> Flags:
    """Return which samples B lacks: any (MCAR), or rather those with large values at A (MAR).

    MAR: the samples with the largest sums of A's first attribute, standardised and times 1.5, and
    logistic noise.
    """
    if mechanism == "MCAR":
        return sample_missing(len(a), ratio, seed=seed)
    first = coded(a.iloc[:, :1], a.iloc[:, :1]).to_numpy()[:, 0]
    scores = 1.5 * (first - first.mean()) / max(first.std(), 1e-12)
    scores = scores + np.random.default_rng([seed, 11]).logistic(size=len(a))
    gone = np.zeros(len(a), dtype=bool)
    gone[np.argsort(-scores)[: round(ratio * len(a))]] = True
    return gone


def task_of(joint: Joint, every: pd.Index, aligned: pd.Index) -> Task:
    """Return the task in which B has the aligned ones of some samples."""
    missing = every[~every.isin(aligned)]
    b = joint.b
    return Task(joint.a.loc[every], b.loc[aligned], b.loc[missing], joint.labels.loc[every], b)
