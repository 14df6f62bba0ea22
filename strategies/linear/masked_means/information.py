"""``X_k' W X_l`` of all parties' columns, of which nothing else is opened: the arithmetic.

Every owner k of columns knows ``v = w + rho`` (rho is its helper's), the server knows rho, the
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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Ring
from flwr_vertical.products.arithmetic import Layout, helper_share, helpers, owner_share, product
from flwr_vertical.products.streams import KeyStream
from strategies.linear.masked_means.fixed_point import N_DIGITS


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
    party: str, roles: Roles, own: Ring, values: Ring, rho: Ring, streams: Streams
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
    party: str, roles: Roles, layout: Layout, own: Ring, values: Ring, rho: Ring, streams: Streams
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
    out: Ring = total.copy()
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


_BLOCK = 16384


@dataclass(frozen=True)
class Answer:
    """One party's part in one evaluation."""

    party: str
    roles: Roles
    widths: Mapping[str, int]  # By party, its number of columns
    digits: Ring  # (n, N_DIGITS * n_own): the own columns
    values: Ring  # (n_functions, n): ``mu + rho``, rho of the own helper
    # (n_functions, n): of those that the party helps; of shape (n_functions, 0) if it helps
    # nobody
    rho: Ring
    streams: Mapping[str, KeyStream]  # By party, what its digits are hidden under
    # Given a name and a shape, the key stream of this evaluation
    secret: Callable[[str, tuple[int, ...]], KeyStream]

    @property
    def helped(self) -> list[str]:
        """Whom the party helps."""
        return [name for name, helper in self.roles.helper.items() if helper == self.party]

    def shares(self, label: str, which: slice, n_digits: int) -> dict[str, Ring]:
        """Return shares of sums of some values with columns and 1.

        Shapes: returns (n_digits * n_columns + 1, n_values).
        """
        values, rho = self.values[which].T, self.rho[which].T

        def pad(name: str) -> Ring:
            shape = n_digits * self.widths[name] + 1, values.shape[1]
            return self.secret(f"pad {label} {name!r}", shape).rows(0, shape[0])

        nothing = np.zeros((1, 1), dtype=np.uint64)
        owner = np.uint64(0) - pad(self.party)
        helping = {name: pad(name) for name in self.helped}
        for rows in self._blocks():
            owner += owner_share(with_ones(self.digits[rows], n_digits), values[rows], nothing)
            for name, share in helping.items():
                mask = with_zeros(self.streams[name].rows(rows.start, rows.stop), n_digits)
                share += helper_share(mask, rho[rows], nothing)
        return {f"owner:{label}": owner} | {
            f"helper:{label}:{name}": share for name, share in helping.items()
        }

    def information(self, n_digits: int) -> tuple[dict[str, Ring], Ring]:
        """Return what is handed over and the term of the private sum, of the first function."""
        roles, n = self.roles, len(self.digits)
        width = {name: n_digits * w + 1 for name, w in self.widths.items()}
        layout = Layout(width)
        owners = {name: self.secret(f"Z {name!r}", (n, w)) for name, w in width.items()}
        about = {name: self.secret(f"Y {name!r}", (n, w)) for name, w in width.items()}
        first = f"{roles.first} itself"
        about[first] = self.secret(f"Y {first!r}", (n, width[roles.first]))
        term = np.zeros((layout.total, layout.total), dtype=np.uint64)
        told: dict[str, list[Ring]] = {}
        for rows in self._blocks():
            at = rows.start, rows.stop
            streams = Streams(
                {name: with_zeros(s.rows(*at), n_digits) for name, s in self.streams.items()},
                {name: s.rows(*at) for name, s in owners.items()},
                {name: s.rows(*at) for name, s in about.items()},
            )
            own = with_ones(self.digits[rows], n_digits)
            rho = self.rho[0, rows] if self.helped else self.rho[0]
            how = own, self.values[0, rows], rho, streams
            for name, part in handed_over(self.party, roles, *how).items():
                told.setdefault(name, []).append(part)
            term += party_term(self.party, roles, layout, *how)
        return {name: np.concatenate(parts) for name, parts in told.items()}, term

    def _blocks(self) -> Iterator[slice]:
        n = len(self.digits)
        for start in range(0, n, _BLOCK):
            yield slice(start, min(start + _BLOCK, n))


def with_ones(digits: Ring, n_digits: int) -> Ring:
    """Keep the leading digits of all columns, and append a column of 1."""
    ones = np.ones((len(digits), 1), dtype=np.uint64)
    return np.concatenate([_leading(digits, n_digits), ones], axis=1)


def with_zeros(streams: Ring, n_digits: int) -> Ring:
    """Return the key stream of `with_ones`: a column of 1 is no secret."""
    zeros = np.zeros((len(streams), 1), dtype=np.uint64)
    return np.concatenate([_leading(streams, n_digits), zeros], axis=1)


def _leading(digits: Ring, n_digits: int) -> Ring:
    return digits[:, : digits.shape[1] // N_DIGITS * n_digits]
