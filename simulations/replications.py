"""Replications of a study: spread by Ray, kept as they finish, never computed twice."""

import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.grids.ray import start_ray
from flwr_vertical.log import logger
from flwr_vertical.results import Progress

Metrics = dict[str, float]


@dataclass(frozen=True)
class Job:
    """One replication."""

    part: str  # Which part of the study
    settings: dict[str, Any]  # Everything its numbers depend on except the data; JSON values only

    def key(self, context: str) -> str:
        """Return a hash of the job; `context` stands for the data and the study's version."""
        text = json.dumps([self.part, self.settings, context], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def grid(part: str, axes: Mapping[Any, Iterable[Any]], **fixed: Any) -> list[Job]:
    """Return a job for each combination; a tuple of names has tuples of values, for all at once."""
    jobs = []
    for values in itertools.product(*axes.values()):
        settings: dict[str, Any] = {}
        for name, value in zip(axes, values, strict=True):
            settings |= zip(name, value, strict=True) if isinstance(name, tuple) else {name: value}
        jobs.append(Job(part, settings | fixed))
    return jobs


Replicate = Callable[[Job, Any], Metrics]


class Store:
    """Finished replications: a line of JSON each, added as they finish, by several commands too."""

    def __init__(self, path: Path, kept: Mapping[str, dict[str, Any]] | None = None) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = dict(kept or {})
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                # A stop while a line was written leaves part of it.
                try:
                    record = json.loads(line)
                    self.records[record["key"]] = {**record, "metrics": dict(record["metrics"])}
                except (ValueError, KeyError, TypeError):
                    continue
        self.found: dict[str, Metrics] = {key: of["metrics"] for key, of in self.records.items()}

    def add(self, job: Job, key: str, metrics: Metrics, seconds: float) -> None:
        """Keep one finished replication."""
        record = {
            "key": key,
            "part": job.part,
            "settings": job.settings,
            "metrics": metrics,
            "seconds": round(seconds, 3),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            # What was left of a line must not spoil this one.
            whole = not file.tell() or _last_byte(self.path) == b"\n"
            file.write((b"" if whole else b"\n") + json.dumps(record).encode() + b"\n")
        self.records[key], self.found[key] = record, metrics


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def run_all(
    jobs: Sequence[Job],
    replicate: Replicate,
    shared: Any,
    *,
    store: Store,
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
        level = logger.level
        # A line for each run that leaves samples out would bury the progress.
        logger.setLevel(logging.ERROR)
        try:
            with Progress(title, total=sum(costs.values())) as progress:
                for key, metrics, seconds in spread(open_jobs, replicate, shared, workers):
                    store.add(open_jobs[key], key, metrics, seconds)
                    short = _short(open_jobs[key].settings)
                    progress.step(open_jobs[key].part, costs[key], detail=short)
        finally:
            logger.setLevel(level)
    return to_frame(jobs, store, context)


def to_frame(jobs: Sequence[Job], store: Store, context: str) -> pd.DataFrame:
    """Return the numbers of those jobs that are finished."""
    keys = {job.key(context): job for job in jobs}
    rows = [
        {"part": job.part, **_flat(job.settings), "metric": name, "value": value}
        for key, job in keys.items()
        for name, value in store.found.get(key, {}).items()
    ]
    return pd.DataFrame(rows)


def numbers_of(
    frame: pd.DataFrame, part: str, keys: Sequence[str], over: Any = "mean", sort: bool = True
) -> pd.DataFrame:
    """Return a part's numbers, a column for each, by keys; empty if the part was not run."""
    chosen = frame[frame["part"] == part]
    if chosen.empty:  # settings of parts that were not run are no columns
        return pd.DataFrame(columns=list(keys)).set_index(list(keys))
    return chosen.pivot_table("value", list(keys), "metric", over, sort=sort)


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
        start_ray(num_cpus=workers)
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
