"""Numbers that are written with marks: "2,134.60", "2.134,60", "1 234", "0,5"."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flwr_vertical.arrays import Array, Flags

# Kinds of space that typesetting puts between groups of digits.
_SPACES = "[ \\x{00a0}\\x{2009}\\x{202f}]"
_THOUSANDS = {",": ",", ".": "\\.", " ": _SPACES, "'": "['\\x{2019}]"}
_DECIMALS = {".": "\\.", ",": ","}


@dataclass(frozen=True)
class NumberForm:
    """How numbers are written."""

    decimal: str  # "." or ","
    thousands: str  # Mark between groups of three digits: ",", ".", " ", "'", or "" for none

    @property
    def pattern(self) -> str:
        """Regular expression (RE2) of a whole number in this form.

        Groups have three digits and the first begins with another digit than zero, so that dates
        (01.02.2024), telephone numbers (030 123 456) and 0,125 do not look like thousands.
        """
        point = _DECIMALS[self.decimal]
        whole = "[0-9]+"
        if self.thousands:
            whole = f"(?:[0-9]+|[1-9][0-9]{{0,2}}(?:{_THOUSANDS[self.thousands]}[0-9]{{3}})+)"
        return f"^[-+\\x{{2212}}]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][-+]?[0-9]+)?$"


FORMS = tuple(
    NumberForm(decimal, thousands)
    for decimal in _DECIMALS
    for thousands in ("", *_THOUSANDS)
    if decimal != thousands
)


def texts_of(values: Any) -> pa.Array:
    """Return texts without the white space around them, as an Arrow array."""
    array = pa.array(np.asarray(values, dtype=object), type=pa.large_string())
    return pc.utf8_trim_whitespace(array)


def fits(texts: pa.Array, form: NumberForm) -> Flags:
    """Return which texts are numbers in a form, shape (n_texts,)."""
    found = pc.match_substring_regex(texts, form.pattern)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def share_of_numbers(texts: pa.Array) -> tuple[float, Flags]:
    """Return the largest share of texts that one form fits, and which texts these are."""
    best = max((fits(texts, form) for form in FORMS), key=lambda mask: int(mask.sum()))
    return float(best.mean()) if len(best) else 0.0, best


def possible_forms(texts: pa.Array) -> list[NumberForm]:
    """Return the forms that fit all texts; those that read them in the same way count once."""
    head = texts.slice(0, 200)
    fitting = [form for form in FORMS if len(head) and bool(fits(head, form).all())]
    fitting = [form for form in fitting if bool(fits(texts, form).all())]
    first: dict[str, NumberForm] = {}
    for form in fitting:
        first.setdefault(form.decimal, form)
    if len(first) == 2 and not pc.any(pc.match_substring_regex(texts, "[.,]")).as_py():
        first.pop(",")  # spaces or apostrophes at most: both read the same
    return list(first.values())


def has_mark(texts: pa.Array, mark: str) -> bool:
    """Return whether a mark occurs in any of the texts."""
    return bool(pc.any(pc.match_substring(texts, mark)).as_py())


def parse(texts: pa.Array, form: NumberForm) -> Array:
    """Return texts that a form fits as numbers, shape (n_texts,)."""
    if form.thousands:
        # Only between digits, so that an exponent or a sign is left alone.
        texts = pc.replace_substring_regex(texts, _THOUSANDS[form.thousands], "")
    if form.decimal != ".":
        texts = pc.replace_substring(texts, form.decimal, ".")
    texts = pc.replace_substring(texts, "\u2212", "-")
    # Python's float reads each text to the nearest double; faster readers do not always.
    return np.array([float(text) for text in texts.to_pylist()], dtype=np.float64)
