"""Columns in which predictions shall only rise, or only fall: which splits and leaves these allow.

The owner of a column states its direction in its own node config. With ``N``, ``H'_L`` and ``H'_R``
of a split as in `gains`, and values ``-G / H'`` of its two sides,

    value_R - value_L = G_L / H'_L - G_R / H'_R = N (1 / H'_L + 1 / H'_R),

so that the sign of N tells whether a split goes the right way. The arbiter sees ``a N + e`` with a
random sign of a (`blinding`), which the server knows: it says, candidate by candidate in the order
of the arbiter, which sign may win. Of a column without a direction either may.

That the two sides of a split are in order is not enough, as their own splits could cross. So no
leaf below may leave the range of its side: both end at the mean of the two values, as in XGBoost
and scikit-learn. Their boosters also judge splits by values within the range; here only leaves are
brought into it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.node.config import NodeKey
from flwr_vertical.settings import nearest
from strategies.trees.binning import Bins, SlotLayout

Directions = npt.NDArray[np.int8]

KEY = "trees.monotone."
TOLD = "node.trees.monotone"
"""In a party's state, once its directions were told; the server may not write there."""

NODE_KEY = NodeKey(
    KEY,
    (int,),
    "of a column: 1 if predictions may only rise with it, -1 if they may only fall",
    at_least=-1,
)


def directions_of(config: Mapping[str, Any], bins: Bins, party: str) -> Directions:
    """Read directions from a node config, (n_columns,): 1, -1, or 0 of columns without one."""
    out = np.zeros(len(bins.columns), dtype=np.int8)
    for key, value in config.items():
        if not key.startswith(KEY):
            continue
        name = key.removeprefix(KEY)
        if value not in (-1, 0, 1):
            raise ConfigError(f"party {party!r}: node config {key} = {value!r}; expected 1 or -1")
        names = [str(column) for column in bins.columns]
        if name not in names:
            raise DataError(
                f"party {party!r}: node config has {key!r}, and its table no column {name!r}"
                f"{nearest(name, names)}"
            )
        column = names.index(name)
        if bins.nominal[column] and value:
            raise DataError(
                f"party {party!r}: node config {key} = {value}, but the levels of {name!r} have no "
                f"order; state kind.{name} = 'ordinal' if they have one, or take the key out"
            )
        out[column] = value
    return out


def check_told(config: Mapping[str, Any], state: Mapping[str, Any], party: str) -> None:
    """Refuse splits by a server that was not told the directions: it cannot follow them."""
    stated = [key for key, value in config.items() if key.startswith(KEY) and value]
    if stated and TOLD not in state:
        raise ConfigError(
            f"party {party!r}: its node config states {stated[0]}, which this way of growing trees "
            "does not follow; take the key out, or use 'gbdt' with histograms='hidden'"
        )


def of_slots(directions: Directions, layout: SlotLayout) -> Directions:
    """Return the direction of each slot, (n_slots,); that of all known cells has none."""
    out = np.repeat(directions, layout.widths).astype(np.int8)
    out[(np.cumsum(layout.widths) - 1)[~np.array(layout.complete, dtype=bool)]] = 0
    return out


def right_way(numerator: npt.NDArray[np.number], directions: Directions) -> Flags:
    """Return which candidates go the right way, by ``N`` with its sign.

    Shapes: numerator (n_nodes, n_candidates); directions (n_candidates,).
    """
    return np.asarray((directions == 0) | (np.sign(numerator) * directions >= 0))


def allowed_signs(factors: Integers, directions: Directions) -> Flags:
    """Return which signs may win after candidates were multiplied by factors of random sign.

    Shapes: factors (n_nodes, n_candidates): ``a``, with its sign; directions (n_candidates,);
    returns (2, n_nodes, n_candidates): whether one may win if the product is 0 or above, and if
    below.
    """
    wanted = np.sign(factors) * directions
    return np.stack([wanted >= 0, wanted <= 0])
