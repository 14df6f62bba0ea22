"""The command ``python -m simulations data``: which data sets there are, and what is missing."""

import gzip
import hashlib
import textwrap
from pathlib import Path

from simulations.data import DATA_SETS, DATA_VARIABLE, DataSet, Sources


def describe(sources: Sources) -> str:
    """Return a text: of each data set origin, licence, use, and which files are here, unchanged."""
    lines = [
        f"Data sets are looked for in {sources.data}.",
        f"{DATA_VARIABLE} or --data names another folder. Files may be compressed (.gz).",
    ]
    here = 0
    for name, of in DATA_SETS.items():
        absent = [file for file in of.files if sources.found(file) is None]
        here += not absent
        lines += ["", f"{name}: {of.title}"]
        lines += _field("holds", of.holds)
        lines += _field("from", of.origin)
        lines += _field("licence", of.licence)
        lines += _field("used by", ", ".join(of.studies))
        for file in of.files:
            lines += _field("missing" if file in absent else "here", _state(of, file, sources))
        if absent:
            lines.append(f"  to do    in {sources.data}: {of.make}")  # whole: it may be a command
    lines += ["", f"{here} of {len(DATA_SETS)} are here. The other studies need no data."]
    return "\n".join(lines)


def _field(name: str, text: str) -> list[str]:
    start = f"  {name:<9}"
    return textwrap.wrap(
        text, 100, initial_indent=start, subsequent_indent=" " * len(start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _state(of: DataSet, file: str, sources: Sources) -> str:
    path, expected = sources.found(file), of.files[file]
    if path is None or not expected:
        return file
    if _content_sum(path) == expected:
        return f"{file}, content as in the documented results"
    return f"{file}, with other content than in the documented results"


def _content_sum(path: Path) -> str:
    """Return the SHA-256 of a file's uncompressed content."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
