"""One replication of each part of the study: from settings to numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.grading.risks import inference, membership
from flwr_vertical.incomplete import drop_blocks
from flwr_vertical.privacy import seeded_noise
from simulations.copula.design import CopulaSample, draw_copula
from simulations.copula.mechanisms import draw_mask
from simulations.copula.methods import measure, synthesise
from simulations.copula.sme import measure_sme
from simulations.replications import Job, Metrics


def replicate(job: Job, shared: None) -> Metrics:
    """Run one replication; see `simulations.replications.run_all`."""
    # The data are generated, so the noise may be repeated: the study's numbers can be, too.
    with seeded_noise(job.settings["seed"]):
        return PARTS[job.part](job.settings)


def _complete(settings: dict[str, Any]) -> Metrics:
    sample = _drawn(settings)
    return measure(settings, sample, sample.tables)


def _missing(settings: dict[str, Any]) -> Metrics:
    sample = _drawn(settings)
    mask = draw_mask(sample, settings["mechanism"], settings["share"], settings["seed"])
    found = measure(settings, sample, drop_blocks(sample.tables, mask))
    return {**found, "complete": float((~mask.any(axis=1)).mean())}


def _drawn(settings: dict[str, Any]) -> CopulaSample:
    wanted = {name: settings[name] for name in ("model", "rows", "seed")}
    return draw_copula(settings["design"], **wanted)


def _attacks(settings: dict[str, Any]) -> Metrics:
    """Attack the synthetic rows with what is known of members and of as many others."""
    rows, seed = settings["rows"], settings["seed"]
    sample = draw_copula(settings["design"], model="linear", rows=2 * rows, seed=seed)
    first = {party: frame.iloc[:rows] for party, frame in sample.tables.items()}
    made = synthesise(
        settings["method"], first, sample.labels.iloc[:rows], settings["epsilon"], seed
    )
    assert made.labels is not None
    whole = _joined(sample.tables, sample.labels)
    members, others = whole.iloc[:rows], whole.iloc[rows:]
    synthetic = _joined(made.tables, made.labels)
    names = [str(name) for name in whole]
    target = next(name for name in names if whole[name].nunique() > 20)  # the first continuous one
    return {
        "membership": 50 * membership(members, others, synthetic).gain.value,
        "attribute": 100 * inference(members, others, synthetic, target).gain.value,
    }


def _joined(tables: dict[str, pd.DataFrame], labels: "pd.Series[float]") -> pd.DataFrame:
    """Put all parties' columns and the label side by side; row i belongs together everywhere."""
    names = [f"{party} {column}" for party in sorted(tables) for column in tables[party]]
    values = [tables[party].to_numpy(dtype=np.float64) for party in sorted(tables)]
    columns = pd.Index([*names, "label"])
    label = labels.to_numpy(dtype=np.float64)[:, None]
    return pd.DataFrame(np.concatenate([*values, label], axis=1), columns=columns)


PARTS: dict[str, Callable[[dict[str, Any]], Metrics]] = {
    "complete": _complete, "missing": _missing, "attacks": _attacks, "sme": measure_sme,
}  # fmt: skip
