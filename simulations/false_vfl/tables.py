"""From runs to tables, beside the paper's."""

import pandas as pd

PAPER = ("tables", "table2", "table11", "table18")
KEYS = ["dataset", "train", "method", "simsiam"]


def accuracies(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean accuracy in percent by test mechanism, and over how many seeds."""
    chosen = frame[frame["metric"].str.startswith("accuracy ")]
    wide = chosen.assign(test=chosen["metric"].str.removeprefix("accuracy ")).pivot_table(
        index=KEYS, columns="test", values="value", sort=False
    )
    return wide.assign(runs=chosen.groupby(KEYS)["seed"].nunique()).rename_axis(columns=None)
