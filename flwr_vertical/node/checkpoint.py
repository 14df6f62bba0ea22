"""The party's checkpoint: what a node remembers of a run, on its own disk, after every step.

Flower keeps a node's state in the memory of its SuperNode, and a reply may leave before the state
is kept. A checkpoint outlives both: it holds the state, the number of the last message and the
reply to it, and it is on disk before the reply leaves. A message that comes again gets the kept
reply, whichever process, SuperNode or run of Flower it comes to.

It holds the private keys of the run, so only its owner can read it. It is removed when the server
says that the run is finished.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flwr.app import ConfigRecord, Context, RecordDict

from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.node.storage import Storage, party_folder, run_name
from flwr_vertical.protocol import disk

FOLDER_NAME = ".checkpoint"
_FORMAT = 1
_STATE, _REPLY = "state:", "reply:"


_TRIES = 10
# Files beside a checkpoint: snapshots, live objects, and what a killed writer left.
_BESIDE = re.compile(r"(snapshot-\d+|live-[0-9a-f]+)(\.\d+\.new)?|\d+\.new")


@dataclass(frozen=True)
class SavedCheckpoint:
    """What a checkpoint holds."""

    sequence: int  # Number of the last message that was answered
    request: bytes  # Digest of what it asked for
    state: RecordDict  # The contents of ``context.state`` after it
    reply: RecordDict  # The reply to it


class Checkpoint:
    """A node's checkpoint of one run."""

    def __init__(
        self, path: Path, token: bytes, name: str, role: str, data_version: Callable[[], str]
    ) -> None:
        self.path = path
        self.name = name
        self.role = role
        self._token = token.hex()
        self._data_version = data_version
        self._who = f"party {name!r}" if role == "party" else "the arbiter"

    @classmethod
    def of(cls, envelope: ConfigRecord, context: Context, storage: Storage) -> "Checkpoint | None":
        """Return the checkpoint that belongs to a message, None if its run keeps none."""
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
            return storage.data_version(context) if role == "party" else ""

        return cls(folder / f"{name}.{role}", token, name, role, data_version)

    @property
    def who(self) -> str:
        """The node as errors name it."""
        return self._who

    @property
    def token(self) -> str:
        """The run's random name, as text."""
        return self._token

    def beside(self, suffix: str) -> "Checkpoint":
        """Return the checkpoint of the same node and run in a file beside this one."""
        path = self.path.with_name(f"{self.path.name}.{suffix}")
        token = bytes.fromhex(self._token)
        return Checkpoint(path, token, self.name, self.role, self._data_version)

    def last_sequence(self) -> int:
        """Return the number of the last message in it, -1 without one."""
        head = self._head()
        return -1 if head is None or head["token"] != self._token else int(head["sequence"])

    def live_version(self) -> str:
        """Return the version of the live objects that belong to it."""
        head = self._head()
        return "" if head is None else str(head.get("live", ""))

    def begin(self) -> None:
        """Give up what an earlier run of this name left."""
        self._clear()

    def newer_than(self, sequence: int) -> SavedCheckpoint | None:
        """Return what is kept, if it goes further than what the node remembers."""
        head = self._head()
        if head is None or head["token"] != self._token or int(head["sequence"]) <= sequence:
            return None
        return self._load()

    def resume(self) -> SavedCheckpoint:
        """Return what is kept of a run that goes on."""
        head = self._head()
        if head is None:
            raise ConfigError(
                f"{self._who} has no checkpoint of this run: there is no file {self.path}. Was its "
                f"'output' folder or its name changed? {disk.WHOLE.capitalize()}"
            )
        if head["token"] != self._token:
            raise ConfigError(
                f"{self._who}: the checkpoint {self.path} belongs to another run of the same name; "
                f"{disk.WHOLE}"
            )
        if head["data"] and head["data"] != self._data_version():
            raise ConfigError(
                f"{self._who}: its data have changed since the run began; put back what they were"
            )
        return self._load()

    def save(
        self,
        sequence: int,
        request: bytes,
        state: RecordDict,
        reply: RecordDict,
        data: str,
        live: str = "",
    ) -> None:
        """Replace the file by what the node remembers now; on disk when this returns."""
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
            "data": data,
            "sequence": sequence,
            "request": request.hex(),
            "live": live,
        }
        records = RecordDict({f"{_STATE}{name}": record for name, record in state.items()})
        records.update({f"{_REPLY}{name}": record for name, record in reply.items()})
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        frames = disk.pack(head, RecordDict()), disk.pack({}, records)
        size = sum(len(piece) for frame in frames for piece in frame)
        with disk.writing(f"{self._who}: its checkpoint", self.path, size):
            descriptor = _open_in_folder(temporary)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for frame in frames:
                        disk.write_frame(file, frame)
                    disk.flush_to_disk(file)
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
        prefix = f"{self.path.name}."
        for left in files_in(self.path.parent):
            # The whole rest of the name: a neighbour may be called "bank.party.snapshot-1".
            if left.name.startswith(prefix) and _BESIDE.fullmatch(left.name[len(prefix) :]):
                left.unlink(missing_ok=True)
        _remove_empty(self.path.parent)

    def _head(self) -> dict[str, Any] | None:
        try:
            with self.path.open("rb") as file:
                return self._read(file)[0]
        except FileNotFoundError:
            return None

    def _load(self) -> SavedCheckpoint:
        with self.path.open("rb") as file:
            head, _ = self._read(file)
            _, records = self._read(file)
        found: dict[str, RecordDict] = {_STATE: RecordDict(), _REPLY: RecordDict()}
        for name, record in records.items():
            prefix, _, own = name.partition(":")
            found[f"{prefix}:"][own] = record
        request = bytes.fromhex(head["request"])
        return SavedCheckpoint(int(head["sequence"]), request, found[_STATE], found[_REPLY])

    def _read(self, file: BinaryIO) -> tuple[dict[str, Any], RecordDict]:
        payload = disk.read_frame(file, self.path)
        if payload is None:
            raise ProtocolError(
                f"{self._who}: the checkpoint {self.path} is cut off or empty; {disk.WHOLE}"
            )
        return disk.unpack(payload)


def clear_openings(path: Path) -> None:
    """Remove what a node's runs of other names left that ended before their first step."""
    # Such a run is not resumed but begun anew, so nobody needs the private keys in these files. A
    # run that is being opened meanwhile writes its checkpoint again with its first step.
    prefix, suffix = f"{path.name}.", ".new"
    for folder in path.parents[2].glob(f"*/{FOLDER_NAME}"):
        own = folder / path.name
        if own == path:
            continue
        with suppress(FileNotFoundError, ProtocolError):  # a damaged one may be put right
            with own.open("rb") as file:
                payload = disk.read_frame(file, own)
            if payload is not None and int(disk.unpack_meta(payload)["sequence"]) == 0:
                own.unlink(missing_ok=True)
        for left in files_in(folder):
            mine = left.name.startswith(prefix) and left.name.endswith(suffix)
            if mine and not own.exists() and not _is_being_written(left):
                left.unlink(missing_ok=True)
        _remove_empty(folder)


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, none if neighbours that share it have removed it."""
    try:
        with os.scandir(folder) as found:
            return [folder / entry.name for entry in found]
    except FileNotFoundError:
        return []


def _is_being_written(temporary: Path) -> bool:
    """Whether the process that writes a temporary file is alive; its number is in the name."""
    number = temporary.name.split(".")[-2]
    return not number.isdecimal() or disk.is_alive(int(number))


def _remove_empty(folder: Path) -> None:
    """Remove the folder of checkpoints and that of the run, where nothing else lies in them."""
    for each in (folder, folder.parent):
        with suppress(OSError):  # others keep something there
            each.rmdir()


def restore(kept: SavedCheckpoint, context: Context, cache: dict[str, Any]) -> None:
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
        disk.private_folder(path.parent)
        try:
            return os.open(path, flags, disk.FILE_MODE)
        except FileNotFoundError:
            continue
    raise ProtocolError(f"cannot keep {path}: its folder is removed again and again")
