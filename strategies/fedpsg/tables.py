"""What the server keeps of a run, as tables with the names of the attributes."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from strategies.fedpsg.attribute_pairs import Correlations, Pair


def correlation_table(
    correlations: Correlations, columns: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """Return rank correlations, a row for each two attributes of different parties."""
    rows = [
        (a, columns[a][i], b, columns[b][j], float(matrix[i, j]))
        for (a, b), matrix in correlations.items()
        for i, j in np.ndindex(matrix.shape)
    ]
    names = ["party", "attribute", "other party", "other attribute", "correlation"]
    return pd.DataFrame(rows, columns=names)


def rule_tables(
    pairs: Sequence[Pair],
    counts: Sequence[npt.NDArray[np.int64]],
    columns: Mapping[str, Sequence[str]],
) -> pd.DataFrame:
    """Return counts of pairs of values, a row for each cell that is not 0.

    Values have numbers: their names stay with the parties.
    """
    rows = [
        (
            pair.target,
            columns[pair.target][pair.column],
            pair.source,
            columns[pair.source][pair.source_column],
            pair.correlation,
            k,
            q,
            int(table[k, q]),
        )
        for pair, table in zip(pairs, counts, strict=True)
        for k, q in np.argwhere(table > 0).tolist()
    ]
    names = ["party", "attribute", "source party", "source attribute", "correlation"]
    return pd.DataFrame(rows, columns=[*names, "source value", "value", "samples"])
