"""The study's settings, from ``preset.toml``, and the replications they ask for."""

from typing import Any

from simulations.preset import StudyPreset
from simulations.replications import Job, grid
from simulations.vfem.methods import BASELINES, STEADIED
from simulations.vfem.sample import MAR, MCAR

FINITE_METHODS = (*BASELINES, "VFEM", STEADIED)


class Preset(StudyPreset):
    """The settings of one run of the study."""

    def measured_jobs(self) -> list[Job]:
        """Return the jobs whose time and memory count, which run alone, one by one."""
        sme = self["sme"]
        axes = {"rows": [sme["rows"]], "seed": sme["seeds"], "method_name": sme["methods"]}
        return grid("sme", axes, sme=_generator(sme), **self["fit"])

    def jobs(self) -> list[Job]:
        """Return all jobs."""
        splits = self["splits"]
        return [
            *self.measured_jobs(),
            *self._finite(),
            *self._inference("inference"),
            *self._sme_like("splits", data_seed=splits["seed"], test_share=splits["test_share"]),
            *(
                job
                for name, changed in variants(self["repeats"]).items()
                for job in self._sme_like("repeats", variant=name, **changed)
            ),
            *self._correlated(),
            *self._apart(),
            *self._inference("parting"),
        ]

    def _finite(self) -> list[Job]:
        part, design = self["finite"], self["design"]
        others = len(design["parties"]) - 1
        cases = [
            (mechanism, rate, False) for mechanism in (MCAR, MAR) for rate in part["rates"]
        ] + [(MCAR, rate, True) for rate in part["first_rates"]]
        names = ("mechanism", "rate", "A too", "rates")
        axes = {
            "rows": sorted(part["rows"], reverse=True),
            names: [(*case, [case[1] if case[2] else 0.0, *[case[1]] * others]) for case in cases],
            "seed": range(part["runs"]),
        }
        fixed = {"held_out": part["held_out"], "methods": list(FINITE_METHODS), "design": design}
        return grid("finite", axes, **fixed, **self["fit"])

    def _inference(self, name: str) -> list[Job]:
        part = self[name]
        axes = {
            "rows": part["rows"],
            "cross": part["cross"],
            "seed": range(part["runs"]),
            "kind": part["kinds"],
        }
        return grid(name, axes, rates=part["rates"], design=self["design"], **self["fit"])

    def _correlated(self) -> list[Job]:
        part = self["correlated"]
        axes = {
            "correlation": part["correlations"],
            "rate": part["rates"],
            "seed": range(part["runs"]),
        }
        return grid("correlated", axes, **{key: part[key] for key in ("rows", "widths", "noise")})

    def _apart(self) -> list[Job]:
        part = self["apart"]
        fixed = {key: part[key] for key in ("rows", "correlation")}
        return [
            Job("apart", {"case": case, **fixed, **own, "seed": seed})
            for case, own in part["cases"].items()
            for seed in range(part["runs"])
        ]

    def _sme_like(self, name: str, **extra: Any) -> list[Job]:
        part = self[name]
        sme = _generator(self["sme"]) | {"methods": self["sme"]["methods"]}
        return [
            Job(name, {"rows": part["rows"], "seed": seed, **extra, "sme": sme, **self["fit"]})
            for seed in range(part["runs"])
        ]


def variants(repeats: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what is changed of the SME-like data, by the name of the variant."""
    return {
        "as above": {"shape": 0.0, "by label": False},
        "missing by the label": {"shape": 0.0, "by label": True},
        "log-normal columns": {"shape": repeats["log_normal"], "by label": False},
    }


def _generator(sme: dict[str, Any]) -> dict[str, Any]:
    """Return what the SME-like data depend on, and no more: other changes redo no replication."""
    wanted = ("parties", "complete_cases", "within", "structure_seed", "r2", "holder")
    return {key: sme[key] for key in wanted}
