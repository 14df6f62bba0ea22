"""What a party answers to one evaluation of masked means, in blocks of rows.

Key streams are as long as the table is wide; only those of some thousand rows exist at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Ring
from flwr_vertical.products.arithmetic import Layout, helper_share, owner_share
from flwr_vertical.products.streams import KeyStream
from strategies.linear.masked_means.fixed_point import N_DIGITS, N_LEADING
from strategies.linear.masked_means.information import Roles, Streams, handed_over, party_term

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

    def shares(self, label: str, function: int, n_digits: int) -> dict[str, Ring]:
        """Return shares of the sums of a function with the columns and with 1.

        Shapes: returns (n_digits * n_columns + 1, 1): ``owner:<label>``, and
        ``helper:<label>:<name>`` for each that the party helps.
        """

        def pad(name: str) -> Ring:
            shape = n_digits * self.widths[name] + 1, 1
            return self.secret(f"pad {label} {name!r}", shape).rows(0, shape[0])

        nothing = np.zeros((1, 1), dtype=np.uint64)
        owner = np.uint64(0) - pad(self.party)
        helping = {name: pad(name) for name in self.helped}
        for rows in self._blocks():
            vector = self.values[function, rows, None]
            owner += owner_share(with_ones(self.digits[rows], n_digits), vector, nothing)
            for name, share in helping.items():
                mask = with_zeros(self.streams[name].rows(rows.start, rows.stop), n_digits)
                share += helper_share(mask, self.rho[function, rows, None], nothing)
        return {f"owner:{label}": owner} | {
            f"helper:{label}:{name}": share for name, share in helping.items()
        }

    def information(self) -> tuple[dict[str, Ring], Ring]:
        """Return what is handed over and the term of the private sum, of the first function.

        See `masked_information`.
        """
        roles, n = self.roles, len(self.digits)
        width = {name: N_LEADING * w + 1 for name, w in self.widths.items()}
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
                {name: with_zeros(s.rows(*at), N_LEADING) for name, s in self.streams.items()},
                {name: s.rows(*at) for name, s in owners.items()},
                {name: s.rows(*at) for name, s in about.items()},
            )
            own = with_ones(self.digits[rows], N_LEADING)
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
