"""Look at sample IDs before a run: in one table, and whether those of several tables meet."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api import types

from flwr_vertical.arrays import Flags
from flwr_vertical.errors import DataError
from flwr_vertical.tables.findings import Finding, Severity, examples_of
from flwr_vertical.tables.ids import count_repeated, unpadded, without_categories
from flwr_vertical.tables.table import checked_ids, whole_numbers

INTEGER, TEXT = "integer", "text"
_ID_NAME = re.compile(r"(?i:(^|[ _-])id(x|s)?$)|[a-z]ID$")
# What IDs may differ by, how they are made equal, and the step of normalise-ids that does it.
_REPAIRS: dict[str, tuple[Callable[[str], str], str]] = {
    "white space": (str.strip, "strip"),
    "upper and lower case": (str.casefold, "casefold"),
    "the Unicode form (NFC, NFD)": (lambda text: unicodedata.normalize("NFC", text), "nfc"),
    "leading zeros": (unpadded, "unpad"),
}


def _advice(steps: str) -> str:
    others = " (or in the run config, for all)" if "unpad" not in steps else ""
    return (
        f"state normalise-ids='{steps}' in the node config{others}, or write IDs alike everywhere"
    )


def type_of_ids(index: "pd.Index[Any]") -> str:
    """Return ``"integer"``, ``"text"``, or what else the IDs are."""
    if isinstance(index, pd.MultiIndex):
        return TEXT
    index = without_categories(index)
    if types.is_integer_dtype(index.dtype):
        return INTEGER
    held = types.infer_dtype(index, skipna=True)
    if held == "floating" and len(whole_numbers(index)):
        return INTEGER
    return {"string": TEXT, "integer": INTEGER}.get(held, held)


def check_ids(index: "pd.Index[Any]") -> Iterator[Finding]:
    """Check the sample IDs of one table."""
    try:
        ids = checked_ids(index, "the table")
    except DataError as error:
        seen, _, advice = str(error).removeprefix("the table ").rpartition("; ")
        repeated = index[index.duplicated()].dropna().unique()[:3]
        yield Finding("ids", "", seen, advice, examples_of(repeated), severity=Severity.ERROR)
        ids = index.dropna().unique()  # what else there is to be said is said at once
    if isinstance(index, pd.MultiIndex) or type_of_ids(ids) != TEXT:
        return
    texts = pa.array(ids, type=pa.large_string())  # as objects, they take three times the memory
    if (padded := _share(texts, "^\\s|\\s$")).any():
        seen = f"{int(padded.sum()):,} IDs begin or end with white space"
        yield _found("space", seen, _advice("strip"), ids[padded], mend={"normalise-ids": "strip"})
    if (blank := _share(texts, "^\\s*$")).any():
        yield _found(
            "blank", f"{int(blank.sum()):,} IDs are blank", "give such a row an ID", ids[blank]
        )
    digits = _share(texts, "^\\s*[0-9]+\\s*$")
    zeros = _share(texts, "^\\s*0[0-9]+\\s*$")
    if digits.all() and zeros.any():
        seen = f"IDs are text for {int(zeros.sum()):,} leading zeros; they never match integers"
        advice = "write them so at every party, or state normalise-ids='unpad' in the node config"
        yield _found("zeros", seen, advice, ids[zeros], Severity.NOTE)
    elif digits.all():
        seen = "IDs are text though all of them are whole numbers; they never match integers"
        advice = "make them integers if they are at other parties"
        yield _found("digits", seen, advice, ids, Severity.NOTE)
    elif digits.mean() >= 0.5:
        seen = f"IDs are text because {int((~digits).sum()):,} of them are no whole numbers"
        yield _found("mixed", seen, "correct these if IDs are integers elsewhere", ids[~digits])
    if (points := _share(texts, "^[0-9]+\\.0+$")).any():
        seen = f"{int(points.sum()):,} IDs end in '.0', as integers read as decimals do"
        advice = "write them without it, or state normalise-ids='unpad' in the node config"
        yield _found("points", seen, advice, ids[points], mend={"normalise-ids": "unpad"})
    # ASCII has one Unicode form and a lower case of its own: no loop over all IDs.
    is_ascii = pc.all(pc.string_is_ascii(texts)).as_py()
    for what, (form, _) in _REPAIRS.items():
        if what in ("white space", "leading zeros"):
            continue
        if what == "upper and lower case" and is_ascii:
            lower = pc.ascii_lower(texts)
            same = 0 if lower.equals(texts) else count_repeated(pd.Index(lower, dtype="str"))
        else:
            same = 0 if is_ascii else len(ids) - len({form(text) for text in ids.to_list()})
        if same > 0:
            seen = f"{same:,} IDs differ from another one by {what} alone"
            advice = "combine these rows if they are of the same samples"
            yield Finding("id-variants", "", seen, advice)


def check_id_names(frame: pd.DataFrame) -> Iterator[Finding]:
    """Find a column that is named as sample IDs are and differs in each row, beside the IDs."""
    if isinstance(frame.index, pd.MultiIndex) or _ID_NAME.search(str(frame.index.name or "")):
        return
    for name, column in frame.items():
        floats = types.is_float_dtype(column.dtype)
        if _ID_NAME.search(str(name)) and not floats and column.is_unique and len(column) > 1:
            beside = "row numbers" if frame.index.name is None else f"those of {frame.index.name!r}"
            seen = f"is named as sample IDs are and differs in each row, and the IDs are {beside}"
            advice = f"state id-column={str(name)!r} (of a DataFrame, set_index) or drop it"
            yield Finding("id-name", str(name), seen, advice)


def overlap_of(indices: "Mapping[str, pd.Index[Any]]") -> pd.DataFrame:
    """Count the samples of every pattern of who has them."""
    columns = {}
    union: pd.Index[Any] = pd.Index([])
    for index in indices.values():
        union = index if not len(union) else union.append(index)
    union = pd.Index(union.unique())
    for party, index in indices.items():
        columns[party] = union.isin(index)
    return pd.DataFrame(columns).value_counts().rename("samples").reset_index()


def check_overlap_of(indices: "Mapping[str, pd.Index[Any]]") -> Iterator[Finding]:
    """Check whether the IDs of several tables can meet."""
    by_type: dict[str, list[str]] = {}
    for party, index in indices.items():
        by_type.setdefault(type_of_ids(index), []).append(party)
    if len(by_type) > 1:
        shown = "; ".join(f"{kind} at {', '.join(names)}" for kind, names in by_type.items())
        seen = f"sample IDs are of different types ({shown}), so none of them match"
        advice = "write them in the same way at every party"
        yield Finding("id-types", "", seen, advice, severity=Severity.ERROR)
    yield from check_pairs_of(indices)


def check_pairs_of(indices: "Mapping[str, pd.Index[Any]]") -> Iterator[Finding]:
    """Check whether more IDs of two tables would meet if they were written alike."""
    types_of = {party: type_of_ids(index) for party, index in indices.items()}
    if set(types_of.values()) == {INTEGER}:  # which are written in one way
        alike = texts = {party: set(index) for party, index in indices.items()}
    else:
        texts = {party: set(map(str, index)) for party, index in indices.items()}
        alike = {party: _written_alike(own, list(_REPAIRS)) for party, own in texts.items()}
    for one, other in combinations(indices, 2):
        sides = texts[one], texts[other]
        same_type = types_of[one] == types_of[other]
        shared = len(sides[0] & sides[1]) if same_type else 0
        if shared < min(map(len, sides)):
            most = len(alike[one] & alike[other])
            yield from _check_pair(f"{one} and {other}", sides, shared, most, same_type)


def steps_for(index: "pd.Index[Any]", steps: Sequence[str]) -> list[str]:
    """Return which steps of normalise-ids change unique IDs of a table and make none equal."""
    texts, found = [*map(str, index)], []
    for form, step in _REPAIRS.values():
        made = [form(text) for text in texts] if step in steps else texts
        if made != texts and len(set(made)) == len(made):
            texts = made
            found.append(step)
    return found


def _written_alike(ids: set[str], differences: list[str]) -> set[str]:
    found = ids
    for what in differences:
        found = {_REPAIRS[what][0](text) for text in found}
    return found


def _check_pair(
    both: str, sides: tuple[set[str], set[str]], shared: int, most: int, same_type: bool
) -> Iterator[Finding]:
    needed = list(_REPAIRS)
    # A few chance hits, of upper and lower case say, are no reason to change all IDs.
    if most > 1.01 * shared + 1:
        for what in _REPAIRS:
            rest = [left for left in needed if left != what]
            left, right = (_written_alike(side, rest) for side in sides)
            if most <= 1.01 * len(left & right) + 1:
                needed = rest
        steps = ",".join(_REPAIRS[what][1] for what in needed)
        differences = [*needed, *["type"] * (not same_type)]
        but = " and ".join(differences)
        seen = f"{both} share {shared:,} IDs, and {most:,} but for {but}"
        advice = _advice(steps) if steps else "make them integers everywhere, or text everywhere"
        yield Finding("id-forms", "", seen, advice, mend={"normalise-ids": steps} if steps else {})
    elif not shared and same_type:
        seen = f"{both} have no sample in common"
        advice = "check that both have the same kind of ID"
        yield Finding("no-overlap", "", seen, advice)


def _share(texts: pa.Array, pattern: str) -> Flags:
    found = pc.match_substring_regex(texts, pattern)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _found(
    code: str,
    seen: str,
    advice: str,
    ids: "pd.Index[Any]",
    severity: Severity = Severity.WARNING,
    mend: Mapping[str, str] | None = None,
) -> Finding:
    return Finding(f"id-{code}", "", seen, advice, examples_of(ids[:3]), mend or {}, severity)
