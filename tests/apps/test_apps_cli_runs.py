"""Commands for runs that are finished, cross-validation, and what scripts read of all commands."""

import json
import pathlib
import tomllib
import warnings

import numpy as np
import pandas as pd
import pytest
from app_runs import DEFAULTS, ROOT, own_files, run_app, simulated

from apps.cli import cross_validate, main, run
from flwr_vertical import Result
from flwr_vertical.reports import report
from flwr_vertical.reports.report import report_html
from flwr_vertical.settings.toml import flat, toml_text
from flwr_vertical.tables.findings import DataWarning

N = 400


@pytest.fixture
def nodes(home):
    """Node configs of two parties in a folder, of which one holds the labels as well."""
    rng = np.random.default_rng(0)
    index = pd.Index([f"c{k:03d}" for k in range(N)], name="customer")
    u, v = rng.normal(size=(2, N))
    bank = pd.DataFrame({"u": u, "y": 1 + u - 2 * v + 0.5 * rng.normal(size=N)}, index)
    configs = own_files(home, bank=bank, court=pd.DataFrame({"v": v}, index))
    (home / "nodes").mkdir()
    for config in configs:
        (home / "nodes" / f"{config['party']}.toml").write_text(toml_text(config))
    return home / "nodes"


def read(capsys, *arguments, code=0):
    """Return the JSON that a command prints, which is all that it prints."""
    assert main.main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_runs_are_compared_and_reported_by_name_and_by_path(home, capsys, monkeypatch):
    run_app(simulated(2), run_name="five")
    run_app(simulated(2), run_name="three", **{"fknn.n-neighbors": 3})
    server = home / "results" / "server"
    found = read(capsys, "compare", "five", str(server / "three"))
    assert found["differ"] == ["n_neighbors"]
    five, three = found["runs"]
    assert (five["settings"]["n_neighbors"], three["settings"]["n_neighbors"]) == (5, 3)
    saved = Result.load(server / "three")
    assert three["metrics"] == saved.metrics
    assert three["rounds"] == saved.ledger.rounds
    assert three["bytes"] == saved.ledger.bytes_up + saved.ledger.bytes_down
    assert main.main(["compare", "five", "three"]) == 0
    lines = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["n_neighbors"] == ["n_neighbors", "5", "3"]
    assert "aggregation" not in lines  # they are alike in it

    (server / "five" / "report.html").unlink()
    monkeypatch.setattr(report, "report_html", report_html)  # a whole page
    assert main.main(["report", "five"]) == 0
    assert capsys.readouterr().out == f"{server / 'five' / 'report.html'}\n"
    assert "n_neighbors" in (server / "five" / "report.html").read_text()
    elsewhere = home / "page.html"
    said = read(capsys, "report", "three", "--output", str(elsewhere))
    assert said == {"run": "three", "strategy": "fknn", "report": str(elsewhere)}
    assert elsewhere.is_file()

    assert main.main(["report", "fiv"]) == 2
    said = capsys.readouterr().err
    assert "'fiv' is no finished run (did you mean 'five'?)" in said
    assert f"{server} has five, three" in said
    assert main.main(["compare", "five"]) == 2
    assert "two runs or more" in capsys.readouterr().err
    (home / "file").touch()
    page, why = home / "file" / "page", f"{home / 'file'} is a file, expected a folder"
    assert main.main(["report", "five", "--output", str(page)]) == 1
    assert f"error: cannot write into {page}: {why}" in capsys.readouterr().err
    assert main.main(["new", str(page)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {home / 'file'}")


def test_predict_runs_the_model_of_an_earlier_run(home, nodes, monkeypatch, capsys):
    configs = [flat(tomllib.loads(path.read_text())) for path in sorted(nodes.glob("*.toml"))]
    labels = pd.read_csv(home / "bank.csv", index_col=0)["y"]
    labels.to_csv(home / "labels.csv")
    run_app(configs, strategy="complete-case", run_name="fit", labels=str(home / "labels.csv"))

    def run_here(app, superlink, run_config, federation_config):
        given = flat(tomllib.loads(pathlib.Path(run_config[1]).read_text()))
        run_app(configs, **{"alignment": DEFAULTS["alignment"], **given})
        return 0

    monkeypatch.setattr(run, "local_options", lambda superlink: None)
    monkeypatch.setattr(run, "_stream", run_here)
    command = ["predict", "fit", str(ROOT), "nodes", "--run-config"]
    assert main.main([*command, 'run-name="later" alignment="plain"']) == 0
    found = Result.load(home / "results" / "server" / "later")
    assert found.strategy == "predict"
    assert np.corrcoef(found.predictions["prediction"], labels[found.predictions.index])[0, 1] > 0.9
    assert main.main([*command, 'strategy="vfem"']) == 2
    assert "--run-config has strategy, which 'flwr-vertical predict' states" in (
        capsys.readouterr().err
    )


def test_own_tables_are_cross_validated_under_their_policies(home, nodes, capsys, monkeypatch):
    given = 'strategy="complete-case" label-holder="bank" label-column="y" alignment="plain"'
    command = ["cross-validate", "--nodes", str(nodes), "--run-config", given]
    command += ["--output", str(home / "page.html")]
    found = read(capsys, *command, "--folds", "2")
    assert found["scores"]["rmse"]["mean"] == pytest.approx(0.5, abs=0.1)
    assert [fold["fold"] for fold in found["folds"]] == [1, 2]
    assert found["report"] == str(home / "page.html")
    assert "Scores of withheld labels" in (home / "page.html").read_text()
    # Folds differ by fewer rows than a policy allows, and nodes count over all of them.
    assert main.main([*command, "--folds", "5"]) == 1
    assert "policy.min-rows" in capsys.readouterr().err
    monkeypatch.setattr(cross_validate, "cross_validate", None)  # would be called
    command[-1] = str(home / "page.html" / "page.html")
    assert main.main([*command, "--folds", "2"]) == 1
    assert "page.html is a file, expected a folder" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:party 'bank'")
def test_what_is_odd_about_a_table_is_said_once_without_a_place_in_the_code(capsys, monkeypatch):
    def carry_out(options):
        for _ in range(2):
            warnings.warn("party 'bank': column 'u' is constant", DataWarning, stacklevel=1)
        return 0

    shown = warnings.showwarning
    monkeypatch.setattr(main.stop, "run", carry_out)
    assert main.main(["stop"]) == 0
    assert capsys.readouterr().err == "warning: party 'bank': column 'u' is constant\n"
    assert warnings.showwarning is shown


def test_settings_are_compared_on_demonstration_data(home, capsys):
    given = 'strategy="complete-case" demo.dataset="diabetes" demo.missing-cells=0.0'
    command = ["cross-validate", "--run-config", given, "--folds", "2", "--grid"]
    found = read(capsys, *command, "complete-case.intercept=[true,false]")
    assert found["settings"]["intercept"] is True
    assert [one["intercept"] for one in found["candidates"]] == [True, False]
    assert pathlib.Path(found["report"]).parent == home / "results" / "cross-validation"
    assert main.main([*command, "complete-case.intercept=true"]) == 2
    assert "expected a setting of 'complete-case' and a list" in capsys.readouterr().err
    assert main.main(["cross-validate"]) == 2
    assert "name the strategy" in capsys.readouterr().err


def test_scripts_read_json_of_every_command_that_tells_something(home, nodes, capsys):
    names = [one["name"] for one in read(capsys, "strategies")]
    assert {"fknn", "vfem"} <= set(names)
    fknn = read(capsys, "strategies", "fknn")
    assert {one["key"] for one in fknn["settings"]} >= {"fknn.n-neighbors"}
    assert fknn["rounds"]["rounds after the alignment"][0]["step"]
    aligned = read(capsys, "align", str(home / "bank.csv"), str(home / "court.csv"))
    assert aligned["patterns"] == [{"bank": True, "court": True, "samples": N}]
    agreed = read(capsys, "policy", "--file", str(write(home, "max-epsilon = 2.0")))
    assert (agreed["policy"]["max-epsilon"], agreed["agrees"]) == (2.0, None)
    asked = ["--app", str(ROOT), "--run-config", 'strategy="fknn" alignment="plain"']
    refused = read(capsys, "policy", *asked, code=1)
    assert refused["agrees"] is False
    assert [one["key"] for one in refused["refusals"]] == ["policy.alignments"]
    checked = read(capsys, "check", str(home / "court.csv"))
    assert checked["tables"][0]["rows"] == N


def write(home, text):
    path = home / "policy.toml"
    path.write_text(text)
    return path
