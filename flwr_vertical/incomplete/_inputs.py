"""What all mechanisms share: seeds, checks and one number for every cell."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import ConfigError, DataError

Mask: TypeAlias = Flags
Seed: TypeAlias = int | np.random.Generator


def generator(seed: Seed, purpose: str) -> np.random.Generator:
    """Return the generator for one purpose, or the given one as it is.

    An integer is combined with the purpose. Otherwise a study that draws its data and its masks
    from the same seed would get masks that depend on the data, and no mechanism would be what it
    says.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be a non-negative integer or a numpy Generator, got {seed!r}")
    salt = zlib.crc32(purpose.encode())
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=(salt,)))


def checked_rate(value: float, name: str) -> float:
    """Return a probability in [0, 1]; ConfigError with its name otherwise."""
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = np.nan
    if not 0.0 <= rate <= 1.0:
        raise ConfigError(f"{name} must be a probability in [0, 1], got {value!r}")
    return rate


def checked_count(value: int, name: str) -> int:
    """Return a positive integer; ConfigError with its name otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def checked_mask(mask: npt.ArrayLike, shape: tuple[int, ...]) -> Mask:
    """Return a boolean mask of the given shape; DataError otherwise."""
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != shape:
        raise DataError(
            f"mask must be booleans of shape {shape}, got {array.dtype} of shape {array.shape}"
        )
    return array


def shared_index(tables: Mapping[str, pd.DataFrame]) -> "pd.Index[Any]":
    """Return the sample IDs that all parties hold in the same order; DataError otherwise."""
    if not tables:
        raise DataError("no party's table was given, expected at least one")
    first, *others = tables
    index = tables[first].index
    for party in others:
        if not tables[party].index.equals(index):
            raise DataError(
                f"party {party!r} does not hold the same samples in the same order as party "
                f"{first!r}; mechanisms start from complete tables, so reindex them to shared IDs"
            )
    return index


def numeric_blocks(tables: Mapping[str, pd.DataFrame], *, standardize: bool) -> list[Array]:
    """Code every cell of the complete tables as one number.

    Numbers and booleans stand for themselves; labels become 0, 1, ... in the order of their
    categories (alphabetical where they have none). The papers' mechanisms are stated for numbers
    only.
    """
    shared_index(tables)
    blocks = []
    for party, frame in tables.items():
        if frame.shape[1] == 0 or frame.shape[0] == 0:
            raise DataError(f"party {party!r} has a table of shape {frame.shape}, without a cell")
        if gaps := [str(name) for name in frame.columns[frame.isna().any()]]:
            raise DataError(
                f"party {party!r} has missing cells in {', '.join(gaps)}; the mechanism is defined "
                "on complete tables, so fill them or drop those columns first"
            )
        block = np.column_stack([_numbers(frame[name], party) for name in frame.columns])
        if standardize:
            scale = block.std(axis=0)
            block = (block - block.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
        blocks.append(block)
    return blocks


def _numbers(column: "pd.Series[Any]", party: str) -> Array:
    """Code one complete column as numbers."""
    if types.is_numeric_dtype(column.dtype) and not types.is_complex_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64)
    try:
        codes = pd.Categorical(column).codes
    except TypeError:
        codes = None
    if codes is None or types.is_datetime64_any_dtype(column.dtype):
        raise DataError(
            f"column {column.name!r} of party {party!r} holds {column.dtype}, expected numbers, "
            "booleans or labels"
        )
    return np.asarray(codes, dtype=np.float64)


def per_party(values: Sequence[Any], parties: Sequence[str], name: str) -> list[Any]:
    """Return one value for each party; ConfigError if their number differs."""
    listed = list(values)
    if len(listed) != len(parties):
        raise ConfigError(
            f"{name} has {len(listed)} values, expected one for each of the {len(parties)} parties "
            f"({', '.join(parties)})"
        )
    return listed
