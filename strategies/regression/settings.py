"""Settings that several regressions have: their fields, stated once."""

from typing import Any

from flwr_vertical.settings import setting
from strategies.regression.design import ENCODINGS, MISSING_CELLS
from strategies.regression.problem import LABEL_POLICIES


def encoding() -> Any:
    """Return the field of what becomes of columns of levels."""
    return setting(
        "none",
        "What becomes of columns of levels: an error, or a column for each level but the first.",
        choices=ENCODINGS,
    )


def missing_cells() -> Any:
    """Return the field of what becomes of rows with single missing cells."""
    return setting(
        "error",
        "What becomes of rows with single missing cells: an error (impute them by ``fknn`` "
        "first), or they count as missing.",
        choices=MISSING_CELLS,
    )


def missing_labels() -> Any:
    """Return the field of what becomes of samples without a label."""
    return setting(
        "drop",
        "Samples without a label are not used but predicted, or refused.",
        choices=LABEL_POLICIES,
    )
