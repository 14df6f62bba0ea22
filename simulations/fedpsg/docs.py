"""The documentation's page of the study: the targets and the tables that were run."""

from collections.abc import Mapping

import pandas as pd

from simulations.attacks.docs import markdown_table
from simulations.fedpsg.page import PAPER, TITLES
from simulations.fedpsg.preset import Preset

COMMAND = "python -m simulations fedpsg --report --write docs/fedpsg-study.md"


def as_markdown(found: Mapping[str, pd.DataFrame], preset: Preset, absent: list[str]) -> str:
    """Return the page.

    Parameters
    ----------
    found : mapping of str to DataFrame
        The study's tables by name; those without rows were not run and are left out.
    preset : Preset
    absent : list of str
        Data sets that are not here.
    """
    networks = preset["networks"]
    notes = [
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
        "What has no row was not run: the command runs it, and goes on from what is there.",
    ]
    if absent:
        notes.append(f"Not here, so left out: {', '.join(absent)}.")
    parts = [
        "# FedPSG-AR beside the paper and beside floors\n",
        f"<!-- Written by `{COMMAND}` and the settings below; do not edit. -->\n",
        "\n".join(f"- {note}" for note in notes) + "\n",
    ]
    for name, title in TITLES.items():
        if len(found[name]):
            parts += [f"## {title}\n", markdown_table(found[name])]
    return "\n".join(parts)
