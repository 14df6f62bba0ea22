"""Private products: all products of the parties' columns, beside rotation and ciphertexts.

    python benchmarks/products.py            # 166,207 x 35, and 250,000 and 1,000,000 x 50
    python benchmarks/products.py --quick    # small sizes, for CI

Products with one vector of the server are among them. Parties run in this process; the time is
that of the rounds that hand over the masked columns and open the sums, all parties and the server
together on this machine's cores. The peak of memory is that of the whole process so far: all
parties' tables and the server. Rotation is timed as its arithmetic alone, ciphertexts by one pair
of columns times the number of pairs.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from machine import machine_line

from flwr_vertical import Arbiter, Party, Strategy, Uses, simulate
from flwr_vertical.products import (
    GroupKey,
    GroupKeySteps,
    HeldColumns,
    PairKeySteps,
    PrivateProducts,
    PrivateProductSteps,
    ProductKeySteps,
    products_of,
)
from flwr_vertical.products.rotation import rotate


class Multiplying(Party):
    """A party whose columns are multiplied as they are."""

    pair_keys = Uses(PairKeySteps)
    group_key = Uses(GroupKeySteps)
    products = Uses(PrivateProductSteps, purpose="benchmark")

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
        result.metrics["before"] = peak_gib()
        started = time.perf_counter()
        products.send()
        sent = time.perf_counter()
        group = np.zeros(alignment.n_samples, dtype=np.int64)
        found = products.moments(group, 1, np.ones((alignment.n_samples, 1)))
        result.metrics["send"] = sent - started
        result.metrics["open"] = time.perf_counter() - sent
        result.model = np.vstack([found.products[0], found.with_vectors[0].T])
        products.close()


def make_parties(n_rows: int, sizes: tuple[int, ...]) -> dict[str, pd.DataFrame]:
    """Make correlated columns of several parties."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=n_rows)
    return {
        f"party-{k}": pd.DataFrame(
            0.5 * common[:, None] + rng.normal(size=(n_rows, size))
        ).add_prefix("x")
        for k, size in enumerate(sizes)
    }


def peak_gib() -> float:
    """Return the most memory that this process has had, in GiB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if "VmHWM" in line).split()[1]) / 2**20


def largest_error(parties: dict[str, pd.DataFrame], found: npt.NDArray[np.float64]) -> float:
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
    parties = make_parties(n_rows, sizes)
    strategy = AllProducts(limbs=limbs)
    result = simulate(strategy, parties, aggregation=mode, progress=False)
    peak, error = peak_gib(), largest_error(parties, result.model)
    seconds = result.metrics["send"] + result.metrics["open"]
    print(
        f"{'encrypted' if mode == 'ckks' or len(sizes) == 1 else 'private'} products, "
        f"{n_rows:,} x {sum(sizes)}, {len(sizes)} parties, limbs {limbs}: "
        f"{seconds:.2f} s (send {result.metrics['send']:.2f}, open {result.metrics['open']:.2f}), "
        f"largest error {error:.0e} of the columns' lengths, peak {peak:.2f} GiB, of which "
        f"{result.metrics['before']:.2f} before, with the tables{goal}",
        flush=True,
    )
    return seconds


def rotation_seconds(n_rows: int, sizes: tuple[int, ...]) -> float:
    """Time rotating every party's columns once for each other one, and multiplying."""
    parties = [frame.to_numpy() for frame in make_parties(n_rows, sizes).values()]
    started = time.perf_counter()
    for k, x in enumerate(parties):
        for z in parties[:k]:
            seed = bytes(32)
            rotate(x, seed).T @ rotate(z, seed)
    return time.perf_counter() - started


def ciphertext_seconds(n_rows: int, sizes: tuple[int, ...]) -> float | None:
    """Estimate the time of all products by ciphertexts from one pair; None without TenSEAL."""
    try:
        from flwr_vertical.crypto.ckks_products import (
            cross_products,
            encrypt_columns,
            generate_product_keys,
            open_products,
        )

        keys = generate_product_keys()
    except ImportError:
        return None
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(n_rows, 1)), rng.normal(size=(n_rows, 1))
    started = time.perf_counter()
    encrypted = encrypt_columns(keys.public, a)
    products = cross_products(keys.public, encrypted, b)
    open_products(keys.secret, products, (1, 1))
    one = time.perf_counter() - started
    pairs = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    return one * pairs


def main() -> None:
    """Print a line per size and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, for CI")
    quick = parser.parse_args().quick
    print(machine_line())
    n_rows, sizes = (5_000 if quick else 166_207), (7, 7, 7, 7, 7)
    ours = measure(n_rows, sizes, 1, "" if quick else ", target 3 s")
    measure(n_rows, sizes, 2)
    rotated = rotation_seconds(n_rows, sizes)
    print(f"rotation, the same: {rotated:.2f} s, {rotated / ours:.1f} times as long")
    encrypted = ciphertext_seconds(n_rows, sizes)
    if encrypted is not None:
        print(f"ciphertexts, the same: about {encrypted:.1f} s, from one pair of columns")
        measure(n_rows // 10, (2, 2, 2, 2, 2), 1, mode="ckks")
        measure(n_rows, (10,), 1)
    if not quick:
        quarter = measure(250_000, (10,) * 5, 1)
        whole = measure(1_000_000, (10,) * 5, 1, ", target 2 GiB")
        print(f"four times the rows take {whole / quarter:.1f} times as long")


if __name__ == "__main__":
    main()
