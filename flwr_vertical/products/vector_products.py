"""Private products of a party's columns with vectors of the server: the arithmetic.

No party may learn the vector v (labels, gradients). The server sends ``v + rho`` to party k and
the seed of ``rho`` to a helper l, which knows ``R_k``; k and l share a fresh stream s. They answer

    A = X_k'(v + rho) - s,    B = R_k'rho + s,    X_k'v = A + B - U_k'rho    modulo 2^64.

``A`` is uniform by s, ``v + rho`` by rho; the helper sees a seed. A rho that is not the same at
both opens ``X_k'(a - b)``, which the server could have asked for as v: nothing has to be proved.

Who must never come together: ``v + rho`` and the seed of its rho, at one node; one s and two
different rho. `helpers` chooses so; the label of s names the attempt.
"""

from collections.abc import Sequence

from flwr_vertical.arrays import Ring
from flwr_vertical.errors import ConfigError
from flwr_vertical.products.ring import limbs_of, product, product_of_limbs


def owner_share(own: Ring, masked_vectors: Ring, pad: Ring) -> Ring:
    """Return ``A``, from the owner of the columns.

    Shapes: own (n_rows, n_columns): its encoded columns; masked_vectors (n_rows, n_vectors): ``v +
    rho``; pad (n_columns, n_vectors): ``s``.
    """
    return product(own, masked_vectors) - pad


def helper_share(stream: Ring, rho: Ring, pad: Ring) -> Ring:
    """Return ``B``, from the helper, of the same shape.

    Shapes: stream (n_rows, n_columns): ``R_k``, the stream of the owner's columns; rho (n_rows,
    n_vectors): what the server masked its vectors with; pad (n_columns, n_vectors): ``s``.
    """
    return product(stream, rho) + pad


def open_vector_products(masked: Ring, rho: Ring, owner: Ring, helper: Ring) -> Ring:
    """Return ``X_k'v``, encoded, of shape (n_columns, n_vectors); the server's part.

    Shapes: masked (n_rows, n_columns): ``U_k``; rho (n_rows, n_vectors); owner, helper (n_columns,
    n_vectors): ``A`` and ``B``.
    """
    return owner + helper - product(masked, rho)


def limb_shares(columns: Ring, vectors: Ring, limbs: int) -> Ring:
    """Return what the shares are made of where columns and vectors come in limbs.

    Shapes: columns (n_rows, limbs * n_columns): ``X_k``, ``R_k`` or ``U_k``; vectors (n_rows,
    limbs * n_vectors): ``v + rho``, or ``rho``; returns (limbs, n_columns, n_vectors): to be added
    over blocks of rows, then less or plus the pad.
    """
    return product_of_limbs(limbs_of(columns, limbs), limbs_of(vectors, limbs))


def helpers(parties: Sequence[str]) -> dict[str, str]:
    """Choose, for each party, who helps with its products.

    With three parties and more, the first helps all others and the second helps the first, so two
    masks of each vector suffice. With two, each helps the other.
    """
    if len(parties) < 2:
        raise ConfigError(
            "a private product with a vector of the server needs a second party as helper, and "
            "this run has one party"
        )
    first, second = parties[0], parties[1]
    return {name: second if name == first else first for name in parties}
