"""A party's half of VertiGAN. PyTorch is imported where it is used."""

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from flwr_vertical import Party, Summands, step
from flwr_vertical.arrays import Array, Floats32, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.node.kept import kept
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.protocol.arguments import DISTINCT, Is, Shape, Within, check_fits
from flwr_vertical.tables.codes import Levels, fit_levels, from_codes, to_codes
from strategies.common.synthesis_columns import synthetic_ids
from strategies.copula.party import check_rows
from strategies.fedpsg.gan.encoding import Encoding

if TYPE_CHECKING:
    from strategies.vertigan.networks import Branch


NETWORKS = "networks"
"""The exchange by which networks are trained on a party's samples, without noise."""

_BRANCH, _ROWS, _RATE, _SEED, _MADE = (
    f"vertigan.{name}" for name in ("branch", "rows", "rate", "seed", "made")
)


class VertiGANParty(Party):
    """Trains a branch of the generator against a critic that sees its own columns alone."""

    @step
    def start(
        self,
        rows: Annotated[Indices, Shape(None), Within(0, "n_samples - 1"), DISTINCT],
        learning_rate: Annotated[float, Is("learning_rate")],
    ) -> dict[str, Any]:
        """Make branch and critic.

        Message: rows: samples that all parties have; learning_rate: of Adam; returns ``rows``, how
        many of these have no missing cell.
        """
        self.open_exchange(NETWORKS, "gradients of networks that learn from its rows")
        kept = check_rows(rows, self.n_samples, self.name)
        whole = kept[~np.isnan(self._codes[kept]).any(axis=1)]
        stated = self.policy.min_rows
        least = min_rows(self._codes.shape[1], 0) if stated is None else stated
        if len(whole) < max(least, 1):
            raise DataError(
                f"party {self.name!r}: {len(whole)} of the samples that all parties have are "
                f"without a missing cell, and networks are trained on {least} or more; impute "
                "missing cells first, align more samples, or lower 'min-rows' in the node config"
            )
        self.state[_ROWS] = whole
        self.state[_RATE] = float(learning_rate)
        self.state[_SEED] = int(self.rng.integers(2**31))  # the server does not know the weights
        self._branch()
        return {"rows": len(whole)}

    @step
    def train(self, hidden: Annotated[Floats32, Shape(None, "batch", None)]) -> Summands:
        """Move critic and branch, and send the gradient by what the branch was given.

        Message: hidden (n_critic_steps + 1, n, TRUNK): of new synthetic samples; the last are the
        branch's; returns ``gradient`` of shape (n, TRUNK), of synthetic samples alone.
        """
        import torch

        branch, real = self._branch(), self._encoded
        given = torch.as_tensor(np.array(hidden))
        for of_critic in given[:-1]:
            chosen = self.rng.integers(0, len(real), size=len(of_critic))
            mix = torch.as_tensor(self.rng.random((len(of_critic), 1))).float()
            branch.update_critic(real[torch.as_tensor(chosen)], of_critic, mix)
        gradient = branch.update_head(given[-1])
        return Summands({"gradient": gradient.numpy()})

    @step
    def make(
        self,
        hidden: Annotated[Floats32, Shape(None, None)],
        start: Annotated[int, Within(0, "(rows or n_samples) - 1")],
    ) -> dict[str, Any]:
        """Make some synthetic samples.

        Message: hidden (n, TRUNK); start: number of the first of them.
        """
        import torch

        branch = self._branch(changes=False)
        with torch.no_grad():
            values = branch.made(torch.as_tensor(np.array(hidden))).numpy().astype(np.float64)
        codes = self._drawn(values)
        made = np.asarray(self.state.get(_MADE, codes[:0]))
        check_fits(self.name, "start", start, Within(0, len(made)))
        self.state[_MADE] = np.vstack([made[:start], codes])
        return {}

    @step
    def finish(self) -> dict[str, Any]:
        """Write the synthetic table to the own storage."""
        codes = np.asarray(self.state[_MADE])
        index = synthetic_ids(len(codes), self.table.ids.name)
        self.save_output(from_codes(codes, self.table, self._levels, index))
        return {}

    def _drawn(self, values: Array) -> Array:
        """Return codes, levels drawn by their probabilities; shape (n, n_columns)."""
        codes, at = self._encoding.decode(values), 0
        for j, (width, levels) in enumerate(
            zip(self._encoding.widths, self._encoding.n_levels, strict=True)
        ):
            if levels:
                ends = np.cumsum(values[:, at : at + width], axis=1)
                u = self.rng.random((len(values), 1)) * ends[:, -1:]
                codes[:, j] = np.minimum((u > ends).sum(axis=1), levels - 1)
            at += width
        return codes

    @kept("levels")
    def _levels(self) -> Levels:
        return fit_levels([self.table])

    @kept("codes")
    def _codes(self) -> Array:
        """All aligned rows as numbers, array of shape (n_samples, n_columns), NaN = missing."""
        own = to_codes(self.table, self._levels, self.name)
        return np.asarray(self.to_aligned(own, np.nan))

    @kept("encoding")
    def _encoding(self) -> Encoding:
        counts = [len(self._levels.get(name, ())) for name in self.table.columns]
        return Encoding.fit(self._codes[self.state[_ROWS]], counts)

    @kept("real")
    def _encoded(self) -> Any:
        import torch

        values, _ = self._encoding.encode(self._codes[self.state[_ROWS]])
        return torch.as_tensor(values).float()

    def _branch(self, changes: bool = True) -> "Branch":
        return self.live.get(_BRANCH, self._new_branch, changes=changes)

    def _new_branch(self) -> "Branch":
        from strategies.vertigan.networks import Blocks, Branch

        encoding = self._encoding
        blocks = Blocks(tuple(int(w) for w in encoding.widths), encoding.n_levels)
        return Branch(blocks, int(self.state[_SEED]), float(self.state[_RATE]))
