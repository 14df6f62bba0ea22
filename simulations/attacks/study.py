"""The attack suite: every built-in strategy, recorded and attacked."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pandas as pd

from simulations.attacks import tables
from simulations.attacks.docs import ATTACKS_IN_WORDS, INTRODUCTION, NOTES, TITLES
from simulations.attacks.experiments import replicate
from simulations.attacks.preset import Preset
from simulations.page import Part, Tables
from simulations.study import Study


class AttackStudy(Study):
    """Attacks on the views of server, arbiter and parties."""

    name = "attacks"
    title = "What was attacked, and what came of it"
    question = INTRODUCTION
    writes = "docs/attacks.md"
    goals: ClassVar[Mapping[str, str]] = {
        "targets": "No view gives a cell or a column beyond what the outputs allow, no party "
        "learns labels beyond what its own columns tell, a server that deviates is told no cell, "
        "and synthetic tables gain an attacker at most five points."
    }
    preset_class = Preset
    preset: Preset
    replicate = staticmethod(replicate)

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return what attacks find, by strategy, by attack and over several runs."""
        found, consented = tables.findings(frame, "grid"), tables.findings(frame, "consented")
        self._refused = tables.refused(frame)
        return {
            "attacks_in_words": pd.DataFrame({"what it does": ATTACKS_IN_WORDS}).rename_axis(
                "attack"
            ),
            "targets": tables.targets(frame, self.preset["targets"]),
            "by_strategy": tables.by_strategy(found),
            "consented": tables.by_strategy(consented),
            "rough": tables.rough(frame),
            "labels": tables.labels(frame),
            "routed": tables.routed(frame),
            "deviating": tables.deviating(frame),
            "by_attack": tables.by_attack(found, consented),
            "several": tables.several(frame),
            "smallest_sets": tables.smallest_sets(frame),
            "findings": pd.concat([found, consented], ignore_index=True),
        }

    def parts(self, found: Tables) -> Sequence[Part]:
        """Return the sections of the page."""
        notes = dict(NOTES)
        if self._refused:
            notes["by_strategy"] += f" Without `ckks`: {', '.join(self._refused)}."
        return [
            Part("The attacks", tables={"attacks_in_words": ""}),
            *(Part(title, notes[name], tables={name: ""}) for name, title in TITLES.items()),
        ]


open_study = AttackStudy
