"""Both stages in one process and one autograd graph, where all columns lie together.

For studies of the method itself, and what the protocol between parties and server is measured
against: from the same seeds both compute the same, to rounding.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from strategies.false_vfl.networks import Discriminator, NetworkSettings, PartyNetworks, ServerNets
from strategies.false_vfl.posterior import draw_normals, log_bound, normalised_weights, posterior
from strategies.neural.networks import Prediction
from strategies.neural.party import PartyBlock


class CentralModel(nn.Module):
    """The networks of all parties and of the server."""

    def __init__(
        self,
        blocks: Mapping[str, PartyBlock],
        settings: NetworkSettings,
        variant: str,
        n_classes: int | None,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.settings, self.variant, self.dtype = settings, variant, dtype
        self.parties = nn.ModuleDict(
            {
                name: PartyNetworks(block.x.shape[1], settings, variant, seed, name)
                for name, block in blocks.items()
            }
        )
        self.server = ServerNets(settings, seed)
        self.head = Discriminator(settings, n_classes, seed)
        self.to(dtype)

    def log_weights(
        self, blocks: Mapping[str, PartyBlock], batch: Tensor, n_draws: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Return draws of h, (n_rows, n_draws, h_dim), and their log weights.

        Blocks are where the networks are.
        """
        n_rows, settings = len(batch), self.settings
        like = next(self.parameters())
        means = precisions = like.new_zeros(n_rows, settings.h_dim)
        counts = like.new_zeros(n_rows)
        chosen = {name: block.select(batch) for name, block in blocks.items()}
        for name, (x, _, places) in chosen.items():
            mean, precision = self._nets(name).encode(x)
            means = means.index_add(0, places, mean)
            precisions = precisions.index_add(0, places, precision)
            counts = counts.index_add(0, places, counts.new_ones(len(places)))
        of_h = posterior(means, precisions, counts)
        shape = n_rows, n_draws

        def normals(purpose: str, n_each: int) -> Tensor:
            return draw_normals(seed, purpose, (*shape, n_each), self.dtype).to(like.device)

        noise_h, noise_z = normals("h", settings.h_dim), normals("z", settings.z_dim)
        h, terms = self.server.latent_terms(*of_h, noise_h, noise_z)
        for name, (x, known, places) in chosen.items():
            noise = None
            if self.variant == "II":
                noise = normals(f"x of {name}", x.shape[1])
            terms = terms + self._nets(name).log_terms(x, known, places, h, noise)
        return h, terms

    def loss(
        self, blocks: Mapping[str, PartyBlock], batch: Tensor, n_draws: int, seed: int
    ) -> Tensor:
        """Return the loss of the first stage: minus the bound, a row's mean."""
        return -log_bound(self.log_weights(blocks, batch, n_draws, seed)[1]).mean()

    def predict(
        self,
        blocks: Mapping[str, PartyBlock],
        rows: Tensor,
        n_draws: int,
        seed: int,
        rows_at_once: int = 512,
    ) -> Prediction:
        """Predict labels of samples, whichever parties hold them."""
        found: list[Prediction] = []
        with torch.no_grad():
            for i, part in enumerate(torch.split(rows, rows_at_once)):
                h, logs = self.log_weights(blocks, part, n_draws, seed + i)
                found.append(self.head.predict(h, normalised_weights(logs)))
        return Prediction(
            torch.cat([part.value for part in found]),
            _joined([part.probabilities for part in found]),
            _joined([part.deviation for part in found]),
        )

    def _nets(self, name: str) -> PartyNetworks:
        nets = self.parties[name]
        assert isinstance(nets, PartyNetworks)
        return nets


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    return None if parts[0] is None else torch.cat([part for part in parts if part is not None])
