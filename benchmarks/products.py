"""Private products, masked and by ciphertexts, as a regression to normal labels takes them.

    python benchmarks/products.py            # 166,207 x 35, and 250,000 and 1,000,000 x 50
    python benchmarks/products.py --quick    # small sizes, for CI

All products of the parties' columns, and of these with the labels. One party alone takes
ciphertexts in any mode. Parties run in this process; the time is that of the whole fit, of all
parties and the server together on this machine's cores, then that of its rounds. The peak of memory
is that of the whole process so far.
"""

from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
from common import begin, command_line, make_parties, memory_gib, timed

from flwr_vertical import simulate
from strategies.glm import VerticalGLM


def measure(n_rows: int, sizes: tuple[int, ...], goal: str = "", mode: str = "masked") -> float:
    """Time all products of one size; returns seconds."""
    parties, common = make_parties(n_rows, sizes)
    y = pd.Series(common + np.random.default_rng(1).normal(size=n_rows))
    fit = partial(simulate, VerticalGLM(family="gaussian", penalty="none"), parties, y, mode)
    result, seconds, _ = timed(partial(fit, alignment="plain", progress=False))
    rounds = result.ledger.to_frame().drop_duplicates("round").set_index("step")["seconds"]
    steps = ", ".join(f"{step} {own:.2f}" for step, own in rounds.items() if own >= 0.01)
    peak = memory_gib()
    assert result.coefficients is not None
    x = np.column_stack([np.ones(n_rows), *parties.values()])
    error = np.abs(result.coefficients["estimate"] - np.linalg.lstsq(x, y)[0]).max()
    print(
        f"{mode}, {len(sizes)} parties, {n_rows:,} x {sum(sizes)}: {seconds:.2f} s ({steps}), "
        f"largest error of a coefficient {error:.0e}, peak {peak:.2f} GiB{goal}",
        flush=True,
    )
    return seconds


def main() -> None:
    """Print a line per size and way."""
    quick = begin(command_line(__doc__)).quick
    n_rows = 5_000 if quick else 166_207
    measure(n_rows, (7,) * 5, "" if quick else ", target 3 s")
    if find_spec("tenseal"):
        measure(n_rows // 10, (2,) * 5, mode="ckks")
        measure(n_rows, (10,))
    else:
        print("ciphertexts are not timed: TenSEAL is not installed")
    if not quick:
        quarter = measure(250_000, (10,) * 5)
        whole = measure(1_000_000, (10,) * 5, ", target 2 GiB")
        print(f"four times the rows take {whole / quarter:.1f} times as long")


if __name__ == "__main__":
    main()
