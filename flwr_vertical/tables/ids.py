"""Sample IDs as parties compare them: their type, their normal form, their bytes."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from flwr_vertical.arrays import AnyArray, Ring
from flwr_vertical.errors import ConfigError, DataError

# The parts of a composite ID are joined by this; the joiner inside a part is escaped.
JOINER = "|"
_SPLIT = re.compile(r"(?<!\\)\|")
# What an integer prints as, with at most 18 digits to fit 64 bits.
_CANONICAL_INTEGER = "^(?:0|-?[1-9][0-9]{0,17})$"
_DECIMAL = re.compile(r"^([0-9]+)\.0+$")
_PAD = re.compile("pad-([1-9][0-9]?)")
_BLOCK = 1 << 15

_FORMS: dict[str, Callable[[str], str]] = {
    "strip": str.strip,
    "casefold": str.casefold,
    "nfc": lambda text: unicodedata.normalize("NFC", text),
}


def unpadded(text: str) -> str:
    """Return an ID without leading zeros, and ``12.0`` as ``12``."""
    if "." in text:
        text = _DECIMAL.sub(r"\1", text)
    return text.lstrip("0") or text[-1:]


def check_normalisation(normalise: "Sequence[str] | str", at_node: bool = False) -> list[str]:
    """Return the names of normalisation steps, or raise `ConfigError` listing the valid ones."""
    parts = normalise.split(",") if isinstance(normalise, str) else list(normalise)
    names = [part.strip() for part in parts if part.strip()]
    known = [*_FORMS, *["unpad", "pad-8 (or another number of digits)"] * at_node]
    unknown = [
        name for name in names if name not in known and not (at_node and _PAD.fullmatch(name))
    ]
    if unknown:
        raise ConfigError(f"unknown normalisation of IDs {unknown}; expected some of {known}")
    return names


def without_categories(index: "pd.Index[Any]") -> "pd.Index[Any]":
    """Return IDs as their values where a file numbers these, as Parquet may."""
    if not isinstance(index, pd.CategoricalIndex):
        return index
    return index.astype(object if index.hasnans else index.categories.dtype)


def normal_index(index: "pd.Index[Any]", steps: Sequence[str]) -> "pd.Index[Any]":
    """Return the sample IDs of one table as its owner has them written.

    Shapes: index (n_samples,): as they were read, composite or not; steps: of check_normalisation:
    ``strip``, ``casefold``, ``nfc``, ``unpad`` (no leading zeros, 12.0 as 12), ``pad-8`` (zeros
    before digits, to 8 of them); returns (n_samples,): integers if each is written as one prints.
    """
    if isinstance(index, pd.MultiIndex):
        parts = [normal_index(index.get_level_values(k), steps) for k in range(index.nlevels)]
        return pd.MultiIndex.from_arrays(parts, names=index.names)
    index = without_categories(index)
    if pd.api.types.infer_dtype(index, skipna=True) not in ("integer", "string"):
        return index  # which is refused in words
    forms = [_form(step) for step in steps]

    def normal(value: Any) -> str | None:
        if pd.isna(value):
            return None
        text = str(value)
        for form in forms:
            text = form(text)
        return text or None  # blanks alone are no ID

    return integers_of(index.map(normal))


def integers_of(texts: "pd.Index[Any]") -> "pd.Index[Any]":
    """Return IDs as integers if each is written as an integer prints, else as they are."""
    cells = pa.array(texts.to_numpy(dtype=object), type=pa.large_string(), from_pandas=True)
    whole = (
        not texts.hasnans and pc.all(pc.match_substring_regex(cells, _CANONICAL_INTEGER)).as_py()
    )
    return texts.astype("int64") if whole else texts


def _form(step: str) -> Callable[[str], str]:
    if step == "unpad":
        return unpadded
    if found := _PAD.fullmatch(step):
        width = int(found.group(1))
        return lambda text: text.zfill(width) if text.isdecimal() else text
    return _FORMS[step]


def id_type(index: "pd.Index[Any]", party: str) -> str:
    """Return ``"integer"`` or ``"text"``; the two never match each other."""
    if pd.api.types.is_integer_dtype(index.dtype):
        return "integer"
    if pd.api.types.infer_dtype(index, skipna=False) == "string":
        return "text"
    raise DataError(
        f"party {party!r}: sample IDs must be all integers or all strings, got dtype {index.dtype}"
    )


def normal_ids(index: "pd.Index[Any]", normalise: Sequence[str], party: str) -> Any:
    """Return sample IDs in their normal form, as an array that can travel.

    Shapes: index (n_samples,): unique sample IDs; returns (n_samples,): int64, or text as UTF-8 of
    fixed width.
    """
    if id_type(index, party) == "integer":
        return index.to_numpy(dtype="int64")
    blocks = [np.zeros(0, dtype="S1")]
    for start in range(0, len(index), _BLOCK):
        texts = index[start : start + _BLOCK].to_list()
        for name in normalise:
            form = _FORMS[name]
            texts = [JOINER.join(map(form, _SPLIT.split(text))) for text in texts]
        if any(text.endswith("\0") for text in texts):  # fixed-width text drops it
            raise DataError(f"party {party!r}: a sample ID ends in a NUL character; remove it")
        blocks.append(np.array([text.encode() for text in texts]))
    ids = np.concatenate(blocks)
    if normalise and (repeated := count_equal(ids)):
        raise DataError(
            f"party {party!r}: {repeated} sample IDs equal another one after normalisation "
            f"({', '.join(normalise)}); combine these rows, or normalise less"
        )
    return ids


def index_of(ids: AnyArray) -> "pd.Index[Any]":
    """Return sample IDs that `normal_ids` made as an index; shapes: ids (n_samples,)."""
    try:
        texts = [text.decode() for text in ids.tolist()] if ids.dtype.kind == "S" else None
    except UnicodeDecodeError as error:
        raise DataError("a party's sample IDs came as bytes that are no UTF-8 text") from error
    found: pd.Index[Any] = pd.Index(ids) if texts is None else pd.Index(texts, dtype="str")
    return found


def bytes_of(ids: AnyArray) -> list[bytes]:
    """Return each of the sample IDs that `normal_ids` made as bytes: integers as they print."""
    return ids.tolist() if ids.dtype.kind == "S" else [b"%d" % value for value in ids.tolist()]


def in_normal_form(frame: pd.DataFrame, normalise: Sequence[str], party: str) -> pd.DataFrame:
    """Return a table with its sample IDs as they are compared; parameters as of `normal_ids`."""
    if not normalise or id_type(frame.index, party) == "integer":
        return frame
    ids = index_of(normal_ids(frame.index, normalise, party)).astype(frame.index.dtype)
    return frame.set_axis(ids.rename(frame.index.name))


def hashes_of(index: "pd.Index[Any]", key: str) -> Ring:
    """Return the keyed hash (SipHash; 16 characters) of each sample ID, as text."""
    found = np.empty(len(index), dtype=np.uint64)
    for start in range(0, len(index), _BLOCK):  # as objects, all IDs take more than most tables
        texts = np.asarray(index[start : start + _BLOCK].astype(str), dtype=object)
        found[start : start + _BLOCK] = pd.util.hash_array(texts, hash_key=key, categorize=False)
    return found


def count_equal(values: AnyArray) -> int:
    """Return how many of some numbers equal another one before them, in little memory."""
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))


def count_repeated(index: "pd.Index[Any]") -> int:
    """Return how many sample IDs repeat an earlier one; shapes: index (n_samples,)."""
    # An index keeps the table of hashes that it makes, and texts as objects: 0.1 kB a row.
    if isinstance(index.dtype, np.dtype) and index.dtype.kind in "iu":
        return count_equal(index.to_numpy())
    return count_equal(hashes_of(index, "0" * 16)) and int(index.duplicated().sum())


def with_joined_ids(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return values with composite IDs as a run has them, one text each; others as they are."""
    index = values.index
    return values.set_axis(join_levels(index)) if isinstance(index, pd.MultiIndex) else values


def join_levels(index: pd.MultiIndex) -> "pd.Index[Any]":
    """Join composite IDs into texts ``first|second``; a joiner inside a part is escaped."""
    parts = [
        index.get_level_values(level).map(
            lambda v: str(v).replace("\\", "\\\\").replace("|", "\\|")
        )
        for level in range(index.nlevels)
    ]
    joined = [JOINER.join(values) for values in zip(*parts, strict=True)]
    name = JOINER.join(str(level) for level in index.names)
    return pd.Index(joined, dtype=object, name=name).infer_objects()
