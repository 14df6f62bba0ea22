"""Images of the study: Fashion-MNIST in eight tiles, ModelNet10 in six views.

Fashion-MNIST: the four files of Zalando Research, such as ``fashion_mnist/train-images-idx3-ubyte``
(compressed by gzip or not). A party has a tile 14 pixels high and 7 wide; tiles are counted row by
row.

ModelNet10: ``modelnet10/<class>/<train or test>/<model>_<view>.png``, twelve pictures of each
model, each with the object turned by 30 degrees more; names sort in that order (as those of
"modelnet40_images_new_12x" do, from which the ten classes can be copied). Pictures are made grey
and 32 x 32. Neighbouring views make a pair, which is a party's; one of the pair is drawn for each
sample, six times over for training models and twice for test models.
"""

import gzip
import re
import struct
from pathlib import Path

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Bytes
from flwr_vertical.errors import DataError
from simulations.data import Sources
from simulations.false_vfl.data import Labels, Split

Pixels = Bytes

SIDE, TILE, N_CLASSES = 28, (14, 7), 10
VIEWS, PAIRS, VIEW = 12, 6, (32, 32)
DRAWS = {"train": 6, "test": 2}
_VIEW_NAME = re.compile(r"(?P<model>.+?)[._-]v?(?P<view>\d+)$")


def load_fashion_mnist(sources: Sources) -> Split:
    """Load Fashion-MNIST: 60,000 training and 10,000 test images, ten classes."""
    parts: dict[str, tuple[Pixels, Labels]] = {}
    for name, prefix in (("train", "train"), ("test", "t10k")):
        images = _idx(sources.path(f"fashion_mnist/{prefix}-images-idx3-ubyte"), 3)
        labels = _idx(sources.path(f"fashion_mnist/{prefix}-labels-idx1-ubyte"), 1)
        if images.shape != (len(labels), SIDE, SIDE):
            raise DataError(
                f"Fashion-MNIST in {sources.data / 'fashion_mnist'}: {name} has images of shape "
                f"{images.shape} and {len(labels)} labels; expected {SIDE} x {SIDE} pixels, one "
                "label an image"
            )
        parts[name] = _tiles(images), labels.astype(np.int64)
    return _split(parts, TILE, 0.7)


def _tiles(images: Pixels) -> Pixels:
    """Cut images into tiles, shape (n_images, n_tiles, pixels of a tile)."""
    high, wide = TILE
    cut = images.reshape(len(images), SIDE // high, high, SIDE // wide, wide)
    return cut.transpose(0, 1, 3, 2, 4).reshape(len(images), -1, high * wide)


def load_modelnet10(sources: Sources) -> Split:
    """Load rendered views of ModelNet10; which view of a pair is used follows from a seed."""
    from PIL import Image

    folder = sources.data / "modelnet10"
    classes = sorted(path.name for path in folder.glob("*") if path.is_dir())
    if len(classes) != 10:
        raise DataError(
            f"{folder} has {len(classes)} folders of classes, expected ten, each with train/ and "
            "test/ and in them twelve pictures of each model, such as "
            "chair/train/chair_0001_v01.png"
        )
    rng = np.random.default_rng(10)
    drawn: dict[str, tuple[Pixels, Labels]] = {}
    for part, times in DRAWS.items():
        views, labels = [], []
        for number, name in enumerate(classes):
            for paths in _models(folder / name / part):
                shots = []
                for path in paths:
                    with Image.open(path) as picture:
                        shots.append(np.asarray(picture.convert("L").resize(VIEW)))
                views.append(np.stack(shots).reshape(VIEWS, -1))
                labels.append(number)
        pairs = np.stack(views).reshape(len(labels), PAIRS, 2, -1)
        which = rng.integers(2, size=(times, len(labels), PAIRS, 1, 1))
        chosen = [np.take_along_axis(pairs, one, axis=2)[:, :, 0] for one in which]
        drawn[part] = np.concatenate(chosen), np.tile(np.array(labels, dtype=np.int64), times)
    return _split(drawn, VIEW, 0.5)


def _models(folder: Path) -> list[list[Path]]:
    """Return the pictures of each model, in the order of its views."""
    models: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.png")):
        found = _VIEW_NAME.fullmatch(path.stem)
        if found is None:
            raise DataError(f"{path}: expected a name such as chair_0001_v01.png")
        models.setdefault(found["model"], []).append(path)
    for model, paths in models.items():
        if len(paths) != VIEWS:
            raise DataError(f"{folder} has {len(paths)} pictures of {model}, expected {VIEWS}")
    if not models:
        raise DataError(f"{folder} has no pictures (*.png)")
    return list(models.values())


def _split(parts: dict[str, tuple[Pixels, Labels]], shape: tuple[int, int], budget: float) -> Split:
    """Standardise pixels, shape (n_samples, n_parties, n_pixels), by those of training images."""
    train = parts["train"][0]
    mean, deviation = np.float32(train.mean()), np.float32(train.std())
    tables = []
    for pixels, _ in (parts["train"], parts["test"]):
        x = ((pixels - mean) / deviation).astype(np.float32)
        tables.append({f"party-{k}": pd.DataFrame(x[:, k]) for k in range(x.shape[1])})
    labels = parts["train"][1], parts["test"][1]
    return Split(tables[0], tables[1], *labels, N_CLASSES, image_shape=shape, budget=budget)


def _idx(path: Path, n_axes: int) -> Pixels:
    """Read a file of the format IDX with bytes in it."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        content = file.read()
    head = struct.calcsize(f">4B{n_axes}I")
    if len(content) < head or content[:4] != bytes([0, 0, 8, n_axes]):
        raise DataError(f"{path} is no IDX file of bytes with {n_axes} axes")
    shape = struct.unpack(f">{n_axes}I", content[4:head])
    if len(content) - head != int(np.prod(shape)):
        raise DataError(
            f"{path} has {len(content) - head} bytes after its head, expected {shape}: cut short?"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)
