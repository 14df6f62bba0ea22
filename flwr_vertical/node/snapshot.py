"""A party's snapshots: checkpoints that it keeps until all nodes have written newer ones.

::

    bank.party                the checkpoint: state, last number, last reply
    bank.party.snapshot-<n>   the checkpoint as it was at message n, the same file
    bank.party.live-<v>       the live objects in version v, which checkpoints name

Between two snapshots nothing is written. The server names the last snapshot that is complete, at
all nodes and in its own journal, in every message; what is older is then removed. A crash between
the parties' files and the server's mark leaves the older snapshot whole everywhere.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, RecordDict

from flwr_vertical.errors import VerticalError
from flwr_vertical.node.checkpoint import Checkpoint, files_in, restore
from flwr_vertical.node.live_objects import LiveObjects
from flwr_vertical.protocol.disk import replace_file, writing
from flwr_vertical.protocol.messages import make_reply
from flwr_vertical.protocol.trees import pack_tree, read_tree
from flwr_vertical.whole_files import flush_folder

_SNAPSHOT = re.compile(r"snapshot-(\d+)")
_LIVE = re.compile(r"live-([0-9a-f]+)")


class Snapshots:
    """The files beside a node's checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._path = checkpoint.path

    def at(self, number: int) -> Checkpoint:
        """Return the snapshot of a number."""
        return self._checkpoint.beside(f"snapshot-{number}")

    def keep(self, number: int) -> None:
        """Keep the checkpoint as it is now under a number; on disk when this returns."""
        target = self.at(number).path
        with writing(f"{self._checkpoint.who}: its snapshot", target, self._path.stat().st_size):
            target.unlink(missing_ok=True)
            try:
                os.link(self._path, target)
            except OSError:  # a file system without links
                temporary = target.with_name(f"{target.name}.{os.getpid()}.new")
                shutil.copyfile(self._path, temporary)
                temporary.replace(target)
            flush_folder(target.parent)

    def complete(self, number: int) -> None:
        """Remove the snapshots before one that is complete everywhere."""
        self._remove(found for found in self._numbers() if found < number)

    def return_to(self, number: int) -> None:
        """Remove the snapshots after one, which never became complete."""
        self._remove(found for found in self._numbers() if found > number)

    def keep_live(self, live: LiveObjects, version: str) -> bool:
        """Write down live objects, unless this version lies there; returns whether it wrote."""
        path = self._live_path(version)
        if path.exists():
            return False
        content = pack_tree(self._live_meta(version), live.pack())
        replace_file(path, content, f"{self._checkpoint.who}: its model")
        return True

    def load_live(self, version: str) -> dict[str, Any] | None:
        """Read live objects; None if this version does not lie here."""
        try:
            return read_tree(self._live_path(version), self._live_meta(version))
        except FileNotFoundError:
            return None

    def sweep(self) -> None:
        """Remove the live objects that no checkpoint names any more."""
        numbers = self._numbers()
        named = {self._checkpoint.live_version()}
        named |= {self.at(number).live_version() for number in numbers}
        for path in files_in(self._path.parent):
            match = self._suffix(path, _LIVE)
            if match and match[1] not in named:
                path.unlink(missing_ok=True)

    def _remove(self, numbers: Iterator[int]) -> None:
        for number in list(numbers):
            self.at(number).path.unlink(missing_ok=True)
        self.sweep()

    def _numbers(self) -> list[int]:
        matches = (self._suffix(path, _SNAPSHOT) for path in files_in(self._path.parent))
        return sorted(int(match[1]) for match in matches if match)

    def _suffix(self, path: Path, pattern: "re.Pattern[str]") -> "re.Match[str] | None":
        # The whole rest of the name: a neighbour may be called "bank.party.snapshot-1".
        prefix = f"{self._path.name}."
        return pattern.fullmatch(path.name[len(prefix) :]) if path.name.startswith(prefix) else None

    def _live_meta(self, version: str) -> dict[str, Any]:
        return {"token": self._checkpoint.token, "version": version}

    def _live_path(self, version: str) -> Path:
        return self._path.with_name(f"{self._path.name}.live-{version}")


def tell_snapshot(
    checkpoint: Checkpoint, envelope: ConfigRecord, context: Context, last: int
) -> RecordDict:
    """Answer a resuming greeting between snapshots: who is here, and whether it can go back."""
    told: dict[str, Any] = {"party": checkpoint.name, "role": checkpoint.role}
    try:
        Snapshots(checkpoint).at(_number(envelope)).resume()
        last = max(last, checkpoint.last_sequence())
    except VerticalError as error:
        return make_reply({**told, "last": -1, "problem": str(error)})
    return make_reply({**told, "last": last, "problem": ""})


def go_back(
    checkpoint: Checkpoint, envelope: ConfigRecord, context: Context, cache: dict[str, Any]
) -> None:
    """Put a node where its snapshot is."""
    snapshots, number = Snapshots(checkpoint), _number(envelope)
    restore(snapshots.at(number).resume(), context, cache)
    snapshots.return_to(number)


def _number(envelope: ConfigRecord) -> int:
    return int(envelope["snapshot"])  # type: ignore[arg-type]
