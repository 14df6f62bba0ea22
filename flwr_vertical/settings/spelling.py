"""What to do about a name that is misspelt, or was removed."""

import difflib
from collections.abc import Iterable, Mapping


def nearest(name: str, valid: Iterable[str], removed: Mapping[str, str] | None = None) -> str:
    """Return what to use for an invalid name, by `removed` or as it is near, in brackets."""
    if removed and name in removed:
        return f" (it was removed: {removed[name]})"
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""
