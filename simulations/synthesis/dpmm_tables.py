"""Make a synthetic table by dpmm at one place, for the study to compare with.

dpmm needs older packages than this project, so this runs in an environment of its own::

    python -m venv dpmm && dpmm/bin/pip install dpmm==0.1.9 'numpy<2'
    dpmm/bin/python simulations/synthesis/dpmm_tables.py adult.csv central/adult_mst_1_0.csv \
        --method mst --epsilon 1 --seed 0 --rows 8000 --drop education

The name of the result is the data set's, method (``aim_1mb`` with ``--megabytes 1``), epsilon and
seed. ``mst`` takes a minute of a core; ``aim`` half an hour at epsilon 1 and many hours at 10,
where its model grows: dpmm sets no limit unless told one. With ``--megabytes 1``, which its authors
name for quick runs, it takes half an hour; models of this project's ``aim`` are of 0.8 at most.
Where its private search for the range of a column fails, as on Bank, ``--ranges`` tells it the
observed ones; German Credit's tables were made with them, too.
"""

import argparse
from importlib import import_module

import numpy as np
import pandas as pd

DELTA = 1e-5


def main() -> None:
    """Draw the study's rows, fit a pipeline of dpmm to them, and write as many synthetic rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("table")
    parser.add_argument("result")
    parser.add_argument("--method", choices=("mst", "aim"), required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--megabytes", type=float, help="of the model of aim, at most")
    parser.add_argument("--ranges", action="store_true", help="tell it the ranges of all rows")
    parser.add_argument("--drop", nargs="*", default=[])
    given = parser.parse_args()
    table = pd.read_csv(given.table).drop(columns=given.drop)
    real = table.sample(frac=1.0, random_state=given.seed).iloc[: given.rows].reset_index(drop=True)
    for name in real.select_dtypes("object"):
        real[name] = real[name].astype("category")
    np.random.seed(given.seed)  # noqa: NPY002 (what dpmm draws from)
    pipelines = import_module("dpmm.pipelines")
    pipeline = getattr(pipelines, f"{given.method.upper()}Pipeline")
    made = pipeline(epsilon=given.epsilon, delta=DELTA, max_model_size=given.megabytes)
    numbers = table.select_dtypes("number") if given.ranges else table[[]]
    made.fit(real, domain={c: {"lower": of.min(), "upper": of.max()} for c, of in numbers.items()})
    made.generate(n_records=given.rows).to_csv(given.result, index=False)


if __name__ == "__main__":
    main()
