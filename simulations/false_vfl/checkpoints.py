"""Checkpoints of a training: it takes tens of minutes, and may be stopped at any moment."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flwr_vertical.log import logger
from flwr_vertical.whole_files import atomic_path


@dataclass(frozen=True)
class Checkpoint:
    """One file, written every few epochs."""

    path: Path
    every: int  # Epochs between two checkpoints; 0 writes none

    def due(self, epoch: int) -> bool:
        """Whether to write one after so many epochs."""
        return self.every > 0 and epoch % self.every == 0

    def save(self, state: dict[str, Any]) -> None:
        """Write the state in place of the last one."""
        with atomic_path(self.path) as temporary:
            torch.save(state, temporary)

    def load(self) -> dict[str, Any] | None:
        """Return the last state; None, and a line in the log, where none can be read."""
        if not self.path.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
            logger.warning("the checkpoint %s cannot be read, from the start: %s", self.path, error)
            return None
        return state
