"""Random numbers of a training step: noise, hints and dropout, from the step's seed.

Each draw has a purpose and an owner, so that a party and the server draw the same hints, and a step
that is taken again the same of everything. They hide nothing.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

HINT = 0.9
"""Share of entries that the hint gives away (GAIN's rate)."""

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
    """Return 1 where the hint leaves an entry open, else 0."""
    drawn = torch.rand(shape, generator=generator_for(seed, "hint", owner))
    return (drawn >= HINT).to(torch.float32)


def hint_of(mask: Tensor, is_open: Tensor) -> Tensor:
    """Return the hint: the mask where it is given away, 0.5 where it is open (Yoon et al., (4))."""
    return mask * (1.0 - is_open) + 0.5 * is_open
