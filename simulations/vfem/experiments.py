"""One replication of each part of the study: from settings to numbers."""

from collections.abc import Callable, Sequence
from typing import Any

from flwr_vertical.errors import VerticalError
from simulations.replications import Job, Metrics
from simulations.vfem.apart import replicate_apart
from simulations.vfem.correlated import replicate_correlated
from simulations.vfem.fresh import measure_fresh
from simulations.vfem.methods import flatten, make_method, measure, run_method, slopes
from simulations.vfem.sample import Sample, draw_design
from simulations.vfem.sme import draw_sme


def replicate(job: Job, shared: None) -> Metrics:
    """Run one replication; see `simulations.replications.run_all`."""
    return PARTS[job.part](job.settings)


def _finite(settings: dict[str, Any]) -> Metrics:
    design = settings["design"]
    wanted = ("rows", "rates", "mechanism", "held_out", "seed")
    sample = draw_design(design, **{name: settings[name] for name in wanted})
    measured = _measured(sample, settings["methods"], design["parties"][0], settings)
    return {"complete cases": float(sample.complete_cases), **measured}


def _measured(
    sample: Sample, methods: Sequence[str], holder: str, settings: dict[str, Any]
) -> Metrics:
    metrics: Metrics = {}
    for name in methods:
        metrics |= measure(name, sample, holder, settings["aggregation"], settings["seed"])
    return metrics


def _inference(settings: dict[str, Any]) -> Metrics:
    design, seed = settings["design"], settings["seed"]
    sample = draw_design(
        design, rows=settings["rows"], rates=settings["rates"], cross=settings["cross"], seed=seed
    )
    strategy = make_method(settings["kind"], design["parties"][0])
    try:
        result = run_method(strategy, sample, settings["aggregation"], seed)
    except VerticalError:
        return {"failed": 1.0}
    low, high = (slopes(result, sample, end) for end in ("ci_low", "ci_high"))
    covered = ((low <= sample.truth) & (sample.truth <= high)).astype(float)
    return {
        **flatten("error", slopes(result, sample) - sample.truth),
        **flatten("std_error", slopes(result, sample, "std_error").dropna()),
        # Without standard errors there is no interval that could cover.
        **flatten("covered", covered[low.notna()]),
    }


def _splits(settings: dict[str, Any]) -> Metrics:
    sme = settings["sme"]
    sample = draw_sme(
        sme,
        rows=settings["rows"],
        seed=settings["data_seed"],
        test_share=settings["test_share"],
        split=settings["seed"],
    )
    measured = _measured(sample, sme["methods"], sme["holder"], settings)
    return {"complete cases": float(sample.complete_cases), **measured}


def _repeats(settings: dict[str, Any]) -> Metrics:
    sme, changed = settings["sme"], {"shape": settings["shape"], "by_label": settings["by label"]}
    sample = draw_sme(sme, rows=settings["rows"], seed=settings["seed"], **changed)
    return _measured(sample, sme["methods"], sme["holder"], settings)


PARTS: dict[str, Callable[[dict[str, Any]], Metrics]] = {
    "finite": _finite, "inference": _inference, "parting": _inference, "sme": measure_fresh,
    "splits": _splits, "repeats": _repeats, "correlated": replicate_correlated,
    "apart": replicate_apart,
}  # fmt: skip
