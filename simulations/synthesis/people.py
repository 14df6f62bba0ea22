"""Tables with a guarantee for people: what models learn from them, beside central MST and AIM.

Three parties have runs of columns, the label among the last one's. Rows are drawn by the seed, and
those that are not drawn are predicted by boosted trees which learn from synthetic rows. Central
tables are by `dpmm` (Apache 2.0), which needs an environment of its own; `dpmm_tables` makes them.
"""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from flwr_vertical import simulate
from flwr_vertical.arrays import Flags
from flwr_vertical.errors import DataError
from flwr_vertical.incomplete.splits import split_columns
from flwr_vertical.privacy import seeded_noise
from simulations.page import at_least, at_most, indexed, verdict
from simulations.replications import Job, Metrics, grid, numbers_of
from strategies.copula import EVCDS, VCDS
from strategies.marginals import AIM, MST

REAL, CENTRAL = "real rows", ", central (dpmm)"
SMALL = ", central (dpmm, 1 MB)"  # the model of AIM is of this size at most
STRATEGIES = {"mst": MST, "aim": AIM, "vcds": VCDS, "evcds": EVCDS}
COMPLETE, ALL_LACK = "complete", "MAR, all"
MECHANISMS = "MCAR", "MAR", ALL_LACK
_PARTS = 10  # of a column of numbers, of about as many real rows
_OTHERS = 0.2  # of rows that the first and the third party lack, where all do
_SLOPE = 1.2  # of the log odds that rows are missing, in standard deviations of the first column
_MEASURES = ("AUC", "KS", "TV")


def people_jobs(part: dict[str, Any], data: dict[str, str]) -> list[Job]:
    """Return the jobs; `data` has the fingerprint of each data set."""
    made = [(method, epsilon) for method in ("mst", "aim") for epsilon in part["epsilons"]]
    trials: list[tuple[str, float, str]] = [(REAL, 0.0, COMPLETE)]
    trials += [(method + CENTRAL, epsilon, COMPLETE) for method, epsilon in made]
    trials += [("aim" + SMALL, epsilon, COMPLETE) for epsilon in part["epsilons"]]
    trials += [(*one, missing) for one in made for missing in (COMPLETE, *MECHANISMS)]
    trials += [("vcds", 1.0, COMPLETE)]
    trials += [("evcds", 1.0, missing) for missing in (COMPLETE, *MECHANISMS)]
    datasets = [
        (name, of["rows"], of["label"], of["drop"], data.get(name))
        for name, of in part["datasets"].items()
    ]
    axes = {
        "seed": range(part["runs"]),
        ("dataset", "rows", "label", "drop", "data"): datasets,
        ("method", "epsilon", "missing"): trials,
    }
    return grid("people", axes, delta=part["delta"])


def central_name(settings: dict[str, Any]) -> str:
    """Return the name, without its end, of the file that a central table of a job is in."""
    name = settings["dataset"].lower().replace(" ", "_")
    method = settings["method"].replace(SMALL, "_1mb").removesuffix(CENTRAL)
    return f"{name}_{method}_{settings['epsilon']:g}_{settings['seed']}"


def read_central(folder: str) -> dict[str, pd.DataFrame]:
    """Return the tables that `dpmm_tables` has put into a folder, by name; none without one."""
    if not folder:
        return {}
    if not Path(folder).is_dir():
        raise DataError(f"people.central: there is no folder {Path(folder).absolute()}")
    return {path.stem: pd.read_csv(path) for path in Path(folder).glob("*.csv")}


def grade(job: Job, data: dict[str, pd.DataFrame]) -> Metrics:
    """Make a table of some rows, and predict the others by it."""
    settings, seed = job.settings, job.settings["seed"]
    whole = data[settings["dataset"]].drop(columns=settings["drop"])
    table = whole.sample(frac=1.0, random_state=seed)
    real, test = table.iloc[: settings["rows"]], table.iloc[settings["rows"] :]
    real, test = real.reset_index(drop=True), test.reset_index(drop=True)
    made, rounds = real, 0.0
    if settings["method"].endswith((CENTRAL, SMALL)):
        made = data[central_name(settings)]
    elif settings["method"] != REAL:
        made, rounds = _synthesise(settings, real)
    if set(made) != set(real):
        raise DataError(
            f"the table of {settings['dataset']} by {settings['method']} has other columns than "
            f"the real one: {sorted(set(made) ^ set(real))}"
        )
    return {
        "AUC": transfer(real, made, test, settings["label"]),
        "KS": float(np.mean(list(distances(real, made).values()))),
        "TV": two_way_variation(real, made),
        "rounds": rounds,
    }


def lacking(real: pd.DataFrame, missing: str, seed: int) -> Flags:
    """Return which rows the second party lacks, a third, by the first column or by nothing."""
    rng, n = np.random.default_rng(seed), len(real)
    chance = np.full(n, 1.0)
    if missing != "MCAR":
        first = pd.Series(real.iloc[:, 0])
        numbers = pd.api.types.is_numeric_dtype(first)
        values = np.asarray(first if numbers else pd.factorize(first, sort=True)[0], dtype=float)
        chance = 1.0 / (1.0 + np.exp(-_SLOPE * (values - values.mean()) / values.std()))
    return np.asarray(rng.random(n) < np.minimum(chance / chance.mean() / 3.0, 0.95))


def _synthesise(settings: dict[str, Any], real: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    method, epsilon, seed = settings["method"], settings["epsilon"], settings["seed"]
    parties = split_columns(real, 3, shuffle=False)
    first, second, third = parties
    if settings["missing"] != COMPLETE:
        parties[second] = parties[second][~lacking(real, settings["missing"], seed)]
    if settings["missing"] == ALL_LACK:
        rng = np.random.default_rng([seed, 1])
        for name in (first, third):
            parties[name] = parties[name][rng.random(len(real)) >= _OTHERS]
    privacy: dict[str, Any] = {}
    if method in ("mst", "aim"):  # dpmm, too, is told of all levels
        texts = {str(c): of for c, of in real.items() if not pd.api.types.is_numeric_dtype(of)}
        levels = {name: sorted(of.dropna().unique()) for name, of in texts.items()}
        privacy = {"delta": settings["delta"], "levels": levels}
    strategy: Any = STRATEGIES[method]
    # The data are public, so the noise may be repeated: the study's numbers can be, too.
    with seeded_noise(seed):
        result = simulate(strategy(epsilon, **privacy), parties, seed=seed, progress=False)
    own = [result.tables[name].reset_index(drop=True) for name in parties]
    return pd.concat(own, axis=1), float(result.ledger.rounds)


def distances(real: pd.DataFrame, made: pd.DataFrame) -> dict[str, float]:
    """Return Kolmogorov and Smirnov's distance of every column of numbers."""
    return {
        str(name): float(
            ks_2samp(of.astype(float), made[name].astype(float), method="asymp").statistic
        )
        for name, of in real.items()
        if pd.api.types.is_numeric_dtype(of)
    }


def transfer(real: pd.DataFrame, made: pd.DataFrame, test: pd.DataFrame, label: str) -> float:
    """Return the AUC over test rows of boosted trees that learnt from made ones."""
    # Trees cannot learn from a column of which no value stands out of the noise.
    columns: list[Any] = [name for name in real if name != label and made[name].notna().any()]
    levels = {
        name: pd.Index(sorted(real[name].astype(str).unique()))
        for name in columns
        if not pd.api.types.is_numeric_dtype(real[name])
    }
    positive = max(real[label].astype(str))

    def coded(table: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(
            {
                name: levels[name].get_indexer(pd.Index(table[name].astype(str))).astype(float)
                if name in levels
                else table[name].astype(float)
                for name in columns
            }
        ).replace(-1.0, np.nan)

    ordinal = [name in levels for name in columns]
    trees = HistGradientBoostingClassifier(
        categorical_features=ordinal, early_stopping=False, random_state=0
    )
    of_made = made[label].astype(str).eq(positive)
    if of_made.nunique() < 2:
        return 0.5
    trees.fit(coded(made), of_made)
    chance = trees.predict_proba(coded(test))[:, 1]
    return float(roc_auc_score(test[label].astype(str).eq(positive), chance))


def two_way_variation(real: pd.DataFrame, made: pd.DataFrame) -> float:
    """Return the mean total variation of all pairs of columns, numbers in tenths of real rows."""
    codes, sizes = [], []
    for name in real:
        if pd.api.types.is_numeric_dtype(real[name]):
            ends = np.unique(np.quantile(real[name], np.linspace(0, 1, _PARTS + 1)))[1:-1]
            both = [np.searchsorted(ends, table[name], side="right") for table in (real, made)]
            size = len(ends) + 1
        else:
            joined = pd.concat([real[name], made[name]]).astype(str)
            found, names = pd.factorize(joined)
            both, size = [found[: len(real)], found[len(real) :]], len(names)
        codes.append(both)
        sizes.append(size)
    gaps = []
    for i, j in combinations(range(len(codes)), 2):
        shares = [
            np.bincount(one * sizes[j] + two, minlength=sizes[i] * sizes[j]) / len(one)
            for one, two in zip(codes[i], codes[j], strict=True)
        ]
        gaps.append(np.abs(shares[0] - shares[1]).sum() / 2.0)
    return float(np.mean(gaps))


def people_table(frame: pd.DataFrame, targets: dict[str, float]) -> pd.DataFrame:
    """Return means over seeds, beside those of the central tables and of complete ones."""
    keys = ["dataset", "epsilon", "method", "missing"]
    values = numbers_of(frame, "people", [*keys, "seed"], sort=False)
    if values.empty:
        return pd.DataFrame()
    means, counts = values.groupby(level=keys, sort=False).mean(), values.groupby(level=keys).size()
    by_key: dict[Any, dict[str, float]] = {key: dict(own) for key, own in means.iterrows()}
    found: dict[Any, dict[str, Any]] = {}
    for key, own in by_key.items():
        dataset, epsilon, method, missing = key
        cells: dict[str, Any] = {name: f"{own[name]:.3f}" for name in _MEASURES}
        central = [(dataset, epsilon, method + of, COMPLETE) for of in (CENTRAL, SMALL)]
        others = [by_key[of] for of in central if of in by_key]
        if method in ("mst", "aim") and missing == COMPLETE:
            cells["KS"] = verdict(own["KS"] <= targets["distance"], cells["KS"])
            if others:
                auc = max(other["AUC"] for other in others) - targets["auc"]
                tv = min(other["TV"] for other in others) * targets["variation"]
                cells["AUC"] = at_least(own["AUC"], auc)
                cells["TV"] = at_most(own["TV"], tv)
        elif method in ("mst", "aim") and missing != ALL_LACK:
            auc = by_key[dataset, epsilon, method, COMPLETE]["AUC"] - targets["complete"]
            cells["AUC"] = at_least(own["AUC"], auc)
        spread = values.xs(key, level=keys)["AUC"].std()
        cells["AUC of seeds, SD"] = "" if spread != spread else f"{spread:.3f}"
        cells["rounds"] = f"{own['rounds']:.0f}" if own["rounds"] else ""
        found[key] = {**cells, "seeds": int(counts[key])}
    return indexed(found, keys)
