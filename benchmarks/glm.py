"""Linear regression by private products; logistic and Poisson regression beside statsmodels.

    python benchmarks/glm.py            # the whole: some minutes
    python benchmarks/glm.py --quick    # small sizes, for CI

Normal labels take all products of the parties' columns, and of these with the labels, masked or by
ciphertexts; one party alone takes ciphertexts in any mode, and they need TenSEAL. The time is that
of the whole fit, of all parties and the server together on this machine's cores, then that of its
rounds. Labels of 0 and 1 are drawn at three strengths: predictors that reach farther take longer
Fourier sums. Strategy and statsmodels run by turns in one process, and the median is printed.
"""

import statistics
from argparse import Namespace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
import statsmodels.api as sm
from common import Cases, make_parties, memory_gib, run, show, timed
from scipy.special import expit

from flwr_vertical import simulate
from strategies.glm import VerticalGLM

CASES = (
    # family, strength of the columns, parties
    ("binomial", 1.0, 2),
    ("binomial", 1.0, 3),
    ("binomial", 2.0, 2),
    ("binomial", 4.0, 2),
    ("poisson", 0.5, 2),
)
N_COLUMNS = 23


def products(n_rows: int, sizes: tuple[int, ...], target: str = "", mode: str = "masked") -> None:
    """Print what a fit to normal labels takes: all products of one size."""
    parties, common = make_parties(n_rows, sizes)
    y = pd.Series(common + np.random.default_rng(1).normal(size=n_rows))
    fit = partial(simulate, VerticalGLM(family="gaussian", penalty="none"), parties, y, mode)
    result, seconds, _ = timed(partial(fit, alignment="plain", progress=False))
    rounds = result.ledger.to_frame().drop_duplicates("round").set_index("step")["seconds"]
    figures = {"s": seconds, "GiB at most": memory_gib()}
    figures |= {f"s in {step}": own for step, own in rounds.items() if own >= 0.01}
    assert result.coefficients is not None
    x = np.column_stack([np.ones(n_rows), *parties.values()])
    error = np.abs(result.coefficients["estimate"] - np.linalg.lstsq(x, y)[0]).max()
    figures["the largest error of a coefficient"] = error
    show(f"{mode}, {len(sizes)} parties, {n_rows:,} x {sum(sizes)}", figures, target)


def make_table(n_rows: int, family: str, strength: float) -> tuple[pd.DataFrame, pd.Series]:
    """Make columns as of borrowers: codes, correlated amounts with a long tail, flags; labels."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 6, (n_rows, 6)) + rng.integers(0, 3, (n_rows, 1))
    amounts = 0.6 * (rng.standard_normal((n_rows, 12)) + rng.standard_normal((n_rows, 1)))
    if family == "binomial":  # counts are refused where columns have a long tail
        amounts = np.exp(amounts)
    flags = rng.random((n_rows, 5)) < (0.5, 0.4, 0.3, 0.2, 0.1)
    values = np.column_stack([codes, amounts, flags]).astype(float)
    slopes = rng.standard_normal(N_COLUMNS)
    eta = (values - values.mean(axis=0)) / values.std(axis=0) @ slopes
    eta *= strength / eta.std()
    if family == "poisson":
        y = rng.poisson(np.exp(eta - 0.5)).astype(float)
    else:
        y = (rng.random(n_rows) < expit(eta - 1.2)).astype(float)
    return pd.DataFrame(values, columns=[f"x{j}" for j in range(N_COLUMNS)]), pd.Series(y, name="y")


def compare(n_rows: int, family: str, strength: float, n_parties: int, repetitions: int) -> None:
    """Fit by turns, and print what travelled, seconds, and how far estimates differ."""
    columns, labels = make_table(n_rows, family, strength)
    own = np.array_split(np.arange(N_COLUMNS), n_parties)
    parties = {f"p{k}": columns.iloc[:, these] for k, these in enumerate(own)}
    strategy = VerticalGLM(family=family, penalty="none")
    model = sm.GLM(labels, sm.add_constant(columns), family=getattr(sm.families, family.title())())
    truth, seconds, pooled = model.fit(tol=1e-12), [], []
    for _ in range(repetitions):
        result, one, _ = timed(lambda: simulate(strategy, parties, labels, progress=False))
        seconds.append(one)
        pooled.append(timed(model.fit).seconds)
    table, ledger = result.coefficients, result.ledger
    assert table is not None
    far = np.abs((table["estimate"].to_numpy() - truth.params.to_numpy()) / truth.bse.to_numpy())
    travelled = {"MB down": ledger.bytes_down / 1e6, "MB up": ledger.bytes_up / 1e6}
    times = {"s": statistics.median(seconds), "s by statsmodels": statistics.median(pooled)}
    show(
        f"{family} {strength}, {n_parties} parties, {n_rows:,} x {N_COLUMNS}",
        {"rounds": ledger.rounds} | travelled | times | {"standard errors apart": far.max()},
        "180 MB down" if (family, strength, n_parties) == CASES[0] else "",
    )


def main(options: Namespace) -> Cases:
    """Return the cases by name."""
    n_rows, target = (5_000, "") if options.quick else (166_207, "3 s")
    found = {"products": partial(products, n_rows, (7,) * 5, target)}
    if find_spec("tenseal"):
        found["ciphertexts"] = partial(products, n_rows // 10, (2,) * 5, mode="ckks")
        found["alone"] = partial(products, n_rows, (10,))
    if not options.quick:
        found["quarter"] = partial(products, 250_000, (10,) * 5)
        found["million"] = partial(products, 1_000_000, (10,) * 5, "2 GiB")
    n_rows, repetitions = (3_000, 1) if options.quick else (30_000, 3)
    for case in CASES:
        found[" ".join(map(str, case))] = partial(compare, n_rows, *case, repetitions)
    return found


if __name__ == "__main__":
    run(__doc__, main)
