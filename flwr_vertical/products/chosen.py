"""Which way to moments a federation allows: private products, or ciphertexts."""

from flwr_vertical.products.encrypted_moments import EncryptedProducts
from flwr_vertical.products.group_key import GroupKey
from flwr_vertical.products.opened import PrivateProducts
from flwr_vertical.server import Federation


def products_of(
    federation: Federation,
    group_key: GroupKey | None = None,
    limbs: int = 2,
    room: int = 0,
    vector_unit: float | None = None,
    noisy: bool = False,
) -> PrivateProducts | EncryptedProducts:
    """Return products of the parties' columns, in the way that fits the federation.

    Parameters
    ----------
    federation : Federation
        Of the run.
    group_key : GroupKey, optional
        Hands the group seed to the parties, where they share one; drawn if left out.
    limbs, room, vector_unit
        See `PrivateProducts`.
    noisy : bool, default False
        Whether parties add noise to what is opened.

    Returns
    -------
    PrivateProducts or EncryptedProducts
        The latter with aggregation ``"ckks"``, and where one party is alone: nobody is there to
        help it. Both have ``send``, ``min_rows``, ``moments`` and ``close``.
    """
    if federation.aggregation == "ckks" or len(federation.parties) == 1:
        return EncryptedProducts(federation, room, vector_unit, noisy)
    return PrivateProducts(federation, group_key or GroupKey(federation), limbs, room, vector_unit)
