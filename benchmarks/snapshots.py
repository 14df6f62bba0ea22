"""What snapshots of a trained model cost, and whether a killed run goes on with the same numbers.

    python benchmarks/snapshots.py [--quick]

Two parties train 120 MB each (weights and momentum, float32), all of it in every round; the server
learns masked sums of what a batch gives. Two runs, with and without snapshots, take turns round by
round, so that both see the same machine. Then a run is killed by the system at a random round and
resumed in a new process.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import Message
from machine import machine_line

from flwr_vertical import (
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    RecordingGrid,
    Strategy,
    Summands,
    Table,
    party_app,
    step,
)

NAMES = ("bank", "court")
ROWS, COLUMNS, BATCH = 256, 1500, 16


class Half(Party):
    """Trains one dense layer; every weight changes in every round."""

    @step
    def train(self, batch: Any, gradient: Any, width: int) -> Summands:
        """Take a step along the gradient of the last batch, and return what this one gives."""
        layer = self.live.get("layer", lambda: self._new(width))
        last = self.live.get("last", lambda: {"batch": np.zeros(0, dtype=int)})
        values = self._values()
        if len(last["batch"]):
            layer["velocity"] *= np.float32(0.9)
            layer["velocity"] -= values[last["batch"]].T @ gradient
            layer["weights"] += layer["velocity"]
        last["batch"] = np.array(batch)
        return Summands({"out": values[batch] @ layer["weights"]})

    @step
    def digest(self) -> dict[str, str]:
        """Return a digest of all weights."""
        layer = self.live.get("layer", changes=False)
        found = hashlib.blake2b(layer["weights"].tobytes(), digest_size=16)
        found.update(layer["velocity"].tobytes())
        return {"digest": found.hexdigest()}

    def _new(self, width: int) -> dict[str, Any]:
        rng = np.random.default_rng(3)
        weights = rng.normal(scale=0.01, size=(COLUMNS, width)).astype(np.float32)
        return {"weights": weights, "velocity": np.zeros_like(weights)}

    def _values(self) -> Any:
        if "values" not in self.cache:
            self.cache["values"] = self.table.frame.to_numpy(dtype=np.float32)
        return self.cache["values"]


class Training(Strategy):
    """Fits random targets."""

    name = "training"
    party = Half

    def __init__(self, rounds: int = 100, megabytes: int = 120) -> None:
        self.rounds, self.megabytes = rounds, megabytes
        self._other: Federation | None = None
        self._seconds = [0.0, 0.0]
        self._disk: Any = lambda: None

    def run(self, federation: Federation, alignment: Any, result: Any, progress: Any) -> None:
        """Train, and take turns with another run if there is one."""
        width = self.megabytes * 10**6 // (8 * COLUMNS)
        goal = np.random.default_rng(1).normal(size=(ROWS, 1)).astype(np.float32)
        trained = {"gradient": np.zeros((BATCH, width), dtype=np.float32), "losses": []}
        other = {"gradient": trained["gradient"].copy(), "losses": []}

        def take(one: Federation, own: dict[str, Any], i: int) -> None:
            batch = np.random.default_rng([7, i]).integers(0, ROWS, BATCH)
            arguments = {"batch": batch, "gradient": own["gradient"], "width": width}
            out = one.sum("train", arguments)["out"]
            error = (out - goal[batch]).astype(np.float32)
            own["gradient"] = error * np.float32(1e-6)
            own["losses"].append(float((error**2).mean()))

        def body(i: int) -> None:
            if self._other is not None:
                started = time.perf_counter()
                take(self._other, other, i)
                self._seconds[0] += time.perf_counter() - started
            take(federation, trained, i)
            self._disk()

        started = time.perf_counter()
        federation.loop(self.rounds, body, {"trained": trained})
        self._seconds[1] = time.perf_counter() - started - self._seconds[0]
        found = federation.call("digest")
        if self._other is not None:
            assert self._other.call("digest") == found
            assert other["losses"] == trained["losses"]
        result.metrics["loss"] = trained["losses"][-1]
        result.notes.append(" ".join(found[name]["digest"] for name in NAMES))


class KilledGrid(RecordingGrid):
    """Ends this process before a round, by the system."""

    def __init__(self, grid: LocalGrid, at: int) -> None:
        super().__init__(grid)
        self._left = at

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, unless this is the round."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        replies = super().send_and_receive(messages, timeout=timeout)
        self.transcript.clear()  # of 120 MB models, nothing is to be recorded
        return replies


def local_grid(folder: Path) -> LocalGrid:
    """Two parties, each with a folder of its own."""
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in range(ROWS)]
    tables = {
        name: Table.of(
            pd.DataFrame(
                rng.normal(size=(ROWS, COLUMNS)),
                index=ids,
                columns=[f"x{k}" for k in range(COLUMNS)],
            )
        )
        for name in NAMES
    }
    storage = MemoryStorage(tables)
    nodes = [{"party": name, "output": str(folder / name)} for name in NAMES]
    return LocalGrid(party_app(Half, storage=storage), nodes, {"run-name": "bench"})


def start(strategy: Training, grid: Any, folder: Path | None, every: int, **more: Any) -> Any:
    """Run a strategy, with snapshots if there is a folder."""
    checkpoints = {}
    if folder is not None:
        checkpoints = {"checkpoint": folder / "server" / "bench", "checkpoint_every": every}
    return strategy.start(
        grid=grid,
        alignment="plain",
        parties=list(NAMES),
        progress=False,
        patience=10.0,
        **checkpoints,
        **more,
    )


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder; some may go while it looks."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def side_by_side(rounds: int, megabytes: int, every: int) -> None:
    """Time both runs and look at the disks."""
    strategy = Training(rounds, megabytes)
    with tempfile.TemporaryDirectory() as name:
        folder, peak = Path(name), {"server": 0, **dict.fromkeys(NAMES, 0)}

        def look() -> None:
            for part in peak:
                peak[part] = max(peak[part], size_of(folder / part))

        strategy._disk = look
        with local_grid(folder / "other") as plain, local_grid(folder) as grid:
            strategy._other = Federation(plain, aggregation="masked", parties=list(NAMES))
            strategy._other.open()
            start(strategy, grid, folder, every)
    without, with_snapshots = (1e3 * seconds / rounds for seconds in strategy._seconds)
    print(f"{rounds} rounds of 2 parties with {megabytes} MB each, a snapshot every {every}:")
    print(f"  without snapshots {without:7.1f} ms a round")
    ratio = with_snapshots / without
    print(f"  with snapshots    {with_snapshots:7.1f} ms a round, {ratio:.2f} times; target 1.3")
    print(f"  server's journal and snapshot {peak['server'] / 1e6:.1f} MB at most; target 200")
    print(f"  a party's checkpoint folder {max(peak[n] for n in NAMES) / 1e6:.0f} MB at most")


def life(folder: str, rounds: int, megabytes: int, every: int, at: int, resume: bool) -> None:
    """Be one process of a run; print what it ends with."""
    with local_grid(Path(folder)) as grid:
        killed = KilledGrid(grid, at)
        result = start(Training(rounds, megabytes), killed, Path(folder), every, resume=resume)
    print(result.metrics["loss"], result.notes[-1])


def killed_and_resumed(rounds: int, megabytes: int, every: int, seed: int) -> None:
    """Kill a process at a random round, resume in another, compare with an unbroken run."""
    at = int(np.random.default_rng(seed).integers(5, rounds))

    def child(folder: Path, kill: int, resume: bool) -> subprocess.CompletedProcess[str]:
        numbers = [str(n) for n in (rounds, megabytes, every, kill, int(resume))]
        command = [sys.executable, __file__, "--life", str(folder), *numbers]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with tempfile.TemporaryDirectory() as name:
        whole = child(Path(name) / "whole", 0, False)
        broken = child(Path(name) / "broken", at, False)
        assert broken.returncode == -signal.SIGKILL, broken.stderr
        size = size_of(Path(name) / "broken" / "server")
        resumed = child(Path(name) / "broken", 0, True)
        left = [path for path in Path(name).rglob("*") if path.is_file()]
    assert whole.returncode == resumed.returncode == 0, whole.stderr + resumed.stderr
    same = whole.stdout == resumed.stdout
    print(f"killed before message round {at} of a run of {rounds} steps, and resumed:")
    print(f"  {'the same' if same else 'OTHER'} numbers as unbroken; {size / 1e6:.1f} MB were left")
    print(f"  loss and weights: {resumed.stdout.strip()}")
    if not same or left:
        raise SystemExit(f"expected the same numbers and no file left; left are {left}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model, for CI")
    parser.add_argument("--seed", type=int, default=0, help="of the round that is killed")
    parser.add_argument("--life", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.life:
        folder, *numbers = options.life
        rounds, megabytes, every, at, resume = map(int, numbers)
        life(folder, rounds, megabytes, every, at, bool(resume))
        return
    print(machine_line() + "\n")
    if options.quick:
        side_by_side(60, 12, 20)
        killed_and_resumed(40, 12, 10, options.seed)
    else:
        side_by_side(1000, 120, 100)
        killed_and_resumed(200, 120, 50, options.seed)


if __name__ == "__main__":
    main()
