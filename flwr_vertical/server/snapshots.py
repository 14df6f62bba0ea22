"""The server's snapshots: files beside the journal, which says which of them are complete."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ProtocolError
from flwr_vertical.protocol.disk import replace_file
from flwr_vertical.protocol.objects import pack_object, unpack_object
from flwr_vertical.protocol.trees import pack_tree, read_tree

_NUMBER = re.compile(r"snapshot-(\d+)(\.\d+\.new)?")


class ServerSnapshots:
    """Snapshots of the objects that a strategy trains on the server."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def write(self, number: int, token: bytes, live: Mapping[str, Any]) -> None:
        """Write down what objects hold; on disk when this returns."""
        tree = {name: pack_object(name, value) for name, value in live.items()}
        content = pack_tree({"token": token.hex()}, tree)
        replace_file(self._path(number), content, "the server's snapshot")

    def read(self, number: int, token: bytes, live: Mapping[str, Any]) -> None:
        """Have objects take up what they held."""
        path = self._path(number)
        try:
            tree = read_tree(path, {"token": token.hex()})
        except FileNotFoundError:
            raise ProtocolError(
                f"{path}, the snapshot that the journal names, is gone; the run cannot go on "
                "without it"
            ) from None
        if sorted(tree) != sorted(live):
            raise ProtocolError(
                f"{path} holds the objects {sorted(tree)}, but the strategy now trains "
                f"{sorted(live)}: its code has changed; go back to what it was, or start anew"
            )
        for name, value in live.items():
            unpack_object(name, value, tree[name])

    def keep_only(self, numbers: Collection[int]) -> None:
        """Remove all others, and what a killed writer left."""
        prefix = f"{self._journal.name}."
        for path in list(self._journal.parent.glob(f"{prefix}*")):
            match = _NUMBER.fullmatch(path.name[len(prefix) :])
            if match and (match[2] or int(match[1]) not in numbers):
                path.unlink(missing_ok=True)

    def remove(self, number: int) -> None:
        """Remove one."""
        self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._journal.with_name(f"{self._journal.name}.snapshot-{number}")
