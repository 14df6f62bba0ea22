"""Find out encoding and separator of a text file from its bytes."""

import codecs
import csv
import io
from collections.abc import Iterator
from typing import BinaryIO

SEPARATORS = (",", ";", "\t", "|")
_HEAD = 1 << 16
_CHUNK = 1 << 20
# The longest mark first: that of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def sniff_encoding(stream: BinaryIO) -> tuple[str, bool]:
    """Find the encoding of a text file.

    Byte order marks and zero bytes tell the Unicode encodings apart, and text in another encoding
    is hardly ever valid UTF-8. One-byte encodings cannot be told from each other with certainty.
    """
    head = stream.read(_HEAD)
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding, True
    # Text in Latin letters has a zero byte in each pair in UTF-16, and none in any other.
    if head.count(b"\0", 1) > len(head) // 8:
        low_first = head[1::2].count(b"\0") >= head[0::2].count(b"\0")
        return ("utf-16-le" if low_first else "utf-16-be"), True
    decoder = codecs.getincrementaldecoder("utf-8")()
    western = True
    utf8 = True
    for chunk in _chunks(head, stream):
        if utf8:
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError:
                utf8 = False
        western = western and not any(byte in chunk for byte in _NOT_IN_CP1252)
    if utf8:
        try:
            decoder.decode(b"", final=True)
            return "utf-8-sig", True
        except UnicodeDecodeError:
            pass
    return ("cp1252" if western else "latin-1"), False


_NOT_IN_CP1252 = (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d")


def _chunks(head: bytes, stream: BinaryIO) -> Iterator[bytes]:
    while head:
        yield head
        head = stream.read(_CHUNK)


def sniff_separator(head: str, usual: str) -> list[str]:
    """Find the separators that split the beginning of a file into a table."""
    found: dict[str, int] = {}
    for separator in dict.fromkeys((usual, *SEPARATORS)):
        try:
            lines = list(csv.reader(io.StringIO(head, newline=""), delimiter=separator))
        except csv.Error:
            continue
        widths = {len(line) for line in lines if line}
        if len(widths) == 1 and (width := widths.pop()) > 1:
            found[separator] = width
    return sorted(found, key=lambda separator: -found[separator])


def whole_lines(text: str, complete: bool) -> str:
    """Return the lines of a beginning that are whole."""
    if complete:
        return text
    end = max(text.rfind("\n"), text.rfind("\r"))
    return text[: end + 1] if end >= 0 else text
