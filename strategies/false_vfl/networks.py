"""A party's encoder and decoder, the server's networks, the discriminator; what a run leaves.

A party has a missing indicator as well in variant II; all networks are in one process in `central`.
"""

import math
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from strategies.false_vfl.posterior import (
    HALF_LOG_TWO_PI,
    log_density,
    log_density_of_draw,
    normalised_weights,
    row_log_density,
)
from strategies.linear.prediction.regressions import class_table
from strategies.neural.hardware import to_numpy
from strategies.neural.images import RESNET_CHANNELS, ImageDecoder, initialise
from strategies.neural.model import NeuralModel, NeuralPart
from strategies.neural.networks import (
    NetworkSizes,
    Prediction,
    Weights,
    apply,
    load_arrays,
    make_encoder,
    new_generator,
    perceptron,
)


@dataclass(frozen=True)
class NetworkSettings(NetworkSizes):
    """Sizes and bounds of all networks.

    For tables the paper names no width, depth, activation or bound of a variance:
    ``simulations/false_vfl/search.md`` compares others on a validation split.
    """

    # h_dim, z_dim: Dimensions of the latent variables (Table 10: 128 and 64 for Isolet and HAPT)
    h_dim: int = 128
    z_dim: int = 64
    party_width: int = 128  # Units of a hidden layer at a party, and at the server
    global_width: int = 128  # Units of a hidden layer at a party, and at the server
    # party_layers, global_layers, head_layers, indicator_layers: Layers with weights: of a
    # party's encoder and decoder, of the global ones (Table 5: 3), of the discriminator (Table 5:
    # 2) and of a party's missing indicator (Table 5: 3)
    party_layers: int = 2
    global_layers: int = 3
    head_layers: int = 2
    indicator_layers: int = 3
    # x_bounds, h_bounds, z_bounds: Smallest and largest logarithm of a standard deviation: of
    # columns given h (columns are standardised), of h (at a party's encoder and at the global
    # decoder), of z given h
    x_bounds: tuple[float, float] = (-2.0, 1.0)
    h_bounds: tuple[float, float] = (-4.0, 2.0)
    z_bounds: tuple[float, float] = (-4.0, 2.0)


def bounded(raw: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Map any number between two bounds, zero to zero, so smoothly that no gradient stops there."""
    lower, upper = bounds
    width = upper - lower
    return lower + width * torch.sigmoid(4.0 * raw / width + math.log(-lower / upper))


class GaussianNet(nn.Module):
    """A network that gives mean and log standard deviation."""

    def __init__(self, net: nn.Module, bounds: tuple[float, float], mixed: bool = False) -> None:
        super().__init__()
        self.net = net
        self.bounds, self.mixed = bounds, mixed

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, each of half as many numbers as `net` gives."""
        mean, raw = apply(self.net, x, self.mixed).chunk(2, dim=-1)
        return mean, bounded(raw, self.bounds)

    def log_density(self, x: Tensor, of: Tensor, known: Tensor | None = None) -> Tensor:
        """Return the log density of rows of `of` given x; parameters as of `row_log_density`.

        Shapes: x (n_rows, n_draws, n_in): what the network sees; of (n_rows, n_draws or 1,
        n_columns); known (n_rows, n_columns).
        """
        return row_log_density(apply(self.net, x, self.mixed), of, self.bounds, known)


class PartyNetworks(nn.Module):
    """The networks of one party."""

    def __init__(
        self, n_columns: int, settings: NetworkSettings, variant: str, seed: int, name: str
    ) -> None:
        super().__init__()
        self.h_dim = settings.h_dim
        generator = new_generator(seed, f"weights of {name}")
        width, layers = settings.party_width, settings.party_layers
        how = settings.activation, generator
        encoder = make_encoder(
            n_columns, 2 * settings.h_dim, width, layers, settings, name, generator
        )
        decoder: nn.Module
        if (image := settings.image_of(name)) is not None:
            large = settings.networks == "resnet18"
            channels = RESNET_CHANNELS if large else settings.image_channels
            decoder = ImageDecoder(settings.h_dim, image, channels)
            initialise(decoder, generator)
        else:
            decoder = perceptron(settings.h_dim, 2 * n_columns, width, layers, *how)
        self.encoder = GaussianNet(encoder, settings.h_bounds, settings.mixed)
        self.decoder = GaussianNet(decoder, settings.x_bounds, settings.mixed)
        self.indicator = (
            perceptron(n_columns, 1, width, settings.indicator_layers, *how)
            if variant == "II"
            else None
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the party's mean and precision of h, (n_held, h_dim), of standardised rows."""
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


class ServerNets(nn.Module):
    """Global encoder (h to z) and global decoder (z to h)."""

    def __init__(self, settings: NetworkSettings, seed: int) -> None:
        super().__init__()
        generator = new_generator(seed, "weights of the server")
        self.h_dim, self.z_dim = h_dim, z_dim = settings.h_dim, settings.z_dim
        how = settings.global_width, settings.global_layers, settings.activation, generator
        mixed = settings.mixed
        self.encoder = GaussianNet(perceptron(h_dim, 2 * z_dim, *how), settings.z_bounds, mixed)
        self.decoder = GaussianNet(perceptron(z_dim, 2 * h_dim, *how), settings.h_bounds, mixed)

    def latent_terms(
        self, mean: Tensor, log_sigma: Tensor, noise_h: Tensor, noise_z: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw h and z, and return the server's term of the log weights.

        It is ``log p(h|z) + log p(z) - log q(h|x) - log q(z|h)``.

        Shapes: mean, log_sigma (n_rows, h_dim): of the posterior of h given what is observed;
        noise_h (n_rows, n_draws, h_dim); noise_z (n_rows, n_draws, z_dim): standard normal;
        returns (n_rows, n_draws, h_dim); returns (n_rows, n_draws).
        """
        h = draw(mean, log_sigma, noise_h)
        z_mean, z_log_sigma = self.encoder(h)
        z = z_mean + torch.exp(z_log_sigma) * noise_z
        of_prior_z = -(0.5 * z.square() + HALF_LOG_TWO_PI).sum(-1)
        prior = self.decoder.log_density(z, h) + of_prior_z
        of_h = log_density_of_draw(noise_h, log_sigma[:, None]).sum(-1)
        of_z = log_density_of_draw(noise_z, z_log_sigma).sum(-1)
        return h, prior - of_h - of_z


def draw(mean: Tensor, log_sigma: Tensor, noise: Tensor) -> Tensor:
    """Return draws of h, shape (n_rows, n_draws, h_dim); server and parties draw the same."""
    return mean[:, None] + torch.exp(log_sigma)[:, None] * noise


class Discriminator(nn.Module):
    """p(y | h): categorical, or normal for a regression."""

    def __init__(self, settings: NetworkSettings, n_classes: int | None, seed: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.net = perceptron(
            settings.h_dim,
            n_classes or 2,
            settings.global_width,
            settings.head_layers,
            settings.activation,
            new_generator(seed, "weights of the discriminator"),
        )
        self.bounds = settings.x_bounds

    def log_density(self, h: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | h) of each draw, shape (n_rows, n_draws).

        Shapes: h (n_rows, n_draws, h_dim); y (n_rows,): classes 0, 1, ... as whole numbers, or
        standardised labels.
        """
        given = self.net(h)
        if self.n_classes is None:
            normal = GaussianNet(nn.Identity(), self.bounds)
            mean, log_sigma = normal(given)
            return log_density(y[:, None], mean[..., 0], log_sigma[..., 0])
        chosen = y[:, None, None].expand(*h.shape[:2], 1)
        logs: Tensor = given.log_softmax(-1).gather(-1, chosen)[..., 0]
        return logs

    def predict(self, h: Tensor, weights: Tensor) -> Prediction:
        """Average over draws by their importance weights (Section 3.3.4).

        Shapes: h (n_rows, n_draws, h_dim); weights (n_rows, n_draws): adding up to 1 in each row.
        """
        given = self.net(h)
        if self.n_classes is None:
            mean, log_sigma = GaussianNet(nn.Identity(), self.bounds)(given)
            mean, variance = mean[..., 0], torch.exp(2.0 * log_sigma[..., 0])
            value = (weights * mean).sum(-1)
            # Of a mixture: the mean of the variances and the variance of the means.
            spread = (weights * (variance + (mean - value[:, None]).square())).sum(-1)
            return Prediction(value, None, spread.sqrt())
        probabilities = (weights[..., None] * given.softmax(-1)).sum(1)
        return Prediction(probabilities.argmax(-1), probabilities, None)


@dataclass
class FalseVFLPart(NeuralPart):
    """A party's own networks, and how its columns become what they see."""

    strategy = "false-vfl"

    variant: str  # Of the fit

    def nets(self, name: str) -> PartyNetworks:
        """Make the networks again, of the party of that name."""
        settings = NetworkSettings.from_text(self.networks)
        nets = PartyNetworks(len(self.sources), settings, self.variant, 0, name)
        return load_arrays(nets, self.weights, self.precision)


@dataclass
class FalseVFLModel(NeuralModel):
    """The server's networks; it has no party's."""

    strategy = "false-vfl"

    variant: str  # Of the fit
    weights: Weights  # Of `ServerNets`
    prediction_samples: int  # See `FalseVFL`

    @property
    def settings(self) -> NetworkSettings:
        """Sizes and bounds of the networks."""
        return NetworkSettings.from_text(self.networks)

    def nets(self) -> ServerNets:
        """Make the global networks again."""
        return load_arrays(ServerNets(self.settings, 0), self.weights, self.precision)

    def discriminator(self) -> Discriminator:
        """Make the discriminator again."""
        made = Discriminator(self.settings, len(self.classes) or None, 0)
        return load_arrays(made, self.head, self.precision)

    def table(self, net: Discriminator, h: Tensor, logs: Tensor) -> pd.DataFrame:
        """Return predictions of samples, a line each, by draws of h and their log weights."""
        with torch.no_grad():
            found = net.predict(h, normalised_weights(logs))
        if found.probabilities is not None:
            return class_table(to_numpy(found.probabilities.double()), self.classes)
        assert found.deviation is not None
        value, deviation = (
            self.unit * to_numpy(t.double()) for t in (found.value, found.deviation)
        )
        return pd.DataFrame({"prediction": value + self.centre, "std_error": deviation})
