"""Attacks on synthetic tables of real columns, with members and as many others of one table."""

from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import simulate
from flwr_vertical.grading import risks
from flwr_vertical.grading.proportions import CONFIDENCE, Estimate, Rate, Risk
from flwr_vertical.privacy import seeded_noise
from simulations.page import indexed, verdict
from simulations.replications import Job, Metrics, grid
from simulations.synthesis.data import draw, split
from strategies.copula import EVCDS, VCDS
from strategies.marginals import AIM, MST

COPIES = "members' own rows"
PEOPLE = ("mst", "aim")
FRESH = ("VCDS", "EVCDS", *PEOPLE)
REARRANGED = "EVCDS, rearranged"
_KINDS = {
    "singling out, 1 column": "one column singles out",
    "singling out, 3 columns": "three columns single out",
    "linkability": "parties linked",
    "membership": "membership",
}
_SEPARATOR = "|"


def attack_jobs(part: dict[str, Any], fingerprints: dict[str, str]) -> list[Job]:
    """Return the jobs of the study's attacks."""
    trials = [
        (method, epsilon)
        for method in FRESH
        for epsilon in part["people" if method in PEOPLE else "epsilons"]
    ]
    trials += [(REARRANGED, max(part["epsilons"])), (COPIES, "none")]
    return [
        job
        for name, of in part["datasets"].items()
        for job in grid(
            "attacks",
            {("method", "epsilon"): trials, "seed": range(of["runs"])},
            dataset=name, rows=of["rows"], attacks=part["predicates"], data=fingerprints.get(name),
        )
    ]  # fmt: skip


def attack(job: Job, data: dict[str, pd.DataFrame]) -> Metrics:
    """Make synthetic rows of half of a table and attack them with both halves."""
    settings, seed = job.settings, job.settings["seed"]
    name, rows = settings["dataset"], settings["rows"]
    table = draw(name, data[name], 2 * rows, seed)
    order = np.random.default_rng(seed).permutation(len(table))
    members, others = (
        table.iloc[half].reset_index(drop=True) for half in (order[:rows], order[rows : 2 * rows])
    )
    real = split(members)
    made = members
    if settings["method"] != COPIES:
        tables = _synthesise(settings["method"], float(settings["epsilon"]), real, seed)
        made = pd.concat([tables[party] for party in real], axis=1).reset_index(drop=True)
        # Numbers of which nothing stands out of the noise are missing: an attacker takes any.
        made = made.fillna(dict.fromkeys(made.select_dtypes("number"), 0.0))
    left, right = ([str(column) for column in of] for of in real.values())
    found: list[Risk] = [
        *(risks.singling_out(members, others, made, k, settings["attacks"], seed) for k in (1, 3)),
        risks.linkability(members, others, made, left, right, n_attacks=rows, seed=seed),
        risks.membership(members, others, made, seed=seed),
        *risks.inferences(members, others, made, n_attacks=rows, seed=seed),
    ]
    return {
        f"{risk.attack}{_SEPARATOR}{what}": float(count)
        for risk in found
        for what, count in (
            ("members", risk.members.successes),
            ("others", risk.chance.successes),
            ("attacks", risk.members.n),
        )
    }


def _synthesise(
    method: str, epsilon: float, real: dict[str, pd.DataFrame], seed: int
) -> dict[str, pd.DataFrame]:
    strategies = {"VCDS": VCDS(epsilon), "mst": MST(epsilon), "aim": AIM(epsilon)}
    strategy = strategies.get(method) or EVCDS(epsilon, rearrange=method == REARRANGED)
    # The data are public, so the noise may be repeated: the study's numbers can be, too.
    with seeded_noise(seed):
        return simulate(strategy, real, seed=seed, progress=False).tables


def attack_table(frame: pd.DataFrame, most: float) -> pd.DataFrame:
    """Return what members risk above others, over all seeds, with 95 % intervals."""
    rows = frame[
        (frame["part"] == "attacks") & frame["metric"].str.contains(_SEPARATOR, regex=False)
    ]
    if rows.empty:
        return pd.DataFrame()
    names = rows["metric"].str.rsplit(_SEPARATOR, n=1, expand=True)
    rows = rows.assign(attack=names[0], what=names[1])
    keys = ["dataset", "method", "epsilon"]
    counts = rows.pivot_table(
        index=[*keys, "attack"], columns="what", values="value", aggfunc="sum", sort=False
    )
    seeds: dict[Any, int] = rows.groupby(keys)["seed"].nunique().to_dict()
    found: dict[Any, dict[str, Any]] = {}
    key: Any
    for key, own in counts.groupby(level=keys, sort=False):
        pooled = {
            str(name): _pooled(str(name), of) for name, of in own.droplevel([*keys]).iterrows()
        }
        guessed = [risk for name, risk in pooled.items() if name not in _KINDS]
        together = 1.0 - (1.0 - CONFIDENCE) / len(guessed)
        worst = max(guessed, key=lambda risk: risk.gain.value)
        gains = {title: pooled[name].gain for name, title in _KINDS.items()}
        gains["inference, mean"] = Estimate(
            *np.mean([risk.gain for risk in guessed], axis=0).tolist()
        )
        gains["inference, worst column"] = worst.gain_at(together)
        limit = most if key[1] in FRESH else None
        cells = {title: _cell(gain, limit) for title, gain in gains.items()}
        of = worst.attack.removeprefix("inference: ")
        found[key] = {**cells, "of": of, "seeds": seeds[key]}
    return indexed(found, keys)


def _pooled(attack: str, counts: "pd.Series[float]") -> Risk:
    n = int(counts["attacks"])
    return Risk(attack, Rate(int(counts["members"]), n), Rate(int(counts["others"]), n))


def _cell(gain: Estimate, most: float | None) -> str:
    text = f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
    return text if most is None else verdict(gain.value <= most, text)
