"""Every built-in strategy with small settings, made when it is asked for, and runs of it.

The contract runs each of them, and so does `python -m tests.faults.kills`. The first word of a
case's name is the strategy's.
"""

import contextlib
import functools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import load_strategy, simulate
from flwr_vertical.crypto import sealed_box
from flwr_vertical.privacy import seeded_noise
from simulations.attacks.recording import Recording, watching
from strategies import BUILTIN
from tests.kit.repeating import SecondAnswerError, every_sum_twice

SMALL = {
    "precision": "float64", "h_dim": 4, "z_dim": 2, "width": 8,
    "pretrain_epochs": 2, "epochs": 2, "pretrain_batch_size": 20, "importance_samples": 3,
    "prediction_samples": 5,
}  # fmt: skip
SPLIT = {
    "precision": "float64", "latent_dim": 4, "width": 6,
    "pretrain_epochs": 1, "epochs": 2, "batch_size": 16,
}  # fmt: skip
FINAL_NET = {"precision": "float64", "latent_dim": 3, "width": 6}
FEW_TREES = {"n_trees": 2, "max_depth": 2, "n_bins": 4, "min_child": 4}
REGRESSION = {"task": "regression"}

# Settings by case; the first of several with one party half stands for what is the core's.
SETTINGS = {
    "fknn": {"n_neighbors": 3},
    "fknn exact": {
        "n_neighbors": 2, "weighting": "exact", "weights": "distance", "standardize": True
    },
    "joint-normal": {"draws": 2},
    "mean": {},
    "min": {},
    "max": {},
    "most-frequent": {},
    # Samples that a party lacks, from others; cells that only it lacks, from its own columns.
    "fedpsg-ar": {"variant": "ar", "n_associated": 2, "rule": "mean", "imputer": "mean"},
    "fedpsg-ar mice": {"variant": "ar", "n_associated": 1, "imputer": "mice", "rule": "draw"},
    "fedpsg-ar joint": {
        "variant": "ar", "n_associated": 1, "imputer": "gain", "generator": "joint",
        "iterations": 2, "batch": 8,
    },
    "vertigan": {"iterations": 2, "batch": 8, "rows": 12},
    "vcds": {"min_joint": 10},
    "vcds total": {"epsilon": 5.0, "budget": "total", "rows": 50, "missing": "impute"},
    "evcds": {"min_joint": 10},
    "mst": {"epsilon": 5.0, "rows": 80},
    "aim": {"epsilon": 5.0, "rows": 90},
    "ievcds": {"min_joint": 10, "iterations": 2, "rearrange": True, "rows": 100},
    "vfem": {},
    "complete-case": {},
    "mean-impute": {},
    "single": {"party_name": "court"},
    "glm": {"penalty": "lasso", "lambdas": 0.1},
    "glm binomial": {"family": "binomial", "lambdas": 0.01},
    "vfem-iterations": {"learning_rate": 0.1, "max_iter": 20},
    "vfem-iterations sketch": {"max_iter": 4, "sketch_size": 40},
    "glm-admm": {"penalty": "lasso", "lambdas": 0.1, "tol": 1e-6},
    "glm-admm noisy": {"epsilon": 1.0, "lambdas": 0.05, "max_iter": 4},
    "false-vfl": {**REGRESSION, **SMALL},
    "false-vfl II": {"variant": "II", **SMALL},
    "vanilla-vfl": {**REGRESSION, **SPLIT},
    "plug-vfl": SPLIT,
    "laser-vfl": SPLIT,
    "fedhssl": {**REGRESSION, **SPLIT},
    "final-net": {**FINAL_NET, "iterations": 6},
    "gbdt": FEW_TREES,
    "gbdt open": {**FEW_TREES, "objective": "regression", "histograms": "open"},
    "forest": {**FEW_TREES, "objective": "regression"},
    "glm ridge": {
        "family": "binomial", "penalty": "ridge", "l2": 2.0
    },
    "lda": {},
    "explore": {},
    "scorecard": {"bins": 4},
    "cox": {},
    "cox all": {"rows": "all"},
    "glm robust": {
        "family": "binomial", "penalty": "none", "standard_errors": "robust",
        "dispersion": "pearson",
    },
    "glm formula": {
        "penalty": "none",
        "formula": {"bank": "income*rating + poly(loans, 2)"},
    },
    "glm all": {"family": "binomial", "rows": "all", "penalty": "none"},
    "svm": {"l2": 2.0},
    "pipeline": {
        "stages": [
            {"name": "impute", "strategy": "joint-normal"},
            {"name": "select", "strategy": "glm", "penalty": "lasso", "lambdas": 0.1},
            {"name": "fit", "strategy": "vfem"},
            {"name": "predict"},
        ]
    },
    "svm mean": {"l2": 2.0, "loss": "squared", "rows": "mean"},
}  # fmt: skip
FITTED = {
    f"predict {case}": case for case in ("vfem", "false-vfl", "vanilla-vfl", "gbdt", "forest")
}
"""What predicts by the model of another case."""
CASES = [*SETTINGS, *FITTED]
COMPLETING = {"fknn", "joint-normal", "mean", "min", "max", "most-frequent"}
GENERATING = {"fedpsg-ar", "vertigan"}
COUNTED = {"mst", "aim"}
SYNTHETIC = {"vcds", "evcds", "ievcds"} | COUNTED
# What needs a key stream that parties share has no encrypted sums.
MASKED = {
    "svm", "glm ridge", "glm all", "glm robust", "joint-normal", "lda", "cox", "cox all",
    "scorecard", "explore", "pipeline", "mst", "aim",
}  # fmt: skip
# Calls whose answers are under pads or sealed, or are counted: they are asked twice as sums are.
_GROWING = {"send_masked", "share", "route"}
CALLS = {"gbdt": _GROWING, "gbdt open": _GROWING, "forest": {"send_masked"}}
CALLS |= {case: {"send_masked"} for case in ("glm all", "cox all")}
FITTED_CALLS = {"gbdt": {"sides"}, "forest": {"tally"}}
# A vector of the server that columns are multiplied with takes ten rows.
LARGE = MASKED | {"svm mean", "glm binomial", "glm formula"}
# They predict samples that have no label.
PREDICTING = {"false-vfl", "vanilla-vfl", "laser-vfl", "plug-vfl", "fedhssl", "final-net"} | {
    "gbdt", "forest"
}  # fmt: skip


def class_of(case):
    return load_strategy(BUILTIN[case.split()[0]])


def of_strategies(names):
    return [case for case in CASES if case.split()[0] in names]


def one_per_half(cases=CASES):
    """Return the first case of each party half: what is the core's is the same for the others."""
    found = {}
    for case in cases:
        found.setdefault(FITTED.get(case) or class_of(case).party, case)
    return list(found.values())


@functools.cache
def made(case):
    """Make the strategy of a case; one that predicts builds on the case it is fitted by."""
    if case in FITTED:
        return class_of(case)(recorded(FITTED[case]).result)
    return class_of(case)(**SETTINGS[case])


def tables(n=40, seed=0, cells=0.2):
    """Two parties, columns of all kinds, missing cells and missing blocks."""
    rng = np.random.default_rng(seed)
    ids = [f"firm {i:02}" for i in range(n)]
    size = pd.CategoricalDtype(["small", "mid", "large"], ordered=True)
    bank = pd.DataFrame(
        {
            "income": rng.normal(50, 10, size=n),
            "rating": pd.Categorical(rng.choice(["A", "B", "C"], size=n)),
            "size": pd.Categorical(rng.choice(size.categories, size=n), dtype=size),
            "loans": rng.poisson(2, size=n),
        },
        index=ids,
    )
    court = pd.DataFrame(
        {
            "cases": rng.poisson(1, size=n).astype(float),
            "member": rng.random(n) < 0.5,
            "town": rng.choice(["Delft", "Ulm", "Gent"], size=n),
        },
        index=ids,
    )
    frames = {
        "bank": bank.mask(rng.random(bank.shape) < cells),
        "court": court.astype({"member": "boolean"}).mask(rng.random(court.shape) < cells),
    }
    return {"bank": frames["bank"].iloc[3:], "court": frames["court"].drop(ids[20:24])}


def labels(n=40):
    rng = np.random.default_rng(1)
    return pd.Series(rng.normal(size=n), index=[f"firm {i:02}" for i in range(n)], name="y")


def size_of(case):
    return 260 if case in LARGE else 40


def tables_of(case):
    incomplete = case.split()[0] in COMPLETING | GENERATING | SYNTHETIC | {"pipeline"}
    return tables(size_of(case), cells=0.2 if incomplete else 0.0)


def labels_of(case):
    """Numbers or classes; a method that predicts what has no label lacks a tenth of them."""
    found = labels(size_of(case))
    if case not in LARGE and case.split()[0] not in PREDICTING:
        return found
    strategy = made(case)
    task = getattr(strategy, "task", getattr(strategy, "objective", ""))
    task = (
        "regression" if case.startswith("cox") else task
    )  # times, negative where they were censored
    return (found if task == "regression" else found.gt(0).astype(float)).drop(found.index[::10])


def run(case, mode="masked", **options):
    with seeded_noise(1):  # else no two runs are alike; has no say inside Ray's actors
        return simulate(
            made(case),
            tables_of(case),
            labels_of(case),
            aggregation=mode,
            min_rows=1,
            **({"seed": 1} | options),
        )


@functools.cache
def repeated(case):
    """Return one run of a case with its messages, and what of it was asked twice.

    All tests share it that only look at a run. A nonce is new each time: with one for all, what is
    sealed equal has equal contents.
    """
    worked, transcript = [], []
    calls = CALLS.get(case, FITTED_CALLS.get(FITTED.get(case), set()))
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SecondAnswerError):
        patch.setattr(sealed_box, "secrets", SimpleNamespace(token_bytes=bytes))
        with every_sum_twice(also=calls) as repetition, watching(worked, transcript):
            result = run(case, transcript=transcript)
    of = made(case), "masked", tables_of(case), labels_of(case), result, transcript, worked
    return Recording(*of), repetition


def recorded(case):
    return repeated(case)[0]


@functools.cache
def result_of(case, mode="masked"):
    return recorded(case).result if mode == "masked" else run(case, mode)
