"""The losses, with what the paper leaves open or prints otherwise.

Liu, He, Tan et al., (19) to (25), after Yoon, Jordon and van der Schaar, "GAIN" (2018).

* As printed, the discriminator's loss (20) sums over the entries whose hint is 0, with the hint as
  the target: the target is always 0, and a constant is learnt. Here as in GAIN: over the entries
  that the hint leaves open, with the mask as the target. The generator's (23) runs over those of
  them that are missing.
* ``alpha`` is not given in the paper. GAIN's value is 100.
* ``(L_A + L_B)^2 / 2`` is the square of the sum of all parties' reconstruction losses of a sample.
* VGAIN adds the divergence of its code; its weight is not given either.
"""

import torch
from torch import Tensor, nn

ALPHA = 100.0
DIVERGENCE = 0.01
_SMALLEST = 1e-6


def reconstruction(x: Tensor, generated: Tensor, mask: Tensor, is_level: Tensor) -> Tensor:
    """Return a party's loss of each sample, over observed entries: (25) and what follows.

    Shapes: x, generated, mask (n, width); is_level (width,): where entries are of levels: cross-
    entropy there, squared error elsewhere.
    """
    entropy = -x * torch.log(generated.clamp_min(_SMALLEST))
    return (mask * torch.where(is_level, entropy, (generated - x) ** 2)).sum(dim=1)


def discriminator_loss(log_odds: Tensor, mask: Tensor, is_open: Tensor) -> Tensor:
    """Return the mean over samples of (20), corrected."""
    each = nn.functional.binary_cross_entropy_with_logits(log_odds, mask, reduction="none")
    return (is_open * each).sum() / len(mask)


def adversarial_loss(log_odds: Tensor, mask: Tensor, is_open: Tensor) -> Tensor:
    """Return the mean over samples of (23), corrected: missing entries shall look observed."""
    each = nn.functional.softplus(-log_odds)  # -log of the probability
    return (is_open * (1.0 - mask) * each).sum() / len(mask)


def joint_reconstruction(total: Tensor, alpha: float = ALPHA) -> Tensor:
    """Return ``alpha / 2`` times the mean square of the samples' total losses: (24).

    Shapes: total (n,): `reconstruction` summed over the parties.
    """
    return alpha / 2.0 * (total**2).sum() / len(total)
