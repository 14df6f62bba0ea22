"""Boosting on three SuperNodes of this machine over channels: two parties and an arbiter."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical import Result, simulate
from strategies.trees import VerticalGBDT

GROWING = ("share", "compare", "route")
"""Steps of a level; all others are taken once."""

WHOLE = 100


def compare(tables: dict[str, pd.DataFrame], labels: "pd.Series[Any]", settings: Any) -> None:
    """Run in this process and on a deployment; print times, and those of 100 trees.

    What the server computes between rounds is the same in both, so it is taken from the run in this
    process. How long nodes take to start is printed, and no part of the projection.
    """
    trees = settings["n_trees"]
    started = time.perf_counter()
    here = simulate(VerticalGBDT(**settings), tables, labels, progress=False)
    whole = {"in process": time.perf_counter() - started}
    started = time.perf_counter()
    there = _deployed(tables, labels, settings)
    whole["deployment"] = time.perf_counter() - started
    between = whole["in process"] - here.ledger.seconds
    for form, result in (("in process", here), ("deployment", there)):
        steps = result.ledger.to_frame().drop_duplicates("round").groupby("step")["seconds"].sum()
        growing = float(steps[[step for step in GROWING if step in steps]].sum())
        once = float(steps.sum()) - growing
        projected = once + (growing + between) / trees * WHOLE
        print(
            f"  {form}: {whole[form]:.1f} s with all starts and stops; {result.ledger.rounds} "
            f"rounds, {growing:.1f} s for {trees} trees, {once:.1f} s for the rest, "
            f"{between:.1f} s between rounds; {WHOLE} trees projected: {projected:.0f} s",
            flush=True,
        )
    off = abs(here.metrics["train_loss"] - there.metrics["train_loss"])
    print(f"  difference of the loss: {off:.1g}")


def _deployed(
    tables: dict[str, pd.DataFrame], labels: "pd.Series[Any]", settings: dict[str, Any]
) -> Result:
    root = Path(__file__).parents[1]
    sys.path.insert(0, str(root / "tests"))
    from deployments import Deployment

    class Here(Deployment):
        """Its nodes run the code beside this file, whatever is installed."""

        def start_superlink(self) -> None:
            self.flower.env["PYTHONPATH"] = str(root)
            super().start_superlink()

    # Named by its class: it runs whatever strategies the installed package lists.
    module = f"{VerticalGBDT.__module__}:VerticalGBDT"
    agreed = f"policy.alignments='plain' policy.modules='{module}' exchanges='histograms'"
    with tempfile.TemporaryDirectory(prefix="flwr-trees-") as folder:
        home = Path(folder)
        labels.rename("y").rename_axis("id").to_csv(home / "labels.csv")
        nodes = {}
        for name, table in tables.items():
            table.rename_axis("id").to_parquet(home / f"{name}.parquet")
            nodes[name] = f"data='{home / name}.parquet' output='{home / name}-out' {agreed}"
        if settings["histograms"] == "hidden":
            nodes["comparing"] = f"role='arbiter' output='{home}/arbiter-out' {agreed}"
        deployment = Here(home, nodes)
        try:
            run = deployment.submit(
                strategy=module,
                parties=",".join(tables),
                labels=str(home / "labels.csv"),
                alignment="plain",
                transport="channel",
                run_name="boosting",
                channel_timeout=900.0,
                **{f"{VerticalGBDT.name}.{name}": value for name, value in settings.items()},
            )
            if run.finish(1800) != 0:
                raise SystemExit(run.text[-4000:])
            return Result.load(deployment.folder("boosting"))
        finally:
            deployment.stop()
