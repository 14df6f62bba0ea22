"""`RunBudgets`: what adds up within one run, where tables lie in memory and no ledger is kept."""

from collections.abc import MutableMapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.budgets import check_bits, check_epsilon, check_foreign_ids
from flwr_vertical.privacy_ledger.entries import digest_of

# Under a prefix that the server may not write to.
_PREFIX = "node.told."


class Budgets(Protocol):
    """What a step asks before it tells of single rows, spends epsilon or blinds IDs of others."""

    def open_bits(
        self, chosen: npt.ArrayLike, bits: float, *, content: bytes, what: str, **options: Any
    ) -> None:
        """Tell something of single rows, or refuse."""

    def spend_epsilon(self, epsilon: float, *, release: bytes, what: str, **options: Any) -> None:
        """Spend privacy budget on a release with noise, or refuse."""

    def note_foreign_ids(
        self, count: int, n_own: int, sender: str = "server", content: bytes = b""
    ) -> None:
        """Blind IDs of others, or refuse."""


class RunBudgets:
    """The budgets of a policy within one run; each method is that of `PrivacyLedger`."""

    def __init__(self, who: str, policy: Policy, state: MutableMapping[str, Any]) -> None:
        self._who, self._policy, self._state = who, policy, state

    def open_bits(
        self,
        chosen: npt.ArrayLike,
        bits: float,
        *,
        content: bytes,
        predictions: bool = False,
        agreed: bool = False,
        what: str,
        **_: Any,
    ) -> None:
        """Tell something of single rows, or refuse; see `PrivacyLedger.open_bits`."""
        if agreed and not predictions and self._policy.openings is None:
            return  # nothing bounds it, and nobody reads the count after the run
        mask = np.asarray(chosen, dtype=bool)
        kind = "predictions" if predictions else "bits"
        if not self._is_new(kind, mask.tobytes(), content):
            return
        spent = np.array(self._state.get(_PREFIX + kind, np.zeros(len(mask))))
        most = float(spent[mask].max(initial=0.0))
        check_bits(
            self._who,
            self._policy,
            bits,
            int(mask.sum()),
            most,
            what,
            predictions=predictions,
            agreed=agreed,
        )
        spent[mask] += bits
        self._state[_PREFIX + kind] = spent
        self._keep(kind, mask.tobytes(), content)

    def spend_epsilon(self, epsilon: float, *, release: bytes, what: str, **_: Any) -> None:
        """Spend privacy budget, or refuse; see `PrivacyLedger.spend_epsilon`."""
        if not self._is_new("epsilon", release, epsilon):
            return
        spent = float(self._state.get(_PREFIX + "epsilon", 0.0))
        releases = int(self._state.get(_PREFIX + "releases", 0))
        check_epsilon(self._who, self._policy, epsilon, spent, releases, what)
        self._state[_PREFIX + "epsilon"] = spent + epsilon
        self._state[_PREFIX + "releases"] = releases + 1
        self._keep("epsilon", release, epsilon)

    def note_foreign_ids(
        self, count: int, n_own: int, sender: str = "server", content: bytes = b""
    ) -> None:
        """Blind IDs of others, or refuse; see `PrivacyLedger.note_foreign_ids`."""
        if content and not self._is_new("ids", content):
            return
        total = int(self._state.get(_PREFIX + "ids", 0)) + count
        check_foreign_ids(self._who, self._policy, total, n_own)
        self._state[_PREFIX + "ids"] = total
        if content:
            self._keep("ids", content)

    def _is_new(self, *parts: object) -> bool:
        return digest_of(*parts).hex() not in str(self._state.get(_PREFIX + "known", "")).split()

    def _keep(self, *parts: object) -> None:
        known = str(self._state.get(_PREFIX + "known", ""))
        self._state[_PREFIX + "known"] = f"{known} {digest_of(*parts).hex()}".strip()
