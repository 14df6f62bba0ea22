"""Types of arrays, by what they hold: one name for each, everywhere."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

AnyArray: TypeAlias = npt.NDArray[Any]
Array: TypeAlias = npt.NDArray[np.float64]
Floats32: TypeAlias = npt.NDArray[np.float32]
Numbers: TypeAlias = npt.NDArray[np.floating[Any]]
Flags: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.int64]
Integers: TypeAlias = npt.NDArray[np.int64]
Integers32: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Unsigned16: TypeAlias = npt.NDArray[np.uint16]
Ring: TypeAlias = npt.NDArray[np.uint64]
"""Whole numbers modulo 2^64."""
