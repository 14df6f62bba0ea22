"""Mechanisms by name, for settings files and studies."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy.typing as npt
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete._inputs import Mask, Seed, shared_index
from flwr_vertical.incomplete.copula import mar_complex, mar_simple
from flwr_vertical.incomplete.false_vfl import mar_blocks_1, mar_blocks_2, mnar_blocks
from flwr_vertical.incomplete.mcar import mcar_blocks

MECHANISMS: Mapping[str, Callable[..., Mask]] = MappingProxyType(
    {
        "mcar": mcar_blocks,
        "mar-1": mar_blocks_1,
        "mar-2": mar_blocks_2,
        "mnar": mnar_blocks,
        "mar-simple": mar_simple,
        "mar-complex": mar_complex,
    }
)
"""The block-wise mechanisms."""

FALSE_VFL_REGIMES: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "MCAR 0": ("mcar", {"rates": 0.0}),
        "MCAR 2": ("mcar", {"rates": 0.2, "keep_one": True}),
        "MCAR 5": ("mcar", {"rates": 0.5, "keep_one": True}),
        "MAR 1": ("mar-1", {}),
        "MAR 2": ("mar-2", {}),
        "MNAR 7": ("mnar", {"p": 0.7, "keep_one": True}),
        "MNAR 9": ("mnar", {"p": 0.9, "keep_one": True}),
    }
)
"""The regimes of FALSE-VFL's Table 2; as its Section 3.1 assumes, each sample keeps a block."""

_GIVEN = ("tables", "labels", "n_samples", "n_parties", "seed")


def draw_blocks(
    mechanism: str,
    tables: Mapping[str, pd.DataFrame],
    *,
    labels: "pd.Series[float] | npt.ArrayLike | None" = None,
    seed: Seed = 0,
    **settings: Any,
) -> Mask:
    """Draw a mask by the name of its mechanism.

    Parameters
    ----------
    mechanism : str
        A key of `MECHANISMS`, or a regime of `FALSE_VFL_REGIMES` such as "MNAR 7", whose settings
        `settings` then override.
    labels : pandas.Series or array_like, shape (n_samples,), optional
        Needed by "mar-complex" only.
    **settings
        The mechanism's own parameters, such as `rates`, `p` or `may_miss`.
    """
    if mechanism in FALSE_VFL_REGIMES:
        mechanism, preset = FALSE_VFL_REGIMES[mechanism]
        settings = {**preset, **settings}
    if mechanism not in MECHANISMS:
        names = ", ".join([*MECHANISMS, *FALSE_VFL_REGIMES])
        raise ConfigError(f"unknown missingness mechanism {mechanism!r}; there are {names}")
    function = MECHANISMS[mechanism]
    accepted = inspect.signature(function).parameters
    own = [name for name in accepted if name not in _GIVEN]
    if unknown := [name for name in settings if name not in own]:
        raise ConfigError(
            f"mechanism {mechanism!r} has no settings {', '.join(unknown)}; it has {', '.join(own)}"
        )
    needed = [name for name in own if accepted[name].default is inspect.Parameter.empty]
    if lacking := [name for name in needed if name not in settings]:
        raise ConfigError(f"mechanism {mechanism!r} needs the settings {', '.join(lacking)}")
    if "labels" in accepted and labels is None:
        raise ConfigError(f"mechanism {mechanism!r} depends on the labels; pass them")
    given = {
        "tables": tables,
        "labels": labels,
        "n_samples": len(shared_index(tables)),
        "n_parties": len(tables),
        "seed": seed,
    }
    return function(**{name: given[name] for name in accepted if name in _GIVEN}, **settings)
