"""Private products: all products of the parties' columns, masked and by ciphertexts.

    python benchmarks/products.py            # 166,207 x 35, and 250,000 and 1,000,000 x 50
    python benchmarks/products.py --quick    # small sizes, for CI

Products with one vector of the server are among them. Parties run in this process; the time is
that of the rounds that hand over the columns and open the sums, all parties and the server
together on this machine's cores. The peak of memory is that of the whole process so far.
"""

import numpy as np
import pandas as pd
from common import begin, command_line, make_parties, memory_gib, timed

from flwr_vertical import Arbiter, Party, Strategy, Uses, simulate
from flwr_vertical.arrays import Array
from flwr_vertical.products import (
    EncryptedGroupSteps,
    GroupKey,
    GroupKeySteps,
    HeldColumns,
    PairKeySteps,
    PrivateProducts,
    PrivateProductSteps,
    ProductKeySteps,
    products_of,
)


class Multiplying(Party):
    """A party whose columns are multiplied as they are."""

    pair_keys = Uses(PairKeySteps)
    group_key = Uses(GroupKeySteps)
    products = Uses(PrivateProductSteps, purpose="benchmark")
    ciphertexts = Uses(EncryptedGroupSteps, purpose="benchmark")

    def columns_to_multiply(self) -> HeldColumns:
        """Return all columns in the aligned order."""
        if "columns" not in self.cache:
            rows = np.asarray(self.positions)
            order = np.argsort(rows)
            values = self.table.frame.to_numpy(dtype=float)
            if (np.diff(rows) < 0).any():  # else a copy would be the table a second time
                values = values[order]
            self.cache["columns"] = HeldColumns(values, rows[order], self.n_samples)
        found: HeldColumns = self.cache["columns"]
        return found


class Opening(Arbiter):
    """An arbiter that opens encrypted products."""

    products = Uses(ProductKeySteps)


class AllProducts(Strategy):
    """Opens the sums of all products over all rows, and with one vector."""

    limbs: int = 1

    name = "all-products"
    party = Multiplying
    arbiter = Opening
    disclosure = (("server", "sums of products of two columns over all rows"),)

    def run(self, federation, alignment, result, progress):  # type: ignore[no-untyped-def]
        """Hand over, open, and time both."""
        group_key = GroupKey(federation)
        products = products_of(federation, group_key, self.limbs)
        if isinstance(products, PrivateProducts):
            group_key.arguments()
        result.metrics["before"] = memory_gib()
        result.metrics["send"] = timed(products.send).seconds
        n = alignment.n_samples
        group, ones = np.zeros(n, dtype=np.int64), np.ones((n, 1))
        opened = timed(lambda: products.moments(group, 1, ones))
        found, result.metrics["open"] = opened.value, opened.seconds
        result.model = np.vstack([found.products[0], found.with_vectors[0].T])
        products.close()


def largest_error(parties: dict[str, pd.DataFrame], found: Array) -> float:
    """Compare with the products of the pooled table, as a share of the columns' lengths."""
    truth = np.zeros_like(found)
    own = slice(0, -1)
    n_rows = len(next(iter(parties.values())))
    for start in range(0, n_rows, 65_536):
        rows = slice(start, start + 65_536)
        pooled = np.hstack([frame.iloc[rows].to_numpy() for frame in parties.values()])
        truth[own] += pooled.T @ pooled
        truth[-1] += pooled.sum(axis=0)
    size = np.sqrt(np.diag(truth))
    return float(np.abs((found - truth) / np.outer([*size, np.sqrt(n_rows)], size)).max())


def measure(
    n_rows: int, sizes: tuple[int, ...], limbs: int, goal: str = "", mode: str = "masked"
) -> float:
    """Time all products of one size; returns seconds."""
    parties, _ = make_parties(n_rows, sizes)
    result = simulate(AllProducts(limbs=limbs), parties, aggregation=mode, progress=False)
    peak, error = memory_gib(), largest_error(parties, result.model)
    send, opened = result.metrics["send"], result.metrics["open"]
    encrypted = mode == "ckks" or len(sizes) == 1
    print(
        f"{'encrypted' if encrypted else 'private'} products, {n_rows:,} x {sum(sizes)}, "
        f"{len(sizes)} parties, limbs {limbs}: {send + opened:.2f} s (send {send:.2f}, open "
        f"{opened:.2f}), largest error {error:.0e} of the columns' lengths, peak {peak:.2f} GiB, "
        f"of which {result.metrics['before']:.2f} before, with the tables{goal}",
        flush=True,
    )
    return send + opened


def main() -> None:
    """Print a line per size and way."""
    quick = begin(command_line(__doc__)).quick
    n_rows, sizes = (5_000 if quick else 166_207), (7, 7, 7, 7, 7)
    measure(n_rows, sizes, 1, "" if quick else ", target 3 s")
    measure(n_rows, sizes, 2)
    try:
        import tenseal  # noqa: F401
    except ImportError:
        print("ciphertexts are not timed: TenSEAL is not installed")
    else:
        measure(n_rows // 10, (2, 2, 2, 2, 2), 1, mode="ckks")
        measure(n_rows, (10,), 1)
    if not quick:
        quarter = measure(250_000, (10,) * 5, 1)
        whole = measure(1_000_000, (10,) * 5, 1, ", target 2 GiB")
        print(f"four times the rows take {whole / quarter:.1f} times as long")


if __name__ == "__main__":
    main()
