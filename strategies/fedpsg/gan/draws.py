"""Random numbers of a training step: noise, hints and dropout, from the step's seed.

Each draw has a purpose and an owner, so that a party and the server draw the same hints, and a step
that is taken again the same of everything. They hide nothing.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

HINT = 0.9
"""Share of blocks that the hint gives away (the paper's and GAIN's rate, there of entries)."""

NOISE = 0.01
"""Largest noise in place of a missing entry, as in GAIN's code."""


def generator_for(seed: int, *purpose: Any) -> torch.Generator:
    """Return a generator for one purpose of one step."""
    text = "\0".join(map(str, (seed, *purpose))).encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
    return torch.Generator().manual_seed(number)


def draw_noise(seed: int, owner: str, shape: tuple[int, int]) -> Tensor:
    """Return noise in [0, `NOISE`)."""
    return NOISE * torch.rand(shape, generator=generator_for(seed, "noise", owner))


def draw_open(seed: int, owner: str, shape: tuple[int, int]) -> Tensor:
    """Return 1 where the hint leaves a party's block of a sample open, else 0.

    GAIN leaves entries open one by one. Here a party lacks most entries of a sample or none, so the
    hint on one of them would tell of all others, and nothing of the values would have to be learnt.
    """
    drawn = torch.rand((shape[0], 1), generator=generator_for(seed, "hint", owner))
    return (drawn >= HINT).to(torch.float32).expand(shape)


def draw_shown(seed: int, owner: str, mask: Tensor, hideable: Tensor, share: float) -> Tensor:
    """Return the mask less what the networks shall generate although the party has it.

    Shapes: mask (n, width): what is there; hideable (width,): 1 for entries that some sample of
    the party lacks: the others are never generated.
    """
    if share <= 0.0:
        return mask
    drawn = torch.rand((len(mask), 1), generator=generator_for(seed, "hidden", owner))
    return mask * (1.0 - (drawn < share).to(torch.float32) * hideable)


def hint_of(mask: Tensor, is_open: Tensor) -> Tensor:
    """Return the hint: the mask where it is given away, 0.5 where it is open (Yoon et al., (4))."""
    return mask * (1.0 - is_open) + 0.5 * is_open
