"""The server's networks: global encoder and decoder, and the discriminator for the labels."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from strategies.false_vfl.gaussian import HALF_LOG_TWO_PI, log_density, log_density_of_draw
from strategies.false_vfl.networks import GaussianNet, NetworkSettings, new_generator, perceptron


class ServerNets(nn.Module):
    """Global encoder (h to z) and global decoder (z to h)."""

    def __init__(self, settings: NetworkSettings, seed: int) -> None:
        super().__init__()
        generator = new_generator(seed, "weights of the server")
        h_dim, z_dim = settings.h_dim, settings.z_dim
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


class Prediction(NamedTuple):
    """What is expected of labels."""

    value: Tensor  # (n_rows,): the most probable class, or the mean
    probabilities: Tensor | None  # (n_rows, n_classes): of a classification
    deviation: Tensor | None  # (n_rows,): standard deviation of a regression


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
