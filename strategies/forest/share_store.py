"""A party's shares of the products of slots and targets: taken once a class, added up by nodes."""

from typing import Any

import numpy as np

from flwr_vertical import StepGroup, step
from flwr_vertical.errors import ProtocolError, StateLostError
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.arithmetic import helpers
from flwr_vertical.products.streams import KeyStream, stream
from strategies.forest.feature_mask import Used
from strategies.forest.share_arithmetic import helper_matrix, owner_matrix
from strategies.trees.node_sums import Ring
from strategies.trees.secret_shares import stream_label

_SHARES, _IN_USE = "votes.shares", "votes.shares in use"  # in the cache: dealt anew where lost


class DealtSteps(StepGroup):
    """The party has `tag`, of its codes.

    Who has which share of the targets follows from `helpers`: the second party has ``y + rho`` and
    the first ``-rho`` of the same rho. These two so have the shares of leaves and votes.
    """

    party: Any

    @step
    def take_shares(
        self,
        deal: bytes,
        names: list[str],
        widths: list[int],
        tags: list[bytes],
        pad: bytes,
        masked_target: Ring,
        rho: bytes = b"",
        dealt: Ring | None = None,
    ) -> None:
        """Make the own shares of the products of slots and targets (`share_arithmetic`).

        Message: deal: names what is dealt; names, widths, tags: every party's name, number of
        slots, and tag of its codes; pad: seed of ``P`` for the own slots; masked_target
        (n_samples,): ``y + rho``, of a rho whose seed this party does not get; rho: at a helper,
        the seed of the other rho; dealt (n_samples, n_helped): at a helper, ``W`` of the parties
        that it helps, side by side, in the order of names.
        """
        own, seed = names.index(self.name), self.other(GroupKeySteps).seed
        if tags[own] != self.party.tag:
            raise ProtocolError(
                f"party {self.name!r}: its columns are no longer those that it sent; a key stream "
                "hides one content only, so start again"
            )
        n_rows = len(masked_target)

        def key_stream(k: int) -> KeyStream:
            return KeyStream(seed, stream_label(names[k]), (n_rows, widths[k]), tags[k])

        pads = KeyStream(pad, "P", (n_rows, widths[own]))
        matrix = owner_matrix(widths[own], key_stream(own).rows, pads.rows, masked_target)
        helped = [k for k, name in enumerate(names) if helpers(names)[name] == self.name]
        other = np.zeros((n_rows, 0), dtype=np.uint64)
        if dealt is not None:
            streams, of = [key_stream(k).rows for k in helped], [widths[k] for k in helped]
            other = helper_matrix(np.asarray(dealt), of, streams, stream(rho, "rho", (n_rows,)))
        self.cache[_SHARES] = {"deal": deal, "own": matrix, "helped": other}

    def holds(self, deal: bytes) -> bool:
        """Return whether this party has the shares of that name; it forgets others."""
        self.cache.pop(_IN_USE, None)
        if self.cache.get(_SHARES, {}).get("deal") == deal:
            return True
        self.cache.pop(_SHARES, None)
        return False

    def in_use(self, used: Used) -> tuple[Ring, Ring]:
        """Return the shares as owner and as helper of the slots in use, without gaps."""
        if _IN_USE not in self.cache:
            found = []
            for part, columns in (("own", used.own), ("helped", used.helped)):
                whole = self._share(part)
                found.append(whole if len(columns) == whole.shape[1] else whole[:, columns])
            self.cache[_IN_USE] = [np.ascontiguousarray(part) for part in found]
        own, helped = self.cache[_IN_USE]
        return own, helped

    def half(self, own: int) -> Ring | None:
        """Return the share of the targets, shape (n_samples, 1); None at parties without one."""
        if own > 1:
            return None
        return np.ascontiguousarray(self._share("own" if own else "helped")[:, -1:])

    def forget(self) -> None:
        """Drop the shares."""
        for key in (_SHARES, _IN_USE):
            self.cache.pop(key, None)

    def _share(self, part: str) -> Ring:
        if _SHARES not in self.cache:
            raise StateLostError(
                f"party {self.name!r}: its shares of the labels ended with its process, within a "
                "batch of trees; the run goes back to its last snapshot"
            )
        found: Ring = self.cache[_SHARES][part]
        return found
