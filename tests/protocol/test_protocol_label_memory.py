"""The server's secret by which parties recognise labels: stable, private, and never half there."""

import stat

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import ConfigError
from flwr_vertical.server.label_memory import LabelMemory, digest_of_labels

LABELS = pd.Series([1.0, 0.0, np.nan], index=["a", "b", "c"])


def memory(path, labels=LABELS):
    found = LabelMemory(path)
    found.find_labels = lambda: digest_of_labels(labels)
    return found


def test_a_mark_follows_from_secret_labels_and_purpose(tmp_path):
    path = tmp_path / "server" / "label-secret"
    mark = memory(path).mark("for bank", b"rows")
    assert len(mark) == 32
    assert memory(path).mark("for bank", b"rows") == mark
    assert memory(path, LABELS[::-1]).mark("for bank", b"rows") == mark
    others = [
        memory(path, LABELS.fillna(1.0)).mark("for bank", b"rows"),
        memory(path).mark("for court", b"rows"),
        memory(path).mark("for bank", b"other rows"),
        memory(path).mark("for bank", b"ro", b"ws"),
        memory(tmp_path / "another").mark("for bank", b"rows"),
    ]
    assert len({mark, *others}) == 6
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["label-secret"]


def test_numbers_swapped_between_samples_are_other_labels():
    swapped = pd.Series(LABELS.to_numpy()[[1, 0, 2]], LABELS.index)
    assert digest_of_labels(LABELS) != digest_of_labels(swapped)
    by_number = LABELS.set_axis([10, 9, 8])
    assert digest_of_labels(by_number) == digest_of_labels(by_number.iloc[[2, 0, 1]])


def test_without_a_secret_labels_are_recognised_in_one_run_alone(tmp_path):
    one, other = memory(None), memory(None)
    assert one.mark("for bank") == one.mark("for bank") != other.mark("for bank")
    assert LabelMemory().mark("for bank") == b""
    assert LabelMemory(tmp_path / "secret").mark("for bank") == b""
    assert list(tmp_path.iterdir()) == []


def test_a_secret_that_cannot_be_used_is_named(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"secret has 5 bytes, expected 32; put back its copy"):
        memory(path).mark("for bank")
    with pytest.raises(ConfigError, match="cannot be read or written"):
        memory(path / "below a file").mark("for bank")
