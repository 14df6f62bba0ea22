"""The interface of alignment: from the parties' tables to a common row index and a mask."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.protocol.federation import Federation


@dataclass(frozen=True)
class Alignment:
    """The common row index of a run, as the server knows it.

    Parameters
    ----------
    parties : list[str]
        Names of the parties, in the order of the mask's columns.
    mask : numpy.ndarray of shape (n_samples, n_parties), bool
        True where a party does not have the sample (a missing block).
    ids : pandas.Index or None
        The sample IDs where they are public, else None.
    """

    parties: list[str]
    mask: "np.ndarray[Any, np.dtype[np.bool_]]"
    ids: pd.Index | None

    @property
    def n_samples(self) -> int:
        """Number of aligned samples."""
        return int(self.mask.shape[0])


class Aligner(ABC):
    """Brings the parties' samples into one order.

    After `align` every party's state holds ``positions`` (the aligned row number of each of its
    own rows, -1 for a row that is left out) and ``n_samples``.

    Attributes
    ----------
    disclosure : tuple[tuple[str, str], ...]
        Who learns what: rows of the disclosure table.
    """

    disclosure: ClassVar[tuple[tuple[str, str], ...]] = (
        ("server", "the parties' names, the number of samples, and which party has which sample"),
    )

    @abstractmethod
    def align(self, federation: Federation) -> Alignment:
        """Align the samples of all parties.

        Raises
        ------
        DataError
            If the ID types differ or a party shares no sample with any other.
        """


_ALIGNERS: dict[str, Callable[[], Aligner]] = {}


def register_aligner(name: str, factory: Callable[[], Aligner]) -> None:
    """Make an aligner available by name to `simulate` and the run config."""
    _ALIGNERS[name] = factory


def make_aligner(alignment: "str | Aligner") -> Aligner:
    """Return the aligner of that name, or raise `ConfigError` listing the valid ones."""
    if isinstance(alignment, Aligner):
        return alignment
    if alignment not in _ALIGNERS:
        raise ConfigError(f"unknown alignment {alignment!r}; expected one of {sorted(_ALIGNERS)}")
    return _ALIGNERS[alignment]()


def check_overlap(parties: list[str], mask: "np.ndarray[Any, Any]") -> None:
    """Raise `DataError` if a party shares no sample with any other."""
    present = ~mask
    if len(parties) < 2:
        return
    for k, name in enumerate(parties):
        others = np.delete(present, k, axis=1).any(axis=1)
        if not (present[:, k] & others).any():
            raise DataError(
                f"party {name!r} has no common sample with any of "
                f"{[other for other in parties if other != name]}: check that all parties use the "
                "same kind of sample ID, written the same way"
            )
