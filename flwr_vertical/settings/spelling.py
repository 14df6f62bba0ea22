"""What to do about a name that is misspelt."""

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the valid name nearest to `name`, "" if none is near."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""
