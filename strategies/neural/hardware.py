"""Where a node computes: on its processor or on a GPU, and whether bfloat16 is native there.

Every node chooses for itself by what it has. What nodes must agree on, the draws, is made by NumPy
on the CPU at each of them. On the CPU the same run gives the same numbers, and a run that goes on
from a snapshot those of an unbroken one.

A step that is taken again must answer the same: its values are masked by the same stream. So on a
GPU PyTorch is told to use deterministic algorithms only, with which the same GPU and versions give
the same numbers; a run that goes on with another GPU, or on the CPU, gives nearly those.
"""

import functools
import os

import numpy as np
import torch
from torch import Tensor

from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")


def device_of(choice: str) -> torch.device:
    """Return where this process computes."""
    found = torch.cuda.is_available()
    if choice == "cuda" and not found:
        raise ConfigError(
            "device='cuda', but PyTorch finds no GPU here; set device='auto', with which each node "
            "takes what it has, or 'cpu'"
        )
    if not found or choice == "cpu":
        return torch.device("cpu")
    # Of the whole process; cuBLAS reads the variable when it is first used (PyTorch's notes on
    # reproducibility).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda")


@functools.cache
def has_bfloat16(device: str) -> bool:
    """Return whether matrix products in bfloat16 are native, and so quicker than in float32."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Without these instructions PyTorch computes the same, but slower than in float32.
    capable = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device == "cpu" and capable is not None and bool(capable())


def precision_on(device: torch.device, asked: str) -> str:
    """Return what networks compute in on a device: ``mixed`` becomes float32 without bfloat16."""
    return "float32" if asked == "mixed" and not has_bfloat16(device.type) else asked


def to_numpy(values: Tensor) -> AnyArray:
    """Return numbers as an array, wherever they are; it may share their memory."""
    return np.asarray(values.detach().cpu().numpy())


def to_tensor(values: AnyArray, like: Tensor) -> Tensor:
    """Return an array of a message as a tensor of the same type and place as another."""
    return torch.from_numpy(np.array(values)).to(like.device, like.dtype)
