"""Two views of a row, which SimSiam brings together.

Of a table the first is the row itself; in the second some columns are replaced by numbers between
the column's least and largest value, as in FedHSSL's experiments with tables (He et al., 2022).

Of an image both are moved by up to an eighth of a side, with the mean colour where nothing is left,
and mirrored or not: the usual crops and mirrors (Chen and He, 2021, Section 4), without changes of
colour, for images of a few pixels a side.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from strategies.false_vfl.images import ImageShape


class Views(Protocol):
    """How views of rows are made."""

    def pair(self, x: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return two views of each row, both of the shape of `x`."""


class TableViews:
    """Views of rows of a table.

    Shapes: x (n_rows, n_columns): all rows, whose least and largest values bound what replaces a
    cell.
    """

    def __init__(self, x: Tensor, share: float) -> None:
        self._least, self._range = x.amin(0), x.amax(0) - x.amin(0)
        self._count = int(share * x.shape[1])

    def pair(self, x: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the rows, and rows with some columns replaced, others in each."""
        uniform = torch.from_numpy(rng.random(x.shape)).to(x.device, x.dtype)
        places = torch.from_numpy(rng.random(x.shape).argsort(axis=1).argsort(axis=1))
        chosen = (places < self._count).to(x.device)
        return x, torch.where(chosen, self._least + uniform * self._range, x)


class ImageViews:
    """Views of images."""

    def __init__(self, image: ImageShape) -> None:
        self._image = image

    def pair(self, x: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return images moved and mirrored, each in another way."""
        return self._view(x, rng), self._view(x, rng)

    def _view(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        image, n = self._image, len(x)
        pad_y, pad_x = -(-image.height // 8), -(-image.width // 8)
        pixels = x.reshape(n, image.channels, image.height, image.width)
        padded = torch.nn.functional.pad(pixels, (pad_x, pad_x, pad_y, pad_y))
        rows = _places(image.height, pad_y, n, rng)
        columns = _places(image.width, pad_x, n, rng)
        mirrored = rng.random(n) < 0.5
        columns[mirrored] = columns[mirrored, ::-1]
        y, z = (torch.from_numpy(found).to(x.device) for found in (rows, columns))
        each = torch.arange(n, device=x.device)[:, None, None, None]
        channel = torch.arange(image.channels, device=x.device)[:, None, None]
        return padded[each, channel, y[:, None, :, None], z[:, None, None, :]].reshape(x.shape)


def _places(side: int, pad: int, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw which pixels along a padded side each image takes, shape (n, side)."""
    return rng.integers(0, 2 * pad + 1, size=n)[:, None] + np.arange(side)


def views_of(x: Tensor, share: float, image: ImageShape | None) -> Views:
    """Return how views of a party's rows are made."""
    return TableViews(x, share) if image is None else ImageViews(image)
