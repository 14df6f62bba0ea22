"""Products of different parties' columns, the second primitive beside the private sum.

Two ways lead to ``X_k' X_l`` of two parties, and none shows a row to the server:

========================  ======================================================================
`masked`                  exact, by group of rows, also with vectors that the server alone has;
                          under a seed of all parties (`group_key`)
`ciphertext`              the same sums from ciphertexts: under the key of an arbiter, or with
                          one party alone; `products_of` chooses between the two
========================  ======================================================================

`pair_keys` has the seeds of two parties, `arbiter` the keys of ciphertexts. A party declares the
step groups that it needs, and its strategy calls the functions of the server half beside them::

    class MyParty(Party):
        pair_keys = Uses(PairKeySteps)
        group_key = Uses(GroupKeySteps)
        products = Uses(PrivateProductSteps, purpose="my method")

        def columns_to_multiply(self) -> HeldColumns: ...
"""

from flwr_vertical.products.arbiter import ProductKeySteps
from flwr_vertical.products.ciphertext import (
    ENCRYPTED_OPENING,
    EncryptedGroupSteps,
    EncryptedProducts,
)
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.group_key import GroupKey, GroupKeySteps
from flwr_vertical.products.masked import OPENING, PrivateProducts, PrivateProductSteps
from flwr_vertical.products.moments import Moments
from flwr_vertical.products.pair_keys import PairKeys, PairKeySteps
from flwr_vertical.protocol.declaration import If, Protocol
from flwr_vertical.server import Federation

OPENED_PRODUCTS = Protocol(
    If("aggregation == 'ckks' or n_parties == 1", ENCRYPTED_OPENING, otherwise=(OPENING,))
)
"""What products exchange once the parties' public keys are known, in the way of `products_of`."""

__all__ = [
    "OPENED_PRODUCTS",
    "EncryptedGroupSteps",
    "EncryptedProducts",
    "GroupKey",
    "GroupKeySteps",
    "HeldColumns",
    "Moments",
    "PairKeySteps",
    "PairKeys",
    "PrivateProductSteps",
    "PrivateProducts",
    "ProductKeySteps",
    "products_of",
]


def products_of(
    federation: Federation,
    group_key: GroupKey | None = None,
    limbs: int = 2,
    room: int = 0,
    vector_unit: float | None = None,
    noisy: bool = False,
) -> PrivateProducts | EncryptedProducts:
    """Return products of the parties' columns, in the way that fits the federation.

    They are `EncryptedProducts` with aggregation ``"ckks"``, and where one party is alone: nobody
    is there to help it. Both ways have ``send``, ``min_rows``, ``moments`` and ``close``.
    `group_key` hands the group seed to the parties, where they share one; it is drawn if left out.
    `limbs`, `room` and `vector_unit`: see `PrivateProducts`. `noisy`: whether parties add noise to
    what is opened.
    """
    if federation.aggregation == "ckks" or len(federation.parties) == 1:
        return EncryptedProducts(federation, room, vector_unit, noisy)
    return PrivateProducts(federation, group_key or GroupKey(federation), limbs, room, vector_unit)
