"""The party's checkpoint: what a node remembers of a run, on its own disk, after every step.

Flower keeps a node's state in the memory of its SuperNode, and a reply may leave before the state
is kept. A checkpoint outlives both: it holds the state, the number of the last message and the
reply to it, and it is on disk before the reply leaves. A message that comes again gets the kept
reply, whichever process, SuperNode or run of Flower it comes to.

It holds the private keys of the run, so only its owner can read it. It is removed when the server
says that the run is finished.
"""

import glob
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flwr.app import ConfigRecord, Context, RecordDict

from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.protocol.disk import (
    FILE_MODE,
    flush_to_disk,
    pack,
    private_folder,
    read_frame,
    unpack,
    write_frame,
)
from flwr_vertical.protocol.storage import Storage, party_folder, run_name

FOLDER_NAME = ".checkpoint"
_FORMAT = 1
_STATE, _REPLY = "state:", "reply:"


_TRIES = 10


@dataclass(frozen=True)
class Kept:
    """What a checkpoint holds.

    Parameters
    ----------
    sequence : int
        Number of the last message that was answered.
    request : bytes
        Digest of what it asked for.
    state : RecordDict
        The contents of ``context.state`` after it.
    reply : RecordDict
        The reply to it.
    """

    sequence: int
    request: bytes
    state: RecordDict
    reply: RecordDict


class Checkpoint:
    """A node's checkpoint of one run.

    Parameters
    ----------
    path : Path
        The file, in a folder of its own.
    token : bytes
        The run's random name. A run does not touch the checkpoint of another one.
    name, role : str
        The node's.
    data_version : Callable[[], str]
        Tells a version of the node's data; other data, another version.
    """

    def __init__(
        self, path: Path, token: bytes, name: str, role: str, data_version: Callable[[], str]
    ) -> None:
        self.path = path
        self.name = name
        self.role = role
        self._token = token.hex()
        self._data_version = data_version
        self._data = ""
        self._who = f"party {name!r}" if role == "party" else "the arbiter"

    @classmethod
    def of(cls, envelope: ConfigRecord, context: Context, storage: Storage) -> "Checkpoint | None":
        """Return the checkpoint that belongs to a message, None if its run keeps none.

        Raises
        ------
        ConfigError
            If the run has no name.
        """
        token = envelope.get("checkpoint")
        if not isinstance(token, bytes):
            return None
        role = storage.role(context)
        name = storage.party_name(context) if role == "party" else "arbiter"
        if not context.run_config.get("run-name"):
            raise ConfigError(
                f"{name!r} cannot keep a checkpoint of a run without a name: set 'run-name' in "
                "the run config"
            )
        folder = party_folder(context) / run_name(context) / FOLDER_NAME

        def data_version() -> str:
            version = getattr(storage, "data_version", None)
            return "" if version is None or role != "party" else str(version(context))

        return cls(folder / f"{name}.{role}", token, name, role, data_version)

    def begin(self) -> None:
        """Give up what an earlier run of this name left."""
        self._clear()
        self._data = self._data_version()

    def newer_than(self, sequence: int) -> Kept | None:
        """Return what is kept, if it goes further than what the node remembers."""
        head = self._head()
        if head is None or head["token"] != self._token or int(head["sequence"]) <= sequence:
            return None
        return self._load()

    def resume(self) -> Kept:
        """Return what is kept of a run that goes on.

        Raises
        ------
        ConfigError
            If there is nothing, or it is of another run or of other data.
        """
        head = self._head()
        if head is None:
            raise ConfigError(
                f"{self._who} has no checkpoint of this run: there is no file {self.path}. Was its "
                "'output' folder or its name changed? Without it, start the run anew"
            )
        if head["token"] != self._token:
            raise ConfigError(
                f"{self._who}: the checkpoint {self.path} belongs to another run of the same name; "
                "start this one anew, under a run-name of its own"
            )
        if head["data"] and head["data"] != self._data_version():
            raise ConfigError(
                f"{self._who}: its data have changed since the run began; put back what they were, "
                "or start the run anew"
            )
        return self._load()

    def save(self, sequence: int, request: bytes, state: RecordDict, reply: RecordDict) -> None:
        """Replace the file by what the node remembers now; on disk when this returns.

        Raises
        ------
        ProtocolError
            If another run of the same name, or another process of this run, has been here.
        """
        head = self._head()
        if head is not None and head["token"] != self._token:
            raise ProtocolError(
                f"{self._who}: another run of the same name has taken the checkpoint {self.path}; "
                "give each run a run-name of its own"
            )
        if head is not None and int(head["sequence"]) >= sequence:
            raise ProtocolError(
                f"{self._who}: another process has gone on with this run, up to message "
                f"{head['sequence']}; message {sequence} came too late"
            )
        head = {
            "format": _FORMAT,
            "token": self._token,
            "data": self._data if head is None else head["data"],
            "sequence": sequence,
            "request": request.hex(),
        }
        records = RecordDict({f"{_STATE}{name}": record for name, record in state.items()})
        records.update({f"{_REPLY}{name}": record for name, record in reply.items()})
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        descriptor = _open_in_folder(temporary)
        try:
            with os.fdopen(descriptor, "wb") as file:
                write_frame(file, pack(head, RecordDict()))
                write_frame(file, pack({}, records))
                flush_to_disk(file)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """Remove the file, and its folder if it was the last; that of another run stays."""
        try:
            head = self._head()
        except ProtocolError:  # damaged, and nobody can use it
            head = None
        if head is None or head["token"] == self._token:
            self._clear()

    def _clear(self) -> None:
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(f"{glob.escape(self.path.name)}.*.new"):
            left.unlink(missing_ok=True)  # of a process that was killed while it wrote
        for folder in (self.path.parent, self.path.parent.parent):
            with suppress(OSError):  # others keep something there
                folder.rmdir()

    def _head(self) -> dict[str, Any] | None:
        try:
            with self.path.open("rb") as file:
                return self._read(file)[0]
        except FileNotFoundError:
            return None

    def _load(self) -> Kept:
        with self.path.open("rb") as file:
            head, _ = self._read(file)
            _, records = self._read(file)
        found: dict[str, RecordDict] = {_STATE: RecordDict(), _REPLY: RecordDict()}
        for name, record in records.items():
            prefix, _, own = name.partition(":")
            found[f"{prefix}:"][own] = record
        request = bytes.fromhex(head["request"])
        return Kept(int(head["sequence"]), request, found[_STATE], found[_REPLY])

    def _read(self, file: BinaryIO) -> tuple[dict[str, Any], RecordDict]:
        payload = read_frame(file, self.path)
        if payload is None:
            raise ProtocolError(
                f"{self._who}: the checkpoint {self.path} is cut off or empty; start the run anew"
            )
        return unpack(payload)


def restore(kept: Kept, context: Context, cache: dict[str, Any]) -> None:
    """Put a node where its checkpoint is: state, last number, and the reply to it."""
    context.state.clear()
    context.state.update(kept.state)
    cache.clear()
    cache["reply-sequence"], cache["reply"] = kept.sequence, kept.reply
    cache["reply-request"] = kept.request


def _open_in_folder(path: Path) -> int:
    """Open a new private file; the folder may vanish meanwhile, if neighbours that share it end."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for _ in range(_TRIES):
        private_folder(path.parent)
        try:
            return os.open(path, flags, FILE_MODE)
        except FileNotFoundError:
            continue
    raise ProtocolError(f"cannot keep {path}: its folder is removed again and again")
