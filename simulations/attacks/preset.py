"""The study's settings, from ``preset.toml``, and the jobs they ask for."""

from collections.abc import Iterable, Mapping
from typing import Any

from simulations.attacks.cases import cases, routed_cases
from simulations.preset import StudyPreset
from simulations.replications import Job, grid

SYNTHESES = ("vcds", "evcds", "ievcds")


class Preset(StudyPreset):
    """The settings of one run of the study."""

    def jobs(self) -> list[Job]:
        """Return all jobs."""
        default, asked = ([case.name for case in cases(consented)] for consented in (False, True))
        routed = [case.name for case in routed_cases()]
        only = self["deviating"]["cases"]
        tried = [name for name in (*default, *asked, *routed) if not only or name in only]
        part, other = self["grid"], [self["grid"]["other_modes_parties"]]
        modes = [
            (mode, n_parties)
            for mode in part["modes"]
            for n_parties in (part["parties"] if mode == "masked" else other)
        ]
        return [
            *self._jobs("grid", {("mode", "parties"): modes, "case": default}),
            *self._jobs("consented", {"mode": "modes", "parties": "parties", "case": asked}),
            *self._jobs("rough", {"mode": "modes", "case": asked, "parties": "parties"}),
            *self._jobs("labels", {"case": "cases", "parties": "parties"}),
            *self._jobs("routed", {"parties": "parties", "case": routed, "trees": "trees"}),
            *self._jobs("deviating", {"mode": "modes", "case": tried, "parties": "parties"}),
            *self._jobs("several", {"repeated": "repeated_runs", "parties": [3]}, "other labels"),
            *self._jobs("several", {"parties": [3]}, "one label less"),
            *self._jobs("several", {"parties": [3]}, "chosen model"),
            *self._jobs("several", {"flags": "flags"}, "flags from predictions"),
            *self._jobs("several", {}, "scales"),
            *self._jobs(
                "several",
                {"case": SYNTHESES, "rows": "synthetic_rows", "replications": "synthetic_runs"},
                "synthetic",
            ),
        ]

    def _jobs(
        self, section: str, axes: Mapping[Any, str | Iterable[Any]], name: str = ""
    ) -> list[Job]:
        """Return a job for each combination of values, or of those that settings so named have."""
        part = self[section]
        named = {key: part[of] if isinstance(of, str) else of for key, of in axes.items()}
        listed = {key: of if isinstance(of, Iterable) else [of] for key, of in named.items()}
        seeds = range(part["runs"])
        return grid(name or section, {"rows": [part["rows"]], **listed, "seed": seeds})
