"""What is attacked: every built-in strategy by name, tables of several parties, and labels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import Result, Strategy, load_strategy, simulate
from flwr_vertical.policy.requirements import exchanges_of
from flwr_vertical.settings import settings_of
from strategies import BUILTIN

PARTIES = ("bank", "court", "hospital", "shop", "town")
FAMILIES = ("gaussian", "binomial", "poisson")
SUMS = "sums"  # of the papers: opens a number of each sample in each round, by consent only
_IMPUTERS = ("fknn", "joint-normal", "max", "mean", "min", "most-frequent", "pipeline")
_SYNTHESES = ("vcds", "evcds", "ievcds", "mst", "aim")
_FITS = ("vfem", "false-vfl", "vanilla-vfl", "gbdt", "forest")
"""Strategies whose models are predicted with, one for each kind of model."""

_FEW_STEPS: dict[str, Any] = {
    "task": "regression", "h_dim": 12, "z_dim": 4, "width": 16, "pretrain_epochs": 2, "epochs": 2,
    "pretrain_batch_size": 4096, "importance_samples": 4, "prediction_samples": 4,
}  # fmt: skip
"""Of deep methods: the networks of their defaults, smaller, in few steps of all samples. What a
step tells of a sample does not depend on how many there are, and attacks see all of them."""

_SPLIT: dict[str, Any] = {
    "task": "regression", "latent_dim": 12, "width": 16, "pretrain_epochs": 2, "epochs": 3,
    "batch_size": 4096,
}  # fmt: skip
_TREES: dict[str, Any] = {"n_trees": 40, "max_depth": 4}
_SETTINGS: dict[str, dict[str, Any]] = {
    "gbdt": _TREES,
    "forest": _TREES,
    "single": {"party_name": PARTIES[0]},
    "vertigan": {"iterations": 10},
    "pipeline": {
        "stages": [
            {"name": "impute", "strategy": "joint-normal"},
            {"name": "select", "strategy": "glm", "penalty": "lasso"},
            {"name": "fit", "strategy": "glm", "penalty": "none"},
        ]
    },
    "vfem-iterations": {"max_iter": 60},
    "false-vfl": _FEW_STEPS,
    **dict.fromkeys(("fedhssl", "laser-vfl", "plug-vfl", "vanilla-vfl"), _SPLIT),
    "final-net": {
        "task": "regression",
        "latent_dim": 4,
        "width": 16,
        "iterations": 3,
        "batch_size": 4096,
    },
}
_RULED = {"variant": "ar", "n_associated": 2, "imputer": "mean"}  # of tables of three columns
_TRAINED = {**_RULED, "imputer": "gain", "generator": "joint", "iterations": 20}
_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "false-vfl": [{"variant": "II"}, {"party_layers": 1}],
    "fedpsg-ar": [_RULED, _TRAINED],
    "gbdt": [{"histograms": "open"}],
    "glm": [{"family": family, "rows": "all"} for family in FAMILIES],
    "cox": [{"rows": "all"}],
}
"""Further settings that are tried."""
_CLASSES = dict.fromkeys(("svm", "forest", "lda", "explore", "scorecard"), "binomial")
"""By strategy, the family of its labels where it has no such setting and they are not numbers."""

_TELL_NOTHING = {"generated", "networks"}
"""Exchanges by consent in which attacks must find nothing all the same."""


ROUTED = "gbdt"
"""Boosted trees: without a consent they tell sides of splits, bits of single samples that nodes
count and may cap. What follows from these is measured on its own (`routing`). A forest tells the
server summed votes alone."""


@dataclass(frozen=True)
class Case:
    """A strategy with settings."""

    name: str  # As in tables: the strategy's name, and what differs from its defaults
    strategy: str  # Name in `BUILTIN`
    settings: Mapping[str, Any]  # That differ from the defaults
    family: str = "gaussian"  # Of the labels
    fit: str = ""  # Of predictions: the strategy that fits the model, a name in `BUILTIN`

    @property
    def consented(self) -> bool:
        """Whether every node must agree to an exchange that opens numbers of single samples."""
        kind: Any = load_strategy(BUILTIN[self.fit or self.strategy])
        if self.fit:
            asked = getattr(kind.predictions, "exchanges_asked", ())
        else:
            asked = exchanges_of(kind(**self.settings))
        return bool({*asked} - _TELL_NOTHING)

    @property
    def routed(self) -> bool:
        """Whether it tells sides of splits."""
        return ROUTED in (self.strategy, self.fit)


def cases(consented: bool = False) -> list[Case]:
    """Return every built-in strategy at its default settings or as few others as its tables need.

    Trees are left out, see `routed_cases`.
    """
    return [case for case in _all() if case.consented == consented and not case.routed]


def routed_cases() -> list[Case]:
    """Return the strategies that grow trees, of labels 0 and 1; with open histograms, too."""
    return [replace(case, family="binomial") for case in _all() if case.routed]


def _all() -> list[Case]:
    found = []
    for name, target in BUILTIN.items():
        if name == "predict":
            found += [
                Case(f"predict {fit}", name, {}, _CLASSES.get(fit, FAMILIES[0]), fit)
                for fit in _FITS
            ]
            continue
        names = {item.name for item in settings_of(load_strategy(target))}
        tried = [{"family": family} for family in FAMILIES] if "family" in names else [{}]
        tried += [{"exchange": SUMS}] if "exchange" in names else []
        for chosen in [*tried, *_VARIANTS.get(name, [])]:
            shown = [
                str(value) if key == "family" else f"{key}={value}"
                for key, value in chosen.items()
                if key != "iterations"
            ]
            family = chosen.get("family", _CLASSES.get(name, FAMILIES[0]))
            settings = _SETTINGS.get(name, {}) | chosen
            found.append(Case(" ".join([name, *shown]), name, settings, family))
    return found


def make_strategy_of(case: Case, tables: Mapping[str, pd.DataFrame], labels: Any) -> Strategy:
    """Return the strategy; a prediction's model is fitted first, to the same tables."""
    kind: Any = load_strategy(BUILTIN[case.strategy])
    settings = {"model": fit(tables, labels, case.fit)} if case.fit else case.settings
    made: Strategy = kind(**settings)
    return made


def fit(tables: Mapping[str, pd.DataFrame], labels: Any, strategy: str = "vfem") -> Result:
    """Return a fitted model, by default a linear one."""
    kind: Any = load_strategy(BUILTIN[strategy])
    return simulate(kind(**_SETTINGS.get(strategy, {})), tables, labels, progress=False)


ROWS = {"fedpsg-ar": 1500, "pipeline": 3000}
"""Fewest samples of a strategy's tables: counts of pairs of values are told from 100 on, and so are
sums over rows that one stage of a pipeline tells of and another does not."""


def make_case_tables(
    case: Case, n: int, n_parties: int, seed: int = 0, missing: float = 0.3
) -> tuple[dict[str, pd.DataFrame], "pd.Series[Any]"]:
    """Return tables with a number, a count and a flag at each party, and labels."""
    rng = np.random.default_rng([seed, n, n_parties])
    ids = np.array([f"c{i:05}" for i in range(n)])
    common = rng.normal(size=n)
    tables, score = {}, np.zeros(n)
    for name in PARTIES[:n_parties]:
        number = rng.normal(size=n) + 0.3 * common
        count = rng.poisson(2.0, size=n).astype(float)
        flag = (rng.random(n) < 0.35).astype(float)
        score += 0.5 * number + 0.2 * (count - 2.0) + 0.5 * (flag - 0.35)
        columns = {
            f"{name}.number": (4000.0 + 900.0 * number).round(2),
            f"{name}.count": count,
            f"{name}.flag": flag,
        }
        tables[name] = pd.DataFrame(columns, index=ids)
    score /= np.sqrt(n_parties)
    if case.family == "binomial":
        values = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(float)
    elif case.family == "poisson":
        values = rng.poisson(np.exp(0.3 + 0.4 * score)).astype(float)
    else:
        values = 3.0 + score + 0.7 * rng.normal(size=n)
    labels: pd.Series[Any] = pd.Series(values, index=ids, name="y")
    labels[rng.random(n) < 0.1] = np.nan
    completed = case.settings.get("rows") == "all"
    if case.routed or completed or (case.strategy not in _SYNTHESES and case.family == "gaussian"):
        last = PARTIES[n_parties - 1]
        tables[last] = tables[last][rng.random(n) >= missing]
    if case.strategy in _IMPUTERS:
        for name, table in tables.items():
            column = table[f"{name}.number"]
            tables[name] = table.assign(
                **{f"{name}.number": column.mask(rng.random(len(table)) < 0.1)}
            )
    return tables, labels
