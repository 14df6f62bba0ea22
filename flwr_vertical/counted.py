"""Numbers with the word that they count."""


def counted(count: float, one: str, many: str = "") -> str:
    """Return "1 row", "2 rows" and so on; `many`: where an s at the end of `one` is not all."""
    word = one if count == 1 else many or f"{one}s"
    return f"{count:,.0f} {word}"
