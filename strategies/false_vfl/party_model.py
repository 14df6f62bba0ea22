"""A party's networks: encoder and decoder of its own columns, missing indicator of variant II."""

import torch
from torch import Tensor, nn

from strategies.false_vfl.images import (
    RESNET_CHANNELS,
    ImageDecoder,
    ImageEncoder,
    check_size,
    initialise,
)
from strategies.false_vfl.networks import (
    GaussianNet,
    NetworkSettings,
    apply,
    new_generator,
    perceptron,
)

VARIANTS = ("I", "II")


class PartyNets(nn.Module):
    """The networks of one party."""

    def __init__(
        self, n_columns: int, settings: NetworkSettings, variant: str, seed: int, name: str
    ) -> None:
        super().__init__()
        generator = new_generator(seed, f"weights of {name}")
        width, layers = settings.party_width, settings.party_layers
        how = settings.activation, generator
        encoder: nn.Module
        decoder: nn.Module
        if (image := settings.image_of(name)) is not None:
            check_size(image, n_columns, name)
            kind, channels = settings.networks, settings.image_channels
            encoder = ImageEncoder(image, 2 * settings.h_dim, kind, channels)
            most = RESNET_CHANNELS if kind == "resnet18" else channels
            decoder = ImageDecoder(settings.h_dim, image, most)
            initialise(encoder, generator)
            initialise(decoder, generator)
        else:
            encoder = perceptron(n_columns, 2 * settings.h_dim, width, layers, *how)
            decoder = perceptron(settings.h_dim, 2 * n_columns, width, layers, *how)
        self.encoder = GaussianNet(encoder, settings.h_bounds, settings.mixed)
        self.decoder = GaussianNet(decoder, settings.x_bounds, settings.mixed)
        self.indicator = (
            perceptron(n_columns, 1, width, settings.indicator_layers, *how)
            if variant == "II"
            else None
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the party's mean and precision of h for rows that it holds.

        Shapes: x (n_held, n_columns): standardised columns, 0 where a cell is missing; returns
        (n_held, h_dim).
        """
        mean, log_sigma = self.encoder(x)
        return mean, torch.exp(-2.0 * log_sigma)

    def log_terms(
        self, x: Tensor, known: Tensor, places: Tensor, h: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return the party's term of the log weights: how likely what is seen of it is given h.

        That is log p(x_k | h) where the party holds the row. Variant II adds log p(m_k | x_k) for
        all rows, where the columns of a row that the party lacks are drawn from the decoder; the
        gradient goes through the draw.

        Shapes: x (n_held, n_columns): rows that the party holds; known (n_held, n_columns): 1
        where the cell is there, 0 where it is missing and counts for nothing; places (n_held,):
        which rows of `h` they are, ascending; h (n_rows, n_draws, h_dim): draws of h; noise
        (n_rows, n_draws, n_columns): standard normal; variant II needs it; returns (n_rows,
        n_draws): 0 where a row says nothing.
        """
        everywhere = len(places) == len(h)
        observed = self.decoder.log_density(h if everywhere else h[places], x[:, None], known)
        if self.indicator is None and everywhere:
            return observed
        terms = h.new_zeros(h.shape[:2])
        if self.indicator is None:
            return terms.index_copy(0, places, observed)
        if noise is None:
            raise ValueError("variant II draws missing columns: expected noise, got None")
        # log p(m = 0 | x) is the same for all draws of h: the row is held.
        observed = observed - nn.functional.softplus(self._missing(x))
        lacking = torch.ones(len(h), dtype=torch.bool, device=h.device)
        lacking[places] = False
        others = torch.nonzero(lacking)[:, 0]
        mean, log_sigma = self.decoder(h[others])
        drawn = mean + torch.exp(log_sigma) * noise[others]
        missing = -nn.functional.softplus(-self._missing(drawn)[..., 0])
        return terms.index_copy(0, places, observed).index_copy(0, others, missing)

    def _missing(self, x: Tensor) -> Tensor:
        """Return the logit of "this block is missing", shape (..., 1)."""
        assert self.indicator is not None
        return apply(self.indicator, x, self.decoder.mixed)
