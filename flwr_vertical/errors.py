"""Errors a user can meet.

Every message says what was expected, what came, where (party, column, step), and what to do.
"""


class VerticalError(Exception):
    """Base class of all errors raised on purpose by this library."""


class DataError(VerticalError, ValueError):
    """A party's table, its labels or the samples they share cannot be used as they are."""


class ConfigError(VerticalError, ValueError):
    """A setting is unknown, missing or out of range."""


class PolicyError(ConfigError):
    """A node's policy, or its ledger, does not allow what a run asks for."""

    def __init__(self, node: str, key: str, asked: str, allowed: str, advice: str = "") -> None:
        end = f"; {advice}" if advice else ""
        super().__init__(f"{node} refuses by {key}: asked: {asked}; allowed: {allowed}{end}")
        self.node, self.key, self.asked, self.allowed = node, key, asked, allowed
        self.advice = advice

    def __reduce__(self) -> tuple[type["PolicyError"], tuple[str, str, str, str, str]]:
        return type(self), (self.node, self.key, self.asked, self.allowed, self.advice)


class LedgerError(VerticalError, RuntimeError):
    """A node's privacy ledger cannot be used, so nothing leaves that node."""


class LedgerDamagedError(LedgerError):
    """A node's privacy ledger is not what was written: what was told before is not known."""


class StorageError(VerticalError, OSError):
    """A file of a run cannot be written: the disk is full, or access is refused."""


class CodecError(VerticalError, TypeError):
    """A value cannot be carried in a Flower message."""


class FixedPointOverflowError(VerticalError, OverflowError):
    """A value is too large for the fixed-point range of the private sum."""


class ProtocolError(VerticalError, RuntimeError):
    """A message broke the protocol: wrong shape, wrong order, unknown step, reused mask."""


class UnexpectedMessageError(ProtocolError):
    """A message that a node's protocol does not have next, or with arguments it does not have."""

    def __init__(self, node: str, step: str, why: str) -> None:
        super().__init__(
            f"{node} refuses step {step!r}: {why}. Nothing of the message was used, and the node "
            "answers no further step of this run. Do server and nodes run the same version of the "
            "strategy, with the same settings? If so, ask who runs the server"
        )
        self.node, self.step, self.why = node, step, why

    def __reduce__(self) -> tuple[type["UnexpectedMessageError"], tuple[str, str, str]]:
        return type(self), (self.node, self.step, self.why)


class StateLostError(ProtocolError):
    """What a node remembered of a run ended with its process; its last snapshot may have it."""


class PartyError(VerticalError, RuntimeError):
    """A party failed, did not answer in time or answered wrongly; the run stops."""

    def __init__(self, party: str, step: str, cause: str) -> None:
        super().__init__(f"party {party!r} failed in step {step!r}: {cause}")
        self.party = party
        self.step = step
        self.cause = cause

    def __reduce__(self) -> tuple[type["PartyError"], tuple[str, str, str]]:
        # Exceptions are rebuilt from their arguments when they cross a process (Ray).
        return type(self), (self.party, self.step, self.cause)
