"""The study of synthetic tables: its attacks find copies, and verdicts follow from the numbers."""

import numpy as np
import pandas as pd
import pytest

from simulations.replications import Job
from simulations.synthesis.attacks import COPIES, attack, attack_jobs
from simulations.synthesis.data import generate
from simulations.synthesis.people import CENTRAL, grade, people_table

pytestmark = pytest.mark.studies

PART = {
    "epsilons": [1.0],
    "people": [2.0],
    "predicates": 60,
    "datasets": {"generated": {"rows": 150, "runs": 1}, "Bank": {"rows": 150, "runs": 0}},
}


@pytest.fixture(scope="module")
def tried():
    jobs = attack_jobs(PART, {"generated": "of a seed", "Bank": ""})
    chosen = [job for job in jobs if job.settings["method"] in (COPIES, "VCDS")]
    made = [attack(job, {"generated": pd.DataFrame()}) for job in chosen]
    return jobs, chosen, made


def test_each_method_is_attacked_at_each_epsilon(tried):
    settings = [(job.settings["method"], job.settings["epsilon"]) for job in tried[0]]
    assert settings == [
        ("VCDS", 1.0), ("EVCDS", 1.0), ("mst", 2.0), ("aim", 2.0), ("EVCDS, rearranged", 1.0),
        (COPIES, "none"),
    ]  # fmt: skip


def test_attacks_find_the_members_own_rows_and_count_all(tried):
    _, chosen, made = tried
    copies = dict(zip((job.settings["method"] for job in chosen), made, strict=True))[COPIES]
    assert copies["membership|members"] == copies["membership|attacks"] == 150
    assert copies["membership|others"] == 0
    assert copies["singling out, 1 column|members"] == copies["singling out, 1 column|attacks"]
    guessed = [name for name in copies if name.startswith("inference: ")]
    assert len(guessed) == 3 * 9
    assert min(v for name, v in copies.items() if "|members" in name and "infer" in name) > 100


def test_central_tables_are_graded_like_ours_and_beside_them():
    whole = generate(900, seed=0)
    whole["dear"] = np.where(whole["income"] > whole["income"].median(), "yes", "no")
    common = {"epsilon": 1.0, "missing": "complete", "seed": 0, "rows": 600, "label": "dear"}
    common |= {"dataset": "A table", "drop": [], "delta": 1e-5}
    made = {"a_table_mst_1_0": whole.sample(600, random_state=1), "A table": whole}
    frames = []
    for method in ("mst" + CENTRAL, "mst"):
        job = Job("people", {"method": method, **common})
        found = grade(job, made)
        of = {**job.settings, "drop": "", "part": "people"}
        frames += [{**of, "metric": name, "value": value} for name, value in found.items()]
    goals = {"auc": 0.01, "complete": 0.02, "variation": 1.1, "distance": 0.03}
    table = people_table(pd.DataFrame(frames), goals)
    central, ours = table["TV"].to_list()
    assert float(central) < 0.1
    assert ours.startswith("FAIL")  # real rows have less variation than noisy counts
