"""What a party is told so that it can dial, and what it answers: two small Flower records."""

from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import ConfigRecord, RecordDict

_T = TypeVar("_T")

MESSAGE_TYPE = "query.channel"
RECORD = "flwr-vertical.channel"
SERVICE, METHOD = "flwr_vertical.Channel", "Open"
TOKEN_KEY, VERSION_KEY, NODE_KEY = "flv-token", "flv-version", "flv-node"

# What a party's ordinary reply says. DETACHED is the only one after which the channel is open.
CLOSED, LOST, UNREACHABLE, DETACHED = "closed", "lost", "unreachable", "detached"


@dataclass(frozen=True)
class Offer:
    """An invitation to dial."""

    address: str  # Host and port, as gRPC dials them
    # The endpoint's certificate in PEM form; no other one is accepted
    certificate: str = field(repr=False)
    token: str = field(repr=False)  # Lets one stream of one node in
    heartbeat: float  # Seconds between the party's signs of life
    max_bytes: int  # Largest message
    dial_timeout: float  # Seconds after which the party gives up dialling
    # Seconds in which a party whose stream was cut may come back by another one
    reconnect: float = 0.0

    def records(self) -> RecordDict:
        """Return the content of the message that carries the offer."""
        return RecordDict(
            {
                RECORD: ConfigRecord(
                    {
                        "address": self.address,
                        "certificate": self.certificate,
                        "token": self.token,
                        "heartbeat": float(self.heartbeat),
                        "max-bytes": int(self.max_bytes),
                        "dial-timeout": float(self.dial_timeout),
                        "reconnect": float(self.reconnect),
                    }
                )
            }
        )

    @classmethod
    def read(cls, content: RecordDict) -> "Offer":
        """Read an offer from a message; `ValueError` if it holds none."""
        record = content.get(RECORD)
        try:
            if not isinstance(record, ConfigRecord):
                raise TypeError("there is no such record")
            return cls(
                address=_of(record, "address", str),
                certificate=_of(record, "certificate", str),
                token=_of(record, "token", str),
                heartbeat=_of(record, "heartbeat", float),
                max_bytes=_of(record, "max-bytes", int),
                dial_timeout=_of(record, "dial-timeout", float),
                reconnect=_of(record, "reconnect", float),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the message offers no channel: {error}") from None


def answer_records(status: str, reason: str = "") -> RecordDict:
    """Return the content of a party's ordinary reply."""
    return RecordDict({RECORD: ConfigRecord({"status": status, "reason": reason})})


def read_answer(content: RecordDict) -> tuple[str, str]:
    """Return status and reason of a party's ordinary reply."""
    record = content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        return UNREACHABLE, "its app does not know channels"
    return str(record.get("status", UNREACHABLE)), str(record.get("reason", ""))


def _of(record: ConfigRecord, key: str, kind: type[_T]) -> _T:
    value = record[key]
    if not isinstance(value, kind):
        raise TypeError(f"{key!r} is of type {type(value).__name__}")
    return value
