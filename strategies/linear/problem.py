"""The server half of what regressions share: labels, masks, and the parties' answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Alignment, Federation, Result
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.log import logger
from flwr_vertical.node.row_index import aligned_name, free_names
from flwr_vertical.server import Total
from flwr_vertical.tables import checked_ids

LABEL_POLICIES = ("drop", "error")
_SQUARED = 480  # binary digits
_ON_SELECTIVE = (
    ". They differ from its other rows in what cells they have: a fit that uses rows which parties "
    "lack is biased then, and 'joint-normal' before it makes it right"
)


@dataclass
class Problem:
    """A regression as the server knows it."""

    # (n_labelled,): labels, standardised if asked for; last those of samples that no party holds
    y: Array
    y_center: float  # Label = y_center + y_scale * y
    y_scale: float  # Label = y_center + y_scale * y
    # (n_labelled, n_parties): true where a party lacks the sample, or dropped its row
    mask: Flags
    # (n_unlabelled, n_parties): the same for samples without a label
    free_mask: Flags
    labelled: Indices  # Aligned row numbers of both kinds of samples
    free: Indices  # Aligned row numbers of both kinds of samples
    # By party, the names of its columns
    columns: dict[str, list[str]] = field(default_factory=dict)
    # By party, those that are constant or follow from others
    collinear: dict[str, list[str]] = field(default_factory=dict)
    # What `prepare` returned, for more that a strategy added to it
    total: Total = field(default_factory=lambda: Total({}))

    @property
    def n_columns(self) -> int:
        """Columns of all parties."""
        return sum(len(names) for names in self.columns.values())

    @property
    def has_free(self) -> bool:
        """Whether there are samples to predict."""
        return len(self.free) > 0

    @property
    def on_dropped(self) -> str:
        """Say how many rows parties dropped, where too few are left; empty if none did."""
        counts = {name: len(told["dropped"]) for name, told in self.total.public.items()}
        rows = ", ".join(f"{name!r} {count:,}" for name, count in counts.items() if count)
        if not rows:
            return ""
        return (
            f". Rows with missing cells count as lacking (party {rows}): 'fknn' or 'joint-normal' "
            "before fills such cells in"
        )


def open_problem(
    federation: Federation,
    alignment: Alignment,
    result: Result,
    *,
    missing_labels: str,
    standardize: bool,
    intercept: bool,
    with_unheld: bool = False,
    extra: Mapping[str, Any] | None = None,
    step: str = "prepare",
    label_range: tuple[float, float] | None = None,
) -> Problem:
    """Check labels, have the parties prepare tables, and note what is dropped; one round."""
    y = federation.labels
    known = np.isfinite(y)
    check_labels(y, known, missing_labels)
    labelled, free = np.flatnonzero(known), np.flatnonzero(~known)
    unheld = _unheld_labels(alignment, result) if with_unheld else np.empty(0)
    chosen = np.concatenate([y[known], unheld])
    # Sorted, so that rounding does not depend on the order of the samples.
    values = np.sort(chosen)
    center = float(values.mean()) if intercept and standardize else 0.0
    scale = (
        float(values.std() if intercept else np.sqrt(np.mean(values**2))) if standardize else 1.0
    )
    if label_range is not None:
        low, high = label_range
        chosen = np.clip(chosen, low, high)
        center = (low + high) / 2.0 if intercept else 0.0
        scale = max(high - center, center - low)
    arguments: dict[str, Any] = {
        "standardize": standardize,
        "intercept": intercept,
        **(extra or {}),
    }
    if len(unheld):
        arguments["n_unheld"] = len(unheld)
        result.notes.append(f"{len(unheld):,} labels of samples that no party holds count, too")
    if len(free):
        arguments["labelled"] = known.view(np.uint8)
    total = federation.sum(step, arguments)
    mask = alignment.mask.copy()
    problem = Problem(
        y=(chosen - center) / scale,
        y_center=center,
        y_scale=scale,
        mask=mask,
        free_mask=mask,
        labelled=labelled,
        free=free,
        total=total,
    )
    for k, name in enumerate(federation.parties):
        told = total.public[name]
        mask[told["dropped"], k] = True
        problem.columns[name] = list(told["columns"])
        problem.collinear[name] = list(told["collinear"])
        if len(told["dropped"]):
            note(
                result,
                f"party {name!r}: {counted(len(told['dropped']), 'row')} with missing cells left "
                "out, as if the party lacked them; 'fknn' or 'joint-normal' before fills such "
                "cells in" + _ON_SELECTIVE * bool(told["selective"]),
            )
        if told["collinear"]:
            note(
                result,
                f"party {name!r}: columns {told['collinear']} are constant or follow from others "
                "of its columns; they are left out and have no coefficient",
            )
        if told["left_out"]:
            note(
                result,
                f"party {name!r}: columns {told['left_out']} are left out and have no coefficient: "
                "no two of their levels (rare ones count as one) are held by enough rows to be "
                "told of. Merge levels, lower 'min-rows' in the party's node config, or state the "
                "kind 'continuous' of columns whose values are numbers",
            )
    withheld = sum(len(total.public[name]["left_out"]) for name in federation.parties)
    result.metrics["columns_withheld"] = float(withheld)
    nobody = np.ones((len(unheld), mask.shape[1]), dtype=bool)
    problem.mask, problem.free_mask = np.vstack([mask[labelled], nobody]), mask[free]
    for k, name in enumerate(federation.parties):
        held = int((~problem.mask[:, k]).sum())
        if held != int(total.public[name]["n_observed"]):
            raise PartyError(
                name,
                step,
                f"holds {total.public[name]['n_observed']} rows of labelled samples, but by the "
                f"alignment {held}",
            )
    if len(free):
        then = ", but predicted" if getattr(federation, "predicts", True) else ""
        result.notes.append(
            f"{counted(len(free), 'sample has', 'samples have')} no label: not fitted{then}"
        )
    return problem


def _unheld_labels(alignment: Alignment, result: Result) -> Array:
    """Labels of samples that no party holds, if such samples are not left out on purpose."""
    if result.labels is None or alignment.label_rows is None:
        return np.empty(0)
    if result.settings.get("align_rows") != "union":
        return np.empty(0)
    values = result.labels.to_numpy(dtype=float)[alignment.label_rows < 0]
    return np.asarray(values[np.isfinite(values)])


def check_labels(y: Array, known: Flags, missing_labels: str) -> None:
    """Raise `DataError` unless the labels can be used."""
    if np.isinf(y).any():
        raise DataError(f"{int(np.isinf(y).sum())} labels are infinite; they must be finite or NaN")
    n_known, n_missing = int(known.sum()), int((~known).sum())
    if n_missing and missing_labels == "error":
        raise DataError(
            f"{n_missing} of {len(y)} samples have no label, and missing_labels is 'error'; leave "
            "them out, align only labelled samples (align_rows='labelled'), or set "
            "missing_labels='drop'"
        )
    if n_known < 3:
        raise DataError(f"only {counted(n_known, 'sample')} with a label; a regression needs more")
    largest = float(np.abs(y[known]).max())
    if largest and not 2.0**-_SQUARED < largest < 2.0**_SQUARED:
        raise DataError(
            f"labels are as large as {largest:.2g}, and squares of such numbers cannot be told "
            "from 0 or from infinity; give labels in other units"
        )
    if np.ptp(y[known]) == 0:
        raise DataError(f"all {n_known} labels are the same; there is nothing to regress")


def sample_index(
    alignment: Alignment, labels: "pd.Series[Any] | None", rows: Indices
) -> "pd.Index[Any]":
    """Names of aligned rows, as far as the server knows them.

    Shapes: rows (n_rows,): aligned row numbers; returns (n_rows,): sample IDs where they are
    public or the label's own; else ``aligned-<row>``, with a ``+`` where a label is called so.
    """
    names: npt.NDArray[np.object_] = np.array(
        [aligned_name(row) for row in range(alignment.n_samples)], dtype=object
    )
    if alignment.ids is not None:
        names[:] = np.asarray(alignment.ids, dtype=object)
    elif labels is not None and alignment.label_rows is not None:
        belongs = alignment.label_rows >= 0
        own = checked_ids(labels.index, "the table of labels")
        names[:] = free_names(names, own)
        names[alignment.label_rows[belongs]] = np.asarray(own, dtype=object)[belongs]
    name = None if labels is None else labels.index.name
    return pd.Index(list(names[rows]), name=name or "sample")


def note(result: Result, text: str) -> None:
    """Log a warning and keep it in the result."""
    logger.warning("%s", text)
    result.notes.append(text)


def note_on_followers(columns: list[str]) -> str:
    """Say which columns a fit leaves out since they follow from others."""
    return f"columns {columns} follow from others; they are left out and have no coefficient"


def need_key_stream(
    what: str, federation: Federation, *, alone: str = "", encrypted: str = ""
) -> None:
    """Refuse a run whose parties share no key stream, before anything is opened.

    `alone`, `encrypted`: what else one party may do, or parties whose sums are ciphertexts.
    """
    needs = f"{what} needs columns under a key stream that two parties or more share"
    if len(federation.parties) < 2:
        raise ConfigError(f"{needs}, and there is one{alone}")
    if federation.aggregation == "ckks":
        raise ConfigError(
            f"{needs}, not ciphertexts: use aggregation='masked' in place of 'ckks'{encrypted}"
        )
