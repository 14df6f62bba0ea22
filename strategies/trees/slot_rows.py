"""The parties' masked rows at the server: asked for, and once more after levels were sorted."""

from typing import Any

import numpy as np

from flwr_vertical.server import Federation
from strategies.trees.boosting import Boosting
from strategies.trees.masked_store import fetch
from strategies.trees.rounds import LevelRounds


class SlotRows:
    """Sees to it that there are rows of the slots that a run has come to.

    Levels are sorted once, before the first tree, from the rows of nominal columns alone. A run may
    be resumed, or go back to a snapshot, at any place: so what is here follows the state of
    `Boosting`.
    """

    def __init__(
        self, federation: Federation, rounds: LevelRounds, arguments: dict[str, Any], sorts: bool
    ) -> None:
        self._federation, self._rounds, self._arguments = federation, rounds, arguments
        self._slots, self._plain = rounds.slots, dict(rounds.slots.layouts)
        self._sorts = sorts and bool(rounds.slots.levels.any())
        self._asked_at = federation.course

    def send(self) -> None:
        """Ask for rows, as many rounds as they take."""
        if self._sorts and self._slots.layouts == self._plain:
            self._slots.only_levels()
            for own in self._arguments.values():
                own["only_levels"] = True
        fetch(self._federation, self._slots, self._arguments)

    def provide(self, course: Boosting) -> None:
        """Sort levels if that was not done, and ask again for rows that no journal kept."""
        are_sorted = any(own.are_sorted for own in self._slots.layouts.values())
        if self._sorts and not course.state["sorted"]:
            if are_sorted:  # back at a snapshot
                self._slots.layouts, self._slots.masked = dict(self._plain), {}
                for own in self._arguments.values():
                    own.pop("ranks")
            self._send_if_absent()
            course.state["order"] = course.order_levels(self._rounds)
            course.state["sorted"] = True
            self._use(course)
            self.send()
        elif self._sorts and not are_sorted:  # resumed
            self._use(course)
        self._send_if_absent()

    def _use(self, course: Boosting) -> None:
        ranks = self._slots.sort_levels(np.asarray(course.state["order"]), self._plain)
        for name, own in self._arguments.items():
            own["ranks"] = ranks[name]
            own.pop("only_levels", None)

    def _send_if_absent(self) -> None:
        if not self._slots.masked:
            with self._federation.asking_again(self._asked_at):
                self.send()
