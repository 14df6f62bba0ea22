"""The server's journal: what it learned in each round of a run, so that the run can go on.

A strategy is a straight-line program: given the same settings, labels, random bytes and answers it
takes the same course. So nothing of the strategy itself is kept. A resumed run starts from the
beginning, and the rounds in the journal are answered from it without a message, until it ends.

Each round is checked against the journal by a digest of what it asks for. An entry is on disk
before the next message leaves, so the parties are never more than one round ahead of the journal.

A loop with snapshots (`loop`) is the exception. Its rounds leave rows of the ledger here and
nothing else; a snapshot is an entry that names a file (`snapshots`), and a resumed run goes on from
the last of them.
"""

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from flwr.app import RecordDict

from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.protocol import disk
from flwr_vertical.protocol.codec import Payload, decode, encode
from flwr_vertical.server.snapshots import ServerSnapshots
from flwr_vertical.whole_files import TEMPORARY_PREFIX

# A name that a result may be saved beside.
FILE_NAME = f"{TEMPORARY_PREFIX}journal"
_FORMAT = 1
_GIVE_UP = "give the run up: remove this file and start the run anew"
_NAMES = {"random": "random bytes", "snapshot": "a loop with snapshots", "rows": "a loop's round"}

Identity = Mapping[str, str]


@dataclass(frozen=True)
class JournalEntry:
    """One round in the journal."""

    # Where the federation stood afterwards: numbers of messages, rows of the ledger
    position: dict[str, Any]
    values: Payload  # Sums, or what was released of them
    public: dict[str, Payload]  # By party, its answer or public values


class Journal:
    """An append-only file; make one by `create` or `resume`."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.token = b""
        self.opening: JournalEntry | None = None
        self.last: dict[str, Any] = {}
        self.last_round = 0
        self.done = False
        self.started = False
        self.snapshot: int | None = None
        self.snapshots = ServerSnapshots(path)
        self._file = file
        self._entries: list[int] = []  # where those yet to be replayed begin, the next one last
        self._replayed = 0
        self._unsynced = False

    # -- opening ---------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, identity: Identity) -> Self:
        """Begin the journal of a new run."""
        folder.mkdir(parents=True, exist_ok=True)
        journal = cls._open(folder / FILE_NAME)
        try:
            journal._refuse_unfinished()
            journal._begin(identity)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def refuse_unfinished(cls, folder: Path) -> None:
        """Refuse a new run where one of the same name, that can be resumed, broke off."""
        path = folder / FILE_NAME
        if not path.is_file():
            return
        journal = cls._open(path)
        try:
            journal._refuse_unfinished()
        finally:
            journal.close()

    @classmethod
    def resume(cls, folder: Path, identity: Identity) -> Self:
        """Read the journal of a run that broke off. One without a round begins anew."""
        # The parties clear away what they keep of a run that did not get beyond its opening.
        cls.check(folder, identity)
        journal = cls._open(folder / FILE_NAME)
        try:
            journal._scan()
            if not (journal.started or journal.done):
                journal._begin(identity)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def check(cls, folder: Path, identity: Identity) -> None:
        """Refuse to resume where there is no journal, or that of another run; change nothing."""
        path = folder / FILE_NAME
        if not path.is_file():
            raise ConfigError(
                f"no run can be resumed from {folder}: it holds no journal. Either the run of this "
                "name was not started with checkpoint=true, or it is finished"
            )
        with path.open("rb") as file, suppress(ProtocolError):  # `resume` says what to do about it
            meta = disk.unpack(payload)[0] if (payload := disk.read_frame(file, path)) else {}
            if meta.get("format") == _FORMAT:
                _compare(path, meta["identity"], identity)

    @classmethod
    def _open(cls, path: Path) -> Self:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, disk.FILE_MODE)
        file = os.fdopen(descriptor, "r+b")
        path.chmod(disk.FILE_MODE)
        if not disk.lock_file(descriptor):
            file.close()
            raise ConfigError(
                f"another run is writing to {path}; give each run a run-name of its own"
            )
        return cls(path, file)

    def _begin(self, identity: Identity) -> None:
        self.token = secrets.token_bytes(16)
        self.opening, self.last, self._entries = None, {}, []
        self._file.seek(0)
        self._file.truncate()
        meta = {"format": _FORMAT, "token": self.token.hex(), "identity": dict(identity)}
        self._append(meta, RecordDict())
        self.sync()
        self.snapshots.keep_only(set())

    def _refuse_unfinished(self) -> None:
        if self._scan() is not None and self.opening is not None:
            raise ConfigError(
                f"{self.path} is the journal of an unfinished run of this name: go on with it "
                "(resume=true), remove the file to give it up, or use another run-name"
            )

    def _scan(self) -> dict[str, str] | None:
        """Find all entries and cut off a torn one; return whose journal it is, None if nobody's."""
        try:
            return self._find_entries()
        except ProtocolError as error:
            raise ProtocolError(f"{error}; put one in its place, or {_GIVE_UP}") from error

    def _find_entries(self) -> dict[str, str] | None:
        payload = disk.read_frame(self._file, self.path)
        if payload is None:
            return None
        meta, _ = disk.unpack(payload)
        if meta["format"] != _FORMAT:
            raise ConfigError(
                f"{self.path} was written in format {meta['format']}; this version of the library "
                f"reads {_FORMAT}: use the version that began the run"
            )
        starts: list[int] = []
        last_of_loops: list[int] = []
        while True:
            start = self._file.tell()
            payload = disk.read_frame(self._file, self.path)
            if payload is None:
                break
            found = disk.unpack_meta(payload)
            if found["kind"] == "done":
                self.done = True
                continue
            starts.append(start)
            self.started = self.started or found["kind"] == "round"
            if found["kind"] == "opening":
                self.opening = _read(*disk.unpack(payload))
            if found["kind"] == "snapshot":
                self.snapshot = int(found["number"])
                if not found["begin"]:  # replaces the one before
                    last_of_loops.pop()
                last_of_loops.append(self.snapshot)
            elif found["kind"] != "rows":
                self.snapshot = None
            self.last = found.get("position", self.last)
            if rows := self.last.get("rows"):
                self.last_round = int(rows[-1][0])
        self._file.truncate()
        self.token = bytes.fromhex(meta["token"])
        # The greetings come first, and are not part of the strategy's course.
        self._entries = starts[:0:-1]
        if self.opening is None and starts:
            raise ProtocolError(
                f"{self.path} does not begin with the greetings of the parties; {disk.WHOLE}"
            )
        self.snapshots.keep_only(set(last_of_loops))
        identity: dict[str, str] = meta["identity"]
        return identity

    # -- the strategy's course -------------------------------------------------------------

    def random_bytes(self, count: int) -> bytes:
        """Return bytes of the system's generator, or those that were drawn here before."""
        found = self._next("random", f"{count} random bytes")
        if found is not None:
            drawn: bytes = decode(found[1], "random")["bytes"]
            if len(drawn) != count:
                raise self._other_course(f"{len(drawn)} random bytes", f"{count} of them")
            return drawn
        drawn = secrets.token_bytes(count)
        self._append({"kind": "random"}, encode({"bytes": drawn}, "random"))
        return drawn

    def next_step(self) -> str | None:
        """Return the step of the round that comes next in the journal; None where it has ended."""
        if not self._entries:
            return None
        self._file.seek(self._entries[-1])
        payload = disk.read_frame(self._file, self.path)
        found = {} if payload is None else disk.unpack_meta(payload)
        return str(found.get("step", ""))

    def next_round(self, step: str, digest: str) -> JournalEntry | None:
        """Return the round that comes next in the journal, or None if it has ended."""
        found = self._next("round", f"step {step!r}")
        if found is None:
            self.sync()
            return None
        meta, records = found
        if meta["step"] != step:
            raise self._other_course(f"step {meta['step']!r}", f"step {step!r}")
        if meta["digest"] != digest:
            raise self._other_course(f"step {step!r}", "the same with other arguments")
        return _read(meta, records)

    def add_round(
        self,
        step: str,
        digest: str,
        values: Mapping[str, Any],
        public: Mapping[str, Mapping[str, Any]],
        position: Mapping[str, Any],
    ) -> JournalEntry:
        """Write down a round; returns it as it would be read."""
        meta, records = _write(values, public, position)
        self._append({"kind": "round", "step": step, "digest": digest, **meta}, records)
        return _read(meta, records)

    def add_opening(
        self, greetings: Mapping[str, Mapping[str, Any]], position: Mapping[str, Any]
    ) -> None:
        """Write down who is here, and what they said."""
        meta, records = _write({}, greetings, position)
        self._append({"kind": "opening", **meta}, records)
        self.opening = _read(meta, records)

    def next_loop(self) -> list[dict[str, Any]]:
        """Return what the journal has of the loop that comes next, if any."""
        found: list[dict[str, Any]] = []
        while self._entries:
            self._file.seek(self._entries[-1])
            payload = disk.read_frame(self._file, self.path)
            meta = {} if payload is None else disk.unpack_meta(payload)
            if meta.get("kind") not in ("snapshot", "rows") or (found and meta.get("begin")):
                break
            self._entries.pop()
            self._replayed += 1
            found.append(meta)
        if self._entries and not found:
            self._next("loop", "a loop with snapshots")  # says what is there instead
        return found

    @property
    def ended(self) -> bool:
        """Whether all its entries have been answered from."""
        return not self._entries

    def add_rows(self, position: Mapping[str, Any]) -> None:
        """Write down what a round of a loop cost. On disk only with the next snapshot."""
        self._append({"kind": "rows", "position": dict(position)}, RecordDict())

    def add_snapshot(self, position: Mapping[str, Any], **meta: Any) -> None:
        """Write down that a snapshot is complete everywhere; on disk when it returns."""
        self._append({"kind": "snapshot", "position": dict(position), **meta}, RecordDict())
        self.sync()

    def _next(self, kind: str, wanted: str) -> tuple[dict[str, Any], RecordDict] | None:
        if not self._entries:
            return None
        self._file.seek(self._entries.pop())
        payload = disk.read_frame(self._file, self.path)
        if payload is None:
            raise ProtocolError(f"{self.path} has changed while it was read")
        meta, records = disk.unpack(payload)
        self._replayed += 1
        if meta["kind"] != kind:
            known = f"step {meta['step']!r}" if meta["kind"] == "round" else _NAMES[meta["kind"]]
            raise self._other_course(known, wanted)
        return meta, records

    def _other_course(self, known: str, wanted: str) -> ProtocolError:
        return ProtocolError(
            f"the run took another course than the one in {self.path}: entry {self._replayed} "
            f"there is {known}, but the strategy now asks for {wanted}. Its code, a file of the "
            "server's or the machine has changed; go back to what it was, or remove the journal "
            "and start anew"
        )

    # -- the file --------------------------------------------------------------------------

    def sync(self) -> None:
        """Return when all entries are on disk; comes before every message."""
        if self._unsynced:
            with disk.writing("the journal", self.path):
                disk.flush_to_disk(self._file)
            self._unsynced = False

    def mark_done(self) -> None:
        """Write down that the run is finished: parties may forget it."""
        if not self.done:
            self._append({"kind": "done"}, RecordDict())
            self.sync()
            self.done = True

    def hint(self) -> str:
        """Say how a run that failed can go on."""
        return (
            f"what was done so far is kept in {self.path}: to go on from there, put right what "
            f"failed and start the run again with resume=true run-name={self.path.parent.name!r}; "
            f"if that cannot be, {_GIVE_UP}"
        )

    def discard(self) -> None:
        """Remove the file: the run is finished and its result safe."""
        self.snapshots.keep_only(set())
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file, so that another run may go on from it."""
        with suppress(OSError):  # what a full disk refused is tried once more, and was told of
            self._file.close()

    def _append(self, meta: Mapping[str, Any], records: RecordDict) -> None:
        pieces = disk.pack(meta, records)
        with disk.writing("the journal", self.path, sum(map(len, pieces))):
            self._file.seek(0, os.SEEK_END)
            disk.write_frame(self._file, pieces)
            self._file.flush()
        self._unsynced = True


def _write(
    values: Mapping[str, Any], public: Mapping[str, Mapping[str, Any]], position: Mapping[str, Any]
) -> tuple[dict[str, Any], RecordDict]:
    records = encode(values, "values")
    for k, payload in enumerate(public.values()):
        records.update(encode(payload, f"public.{k}"))
    return {"names": list(public), "position": dict(position)}, records


def _read(meta: Mapping[str, Any], records: RecordDict) -> JournalEntry:
    public = {name: decode(records, f"public.{k}") for k, name in enumerate(meta["names"])}
    return JournalEntry(meta["position"], decode(records, "values"), public)


def _compare(path: Path, found: Identity, identity: Identity) -> None:
    differences = [
        f"{key}: {found.get(key, 'not set')} then, {identity.get(key, 'not set')} now"
        for key in sorted(set(found) | set(identity))
        if found.get(key) != identity.get(key)
    ]
    if differences:
        raise ConfigError(
            f"{path} is the journal of another run ({'; '.join(differences)}); resume with what "
            "the run was started with, or use another run-name"
        )
