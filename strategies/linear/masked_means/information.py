"""``X_k' W X_l`` of all parties' columns, of which nothing else is opened: the arithmetic.

Every owner k of columns knows ``v = w + rho`` (of its helper's rho), the server knows rho, the
helper knows rho and the key streams R. With ``U = D + R`` (D the columns) at the server,

    D_k' W D_l = D_k' diag(v) D_l - D_k' diag(rho) D_l.

The second term follows from ``U' diag(rho) U`` (server), ``R' diag(rho) R`` (helper) and ``R'
diag(rho) U``, for which the helper hands over ``Y = R o rho`` under a fresh stream V. The first is
local where k = l; otherwise k hands over ``Z = D_k o v`` under a fresh stream, as in
`flwr_vertical.products.arithmetic`. If l is the helper itself, it hands over ``D_l o rho`` as
Y, and the second term is a product of two parties' columns, too. What is left are small matrices,
which go into one private sum. Whole numbers modulo 2^64 throughout.

Streams of U are those of the parties' columns; Z and Y are masked by streams of their own, used for
one message.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Ring
from flwr_vertical.products.arithmetic import Layout, helpers, product


@dataclass(frozen=True)
class Roles:
    """Who does what for which block."""

    names: list[str]  # All parties, two or more

    @property
    def helper(self) -> dict[str, str]:
        """By owner, its helper."""
        return helpers(self.names)

    @property
    def first(self) -> str:
        """The helper of most parties."""
        return self.names[0]

    @property
    def served(self) -> list[str]:
        """The owners that the first helps."""
        return [name for name, helper in self.helper.items() if helper == self.first]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Blocks of two parties: the owner of Z, and the other."""
        served = self.served
        among = [(a, b) for i, a in enumerate(served) for b in served[i + 1 :]]
        return among + [(a, self.first) for a in served]


@dataclass(frozen=True)
class Streams:
    """What the parties share and the server has not."""

    columns: Mapping[str, Ring]  # (n, width): by party, ``R``
    # owners, helpers: (n, width): by party, what masks its Z, and the Y about its columns
    owners: Mapping[str, Ring]
    helpers: Mapping[str, Ring]


def handed_over(
    party: str,
    roles: Roles,
    own: Ring,
    values: Ring,
    rho: Ring,
    streams: Streams,
) -> dict[str, Ring]:
    """Return what a party hands over under fresh streams: ``Z``, and ``Y:<name>``.

    Shapes: own (n, width): ``D``, its columns; values (n,): ``v``; rho (n,): of those it helps;
    empty if it helps nobody.
    """
    out = {}
    if party in roles.served:
        out["Z"] = own * values[:, None] + streams.owners[party]
    for name, helper in roles.helper.items():
        if helper == party:
            out[f"Y:{name}"] = streams.columns[name] * rho[:, None] + streams.helpers[name]
    if party == roles.first:
        out[f"Y:{party}"] = own * rho[:, None] + _own_stream(streams, party)
    return out


def _own_stream(streams: Streams, party: str) -> Ring:
    return streams.helpers[f"{party} itself"]


def party_term(
    party: str,
    roles: Roles,
    layout: Layout,
    own: Ring,
    values: Ring,
    rho: Ring,
    streams: Streams,
) -> Ring:
    """Return a party's term of the private sum, of shape (total, total), uint64."""
    out = np.zeros((layout.total, layout.total), dtype=np.uint64)

    def add(a: str, b: str, block: Ring, sign: int = 1) -> None:
        here = out[layout.slice(a), layout.slice(b)]
        here += block if sign > 0 else np.uint64(0) - block

    masked = own + streams.columns[party]
    mask = streams.helpers[party]
    add(party, party, product(own, own * values[:, None]))
    crossed = product(masked, mask)
    add(party, party, crossed + crossed.T, -1)
    for name, helper in roles.helper.items():
        if helper == party:
            stream = streams.columns[name]
            add(name, name, product(stream, stream * rho[:, None]), -1)
    first = roles.first
    for a, b in roles.pairs:
        if party == a:
            sent = own * values[:, None] + streams.owners[a]
            add(a, b, product(sent, streams.columns[b]), -1)
            other = _own_stream(streams, first) if b == first else streams.helpers[b]
            add(a, b, product(masked, other), 1 if b == first else -1)
        if party == b:
            add(a, b, product(streams.owners[a], own), -1)
            if b == first:
                add(a, b, product(streams.columns[a], own * rho[:, None]))
            else:
                add(a, b, product(streams.helpers[a], masked), -1)
        if party == first and b != first:
            add(a, b, product(streams.columns[a], streams.columns[b] * rho[:, None]), -1)
    return out


def open_information(
    roles: Roles,
    layout: Layout,
    masked: Mapping[str, Ring],
    rho: Mapping[str, Ring],
    told: Mapping[str, Mapping[str, Ring]],
    total: Ring,
) -> Ring:
    """Return ``D' W D`` of all columns; the server's part.

    Shapes: masked (n, width): by party, ``U``; rho (n,): by helper; total (total, total): sum of
    the parties' terms; returns (total, total): symmetric.
    """
    out: npt.NDArray[np.uint64] = total.copy()
    for name, helper in roles.helper.items():
        u, here = masked[name], layout.slice(name)
        crossed = product(told[helper][f"Y:{name}"], u)
        out[here, here] += crossed + crossed.T - product(u, u * rho[helper][:, None])
    first = roles.first
    for a, b in roles.pairs:
        here, there = layout.slice(a), layout.slice(b)
        block = product(told[a]["Z"], masked[b])
        about_b = told[first][f"Y:{b}"]
        if b == first:
            block -= product(masked[a], about_b)
        else:
            block += product(told[first][f"Y:{a}"], masked[b]) + product(masked[a], about_b)
            block -= product(masked[a], masked[b] * rho[first][:, None])
        out[here, there] += block
        out[there, here] = out[here, there].T
    return out
