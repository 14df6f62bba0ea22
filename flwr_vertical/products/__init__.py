"""Products of different parties' columns, the second primitive beside the private sum.

Three ways lead to ``X_k' X_l`` of two parties, and none shows a row to the server:

========================  ======================================================================
`private`, `opened`       exact, by group of rows, also with vectors that the server alone has;
                          under a seed of all parties (`group_key`)
`encrypted_groups`,       the same sums from ciphertexts: under the key of an arbiter, or with
`encrypted_moments`       one party alone; `products_of` chooses between the two
`rotation`                exact, from randomly rotated columns under a seed that two parties share
========================  ======================================================================

`pair_keys` has the seeds of two parties, `encrypted` the arbiter's keys. A party declares the step
groups that it needs, and its strategy calls the functions of the server half beside them::

    class MyParty(Party):
        pair_keys = Uses(PairKeySteps)
        group_key = Uses(GroupKeySteps)
        products = Uses(PrivateProductSteps, purpose="my method")

        def columns_to_multiply(self) -> HeldColumns: ...
"""

from flwr_vertical.products.chosen import products_of
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.encrypted import ProductKeySteps
from flwr_vertical.products.encrypted_moments import EncryptedProducts
from flwr_vertical.products.group_key import GroupKey, GroupKeySteps
from flwr_vertical.products.moments import Moments
from flwr_vertical.products.opened import PrivateProducts
from flwr_vertical.products.pair_keys import PairKeys, PairKeySteps
from flwr_vertical.products.private import PrivateProductSteps
from flwr_vertical.products.rotation import products_of_rotated, rotate_for_peers

__all__ = [
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
    "products_of_rotated",
    "rotate_for_peers",
]
