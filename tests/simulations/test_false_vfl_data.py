"""Data sets of the FALSE-VFL study, from files made like theirs."""

import gzip
import struct

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from flwr_vertical.errors import DataError
from simulations.data import Sources
from simulations.false_vfl import images
from simulations.false_vfl.data import Split
from simulations.false_vfl.hapt import load_hapt
from simulations.false_vfl.images import load_fashion_mnist, load_modelnet10

RNG = np.random.default_rng(0)


@pytest.fixture
def sources(tmp_path):
    return Sources(tmp_path)


def write_hapt(folder, sizes, columns=561, first=1):
    for part, n in sizes.items():
        (folder / "hapt" / part).mkdir(parents=True, exist_ok=True)
        x = RNG.normal(2.0, 3.0, size=(n, columns)).round(5)
        np.savetxt(folder / "hapt" / part / f"X_{part.lower()}.txt", x, fmt="%.5f")
        y = np.arange(n) % 12 + first
        np.savetxt(folder / "hapt" / part / f"y_{part.lower()}.txt", y, fmt="%d")


def test_hapt_is_split_by_runs_of_70_columns(sources):
    write_hapt(sources.data, {"Train": 24, "Test": 12})
    split = load_hapt(sources)
    assert [table.shape for table in split.train.values()] == [(24, 70)] * 8
    assert [table.shape for table in split.test.values()] == [(12, 70)] * 8
    assert split.test_labels.tolist() == list(range(12))
    raw = np.loadtxt(sources.data / "hapt" / "Train" / "X_train.txt")
    other = np.loadtxt(sources.data / "hapt" / "Test" / "X_test.txt")
    expected = (other - raw.mean(axis=0)) / raw.std(axis=0)
    np.testing.assert_allclose(split.test["party-7"], expected[:, 490:560], rtol=1e-9)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({"columns": 560}, "lines of 560 numbers.*expected UCI's file with 561"),
        ({"first": 0}, "labels from 0 to 11; expected one from 1 to 12"),
    ],
)
def test_other_files_than_haps_are_refused(sources, made, text):
    write_hapt(sources.data, {"Train": 24, "Test": 12}, **made)
    with pytest.raises(DataError, match=text):
        load_hapt(sources)


def test_absent_hapt_says_which_file(sources):
    with pytest.raises(DataError, match=r"hapt/Train/X_train\.txt"):
        load_hapt(sources)


def write_idx(path, values, compressed):
    head = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.parent.mkdir(exist_ok=True)
    with (gzip.open if compressed else open)(path, "wb") as file:
        file.write(head + values.tobytes())


@pytest.fixture
def fashion(sources):
    """Images, and the folder with their files."""
    made = {"train": RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8)}
    made["t10k"] = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)
    for name, values in made.items():
        for what, array, end in (
            ("images-idx3", values, ".gz"),
            ("labels-idx1", (np.arange(len(values)) % 10).astype(np.uint8), ""),
        ):
            path = sources.data / "fashion_mnist" / f"{name}-{what}-ubyte{end}"
            write_idx(path, array, bool(end))
    return sources, made


def test_fashion_mnist_is_cut_into_tiles_row_by_row(fashion):
    sources, made = fashion
    split = load_fashion_mnist(sources)
    assert split.image_shape == (14, 7)
    assert (len(split.train), split.n_classes) == (8, 10)
    train = made["train"].astype(float)
    for k, table in enumerate(split.test.values()):
        top, left = 14 * (k // 4), 7 * (k % 4)
        tile = made["t10k"][:, top : top + 14, left : left + 7].reshape(6, 98)
        expected = (tile - train.mean()) / train.std()
        np.testing.assert_allclose(table.to_numpy(), expected, atol=1e-5)
    assert split.train_labels.tolist() == [*range(10)] * 2


def test_damaged_images_are_refused(fashion):
    sources, _ = fashion
    path = sources.data / "fashion_mnist" / "t10k-labels-idx1-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"5 bytes after its head, expected \(6,\): cut short"):
        load_fashion_mnist(sources)
    path.write_bytes(b"P5" + whole[2:])
    with pytest.raises(DataError, match="no IDX file of bytes with 1 axes"):
        load_fashion_mnist(sources)
    write_idx(path, np.zeros(5, dtype=np.uint8), compressed=False)
    with pytest.raises(DataError, match=r"test has images of shape .* and 5 labels"):
        load_fashion_mnist(sources)


def write_views(folder, classes, parts=("train", "test"), views=12):
    """Write a model of each class; its views have one shade all over, which tells them apart."""
    for number in range(classes):
        for part in parts:
            where = folder / "modelnet10" / f"class{number}" / part
            where.mkdir(parents=True)
            for view in range(views):
                shade = np.full((40, 40), 20 * number + view, dtype=np.uint8)
                Image.fromarray(shade).save(where / f"a_model_0001_v{view + 1:02}.png")


def test_modelnet_has_one_view_of_a_pair_a_party(sources, monkeypatch):
    write_views(sources.data, 10)
    split = load_modelnet10(sources)
    assert split.image_shape == (32, 32)
    assert split.budget == 0.5
    assert [len(split.train_labels), len(split.test_labels)] == [60, 20]
    assert [table.shape for table in split.train.values()] == [(60, 1024)] * 6
    # Before they are standardised, shades name class and view.
    monkeypatch.setattr(images, "_split", lambda *parts: parts)
    train, _, labels, *_ = load_modelnet10(sources)
    views = train[:, :, 0] - 20 * labels[:, None].astype(int)
    np.testing.assert_array_equal(views // 2, np.broadcast_to(np.arange(6), (60, 6)))
    assert set(np.unique(views)) == set(range(12))
    assert len(np.unique(views[labels == 3], axis=0)) > 1  # drawn anew each time


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({"classes": 9}, "has 9 folders of classes, expected ten"),
        ({"classes": 10, "views": 11}, "has 11 pictures of a_model_0001, expected 12"),
        ({"classes": 10, "parts": ("train",)}, r"test has no pictures"),
    ],
)
def test_other_folders_than_modelnets_are_refused(sources, made, text):
    write_views(sources.data, **made)
    with pytest.raises(DataError, match=text):
        load_modelnet10(sources)


def test_blocks_are_missing_by_the_data_sets_own_settings():
    tables = {f"p{k}": pd.DataFrame(RNG.normal(size=(400, 5)) * (k + 1)) for k in range(3)}
    labels = np.zeros(400, dtype=np.int64)
    table = Split(tables, tables, labels, labels, 2)
    image = Split(tables, tables, labels, labels, 2, image_shape=(1, 5), budget=0.5)
    none = labels[:0]
    # Standardised, all parties are alike; as they are, the third has the largest variance, and
    # a sample that visits it first observes nothing else.
    seen = [1 - split.draw_mask("train", "MAR 1", 0, none).mean() for split in (table, image)]
    assert seen[1] < seen[0] - 0.05
    less = Split(tables, tables, labels, labels, 2, budget=0.0)
    assert (
        less.draw_mask("test", "MAR 2", 0, none).mean()
        > table.draw_mask("test", "MAR 2", 0, none).mean()
    )


def test_a_part_keeps_labels_with_their_samples():
    x = pd.DataFrame({"a": np.arange(50.0)})
    split = Split({"p": x}, {"p": x.iloc[:20]}, np.arange(50), np.arange(20), 50)
    part = split.part(10, 0)
    assert len(part.train_labels) == 10
    np.testing.assert_array_equal(part.train["p"]["a"], part.train_labels)
    assert len(part.test_labels) == 20
    assert split.part(0, 0) is split
