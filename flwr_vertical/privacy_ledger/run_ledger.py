"""`RunLedger`: the privacy ledger as the steps of one run use it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.errors import PolicyError
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.row_history import OpenedRows
from flwr_vertical.privacy_ledger.row_identities import OwnRows


class RunLedger:
    """A node's privacy ledger, for one run and the rows of its table.

    Each method is that of `PrivacyLedger` of the same name, without run and rows.
    """

    def __init__(
        self, ledger: PrivacyLedger, token: str, find_rows: Callable[[PrivacyLedger], OwnRows]
    ) -> None:
        self.ledger, self.token = ledger, token
        self._find_rows = find_rows

    @property
    def rows(self) -> OwnRows:
        """The own rows, in the order of the node's table."""
        return self._find_rows(self.ledger)

    def rows_of(self, ids: "pd.Index[Any]") -> OwnRows:
        """Return rows by their IDs; changes of their cells are not noticed."""
        return self.ledger.rows(ids)

    def row_secrets(
        self, rows: OwnRows, at: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint64], bytes]:
        """Return a secret number of each of some rows, the same in all runs, and a name of these.

        Shapes: at (n_chosen,): which of them; returns (n_chosen,): uniform, known to this node
        alone.
        """
        return self.ledger.row_secrets(rows, at)

    def version_of(self, values: npt.NDArray[np.float64]) -> bytes:
        """Return a keyed digest of values of the table's rows, the same in any order of these."""
        return self.ledger.version_of(self.rows, values)

    def begin(self, name: str, strategy: str, settings: Mapping[str, Any]) -> None:
        """Write down that the run greets this node."""
        later = bool(settings.get("fitted"))
        self.ledger.begin(self.token, name, strategy, settings, self.rows, all_new=later)

    def note_refused(
        self, name: str, strategy: str, settings: Mapping[str, Any], error: PolicyError
    ) -> None:
        """Write down that the policy forbade the run, before it began."""
        self.ledger.note_refused(self.token, name, strategy, settings, error)

    def check_and_note_rows(
        self, group: npt.ArrayLike, at_least: int, *, rows: OwnRows | None = None, **options: Any
    ) -> OpenedRows:
        """Tell of sums over groups of own rows, or refuse; `rows` if they are not the table's."""
        own = self.rows if rows is None else rows
        return self.ledger.check_and_note_rows(self.token, own, group, at_least, **options)

    def open_bits(
        self, chosen: npt.ArrayLike, bits: float, *, rows: OwnRows | None = None, **options: Any
    ) -> None:
        """Tell something of single rows, or refuse."""
        own = self.rows if rows is None else rows
        self.ledger.open_bits(self.token, own, chosen, bits, **options)

    def spend_epsilon(self, epsilon: float, **options: Any) -> None:
        """Spend privacy budget on a release with noise, or refuse."""
        self.ledger.spend_epsilon(self.token, epsilon, **options)

    def note_stream(self, name: str, content: bytes) -> None:
        """Use a key stream, or a pad, for a content; refuse it for another one."""
        self.ledger.note_stream(self.token, name, content)

    def note_streams(self, streams: Mapping[str, bytes]) -> None:
        """Use several key streams; all or none."""
        self.ledger.note_streams(self.token, streams)

    def note_foreign_ids(
        self, count: int, n_own: int, sender: str = "server", content: bytes = b""
    ) -> None:
        """Blind IDs of others, or refuse."""
        self.ledger.note_foreign_ids(self.token, count, n_own, sender, content)
