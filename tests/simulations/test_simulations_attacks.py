"""The attack study's tables, targets and page, on numbers made by hand."""

import pandas as pd
import pytest

from simulations.__main__ import make_parser
from simulations.attacks import tables
from simulations.attacks.cases import cases, routed_cases
from simulations.attacks.deviating import OUTCOMES
from simulations.attacks.experiments import PARTS, replicate
from simulations.attacks.preset import Preset
from simulations.attacks.study import AttackStudy
from simulations.attacks.suite import ATTACKS, LABELS
from simulations.data import HERE
from simulations.page import FAIL, PASS, read_words
from simulations.preset import Options
from simulations.replications import Job
from strategies import BUILTIN

pytestmark = pytest.mark.studies


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    return Preset.load("attacks", Options(tmp_path_factory.mktemp("preset"), quick=True))


def numbers(server=0.0, allowed=0.0, gain=0.0, points=1.0, told=0.0, mode="masked"):
    """The numbers of a study with one strategy, two views and two attacks."""
    common = {"case": "mean", "mode": mode, "parties": 2, "seed": 0}
    found = {
        "server|distances|cells": server, "server|distances|columns": float(server > 0.5),
        "server|distances|allowed": allowed, "bank|labels|cells": gain, "smallest set": 107.0,
        "bank|distances|cells": 0.0, "bank|distances|columns": 0.0, "bank|distances|allowed": 0.0,
        "bank|labels|columns": 0.0, "bank|labels|allowed": 0.0,
    }  # fmt: skip
    parts = [
        ({"part": "grid", **common}, found),
        ({"part": "consented", **common}, found),
        ({"part": "synthetic", "case": "vcds"}, {"membership": points}),
        ({"part": "other labels", "repeated": 6}, {"0.01": 0.25}),
        ({"part": "labels", "case": "vfem"}, {"own": 0.26, "gain": gain}),
        ({"part": "rough", "case": "vfem", "mode": "masked"},
         {"server": 0.91, "own": 0.31, "party": 0.52}),
        ({"part": "routed", "case": "gbdt", "parties": 2},
         {"bits": 2.1, "of bits": 3.2, "blind": 0.76, "sign": 0.51}),
        ({"part": "deviating", "case": "mean", "mode": "ckks"}, {"refused": 1.0}),
        ({"part": "deviating", "case": "mean", "mode": "masked"},
         {"tries": 135.0, **dict.fromkeys(OUTCOMES, 27.0), "cells": told, "masked alike": 0.0}),
    ]  # fmt: skip
    return pd.DataFrame(
        [{**of, "metric": k, "value": v} for of, values in parts for k, v in values.items()]
    )


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        (numbers(), None),
        (numbers(server=0.3, allowed=0.3), None),
        (numbers(server=0.3, allowed=0.1), "cells beyond the outputs, any view"),
        (numbers(server=0.7), "whole columns beyond the outputs"),
        (numbers(server=0.7, mode="plain"), None),
        (numbers(gain=0.02), "labels at a party: R squared or AUC beyond its own columns"),
        (numbers(told=1.0), "a deviating server: cells told, messages masked alike"),
        (numbers(points=26.0), "synthetic tables: points above chance"),
    ],
)
def test_targets_follow_from_the_numbers(found, missed, preset):
    made = tables.targets(found, preset["targets"])
    assert (
        (made.loc[missed, "as expected"] == FAIL) if missed else (made["as expected"] == PASS).all()
    )


def test_tables_and_pages_show_what_was_found(tmp_path):
    study = AttackStudy(Options(tmp_path, quick=True))
    found = study.tables(numbers(server=0.7, allowed=0.2, gain=0.004))
    row = found["by_strategy"].loc[("masked", "mean")]
    assert row["server: cells"] == 0.7
    assert row["outputs alone"] == 0.2
    assert row["party: labels"] == 0.004
    assert row["strongest attack"] == "distances"
    assert found["by_attack"].loc["distances", "default: server"] == 0.7
    assert found["labels"].loc["vfem"].tolist() == [0.26, 0.004]
    assert found["rough"].loc[("masked", "vfem")].tolist() == [0.91, 0.31, 0.52]
    told = found["routed"].loc[("gbdt", 2)]
    names = ["server: bits of a cell", "of", "arbiter: signs right"]
    assert told[names].tolist() == [2.1, 3.2, 0.51]
    assert told.isna()["server: codes from histograms"]
    assert found["deviating"].loc[("masked", "mean")].tolist() == [135, *[27] * 5, 0, 0]
    assert len(found["deviating"]) == 1  # refused in ckks mode
    assert found["smallest_sets"].loc["mean", "rows"] == 107
    assert "0.25" in found["several"].to_string()
    text = study.page(found, [])
    assert all(part["heading"] in text for part in study.text["parts"])
    assert "| masked | mean | 0.7 | 1 | 0.2 | 0 | 0.004 | distances |" in text
    assert "--quick" in text


def test_every_attack_is_explained_and_every_strategy_is_a_case(preset):
    words = read_words(HERE / "attacks" / "page.toml")["attacks_in_words"]
    assert {*words} == {*ATTACKS, LABELS}
    every = [*cases(), *cases(consented=True), *routed_cases()]
    assert {case.strategy for case in every} == {*BUILTIN}
    assert not any(case.consented for case in cases())
    assert all(case.consented for case in cases(consented=True))
    jobs = preset.jobs()
    assert {job.part for job in jobs} == {*PARTS}
    assert {job.settings["case"] for job in jobs if job.part == "grid"} == {c.name for c in cases()}


def test_parts_give_numbers(preset):
    jobs = {job.part: job for job in preset.jobs()}
    found = replicate(jobs["scales"], None)
    assert found == {"found": 0.0, "consented": 1.0}
    (vfem,) = (j for j in preset.jobs() if j.part == "rough" and "vfem" in j.settings["case"])
    got = replicate(Job(vfem.part, vfem.settings | {"rows": 120, "parties": 2}), None)
    assert got["server"] > 0.9
    assert got["party"] > got["own"]
    (mean,) = (j for j in preset.jobs() if j.part == "grid" and j.settings["case"] == "mean")
    got = replicate(mean, None)
    assert got["server|distances|cells"] == 0.0
    assert {"bank|labels|cells", "server|pads used twice|allowed"} <= set(got)


def test_every_study_writes_a_page_and_what_is_none_does_not():
    parser = make_parser()
    for study in ("attacks", "fknn"):
        assert str(parser.parse_args([study, "--write", "x.md"]).write) == "x.md"
    with pytest.raises(SystemExit):
        parser.parse_args(["data", "--write", "x.md"])
