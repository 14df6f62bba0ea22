"""A file like Isolet's, small: five subsets, 617 columns, letters from 1 to 26."""

from pathlib import Path

import numpy as np
import pandas as pd


def write_isolet(folder: Path, n_samples: int) -> None:
    """Write ``isolet/isolet.csv`` into a folder of data sets."""
    (folder / "isolet").mkdir(parents=True)
    rng = np.random.default_rng(0)
    letters = rng.integers(1, 27, n_samples)
    x = rng.normal(size=(26, 617))[letters - 1] + rng.normal(size=(n_samples, 617))
    frame = pd.DataFrame(x.round(3), columns=[f"f{i}" for i in range(1, 618)])
    frame["class"], frame["subset"] = letters, np.arange(n_samples) % 5 + 1
    frame.to_csv(folder / "isolet" / "isolet.csv", index=False)
