"""The study's settings, from ``preset.toml``, and the jobs they ask for."""

from typing import Any

from simulations.attacks.cases import cases, routed_cases
from simulations.preset import StudyPreset
from simulations.replications import Job

REPEATED = ("grid", "consented", "rough", "labels", "routed", "deviating", "several")
SYNTHESES = ("vcds", "evcds", "ievcds")


class Preset(StudyPreset):
    """The settings of one run of the study."""

    repeated = REPEATED

    def jobs(self) -> list[Job]:
        """Return all jobs."""
        found = [*self._grid(), *self._consented(), *self._rough()]
        found += [*self._labels(), *self._routed(), *self._deviating()]
        return [*found, *self._several()]

    def _grid(self) -> list[Job]:
        part = self["grid"]
        settings = [
            {"case": case.name, "mode": mode, "parties": n_parties}
            for mode in part["modes"]
            for n_parties in (
                part["parties"] if mode == "masked" else [part["other_modes_parties"]]
            )
            for case in cases()
        ]
        return _jobs("grid", part, settings)

    def _consented(self) -> list[Job]:
        part = self["consented"]
        settings = [
            {"case": case.name, "mode": mode, "parties": n_parties}
            for mode in part["modes"]
            for n_parties in part["parties"]
            for case in cases(consented=True)
        ]
        return _jobs("consented", part, settings)

    def _rough(self) -> list[Job]:
        part = self["rough"]
        settings = [
            {"case": case.name, "mode": mode, "parties": part["parties"]}
            for mode in part["modes"]
            for case in cases(consented=True)
        ]
        return _jobs("rough", part, settings)

    def _labels(self) -> list[Job]:
        part = self["labels"]
        settings = [{"case": name, "parties": part["parties"]} for name in part["cases"]]
        return _jobs("labels", part, settings)

    def _routed(self) -> list[Job]:
        part = self["routed"]
        settings = [
            {"case": case.name, "trees": part["trees"], "parties": n_parties}
            for n_parties in part["parties"]
            for case in routed_cases()
        ]
        return _jobs("routed", part, settings)

    def _deviating(self) -> list[Job]:
        part = self["deviating"]
        every = [*cases(), *cases(consented=True), *routed_cases()]
        settings = [
            {"case": case.name, "mode": mode, "parties": part["parties"]}
            for mode in part["modes"]
            for case in every
            if case.name in (part["cases"] or [case.name])
        ]
        return _jobs("deviating", part, settings)

    def _several(self) -> list[Job]:
        part = self["several"]
        found = _jobs(
            "other labels",
            part,
            [{"repeated": runs, "parties": 3} for runs in part["repeated_runs"]],
        )
        found += _jobs("one label less", part, [{"parties": 3}])
        found += _jobs("chosen model", part, [{"parties": 3}])
        found += _jobs("flags from predictions", part, [{"flags": n} for n in part["flags"]])
        found += _jobs("scales", part, [{}])
        synthetic = {"rows": part["synthetic_rows"], "replications": part["synthetic_runs"]}
        found += _jobs("synthetic", part, [{"case": name} | synthetic for name in SYNTHESES])
        return found


def _jobs(name: str, part: dict[str, Any], settings: list[dict[str, Any]]) -> list[Job]:
    return [
        Job(name, {"rows": part["rows"], "seed": seed, **chosen})
        for chosen in settings
        for seed in range(part["runs"])
    ]
