"""The attack suite: every built-in strategy, recorded and attacked."""

from typing import Any

import pandas as pd

from simulations.attacks import tables
from simulations.attacks.experiments import replicate
from simulations.attacks.preset import Preset
from simulations.page import Tables
from simulations.study import Study


class AttackStudy(Study):
    """Attacks on the views of server, arbiter and parties."""

    name = "attacks"
    preset_class = Preset
    replicate = staticmethod(replicate)

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return what attacks find, by strategy, by attack and over several runs."""
        found, consented = tables.findings(frame, "grid"), tables.findings(frame, "consented")
        self._refused = tables.refused(frame)
        in_words = pd.DataFrame({"what it does": self.text["attacks_in_words"]})
        return {
            "attacks_in_words": in_words.rename_axis("attack"),
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

    def words(self, found: Tables) -> dict[str, Any]:
        """Return which strategies do not offer ckks."""
        refused = f" Without `ckks`: {', '.join(self._refused)}." if self._refused else ""
        return {"without_ckks": refused}


open_study = AttackStudy
