"""From the name of a method to the rows that it generates.

A method of the preset has a ``kind``:

=========  =====================================================================================
floor      one of `floors.FLOORS`
local      one of `generators.GENERATORS`, of B alone
fedpsg     the library's FedPSG-AR over both parties
normal     the library's joint normal model of both parties' codes
copula     the library's copula methods, which synthesise all columns: quality only
truth      aligned rows of both parties, which have distances of dependence and margins only
joint      the library's VertiGAN, which synthesises all columns and the label
=========  =====================================================================================

``fedpsg`` may have its first attributes from a local generator (``first`` = "ag": those that
correlate with A's most, "cag": with others of B's), and impute the others over both parties, or in
B alone (``imputes`` = "B"). With ``with_labels`` party A hands over the labels as an attribute of
its own; what B is given then tells of them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import Strategy, simulate
from simulations.fedpsg.data import CODES, Joint, Task, coded
from simulations.fedpsg.floors import FLOORS
from simulations.fedpsg.generators import GENERATORS
from simulations.fedpsg.pooled import Imputation, impute
from strategies.copula import EVCDS, VCDS
from strategies.fedpsg import FedPSGAR
from strategies.normal import JointNormal
from strategies.vertigan import VertiGAN

NETWORKS = ("gain", "cgain", "vgain")


def generate(task: Task, joint: Joint, settings: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of B that a method generates, on the index of the missing ones."""
    method, seed = settings["how"], settings["seed"]
    kind = method["kind"]
    if kind == "floor":
        return FLOORS[method["name"]](task, joint.a, seed)
    if kind == "local":
        return local_rows(task, method["name"], settings["networks"]["local_iterations"], seed)
    if kind == "fedpsg":
        return _fedpsg(task, joint, settings)
    if kind == "normal":
        return run_over(task.encoded(CODES, joint.a), JointNormal(), seed).loc[task.missing]
    raise ValueError(f"a method of kind {kind!r} generates no rows of B")


_KEPT: dict[tuple[Any, ...], pd.DataFrame] = {}


def local_rows(task: Task, name: str, iterations: int, seed: int) -> pd.DataFrame:
    """Return rows of a local generator; the last ones are kept, since several methods use them."""
    key = (name, iterations, seed, len(task.seen), tuple(task.seen.index[:50]), len(task.truth),
           tuple(task.seen.columns))  # fmt: skip
    if key not in _KEPT:
        _KEPT.clear()
        made = GENERATORS[name](iterations, seed)
        made.fit(task.seen)
        _KEPT[key] = made.sample(len(task.truth)).set_axis(task.missing)
    return _KEPT[key]


def _fedpsg(task: Task, joint: Joint, settings: dict[str, Any]) -> pd.DataFrame:
    given, trained, seed = dict(settings["how"]), settings["networks"], settings["seed"]
    cnum = min(settings["cnum"], task.whole.shape[1])
    del given["kind"]
    first, imputes = given.pop("first", "ar"), given.pop("imputes", "A and B")
    encoding = given.pop("encoding", CODES)
    imputer = given.pop("imputer", "mean")
    a = joint.a
    if given.pop("with_labels", False):
        # A holds the labels, so it can give them as one of its attributes.
        a = a.assign(label=joint.labels)
        task = replace(task, a=a.loc[task.a.index])
    work = task.encoded(encoding, a)
    if imputer not in NETWORKS and first == "ar":
        return run_fedpsg(work, cnum, seed, imputer=imputer, **given).loc[task.missing]
    networks: dict[str, Any] = {
        name: given.pop(name) for name in ("generator", "hidden") if name in given
    }
    begun = work.seen
    if first == "ar" and cnum:
        begun = run_fedpsg(work, cnum, seed, imputer="none", **given)
    begun = begun.reindex(work.a.index)
    if first != "ar":
        rows = local_rows(task, "TabDDPM", trained["local_iterations"], seed)
        names = first_attributes(work, first, cnum)
        part = coded(rows, task.whole) if encoding == CODES else rows
        begun.loc[task.missing, names] = part[names]
    if not begun.isna().to_numpy().any():
        return begun.loc[task.missing]
    tables = {"a": work.a, "b": begun} if imputes == "A and B" else {"b": begun}
    chosen = Imputation(imputer=imputer, iterations=trained["iterations"], **networks)
    return impute(tables, work.labels, chosen, seed)["b"].loc[task.missing]


def run_fedpsg(task: Task, cnum: int, seed: int, **settings: Any) -> pd.DataFrame:
    """Run FedPSG-AR over both parties, without rules if ``cnum`` is 0, and return B's table."""
    ruled: dict[str, Any] = {"variant": "ar", "n_associated": cnum} if cnum else {}
    return run_over(task, FedPSGAR(**ruled, **settings), seed)


def run_over(task: Task, strategy: Strategy, seed: int) -> pd.DataFrame:
    """Run a strategy over both parties, and return B's table."""
    # Codes are numbers here, although few different ones may occur.
    kinds = {
        party: {str(name): "continuous" for name in frame if frame[name].dtype == np.dtype(float)}
        for party, frame in (("a", task.a), ("b", task.seen))
    }
    result = simulate(
        strategy, {"a": task.a, "b": task.seen}, task.labels, seed=seed, kinds=kinds,
        progress=False,
    )  # fmt: skip
    return result.tables["b"]


def first_attributes(task: Task, by: str, count: int) -> list[str]:
    """Return the attributes that a local generator generates first."""
    own = coded(task.seen, task.whole)
    other = coded(task.a.loc[own.index], task.a)
    other.columns = [f"a {name}" for name in other]
    found = pd.concat([own, other], axis=1).corr(method="spearman").abs().fillna(0.0)
    among = list(other) if by == "ag" else list(own)
    table = found.loc[list(own), among].to_numpy(copy=True)
    if by == "cag":
        np.fill_diagonal(table, 0.0)
    best = pd.Series(table.max(axis=1), index=own.columns)
    return [str(name) for name in best.sort_values(ascending=False, kind="stable").index[:count]]


def copula_tables(task: Task, name: str, epsilon: float, seed: int) -> dict[str, pd.DataFrame]:
    """Return tables that a copula method makes of the aligned rows, as many rows as B lacks."""
    real = {"a": task.a.loc[task.seen.index], "b": task.seen}
    # As many rows as are compared elsewhere: distances have a part that is due to few rows.
    strategy = (VCDS if name == "VCDS" else EVCDS)(
        epsilon=epsilon, budget="per-variable", rows=len(task.truth)
    )
    result = simulate(strategy, real, aggregation="plain", seed=seed, progress=False)
    return {party: result.tables[party] for party in real}


def joint_tables(task: Task, rows: int, iterations: int, seed: int) -> dict[str, pd.DataFrame]:
    """Return new joint samples by VertiGAN, trained on the aligned ones: the paper's AB-GM."""
    aligned = task.seen.index
    labelled = task.a.loc[aligned].assign(label=task.labels.loc[aligned].map("class {:g}".format))
    strategy = VertiGAN(rows=rows, iterations=iterations)
    result = simulate(
        strategy, {"a": labelled, "b": task.seen}, aggregation="plain", seed=seed, progress=False
    )
    a = result.tables["a"].copy()
    a["label"] = a["label"].astype(str).str.removeprefix("class ").astype(float)
    return {"a": a, "b": result.tables["b"].loc[a.index]}
