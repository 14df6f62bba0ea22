"""What a party is told so that it can dial, and what it answers: two small Flower records."""

from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict

MESSAGE_TYPE = "query.channel"
RECORD = "flwr-vertical.channel"
SERVICE, METHOD = "flwr_vertical.Channel", "Open"
TOKEN_KEY, VERSION_KEY, NODE_KEY = "flv-token", "flv-version", "flv-node"

# What a party's ordinary reply says. DETACHED is the only one after which the channel is open.
CLOSED, LOST, UNREACHABLE, DETACHED = "closed", "lost", "unreachable", "detached"

_KINDS: dict[str, type[Any]] = {
    **dict.fromkeys(("address", "certificate", "token"), str),
    **dict.fromkeys(("heartbeat", "dial_timeout", "reconnect"), float),
    "max_bytes": int,
}


def _key(name: str) -> str:
    return name.replace("_", "-")


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
        told = {_key(name): kind(getattr(self, name)) for name, kind in _KINDS.items()}
        return RecordDict({RECORD: ConfigRecord(told)})

    @classmethod
    def read(cls, content: RecordDict) -> "Offer":
        """Read an offer from a message; `ValueError` if it holds none."""
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            record = ConfigRecord()
        found: dict[str, Any] = {name: record.get(_key(name)) for name in _KINDS}
        if wrong := [name for name in found if not isinstance(found[name], _KINDS[name])]:
            raise ValueError(
                f"the message offers no channel: {_key(wrong[0])!r} is missing or wrong"
            )
        return cls(**found)


def answer_records(status: str, reason: str = "") -> RecordDict:
    """Return the content of a party's ordinary reply."""
    return RecordDict({RECORD: ConfigRecord({"status": status, "reason": reason})})


def read_answer(content: RecordDict) -> tuple[str, str]:
    """Return status and reason of a party's ordinary reply."""
    record = content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        return UNREACHABLE, "its app does not know channels"
    return str(record.get("status", UNREACHABLE)), str(record.get("reason", ""))
