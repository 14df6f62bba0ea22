"""One fit on the SME-like data in a fresh process, so that its memory is its own."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from apps.cli.check.trial import most_held
from flwr_vertical.errors import VerticalError
from simulations.replications import Metrics
from simulations.vfem.methods import flatten, make_method, measured, run_method, slopes
from simulations.vfem.sme import draw_sme


def measure_fresh(settings: dict[str, Any]) -> Metrics:
    """Run `measure_here` in a new Python process."""
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(measure_here, settings).result()
    except Exception as error:  # also the end of the process, where memory is short
        what = f"{type(error).__name__}: {error}"
        raise VerticalError(f"the fit of {settings['method_name']} failed: {what}") from error


def measure_here(settings: dict[str, Any]) -> Metrics:
    """Fit one method; return estimates, standard errors, RMSE, seconds and peak memory."""
    sme = settings["sme"]
    sample = draw_sme(sme, rows=settings["rows"], seed=settings["seed"])
    strategy = make_method(settings["method_name"], sme["holder"])
    metrics = {"complete cases": float(sample.complete_cases)}
    started, busy = time.perf_counter(), time.process_time()
    try:
        result = run_method(strategy, sample, settings["aggregation"], settings["seed"])
    except VerticalError:
        return metrics | {"failed": 1.0}
    metrics["seconds"] = time.perf_counter() - started
    metrics["cpu seconds"] = time.process_time() - busy
    metrics["GiB"] = most_held() / 2**30
    metrics |= measured(result, sample, ("r2", "adjusted_r2", "n_samples"))
    for column in ("estimate", "std_error", "p_value"):
        metrics |= flatten(column, slopes(result, sample, column))
    return metrics
