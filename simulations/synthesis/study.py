"""The study of synthetic tables on real columns: margins, quality, attacks."""

import time
from typing import Any

import pandas as pd

from flwr_vertical import simulate
from flwr_vertical.grading.quality_score import quality_score
from flwr_vertical.privacy import seeded_noise
from simulations.data import Sources, fingerprint
from simulations.page import Tables, indexed, listed, verdict
from simulations.replications import Job, Metrics, grid, numbers_of
from simulations.study import Study
from simulations.synthesis import people
from simulations.synthesis.attacks import attack, attack_jobs, attack_table
from simulations.synthesis.data import ADULT, draw, load, split
from strategies.copula import VCDS


class SynthesisStudy(Study):
    """Bank Marketing, German Credit, motor data, generated columns and, where it is, Adult."""

    name = "synthesis"
    shared: dict[str, pd.DataFrame]

    @staticmethod
    def replicate(job: Job, data: dict[str, pd.DataFrame]) -> Metrics:
        """Make a table and measure it, or attack it."""
        return {"attacks": attack, "people": people.grade}.get(job.part, measure)(job, data)

    def prepare(self) -> dict[str, pd.DataFrame]:
        """Load the data sets."""
        sources = Sources.find(self.options.data)
        datasets = self.preset["attacks"]["datasets"].items()
        names = [*self.preset["tables"]["datasets"], *(name for name, of in datasets if of["runs"])]
        graded = self.preset["people"]
        if graded["runs"]:
            names += graded["datasets"]
        found = {name: load(name, sources) for name in dict.fromkeys(names)}
        return found | people.read_central(graded["central"])

    def jobs(self) -> list[Job]:
        """Return all jobs, seed by seed, with the fingerprints of their data."""
        part, graded = self.preset["tables"], self.preset["people"]
        fingerprints = {name: fingerprint([of]) for name, of in self.shared.items()}
        if ADULT in graded["datasets"] and not len(self.shared.get(ADULT, [])):
            fingerprints[ADULT] = graded["datasets"][ADULT]["kept"]
        axes = {
            "seed": range(part["runs"]),
            ("dataset", "data"): [(name, fingerprints[name]) for name in part["datasets"]],
            "epsilon": part["epsilons"],
            "method": part["methods"],
        }
        tables = grid("tables", axes, rows=part["rows"])
        attacks = attack_jobs(self.preset["attacks"], fingerprints)
        return tables + attacks + people.people_jobs(graded, fingerprints)

    def chosen(self) -> list[Job]:
        """Return the jobs whose tables are there: Adult and central tables need not be."""
        return [job for job in self.jobs() if self._can(job)]

    def _can(self, job: Job) -> bool:
        of = job.settings
        if job.part != "people":
            return True
        if of["method"].endswith((people.CENTRAL, people.SMALL)):
            return people.central_name(of) in self.shared and len(self.shared[of["dataset"]]) > 0
        return len(self.shared[of["dataset"]]) > 0

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return quality, distances and gains of attacks."""
        targets = self.preset["targets"]
        keys = ["dataset", "epsilon", "method"]
        values = numbers_of(frame, "tables", [*keys, "seed"])
        means, counts = values.groupby(level=keys).mean(), values.groupby(level=keys).size()
        names = ["quality", "column shapes", "pair trends", "CPU seconds"]
        quality = means[names].round(3).astype(object).assign(seeds=counts)
        for key in quality.index:
            dataset, epsilon, method = key
            if dataset in targets["quality_of"] and epsilon == 1 and method == "tree":
                own = means.loc[key, "quality"]
                quality.loc[key, "quality"] = _judged(own, targets["quality"], least=True)
        rows: dict[Any, dict[str, Any]] = {}
        sizes = means["rows"].to_dict()
        of_columns = [str(name) for name in values if str(name).startswith("KS ")]
        for key, own in values[of_columns].groupby(level=keys):
            dataset, epsilon, method = key
            own = own.dropna(axis=1, how="all")
            limit = targets["distance"].get(f"{epsilon:g}")
            largest = float(own.mean().max())
            judged = limit is not None and method == "tree"
            rows[key] = {
                "rows": int(sizes[key]),
                "columns": own.shape[1],
                "largest mean over seeds": _judged(largest, limit) if judged else round(largest, 3),
                "of": str(own.mean().idxmax()).removeprefix("KS "),
                "largest of any seed": round(float(own.max().max()), 3),
                "mean": round(float(own.mean().mean()), 3),
            }
        trees = values[of_columns].xs("tree", level="method").groupby(level=["dataset", "epsilon"])
        of_trees: Any = trees.mean()
        stacked = of_trees.rename(columns=lambda name: str(name).removeprefix("KS ")).stack()
        stacked = stacked.rename_axis(["dataset", "epsilon", "column"]).dropna()
        columns = stacked.unstack("epsilon").rename(columns=lambda e: f"epsilon {e:g}")
        return {
            "quality": quality,
            "distances": indexed(rows, keys),
            "columns": columns.round(3),
            "people": people.people_table(frame, targets["people"]),
            "attacks": attack_table(frame, targets["gain"]),
        }

    def words(self, found: Tables) -> dict[str, Any]:
        """Return how many rows there are."""
        graded, attacked = (self.preset[part]["datasets"] for part in ("people", "attacks"))
        return {
            "people_rows": listed(graded, "{0} {1[rows]:,} (label {1[label]})"),
            "attacked_rows": listed(attacked, "{0} {1[rows]:,} and {1[rows]:,}, {1[runs]} times"),
        }


def measure(job: Job, data: dict[str, pd.DataFrame]) -> Metrics:
    """Make synthetic tables of one data set and measure them; nothing is stated of its columns."""
    settings = job.settings
    table = draw(settings["dataset"], data[settings["dataset"]], settings["rows"], settings["seed"])
    real = split(table)
    started = time.process_time()
    # The data are public, so the noise may be repeated: the study's numbers can be, too.
    with seeded_noise(settings["seed"]):
        strategy = VCDS(settings["epsilon"], margin=settings["method"])
        result = simulate(strategy, real, seed=settings["seed"], progress=False)
    seconds = time.process_time() - started
    score = quality_score(real, result.tables)
    made = pd.concat([result.tables[name] for name in real], axis=1)
    return {
        "quality": score.score,
        "column shapes": float(score.shapes.mean()),
        "pair trends": float(score.trends.mean()),
        "rows": float(len(table)),
        "CPU seconds": seconds,
        **{f"KS {name}": value for name, value in people.distances(table, made).items()},
    }


def _judged(value: float, limit: float, least: bool = False) -> str:
    good = value >= limit if least else value <= limit
    return verdict(good, f"{value:.3f} ({limit:g})")


open_study = SynthesisStudy
