"""``flwr-vertical policy`` and ``flwr-vertical privacy-ledger``."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apps.cli.main import main
from flwr_vertical.policy.record import Policy
from flwr_vertical.policy.requirements import exchanges_of
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.registry import make_strategy

ROOT = str(Path(__file__).parents[2])


def test_a_policy_in_words(capsys):
    config = "party='bank' data='bank.csv' policy.min-rows=250 policy.labels='default'"
    assert main(["policy", "--node-config", config]) == 0
    told = capsys.readouterr().out
    assert "party 'bank'" in told
    assert "describes fewer than 250" in told
    assert "policy.min-rows=250\n" in told
    assert "policy.grid=12   (default)" in told


def test_a_run_that_a_node_would_take_part_in(capsys):
    run = 'strategy="vfem" label-holder="bank" label-column="default" parties="bank,court"'
    node = "party='bank' policy.labels='default'"
    asked = ["policy", "--app", ROOT, "--run-config", run, "--node-config"]
    assert main([*asked, node]) == 0
    assert "would take part" in capsys.readouterr().out
    assert main([*asked, "party='bank'"]) == 1
    told = capsys.readouterr().out
    assert "policy.labels forbids it: asked: its column 'default' as labels" in told
    assert "\n  policy.labels='default'" in told
    assert main([*asked, "party='court'"]) == 0  # it is not asked for labels


def test_what_a_run_needs_is_enough_for_it(capsys):
    run = 'strategy="vcds" vcds.epsilon=3.0 aggregation="plain" alignment="plain"'
    asked = ["policy", "--app", ROOT, "--run-config", run, "--node-config"]
    assert main([*asked, "party='bank' max-epsilon=1.0"]) == 1
    told = capsys.readouterr().out.partition("node config:\n")[2].partition("node config:\n")[2]
    lines = [line.strip() for line in told.splitlines()]
    assert lines == [
        "policy.alignments='private-id,blind-rsa,plain'",
        "policy.aggregations='masked,ckks,plain'",
        "policy.max-epsilon=3",
    ]
    assert main([*asked, f"party='bank' {' '.join(lines)}"]) == 0


@pytest.mark.parametrize("preset", sorted(path.name for path in Path(ROOT, "apps").glob("*.toml")))
def test_presets_need_no_key_but_consent_to_what_a_method_always_tells(preset, capsys):
    found = main(["policy", "--app", ROOT, "--run-config", f"{ROOT}/apps/{preset}"])
    told = capsys.readouterr().out
    settings = tomllib.loads(Path(ROOT, "apps", preset).read_text())
    asked = exchanges_of(make_strategy(str(settings["strategy"]), settings))
    assert found == (1 if asked else 0), told
    needed = told.partition("would have to put into its node config:")[2].split()
    assert needed == ([f"policy.exchanges='{','.join(asked)}'"] if asked else []), told


def test_a_class_is_not_imported_to_be_explained(capsys):
    run = 'strategy="no.such.module:Class"'
    assert main(["policy", "--app", ROOT, "--run-config", run]) == 1
    assert "policy.modules='no.such.module:Class'" in capsys.readouterr().out


def test_a_policy_file_with_a_mistake(tmp_path, capsys):
    file = tmp_path / "bank.toml"
    file.write_text("labels = 'default'\nvector = 3\n")
    assert main(["policy", "--file", str(file)]) == 1
    assert "vector is no key of a policy (did you mean 'vectors'?)" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path):
    policy = Policy(min_rows=10, epsilon_total=9.0)
    ledger = PrivacyLedger(tmp_path / "bank.privacy-ledger.sqlite", "bank", policy)
    rows = ledger.rows(pd.RangeIndex(300))
    for run in ("t1", "t2"):
        ledger.begin(run, f"study {run}", "vfem", {"seed": 3}, rows)
        ledger.check_and_note_rows(
            run, rows, np.arange(300) // 100, 10, n_vectors=2, commitment=b"y"
        )
    ledger.spend_epsilon("t2", 1.5, release=b"r", delta=1e-6, what="ranks with noise")
    mask = np.arange(300) < 50
    ledger.open_bits("t2", rows, mask, 7, content=b"m", predictions=True, what="predictions")
    return tmp_path


def test_a_ledger_is_printed(folder, capsys):
    assert main(["privacy-ledger", str(folder)]) == 0
    told = capsys.readouterr().out
    for words in ("party 'bank'", "study t1", "ranks with noise", "epsilon 1.5, delta 1e-06",
                  "7 bits of a row", "sums over groups of rows (again)"):  # fmt: skip
        assert words in told, words


def test_a_ledger_as_json(folder, capsys):
    assert main(["privacy-ledger", str(folder), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["party"] == "bank"
    assert found["state"] == {
        "rows": 300, "rows_told_of": 300, "sets": 3, "smallest_set": 100, "vectors": 2,
        "prediction_bits": 7.0, "other_bits": 0.0, "epsilon": 1.5, "delta": 1e-6, "releases": 1,
    }  # fmt: skip
    assert [run["name"] for run in found["runs"]] == ["study t1", "study t2"]
    assert [entry["kind"] for entry in found["entries"]] == [
        "rows", "rows", "epsilon", "predictions"
    ]  # fmt: skip
    assert [entry["n_vectors"] for entry in found["entries"]] == [2, 0, 0, 0]


def test_where_there_is_no_ledger(tmp_path, capsys):
    assert main(["privacy-ledger", str(tmp_path)]) == 1
    assert "there is no privacy ledger in" in capsys.readouterr().err
    (tmp_path / "x.privacy-ledger.sqlite").write_text("x")
    assert main(["privacy-ledger", str(tmp_path)]) == 1
    assert "is damaged" in capsys.readouterr().err
