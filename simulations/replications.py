"""Replications of a study: spread by Ray, kept as they finish, never computed twice."""

import csv
import hashlib
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from flwr_vertical.results import Progress, write_text_atomically

logger = logging.getLogger("flwr_vertical")

Metrics = dict[str, float]
COLUMNS = ("key", "part", "settings", "metrics", "seconds")


@dataclass(frozen=True)
class Job:
    """One replication."""

    part: str  # Which part of the study
    settings: dict[str, Any]  # Everything its numbers depend on except the data; JSON values only

    def key(self, context: str) -> str:
        """Return a hash of the job; `context` stands for the data and the study's version."""
        text = json.dumps([self.part, self.settings, context], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


Replicate = Callable[[Job, Any], Metrics]


class Records(Protocol):
    """Where finished replications are kept."""

    path: Path
    found: dict[str, Metrics]

    def add(self, job: Job, key: str, metrics: Metrics, seconds: float) -> None:
        """Keep one finished replication."""


class Store:
    """Finished replications in a CSV file, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Metrics] = {}
        if path.is_file():
            self._load()

    def _load(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        kept = [",".join(COLUMNS)]
        for line in text.splitlines()[1:]:
            # A stop while a line was written leaves part of it.
            try:
                key, _, _, metrics, seconds = next(csv.reader([line]))
                self.found[key] = {name: float(v) for name, v in json.loads(metrics).items()}
                float(seconds)
            except (ValueError, AttributeError, StopIteration):
                continue
            kept.append(line)
        whole = "\n".join(kept) + "\n"
        if whole != text:
            write_text_atomically(self.path, whole)

    def add(self, job: Job, key: str, metrics: Metrics, seconds: float) -> None:
        """Keep one finished replication."""
        self.found[key] = metrics
        line = [key, job.part, json.dumps(job.settings), json.dumps(metrics), f"{seconds:.3f}"]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self.path.exists():
            writer.writerow(COLUMNS)
        writer.writerow(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())


class FolderStore:
    """Finished replications in files of their own, for those that take minutes or hours.

    Several commands can write to one folder at the same time, each its own choice of replications.
    """

    def __init__(self, path: Path, kept: Mapping[str, dict[str, Any]] | None = None) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = dict(kept or {})
        self.found: dict[str, Metrics] = {key: of["metrics"] for key, of in self.records.items()}
        for file in sorted(path.glob("*.json")):
            record = json.loads(file.read_text(encoding="utf-8"))
            self.records[record["key"]] = record
            self.found[record["key"]] = record["metrics"]

    def add(self, job: Job, key: str, metrics: Metrics, seconds: float) -> None:
        """Keep one finished replication, in a file that is named by the job's settings."""
        record = {
            "key": key,
            "part": job.part,
            "settings": job.settings,
            "metrics": metrics,
            "seconds": round(seconds, 3),
        }
        name = "_".join(
            re.sub(r"[^A-Za-z0-9.]+", "-", str(value)) for value in _flat(job.settings).values()
        )
        self.path.mkdir(parents=True, exist_ok=True)
        write_text_atomically(self.path / f"{name}_{key}.json", json.dumps(record, indent=1) + "\n")
        self.records[key], self.found[key] = record, metrics


def run_all(
    jobs: Sequence[Job],
    replicate: Replicate,
    shared: Any,
    *,
    store: Records,
    context: str,
    title: str,
    workers: int | None = None,
    cost: Callable[[Job], int] | None = None,
) -> pd.DataFrame:
    """Run the jobs that are not in the store yet and return the numbers of all."""
    keys = {job.key(context): job for job in jobs}
    open_jobs = {key: job for key, job in keys.items() if key not in store.found}
    if len(open_jobs) < len(keys):
        logger.info(
            "%s: %d of %d replications are in %s already",
            title, len(keys) - len(open_jobs), len(keys), store.path,
        )  # fmt: skip
    if open_jobs:
        spread = _in_process if workers == 0 else _on_ray
        costs = {key: 1 if cost is None else cost(job) for key, job in open_jobs.items()}
        with Progress(title, total=sum(costs.values())) as progress:
            for key, metrics, seconds in spread(open_jobs, replicate, shared, workers):
                store.add(open_jobs[key], key, metrics, seconds)
                short = _short(open_jobs[key].settings)
                progress.step(open_jobs[key].part, costs[key], detail=short)
    return to_frame(jobs, store, context)


def to_frame(jobs: Sequence[Job], store: Records, context: str) -> pd.DataFrame:
    """Return the numbers of those jobs that are finished."""
    keys = {job.key(context): job for job in jobs}
    rows = [
        {"part": job.part, **_flat(job.settings), "metric": name, "value": value}
        for key, job in keys.items()
        for name, value in store.found.get(key, {}).items()
    ]
    return pd.DataFrame(rows)


def _timed(replicate: Replicate, job: Job, shared: Any) -> tuple[Metrics, float]:
    started = time.perf_counter()
    return replicate(job, shared), time.perf_counter() - started


def _in_process(
    jobs: dict[str, Job], replicate: Replicate, shared: Any, workers: int | None
) -> Iterator[tuple[str, Metrics, float]]:
    for key, job in jobs.items():
        yield key, *_timed(replicate, job, shared)


def _on_ray(
    jobs: dict[str, Job], replicate: Replicate, shared: Any, workers: int | None
) -> Iterator[tuple[str, Metrics, float]]:
    try:
        import ray
    except ImportError:
        logger.warning("Ray is not installed (pip install 'flwr-vertical[ray]'): one by one")
        yield from _in_process(jobs, replicate, shared, workers)
        return
    started_here = not ray.is_initialized()
    if started_here:
        # Ray probes for accelerators and phones home unless told not to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Without an address Ray would wait for a cluster that is gone, if one that was killed has
        # left its file 'ray_current_cluster'. A cluster that the user names has its own CPUs.
        address = os.environ.get("RAY_ADDRESS") or "local"
        ray.init(
            address=address,
            num_cpus=workers if address == "local" else None,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            configure_logging=False,
        )
    try:
        task = ray.remote(num_cpus=1)(_timed)
        where = ray.put(shared)
        waiting = {task.remote(replicate, job, where): key for key, job in jobs.items()}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                yield waiting.pop(reference), *ray.get(reference)
    finally:
        if started_here:
            ray.shutdown()


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not isinstance(value, dict | list)}


def _short(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in _flat(settings).items())
