"""Rates of success of an attack, with intervals, and what two of them say about a leak."""

from dataclasses import dataclass
from math import hypot, sqrt
from statistics import NormalDist
from typing import NamedTuple

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A number and its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Rate:
    """A share of successes, with Wilson's (1927) interval."""

    successes: int  # Successes among n attacks; n is 1 or more
    n: int  # Successes among n attacks; n is 1 or more
    confidence: float = CONFIDENCE  # Of the interval

    @property
    def share(self) -> float:
        """Successes as a share of the attacks."""
        return self.successes / self.n

    @property
    def value(self) -> float:
        """Centre of the interval, which lies between the share and 1/2."""
        return (self.successes + 0.5 * self._z**2) / (self.n + self._z**2)

    @property
    def error(self) -> float:
        """Half the interval's width."""
        spread = self.successes * (self.n - self.successes) / self.n + 0.25 * self._z**2
        return self._z / (self.n + self._z**2) * sqrt(spread)

    @property
    def _z(self) -> float:
        return NormalDist().inv_cdf(0.5 * (1.0 + self.confidence))


@dataclass(frozen=True)
class Risk:
    """How an attack did, beside what it would have found out without a leak."""

    attack: str  # Its name
    members: Rate  # Of people whose rows the table was made from
    chance: Rate  # Of the same attack where nothing can leak; see `flwr_vertical.grading.risks`
    # Of somebody who does without the synthetic rows where the attack can: one that does no
    # better against members was too weak to tell anything
    guessing: Rate | None = None

    @property
    def gain(self) -> Estimate:
        """Success above chance, with the interval of two shares of Newcombe (1998, method 10)."""
        return self.gain_at(CONFIDENCE)

    def gain_at(self, confidence: float) -> Estimate:
        """Return `gain` with an interval of another confidence."""
        rates = [Rate(r.successes, r.n, confidence) for r in (self.members, self.chance)]
        (p1, l1, u1), (p2, l2, u2) = (
            (r.share, r.value - r.error, r.value + r.error) for r in rates
        )
        gain = p1 - p2
        return Estimate(gain, gain - hypot(p1 - l1, u2 - p2), gain + hypot(u1 - p1, p2 - l2))

    @property
    def excess(self) -> Estimate:
        """What members risk beyond chance, as a share of what could be gained.

        Equation 3 of Giomi et al. (2023); without limits at 0 and 1. Where nearly every guess is
        right by chance its interval is wide.
        """
        room = 1.0 - self.chance.value
        value = (self.members.value - self.chance.value) / room
        slope = (self.members.value - 1.0) / room**2
        error = hypot(self.members.error / room, slope * self.chance.error)
        return Estimate(value, value - error, value + error)
