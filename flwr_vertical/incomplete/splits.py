"""Cut one table into the columns of several parties, for studies and examples."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete._inputs import Seed, checked_count, generator


def split_columns(
    frame: pd.DataFrame,
    parties: int | Sequence[str] | Mapping[str, int | Sequence[str]],
    *,
    seed: Seed = 0,
    shuffle: bool = True,
) -> dict[str, pd.DataFrame]:
    """Split a table vertically.

    Parameters
    ----------
    parties : int, sequence of str, or mapping of str to int or sequence of str
        A number K of parties (named party-0, party-1, ...) or their names: all columns in K parts
        whose sizes differ by at most one. A mapping: for each party the names of its columns, or
        how many of the columns that no party names it gets. If any counts are given they must use
        up those columns; otherwise columns that no party names are left out.
    shuffle : bool, default True
        Whether parties get random columns, or runs of neighbours. Within a party, columns keep the
        order of the frame, except where they are named.

    Returns
    -------
    dict of str to pandas.DataFrame, shapes (n_samples, p_k)
        In the order of `parties`, all with the index of `frame`.

    Raises
    ------
    ConfigError
        If a column is unknown or given twice, a party gets none, or counts do not add up.
    """
    names = [str(name) for name in frame.columns]
    wanted = _wanted(parties, len(names))
    named = {party: list(ask) for party, ask in wanted.items() if not isinstance(ask, int)}
    counts = {party: ask for party, ask in wanted.items() if isinstance(ask, int)}
    _check_named(named, names)
    taken = {name for own in named.values() for name in own}
    free = np.flatnonzero([name not in taken for name in names])
    if counts and sum(counts.values()) != len(free):
        raise ConfigError(
            f"the counts of parties {', '.join(counts)} add up to {sum(counts.values())}, expected "
            f"{len(free)}, the number of columns that no party names"
        )
    if shuffle:
        free = generator(seed, "split_columns").permutation(free)
    ends = np.cumsum(list(counts.values()), dtype=int)[:-1]
    for party, part in zip(counts, np.split(free, ends), strict=False):
        named[party] = [names[j] for j in np.sort(part)]
    return {party: frame[named[party]].copy() for party in wanted}


def _wanted(
    parties: int | Sequence[str] | Mapping[str, int | Sequence[str]], n_columns: int
) -> dict[str, int | Sequence[str]]:
    """Bring the three ways to ask for parties into one: names or counts of columns."""
    if isinstance(parties, Mapping):
        if not parties:
            raise ConfigError("parties is empty, expected at least one party")
        return {
            party: checked_count(ask, f"the number of columns of party {party!r}")
            if isinstance(ask, int | np.integer)
            else ask
            for party, ask in parties.items()
        }
    if isinstance(parties, str):
        raise ConfigError(f"parties is the string {parties!r}, expected a number or a list")
    if isinstance(parties, int | np.integer):
        listed = [f"party-{k}" for k in range(checked_count(parties, "parties"))]
    else:
        listed = list(parties)
    if len(set(listed)) < len(listed) or not listed:
        raise ConfigError(f"parties must be at least one name, each once, got {listed!r}")
    if len(listed) > n_columns:
        raise ConfigError(
            f"{len(listed)} parties cannot share {n_columns} columns, each needs at least one"
        )
    least, extra = divmod(n_columns, len(listed))
    return {party: least + (k < extra) for k, party in enumerate(listed)}


def _check_named(named: Mapping[str, list[str]], names: Sequence[str]) -> None:
    """Refuse unknown columns, columns given twice and parties without any."""
    owner: dict[str, str] = {}
    for party, own in named.items():
        if not own:
            raise ConfigError(f"party {party!r} gets no columns, expected at least one")
        if unknown := [name for name in own if name not in names]:
            raise ConfigError(
                f"party {party!r} asks for the unknown columns {', '.join(map(repr, unknown))}; "
                f"there are {', '.join(names)}"
            )
        for name in own:
            if name in owner:
                raise ConfigError(
                    f"column {name!r} is given to party {owner[name]!r} and to party {party!r}, "
                    "expected one owner"
                )
            owner[name] = party
