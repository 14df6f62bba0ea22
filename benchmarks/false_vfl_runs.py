"""Runs of FALSE-VFL that benchmarks time: step by step, with snapshots, on a deployment."""

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import Federation, Result, simulate
from flwr_vertical.alignment import Alignment
from flwr_vertical.results import Progress
from simulations.data import Sources
from simulations.false_vfl.data import draw_labelled, draw_mask, load_isolet
from strategies.false_vfl.strategy import FalseVFL

EPOCHS = 300
"""Of each stage, in the paper."""


class Watch:
    """Wall and CPU seconds of steps, and the bytes that a step sends."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = []
        self.up = self.down = 0.0

    def note(self) -> None:
        """Note that a step begins or ends now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._marks.append((time.perf_counter(), used.ru_utime + used.ru_stime))

    @property
    def steps(self) -> Any:
        """Wall and CPU seconds of each step, shape (n_steps, 2)."""
        return np.diff(np.array(self._marks), axis=0)

    @staticmethod
    def together(watches: list["Watch"]) -> tuple[float, float, float, float]:
        """Return the quickest step's wall, the median step's CPU, and bytes up and down."""
        steps = np.concatenate([watch.steps for watch in watches])
        cpu = float(np.median(steps[:, 1]))
        return float(steps[:, 0].min()), cpu, watches[0].up, watches[0].down


class _NotingProgress(Progress):
    """Notes the end of each step of the first stage."""

    def __init__(self, watch: Watch) -> None:
        super().__init__("false-vfl", enabled=False)
        self._watch, self._last = watch, 0

    def step(self, *args: Any, **values: Any) -> None:
        """Note the step; stages and blocks of predictions begin at 1 again."""
        if args[0] > self._last:
            self._watch.note()
            self._last = args[0]
        else:
            self._last = sys.maxsize


_WATCHES: list[Watch] = []


class TimedFalseVFL(FalseVFL):
    """Notes when each step of the first stage ends."""

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Run with a watch."""
        _WATCHES.append(Watch())
        super().run(federation, alignment, result, _NotingProgress(_WATCHES[-1]))

    def watch(self) -> Watch:
        """Return that of the last run."""
        return _WATCHES[-1]


def on_isolet(epochs: int, precision: str) -> None:
    """Train on Isolet with snapshots and without; say how long the paper's epochs take."""
    split = load_isolet(Sources.find())
    labelled, aligned = draw_labelled(len(split.train_labels), 0)
    mask = draw_mask(split.train, "MCAR 2", 0, aligned)
    labels = pd.Series(np.nan, index=next(iter(split.train.values())).index)
    labels.iloc[labelled] = split.train_labels[labelled]
    held = {name: table[~mask[:, k]] for k, (name, table) in enumerate(split.train.items())}
    strategy = TimedFalseVFL(pretrain_epochs=epochs, epochs=epochs, precision=precision)
    print(f"Isolet, {len(labels)} samples, {epochs} + {epochs} epochs, {precision}, masked:")
    for every in (None, 100):
        with tempfile.TemporaryDirectory(prefix="flwr-isolet-") as folder:
            kept = {"checkpoint": folder, "checkpoint_every": every} if every else {}
            started = time.perf_counter()
            simulate(strategy, held, labels, progress=False, **kept)
            whole = time.perf_counter() - started
        steps = strategy.watch().steps
        per_epoch = (len(steps) + 1) / epochs
        line = f"  {f'a snapshot every {every} steps' if every else 'without snapshots'}: "
        line += f"{whole / 60:.1f} minutes, {1000 * np.mean(steps[:, 0]):.0f} ms a step"
        if epochs < EPOCHS:
            first = np.mean(steps[:, 0]) * per_epoch
            line += f"; the first stage of {EPOCHS} epochs projected: {first * EPOCHS / 60:.0f} "
            line += f"minutes, all the rest of this run took {(whole - first * epochs) / 60:.1f}"
        print(line + "; target 40", flush=True)


SMALL = {
    "h_dim": 16,
    "z_dim": 8,
    "width": 32,
    "pretrain_epochs": 10,
    "epochs": 20,
    "pretrain_batch_size": 128,
    "importance_samples": 5,
}


def on_a_deployment() -> None:
    """Run a small training on SuperNodes of this machine, and in this process.

    The whole run is timed, and its rounds: from the first message to the last answer, which leaves
    out how long nodes take to start. What the server computes between rounds is the same in both.
    """
    rng = np.random.default_rng(0)
    n = 512
    z, ids = rng.normal(size=(n, 4)), [f"s{i:04}" for i in range(n)]
    tables = {
        name: pd.DataFrame(z @ rng.normal(size=(4, 20)) + rng.normal(size=(n, 20)), index=ids)
        .add_prefix("c")
        .loc[rng.random(n) < 0.8]
        for name in ("bank", "court", "hospital")
    }
    labels = pd.Series((z[:, 0] > 0).astype(float), index=ids, name="y")
    labels[100:] = np.nan
    started = time.perf_counter()
    here = simulate(FalseVFL(**SMALL), tables, labels, progress=False)
    whole = {"in process": time.perf_counter() - started}
    started = time.perf_counter()
    there = _deployed(tables, labels)
    whole["deployment"] = time.perf_counter() - started
    rounds = {"in process": here.ledger.seconds, "deployment": there.ledger.seconds}
    between = whole["in process"] - rounds["in process"]
    n_rounds = here.ledger.to_frame()["round"].nunique()
    for form, seconds in whole.items():
        print(
            f"  {form:<10} {seconds:6.1f} s with all starts and stops, {n_rounds} rounds "
            f"in {rounds[form]:.1f} s"
        )
    ratio = (rounds["deployment"] + between) / whole["in process"]
    print(f"  rounds and what the server computes: {ratio:.2f} times in process; target 3")
    losses = [[line["loss"] for line in result.history] for result in (here, there)]
    off = np.abs(np.subtract(*losses)).max()
    print(f"  largest difference of a loss: {off:.2g}: parties draw other initial weights")


def _deployed(tables: dict[str, pd.DataFrame], labels: "pd.Series[float]") -> Result:
    """Run the same on three SuperNodes over channels."""
    root = Path(__file__).parents[1]
    sys.path.insert(0, str(root / "tests"))
    import runtimes
    from deployments import Deployment

    class Here(Deployment):
        """Its nodes run the code beside this file, whatever is installed."""

        def start_superlink(self) -> None:
            self.flower.env["PYTHONPATH"] = str(root)
            super().start_superlink()

    assert root == runtimes.ROOT
    module = f"{FalseVFL.__module__}:FalseVFL"  # whatever strategies the installed package names
    agreed = f"policy.alignments='plain' policy.modules='{module}' "
    agreed += "exchanges='embeddings,lone-embeddings'"
    with tempfile.TemporaryDirectory(prefix="flwr-false-vfl-") as folder:
        home = Path(folder)
        labels.rename_axis("id").to_csv(home / "labels.csv")
        for name, table in tables.items():
            table.rename_axis("id").to_parquet(home / f"{name}.parquet")
        deployment = Here(
            home, {n: f"data='{home / n}.parquet' output='{home / n}-out' {agreed}" for n in tables}
        )
        try:
            run = deployment.submit(
                strategy=module,
                parties=",".join(tables),
                labels=str(home / "labels.csv"),
                alignment="plain",
                transport="channel",
                run_name="training",
                channel_timeout=900.0,
                **{f"{FalseVFL.name}.{name}": value for name, value in SMALL.items()},
            )
            if run.finish(1800) != 0:
                raise SystemExit(run.text[-4000:])
            return Result.load(deployment.folder("training"))
        finally:
            deployment.stop()
