"""The documentation's page of the study: the targets and the tables that were run."""

from collections.abc import Mapping

import pandas as pd

from simulations.attacks.docs import markdown_table
from simulations.fedpsg.page import PAPER, TITLES
from simulations.fedpsg.preset import Preset
from simulations.markdown import items

_FOLDED = ("tables12", "quality", "attributes", "experiment3_acc", "experiment3_f1")
"""Tables below all others, which a reader unfolds."""

COMMAND = "python -m simulations fedpsg --report --write docs/fedpsg-study.md"


def as_markdown(found: Mapping[str, pd.DataFrame], preset: Preset, absent: list[str]) -> str:
    """Return the page."""
    networks = preset["networks"]
    least = preset["targets"]
    notes = [
        "The replications behind this page are in [records/fedpsg.jsonl](records/fedpsg.jsonl), "
        f"so `{COMMAND}` makes it anew without running any, and a run without `--report` goes on "
        "from them.",
        f"{PAPER}. The paper's numbers are in brackets; 'seeds' is how many runs stand behind the "
        "numbers of a row.",
        f"Networks of FedPSG-AR took {networks['iterations']:,} training steps, local generators "
        f"{networks['local_iterations']:,}; the paper's took 10,000 each.",
        "RMSE is over all attributes of B's missing rows, as integer codes divided by each "
        "attribute's range. The paper does not say how levels enter its RMSE: on Letter its best "
        "numbers are worse than a random draw's, so its metric is another one.",
        "Read a number by the floors: a random row of B, the mean, and the conditional mean "
        "(gradient boosting on A's attributes), also with levels rounded to valid ones.",
        "'means, no rules' and 'draws, no rules' impute all attributes by FedPSG-AR's regressions "
        "(mice, forest) with n_associated=0; 'mean rule' and 'draw rule' have five attributes by "
        "rules first.",
        "'VF-MissFI' is `imputer='forest'`, which stands in for MissForest: leaves of trees drawn "
        "at random with fitted weights. MissForest's trees split where the values to be predicted "
        "say so, which another party must not see.",
        "'other true rows' are aligned rows of both parties beside the missing ones, as many if "
        "there are: their distances are due to few rows alone, so a target below them is below "
        "what B's own rows reach.",
        f"Classifiers: {least['few']} aligned samples count as few, {least['many']:,} as many.",
        "What has no row was not run: the command runs it, and goes on from what is there.",
    ]
    if absent:
        notes.append(
            f"Not here, so left out: {', '.join(absent)}; `python -m simulations data` says how to "
            "get it."
        )
    parts = [
        "# FedPSG-AR beside the paper and beside floors\n",
        f"<!-- Written by `{COMMAND}` and the settings below; do not edit. -->\n",
        items(notes),
    ]
    for name, title in TITLES.items():
        if len(found[name]) and name not in _FOLDED:
            parts += [f"## {title}\n", markdown_table(found[name])]
    parts.append("## Long tables\n")
    for name in _FOLDED:
        if len(found[name]):
            parts += [
                f"<details><summary>{TITLES[name]}</summary>\n",
                markdown_table(found[name]),
                "</details>\n",
            ]
    return "\n".join(parts)
