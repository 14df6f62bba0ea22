"""What owners read: commands on policies and ledgers, the deployment guide, their report."""

import json
import re
import stat
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.common.config import parse_config_args
from ledgered import Nodes, labels_of, tables

from apps.cli.main import main
from apps.ledger_section import ledger_sections
from apps.storage import AppStorage
from flwr_vertical.errors import PolicyError
from flwr_vertical.node.config import check_node_config
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.record import Policy, stated
from flwr_vertical.policy.requirements import exchanges_of
from flwr_vertical.policy.run_request import RunRequest, check_request, refusals
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.registry import make_strategy
from strategies.copula import VCDS
from strategies.fknn import FKNN
from strategies.predict import Predict
from strategies.vfem import VFEM

ROOT = Path(__file__).parents[2]
APP = str(ROOT)
GUIDE = (ROOT / "docs" / "deployment.md").read_text()
(CHAPTER,) = re.findall(r"\n## \d+\. What a node agrees to\n(.*?)\n## ", GUIDE, re.S)
BLOCKS = re.findall(r"\*\*An? (\w+)\*\*.*?```toml\n(.*?)```", CHAPTER, re.S)
assert [owner for owner, _ in BLOCKS] == ["bank", "hospital", "arbiter"]


def test_a_policy_in_words(capsys):
    config = "party='bank' data='bank.csv' policy.min-rows=250 policy.labels='default'"
    assert main(["policy", "--node-config", config]) == 0
    told = capsys.readouterr().out
    assert "party 'bank'" in told
    assert "describes fewer than 250" in told
    assert "policy.min-rows=250\n" in told
    assert "policy.grid=12   (default)" in told


def test_a_run_that_a_node_would_take_part_in(capsys, tmp_path):
    run = 'strategy="vfem" label-holder="bank" label-column="default" parties="bank,court"'
    node = "party='bank' policy.labels='default'"
    asked = ["policy", "--app", APP, "--run-config", run, "--node-config"]
    assert main([*asked, node]) == 0
    assert "would take part" in capsys.readouterr().out
    assert main([*asked, "party='bank'"]) == 1
    told = capsys.readouterr().out
    assert "policy.labels forbids it: asked: its column 'default' as labels" in told
    assert "\n  policy.labels='default'" in told
    assert main([*asked, "party='court'"]) == 0  # it is not asked for labels
    asked[2] = str(tmp_path)
    assert main([*asked, node]) == 2
    assert "is no Flower app" in capsys.readouterr().err
    assert main([*asked[:1], "--node-config", "party='bank' polcy.labels='default'"]) == 2
    assert "did you mean 'policy.labels'?" in capsys.readouterr().err  # not the defaults


def test_what_a_run_needs_is_enough_for_it(capsys):
    run = 'strategy="vcds" vcds.epsilon=3.0 aggregation="plain" alignment="plain"'
    asked = ["policy", "--app", APP, "--run-config", run, "--node-config"]
    assert main([*asked, "party='bank' max-epsilon=1.0"]) == 1
    told = capsys.readouterr().out.partition("node config:\n")[2].partition("node config:\n")[2]
    lines = [line.strip() for line in told.splitlines()]
    assert lines == [
        "policy.alignments='private-id,kkrt,blind-rsa,plain'",
        "policy.aggregations='masked,ckks,plain'",
        "policy.max-epsilon=3",
    ]
    assert main([*asked, f"party='bank' {' '.join(lines)}"]) == 0


def test_presets_need_no_key_but_consent_to_what_a_method_always_tells(capsys):
    for preset in sorted((ROOT / "apps").glob("*.toml")):
        found = main(["policy", "--app", APP, "--run-config", str(preset)])
        told = capsys.readouterr().out
        settings = tomllib.loads(preset.read_text())
        asked = exchanges_of(make_strategy(str(settings["strategy"]), settings))
        assert found == (1 if asked else 0), told
        needed = told.partition("would have to put into its node config:")[2].split()
        assert needed == ([f"policy.exchanges='{','.join(asked)}'"] if asked else []), told


def test_no_owner_is_asked_for_labels_that_nothing_uses(capsys):
    run = 'strategy="fknn" label-holder="bank" label-column="profit"'
    assert main(["policy", "--app", APP, "--node-config", "party='bank'", "-c", run]) == 2
    told = capsys.readouterr()
    assert "fknn uses no labels: take out label-holder" in told.err
    assert "policy.labels" not in told.out


def test_a_class_is_not_imported_to_be_explained(capsys):
    run = 'strategy="no.such.module:Class"'
    assert main(["policy", "--app", APP, "--run-config", run]) == 1
    assert "policy.modules='no.such.module:Class'" in capsys.readouterr().out


def test_a_policy_file_with_a_mistake(tmp_path, capsys):
    file = tmp_path / "bank.toml"
    file.write_text("labels = 'default'\nvector = 3\n")
    assert main(["policy", "--file", str(file)]) == 2
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
    assert main(["privacy-ledger", str(tmp_path)]) == 2
    assert "there is no privacy ledger in" in capsys.readouterr().err
    (tmp_path / "x.privacy-ledger.sqlite").write_text("x")
    assert main(["privacy-ledger", str(tmp_path)]) == 1
    assert "is damaged" in capsys.readouterr().err


def as_nodes_read(tmp_path):
    """Node configs by owner, through Flower's own parser, as ``--node-config FILE`` gives them."""
    texts = dict(BLOCKS)
    policy = tmp_path / "policy.toml"
    policy.write_text(texts["hospital"])
    files = {
        "bank": f'party = "bank"\ndata = "/srv/bank.csv"\n{texts["bank"]}',
        "hospital": f'party = "hospital"\ndata = "/srv/hospital.csv"\npolicy = "{policy}"\n',
        "arbiter": texts["arbiter"],
    }
    paths = {}
    for name, text in files.items():
        paths[name] = tmp_path / f"{name}.toml"
        paths[name].write_text(text)
    return {name: (str(path), parse_config_args([str(path)])) for name, path in paths.items()}


@pytest.mark.parametrize("owner", ["bank", "hospital", "arbiter"])
def test_each_is_read_and_explained(tmp_path, owner, capsys):
    path, config = as_nodes_read(tmp_path)[owner]
    check_node_config(owner, config)
    policy = read_policy(owner, config)
    assert len(stated(policy)) >= 3
    assert main(["policy", "--node-config", path]) == 0
    told = capsys.readouterr().out
    assert ("the arbiter" if owner == "arbiter" else f"party {owner!r}") in told
    for key in stated(policy):
        assert f"\n  policy.{key}=" in told
    if owner == "hospital":  # the file alone says the same
        assert main(["policy", "--file", str(tmp_path / "policy.toml")]) == 0
        assert capsys.readouterr().out.partition("\nAs keys")[2] == told.partition("\nAs keys")[2]


def request(**changes):
    asked = {"strategy": "vfem", "aggregation": "masked", "alignment": "private-id"}
    return RunRequest(**{**asked, "n_parties": 3, **changes})


def test_they_allow_what_the_guide_says_and_no_more(tmp_path):
    nodes = as_nodes_read(tmp_path)
    bank, hospital, arbiter = (
        read_policy(owner, nodes[owner][1]) for owner in ("bank", "hospital", "arbiter")
    )

    def keys(policy, **changes):
        return [one.key for one in refusals(policy, request(**changes))]

    assert keys(bank) == keys(hospital) == keys(arbiter, aggregation="ckks") == []
    assert keys(bank, label_column="profit") == []
    assert keys(bank, label_column="income") == ["policy.labels"]
    assert keys(bank, strategy="vcds") == keys(hospital, strategy="glm") == ["policy.strategies"]
    assert keys(hospital, strategy="complete-case", epsilon=1.0) == []
    assert keys(hospital, strategy="complete-case", epsilon=1.5) == ["policy.max-epsilon"]
    assert keys(hospital, n_parties=2) == keys(bank, n_parties=2) == ["policy.min-parties"]
    assert keys(bank, aggregation="ckks") == ["policy.aggregations"]
    assert keys(arbiter) == ["policy.aggregations"]
    assert keys(hospital, alignment="plain") == ["policy.alignments"]
    for policy in (bank, hospital):
        assert keys(policy, exchanges=("sums",)) == ["policy.exchanges"]
    assert (bank.vectors, bank.grid, bank.predictions) == (10, 6, 12)
    assert (hospital.epsilon_total, hospital.foreign_ids) == (6.0, 3.0)
    assert hospital.predictions == hospital.openings == 0


def test_the_refusal_that_the_guide_shows_is_what_a_node_says(tmp_path):
    hospital = read_policy("hospital", as_nodes_read(tmp_path)["hospital"][1])
    with pytest.raises(PolicyError) as caught:
        check_request("party 'hospital'", hospital, request(strategy="glm"))
    (shown,) = re.findall(r"```\n(party 'hospital' refuses.*?)\.\.\.\n```", CHAPTER, re.S)
    assert str(caught.value).startswith(shown.strip())


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Four runs: imputed, fitted, predicted, synthesised; and a fifth that is refused."""
    parties = tables()
    parties["bank"].iloc[::5, 0] = float("nan")
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), parties, AppStorage(), **{"min-rows": 20})
    nodes.state(policy_epsilon_total=40, policy_openings=150)
    nodes.run(FKNN(n_neighbors=2))
    nodes.write(tables())
    result = nodes.run(VFEM(), labels_of(tables(), unlabelled=20))
    nodes.run(Predict(result), fitted="run 2")
    nodes.refused("epsilon-total", VCDS(epsilon=2.0))
    nodes.run(VCDS(epsilon=0.1))
    return nodes


def text_of(page):
    """A page's rows of tables, without tags, one a line."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, flags=re.S)
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " | ", row)).strip() for row in rows]


def page_of(nodes, run, name="bank"):
    return (nodes.folder / "out" / name / f"run {run}" / f"{name}.html").read_text()


def test_a_report_says_where_the_node_stands(nodes, drawn):
    rows = "\n".join(text_of(page_of(nodes, 5)))
    bits = nodes.ledger().state["prediction_bits"]
    for what, so_far, allowed, key in (
        ("rows of the smallest of them", "130", "at least 20", "policy.min-rows"),
        ("most bits of one row in predictions", f"{bits:g}", "at most 24", "policy.predictions"),
        ("most bits of one row told otherwise", "44", "at most 150", "policy.openings"),
        ("epsilon spent", "7.589473268", "at most 40", "policy.epsilon-total"),
    ):
        line = next(row for row in rows.splitlines() if what in row)
        assert all(f"| {word} |" in line for word in (so_far, allowed, key)), line
    section = page_of(nodes, 5).split("<h2>What has left this node so far</h2>")[1]
    # Before the table, the share of each limit that is used.
    assert "data:image/svg" in section.split("<table>")[0]
    assert "<path" in next(ledger_sections(nodes.ledger(), Policy(), "run 5")).body[0]


def test_a_report_is_about_its_run_and_lists_all_before(nodes):
    first, fit, last = (page_of(nodes, run) for run in (1, 2, 5))
    assert "which 6 donors are nearest, in order" in first
    assert "terms of predictions" not in first
    assert "terms of predictions" in fit
    assert "which 6 donors" not in fit
    assert "Could see more by colluding" in fit
    assert "perturbed ranks and noisy margins of 2 columns" in last
    assert "All 5 runs, the latest first" in last
    assert "All 2 runs" in fit
    names = [row for row in text_of(last) if re.search(r"\| run \d \|", row)]
    assert [re.search(r"run (\d)", row)[1] for row in names] == ["5", "4", "3", "2", "1"]
    assert "vfem" in names[3]


def test_what_a_node_keeps_is_its_owner_s_alone(nodes):
    files = [path for path in (nodes.folder / "out").rglob("*") if path.is_file()]
    ends = {"".join(path.suffixes) for path in files}
    assert {".html", ".parquet", ".model.npz", ".privacy-ledger.sqlite"} <= ends
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
