"""`flwr-vertical check` as a user types it."""

import contextlib
import json
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from apps.cli.check import check_nodes, configs_of, trial, try_strategy
from apps.cli.check.page import show_page
from apps.cli.check.trial import Trial, scaled
from apps.cli.main import main
from flwr_vertical import Federation, LocalGrid, Party, party_app, simulate, step
from flwr_vertical.errors import ConfigError
from flwr_vertical.tables import check_table
from strategies.baselines import Mean

N = 60


def tables():
    rng = np.random.default_rng(0)
    ids = pd.Index([f"c{i:03}" for i in range(N)], name="customer")
    bank = pd.DataFrame({"income": rng.normal(size=N), "city": ["a", "b", "c"] * (N // 3)}, ids)
    bank.iloc[::7, 0] = np.nan
    court = pd.DataFrame({"debts": rng.normal(size=N), "late": [0, 1] * (N // 2)}, ids)
    return {"bank": bank, "court": court.iloc[10:]}


@pytest.fixture
def folder(tmp_path):
    for name, frame in tables().items():
        frame.to_csv(tmp_path / f"{name}.csv")
    (tmp_path / "readme.txt").write_text("no table")
    return tmp_path


def test_a_clean_folder(folder, capsys):
    assert main(["check", str(folder), "--strict"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "bank.csv: 60 rows, 2 columns, text IDs" in lines[0]
    assert [line.strip() for line in lines[1:3]] == ["1 continuous: income", "1 categorical: city"]
    patterns = [line.split() for line in lines[lines.index("samples by who has them:") + 1 :]]
    assert patterns[:3] == [["bank", "court", "samples"], ["yes", "yes", "50"], ["yes", "-", "10"]]
    assert lines[-1] == "nothing suspicious found"


def test_warnings_fail_only_if_strict(folder, capsys):
    frame = tables()["bank"].assign(same=1, since="2024-05-01")
    frame.loc["c000", "since"] = "2024-05-02"
    frame.to_csv(folder / "bank.csv", sep=";")
    arguments = ["check", str(folder / "bank.csv"), "--id-column", "customer"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "warning: column 'same': all 60 observed cells are the same; drop it" in shown
    assert "csv.dates='days'" in shown
    assert "note: found out of the file: separator ';'" in shown
    assert shown.splitlines()[-1] == "0 errors, 2 warnings"
    assert main([*arguments, "--strict"]) == 1
    assert main([*arguments, "--strict", "--node-config", "csv.dates='days'"]) == 1
    assert "0 errors, 1 warning\n" in capsys.readouterr().out


def test_errors_fail_and_a_broken_table_does_not_hide_the_others(folder, capsys):
    (folder / "court.csv").write_text("customer,x\n7,1\n7,2\n8,\n")
    (folder / "shop.csv").write_bytes(b"")
    assert main(["check", str(folder), "--json", "--strategy", "mean"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {table["party"]: table["ids"] for table in found["tables"]} == {
        "bank": "text", "court": "integer", "shop": "",
    }  # fmt: skip
    codes = [[one["code"] for one in table["findings"]] for table in found["tables"]]
    assert codes == [[], ["ids"], ["file"]]
    assert found["strategies"][0]["refusal"] == "correct the errors of the tables first"
    assert (found["errors"], found["warnings"]) == (3, 0)  # two tables, one strategy


def test_ids_of_another_type(folder, capsys):
    court = tables()["court"].set_axis(range(50))
    court.rename_axis("customer").to_csv(folder / "court.csv")
    assert main(["check", str(folder)]) == 1
    assert "integer at court), so none of them match" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "nothing to check: name a table or a folder"),
        (["empty"], "empty holds no table; expected files in .csv"),
        ([".", "--node-config", "csv.dates='no'"], "csv.dates = 'no'; expected one of days"),
        ([".", "--node-config", "id-colum='id'"], "unknown key 'id-colum'"),
        ([".", "--strategy", "fkn"], "unknown strategy 'fkn' (did you mean 'fknn'?)"),
        ([".", "--strategy", "fknn", "--settings", "fknn.n-neighbours=3"], "fknn.n-neighbors"),
        ([".", "--strategy", "fknn", "--label-column", "city2"], "'city2' is in 0 tables"),
        (
            [".", "--label-column", "cty"],
            "'cty' is in 0 tables (did you mean 'city'?), expected one",
        ),
    ],
)
def test_wrong_options_are_one_line(folder, capsys, monkeypatch, arguments, why):
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder)
    assert main(["check", *arguments]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert why in shown
    assert len(shown.splitlines()) == 1


def test_the_data_of_a_node_may_be_a_database_or_a_folder_of_parquet(folder, capsys):
    bank = tables()["bank"].assign(same=1)
    with contextlib.closing(sqlite3.connect(folder / "bank.sqlite")) as database:
        bank.to_sql("customers", database)
    (folder / "parts").mkdir()
    for k in (0, 1):
        bank.iloc[k * 30 : k * 30 + 30].to_parquet(folder / "parts" / f"{k}.parquet")
    for data in (
        f"data='{folder / 'bank.sqlite'}' table='customers'",
        f"data='{folder / 'parts'}'",
    ):
        assert main(["check", "--node-config", f"party='bank' {data} id-column='customer'"]) == 0
        shown = capsys.readouterr().out
        assert "60 rows, 3 columns, text IDs" in shown
        assert "warning: column 'same': all 60 observed cells are the same" in shown


def test_the_first_pass_tells_all_that_ids_differ_by(tmp_path, capsys):
    ids = {"bank": [f"A{k:05d}" for k in range(N)], "court": [f" a{k:05d} " for k in range(N)]}
    ids["shop"] = [f"00{k}" for k in range(N - 2)] + ["  ", "007"]
    ids["web"] = list(range(N))
    for name, own in ids.items():
        frame = pd.DataFrame({"x": range(2, N + 2)}, pd.Index(own, name="id"))
        frame.to_csv(tmp_path / f"{name}.csv")
    assert main(["check", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "share 0 IDs, and 60 but for white space and upper and lower case; state" in shown
    assert "normalise-ids='strip,casefold' in the node config (or in the run config" in shown
    # Of a table that is refused for one thing, the others are told, too.
    assert "1 row whose sample ID repeats an earlier one" in shown
    assert "1 IDs are blank" in shown


def test_numbers_that_stand_for_missing_cells():
    ids = [f"c{k}" for k in range(N)]
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"height": rng.normal(170, 8, N), "income": rng.gamma(2, 2000, N)}, ids)
    frame["flag"], frame["visits"] = np.arange(N) % 2 * 2.0, rng.poisson(3, N)
    frame.iloc[::9, 0], frame.iloc[::8, 1] = 0, -999
    found = [one for one in check_table(frame) if one.code == "sentinel"]
    assert [(one.column, dict(one.mend)) for one in found] == [
        ("height", {"missing.height": "0"}), ("income", {"missing.income": "-999"}),
    ]  # fmt: skip


def test_two_files_of_one_party_are_refused(folder):
    (folder / "bank.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match="several tables named bank"):
        check_nodes(configs_of(folder))


def test_a_terminal_gets_a_page(folder):
    (folder / "court.csv").write_text("customer,[red]x\nc001,1\nc002,1\n")
    checks = check_nodes(configs_of(folder))
    checks.trials = [Trial("mean", rounds=4.0, traffic=2048.0, seconds=0.5)]
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
    show_page(checks, console)
    shown = console.export_text()
    for part in ("bank", "1 continuous", "[red]x", "warning", "samples by who has them", "4 rounds",
                 "2.0 kB", "0 errors, 1 warning"):  # fmt: skip
        assert part in shown


def test_strategies_are_asked_themselves(folder, capsys):
    """In a process of its own: one refuses so few rows, the other runs; its cost is exact."""
    arguments = ["check", str(folder), "--label-column", "late", "--json"]
    assert main([*arguments, "--strategy", "svm", "--strategy", "mean"]) == 1
    refused, ran = json.loads(capsys.readouterr().out)["strategies"]
    assert "43 labelled samples that all parties hold" in refused["refusal"]
    given = tables()
    del given["court"]["late"]
    result = simulate(Mean(), given, alignment=Mean.default_alignment)
    assert ran["rounds"] == result.ledger.rounds
    # Keys and masked numbers are random; their headers differ by some bytes.
    traffic = result.ledger.bytes_up + result.ledger.bytes_down
    assert ran["traffic_bytes"] == pytest.approx(traffic, rel=0.02)
    assert ran["scaled_from"] == 0
    assert 0 < ran["memory_bytes"] < 1e9 or not Path("/proc/self/status").exists()


def test_a_forecast_is_of_the_run_that_the_config_states(folder, capsys, monkeypatch):
    def run_here(tasks, limit):
        return [trial._run_one(0.0, **task) for task in tasks]

    monkeypatch.setattr(trial, "_run_apart", run_here)

    def rounds_and_bytes(*given):
        assert main(["check", str(folder), "--json", "--strategy", "fknn", *given]) == 0
        (ran,) = json.loads(capsys.readouterr().out)["strategies"]
        return ran["rounds"], ran["traffic_bytes"]

    usual, least = rounds_and_bytes(), rounds_and_bytes("--settings", 'alignment="plain"')
    assert least[0] < usual[0]
    fewer = rounds_and_bytes("--settings", 'align-rows="intersection" run-name="a"')
    held_out = rounds_and_bytes("--node-config", "hold-out=0.4")
    assert fewer[1] < 0.9 * usual[1] < usual[1] * 1.1 < held_out[1]
    for wrong in ('agregation="ckks"', "fkn.n-neighbors=3", 'aggregation="sum"'):
        assert main(["check", str(folder), "--strategy", "fknn", "--settings", wrong]) == 2
        assert wrong.split("=")[0][1:] in capsys.readouterr().err


def test_a_forecast_of_a_pipeline_hides_cells_from_its_imputations(folder, capsys):
    def traffic(*given):
        stages = '[{"name": "impute", "strategy": "fknn"}]'
        settings = f"pipeline.stages='{stages}'"
        asked = ["--strategy", "pipeline", "--settings", settings, *given]
        assert main(["check", str(folder), "--json", *asked]) == 0
        (ran,) = json.loads(capsys.readouterr().out)["strategies"]
        assert not ran["refusal"]
        return ran["traffic_bytes"]

    assert 1.1 * traffic() < traffic("--node-config", "hold-out=0.4")


def test_what_needs_no_process_to_say():
    trial_of = try_strategy("svm", {}, tables())
    assert trial_of.text() == "refuses: it needs labels, and none are given"
    unknown = try_strategy("mean", {"mean.scale": 2}, tables(), named=False)
    assert "has no settings ['scale']" in unknown.refusal


def test_a_run_that_takes_too_long_is_scaled_from_samples(monkeypatch):
    index = [f"c{i}" for i in range(4000)]
    asked = []

    def run_apart(tasks, limit):
        asked.append([{name: len(f) for name, f in task["tables"].items()} for task in tasks])
        if len(tasks) == 1:
            return [None]
        return [{"rounds": 10.0, "traffic": 1000.0, "seconds": 1.0, "memory": 2e6},
                {"rounds": 10.0, "traffic": 1900.0, "seconds": 4.0, "memory": 3e6}]  # fmt: skip

    monkeypatch.setattr(trial, "_run_apart", run_apart)
    parties = {name: pd.DataFrame({"x": 1.0}, index) for name in ("bank", "court")}
    found = try_strategy("mean", {}, parties)
    assert asked[1] == [{"bank": n, "court": n} for n in (250, 500, 1000, 2000)]
    assert (found.rounds, found.traffic, found.seconds) == (10.0, 1000 + 900 * 15, 4 * 8.0**2)
    assert "rough: scaled from 250 and 500 of 4,000 samples" in found.text()
    assert "with 17.0 MB of memory for all; with the network" in found.text()
    # Few rows cost in other ways than many, so the last two that ended are scaled.
    costs = {250: 1.0, 500: 20.0, 1000: 30.0, 2000: 50.0}

    def run_some(tasks, limit):
        sizes = [len(task["tables"]["bank"]) for task in tasks]
        return [dict.fromkeys(trial._COSTS, costs[n]) if n in costs else None for n in sizes]

    monkeypatch.setattr(trial, "_run_apart", run_some)
    assert try_strategy("mean", {}, parties).traffic == 50.0 + 20.0 * 2
    assert try_strategy("mean", {}, parties).scaled_from == 2000
    monkeypatch.setattr(trial, "_run_apart", lambda tasks, limit: [None] * len(tasks))
    assert (
        "no refusal, and no estimate: none on all 4,000" in try_strategy("mean", {}, parties).text()
    )


@pytest.mark.parametrize(
    ("power", "expected"), [(0, 1.0), (0.5, None), (1, 16.0), (2, 256.0), (5, 2**5 * 8.0**3)]
)
def test_scaling_is_right_for_powers(power, expected):
    found = scaled(1.0, 2.0**power, 8.0)
    # Below proportion the line lies above the power: the estimate is on the safe side.
    assert found == pytest.approx(expected) if expected else found > 16**power


class Looking(Party):
    @step
    def look(self):
        return {"rows": self.table.n_samples}


def test_the_party_writes_into_its_own_log_once_a_run(folder, caplog):
    frame = tables()["bank"].assign(paid="1.234,5", day="2024-05-01")
    frame.loc["c001", ["paid", "day"]] = ["2,5", "2024-05-02"]
    frame.to_csv(folder / "bank.csv", sep=";", decimal=",")
    node = {"party": "bank", "data": str(folder / "bank.csv"), "output": str(folder / "out"),
            "policy.min-parties": 1}  # fmt: skip
    with LocalGrid(party_app(Looking), [node]) as grid, caplog.at_level("INFO", "flwr_vertical"):
        federation = Federation(grid)
        federation.open()
        for _ in range(2):
            assert federation.call("look") == {"bank": {"rows": N}}
        federation.close()
    said = [record for record in caplog.records if "its table" in record.getMessage()]
    texts = {record.getMessage(): record.levelname for record in said}
    assert len(texts) == len(said) == 4
    (dates,) = (text for text, level in texts.items() if level == "WARNING")
    assert dates.startswith("party 'bank': its table: column 'day': dates (year first) as text")
    assert any("separator ';'" in text for text in texts)
    assert any("column 'paid': read as numbers" in text for text in texts)
