"""Arrays, frames and plain values in one ``.npz`` file, without pickle.

The file is what `numpy.savez` writes: an array for each array, the bytes of a Parquet file for each
DataFrame, and the rest as JSON. Reading it runs no code of the file's.
"""

import io
import json
import math
import threading
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import AnyArray, Bytes
from flwr_vertical.errors import ConfigError, DataError

_TEXT = "json"

# NumPy reads the head of an array by Python's parser, and that of Python 3.11 fails now and then
# ("AST constructor recursion depth mismatch") where two threads are in it.
_READING = threading.Lock()


def pack(value: Any, what: str, head: Mapping[str, Any] | None = None) -> bytes:
    """Return the file's bytes."""
    arrays: list[AnyArray] = []
    plain = _plain(value, arrays, what)
    if head is not None:
        plain = {
            "dict": [*([key, _plain(head[key], arrays, key)] for key in head), ["value", plain]]
        }
    text = json.dumps(plain, allow_nan=False)
    named = {f"a{number}": array for number, array in enumerate(arrays)}
    file = io.BytesIO()
    np.savez(file, **{_TEXT: _as_array(text.encode())}, **named)  # type: ignore[arg-type]
    return file.getvalue()


def unpack(data: bytes, where: str) -> Any:
    """Read what `pack` made."""
    try:
        with _READING, np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return _revive(json.loads(arrays[_TEXT].tobytes()), arrays)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{where} is damaged, or is no file of this library's ({type(error).__name__}: {error})"
        ) from error


def _plain(value: Any, arrays: list[AnyArray], where: str) -> Any:
    """Return a value in JSON's types, its arrays put aside; a JSON object has one key, its type."""
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": _put(_as_array(value), arrays)}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise ConfigError(f"{where} is an array of Python objects, which is not saved")
        return {"array": _put(value, arrays)}
    if isinstance(value, pd.Series):
        frame = _frame(value.to_frame("values"), arrays, where)
        return {"series": [frame, _plain(value.name, arrays, f"the name of {where}")]}
    if isinstance(value, pd.DataFrame):
        return {"frame": _frame(value, arrays, where)}
    if isinstance(value, list):
        return [_plain(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": _plain(list(value), arrays, where)}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {
            "dict": [
                [
                    _plain(key, arrays, f"a key of {where}"),
                    _plain(item, arrays, f"{where}[{key!r}]"),
                ]
                for key, item in pairs
            ]
        }
    raise ConfigError(
        f"{where} is a {type(value).__name__}, which is not saved; expected arrays, DataFrames, "
        "numbers, text, or lists and dicts of these"
    )


def _revive(value: Any, arrays: Any) -> Any:
    if isinstance(value, list):
        return [_revive(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((form, content),) = value.items()
    if form == "float":
        return float(content)
    if form == "bytes":
        return arrays[content].tobytes()
    if form == "array":
        return arrays[content]
    if form == "series":
        return _read_frame(content[0], arrays)["values"].rename(_revive(content[1], arrays))
    if form == "frame":
        return _read_frame(content, arrays)
    if form == "tuple":
        return tuple(_revive(content, arrays))
    if form == "dict":
        return {_revive(key, arrays): _revive(item, arrays) for key, item in content}
    raise ValueError(f"it holds a value of the unknown form {form!r}")


def _frame(frame: pd.DataFrame, arrays: list[AnyArray], where: str) -> dict[str, Any]:
    # Parquet knows text as column names only, so labels and index are described beside it.
    columns = {f"c{j}": frame.iloc[:, j].array for j in range(frame.shape[1])}
    levels = {f"i{k}": frame.index.get_level_values(k).array for k in range(frame.index.nlevels)}
    file = io.BytesIO()
    try:
        pd.DataFrame(columns | levels).to_parquet(file)
    except (ValueError, TypeError) as error:  # pyarrow's errors are subclasses of these
        raise ConfigError(f"{where} cannot be written as Parquet: {error}") from error
    return {
        "parquet": _put(_as_array(file.getvalue()), arrays),
        "labels": _plain(frame.columns.tolist(), arrays, f"the columns of {where}"),
        "dtype": None if frame.columns.nlevels > 1 else str(frame.columns.dtype),
        "names": _plain(list(frame.columns.names), arrays, f"the column names of {where}"),
        "index": _plain(list(frame.index.names), arrays, f"the index names of {where}"),
        "levels": [frame.columns.nlevels, frame.index.nlevels],
    }


def _read_frame(told: dict[str, Any], arrays: Any) -> pd.DataFrame:
    body = pd.read_parquet(io.BytesIO(arrays[told["parquet"]].tobytes()))
    labels, names = _revive(told["labels"], arrays), _revive(told["names"], arrays)
    index_names = _revive(told["index"], arrays)
    n_column_levels, n_index_levels = told["levels"]
    levels = [pd.Index(body[f"i{k}"]) for k in range(n_index_levels)]
    frame = body[[f"c{j}" for j in range(len(labels))]]
    if n_index_levels > 1:
        frame.index = pd.MultiIndex.from_arrays(levels, names=index_names)
    else:
        frame.index = levels[0].rename(index_names[0])
    if n_column_levels > 1:
        frame.columns = pd.MultiIndex.from_tuples(labels, names=names)
    else:
        frame.columns = pd.Index(labels, dtype=told["dtype"], name=names[0])
    return frame


def _as_array(data: bytes) -> Bytes:
    return np.frombuffer(data, dtype=np.uint8)


def _put(array: AnyArray, arrays: list[AnyArray]) -> str:
    arrays.append(array)
    return f"a{len(arrays) - 1}"
