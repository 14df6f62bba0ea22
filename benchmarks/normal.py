"""Methods of a joint normal model: completion, discriminants, a regression on 150 columns.

    python benchmarks/normal.py [--quick]

Tables are drawn: correlated normal columns, a quarter of each party's rows missing. Runs are in one
process with plain alignment, whose time is not counted. Beside them stands the same model in numpy
on the pooled table, in the same run.
"""

import numpy as np
import pandas as pd
from common import command_line, machine_line, seconds_of

from flwr_vertical import Strategy, simulate
from flwr_vertical.incomplete import split_columns
from strategies.lda import LDA
from strategies.normal import JointNormal
from strategies.vfem import VFEM

ALLOWING = {"min-rows": 1, "vectors": 26, "predictions": 200.0, "alignments": "plain"}
"""Of nodes with few labels and many classes; see docs/methods/lda.md."""


def make_tables(
    n_rows: int, n_columns: int, n_parties: int, lacking: int = 9
) -> dict[str, pd.DataFrame]:
    """Columns with twenty common factors, neighbouring ones at each party; some lack rows."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(20, n_columns)) / 4.0
    x = rng.normal(size=(n_rows, 20)) @ loadings + rng.normal(size=(n_rows, n_columns))
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(n_columns)])
    lacks = rng.random((n_rows, n_parties)) < 0.25
    lacks[lacks.all(axis=1), 0] = False
    lacks[:, lacking:] = False
    parts = split_columns(frame, n_parties, shuffle=False)
    return {name: part[~lacks[:, k]] for k, (name, part) in enumerate(parts.items())}


def pooled(tables: dict[str, pd.DataFrame], n_rows: int) -> None:
    """Complete the pooled table by pairwise covariances."""
    x = np.hstack([table.reindex(range(n_rows)).to_numpy() for table in tables.values()])
    there, zeros = ~np.isnan(x), np.nan_to_num(x)
    flags = there.astype(float)
    covariance = zeros.T @ zeros / (flags.T @ flags) + 0.1 * np.eye(x.shape[1])
    for pattern in np.unique(there, axis=0):
        rows = np.flatnonzero((there == pattern).all(axis=1))
        o, m = np.flatnonzero(pattern), np.flatnonzero(~pattern)
        slope = np.linalg.solve(covariance[np.ix_(o, o)], covariance[np.ix_(o, m)])
        x[np.ix_(rows, m)] = x[np.ix_(rows, o)] @ slope


def timed(strategy: Strategy, tables: dict[str, pd.DataFrame], **options: object) -> str:
    """Return seconds and rounds of a run, without alignment."""
    result = simulate(strategy, tables, alignment="plain", progress=False, **options)  # type: ignore[arg-type]
    steps = result.ledger.summary()["seconds"]
    spent = sum(s for step, s in steps.items() if step not in ("hello", "align", "total"))
    return f"messages and parties {spent:.1f} s, {result.ledger.rounds} rounds with greeting"


def main() -> None:
    """Parse the command line and run."""
    quick = command_line(__doc__).parse_args().quick
    print(machine_line() + "\n")
    sizes = ((800, 24, 3),) if quick else ((6_238, 616, 8), (166_207, 35, 3))
    for n_rows, n_columns, n_parties in sizes:
        tables, told = make_tables(n_rows, n_columns, n_parties), [""]
        whole = seconds_of(lambda t=tables, s=told: s.append(timed(JointNormal(), t)))  # type: ignore[misc]
        central = seconds_of(lambda t=tables, n=n_rows: pooled(t, n))  # type: ignore[misc]
        print(f"joint-normal, {n_rows:,} x {n_columns}, {n_parties} parties: {whole:.1f} s in all")
        print(f"  {told[-1]}; pooled in numpy {central:.1f} s, ratio {whole / central:.1f}")
    n_rows, n_columns, n_parties = sizes[0]
    n_labels, n_classes = (400, 2) if quick else (500, 26)
    tables, told = make_tables(n_rows, n_columns, n_parties), [""]
    labels = pd.Series(np.arange(n_labels) % n_classes + 0.0, name="class").reindex(range(n_rows))
    run = {"labels": labels, "policy": ALLOWING}
    whole = seconds_of(lambda: told.append(timed(LDA(), tables, **run)))
    print(f"lda, the same table, {n_labels} labels of {n_classes} classes: {whole:.1f} s in all")
    print(f"  {told[-1]}")
    n_rows, n_columns = (1_500, 24) if quick else (6_000, 150)
    tables = make_tables(n_rows, n_columns, 3, lacking=1)
    whole_rows = make_tables(n_rows, n_columns, 3, lacking=0).values()
    noise = np.random.default_rng(1).normal(size=n_rows)
    labels = (sum(table.sum(axis=1) for table in whole_rows) + noise).rename("y")
    whole = seconds_of(lambda: told.append(timed(VFEM(), tables, labels=labels)))
    print(f"vfem with errors, {n_rows:,} x {n_columns}, 3 parties: {whole:.1f} s in all")
    print(f"  {told[-1]}")


if __name__ == "__main__":
    main()
