"""The study of synthetic tables: its attacks find copies, and verdicts follow from the numbers."""

import pandas as pd
import pytest

from simulations.replications import to_frame
from simulations.synthesis.attacks import COPIES, attack, attack_jobs, attack_table

PART = {
    "epsilons": [1.0],
    "predicates": 60,
    "datasets": {"generated": {"rows": 150, "runs": 1}, "Bank": {"rows": 150, "runs": 0}},
}


class Done:
    """Finished jobs, as a store has them."""

    def __init__(self, jobs, made):
        self.found = {job.key("test"): metrics for job, metrics in zip(jobs, made, strict=True)}


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


def test_verdicts_follow_from_pooled_counts(tried):
    _, chosen, made = tried
    frame = to_frame(chosen, Done(chosen, made), "test")
    table = attack_table(frame, 0.02)
    assert table.loc[("generated", COPIES, "none"), "membership"].startswith("+1.000 (+0.9")
    assert table.loc[("generated", COPIES, "none"), "seeds"] == 1
    fresh = table.loc[("generated", "VCDS", 1.0)]
    counts = made[0]
    gain = (counts["linkability|members"] - counts["linkability|others"]) / 150
    verdict = "PASS" if gain <= 0.02 else "FAIL"
    assert fresh["parties linked"].startswith(f"{verdict} {gain:+.3f} (")
    # A second seed with the same counts leaves the gain and narrows its interval.
    twice = attack_table(pd.concat([frame, frame.assign(seed=1)]), 0.02)
    once, again = (of.loc[("generated", COPIES, "none"), "parties linked"] for of in (table, twice))
    assert once.split(" ")[0] == again.split(" ")[0]
    assert once != again
    assert attack_table(frame[frame["part"] == "tables"], 0.02).empty
