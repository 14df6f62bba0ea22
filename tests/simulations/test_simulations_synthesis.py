"""The study of synthetic tables: its attacks find copies, and verdicts follow from the numbers."""

import pandas as pd
import pytest

from simulations.synthesis.attacks import COPIES, attack, attack_jobs

pytestmark = pytest.mark.studies

PART = {
    "epsilons": [1.0],
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
        ("VCDS", 1.0), ("EVCDS", 1.0), ("EVCDS, rearranged", 1.0), (COPIES, "none")
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
