"""The policies of the deployment guide are read by Flower and by a node as they stand there."""

import re
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from apps.cli.main import main
from flwr_vertical.errors import PolicyError
from flwr_vertical.node.config import check_node_config
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.record import Policy, stated
from flwr_vertical.policy.run_request import RunRequest, check_request, refusals

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "deployment.md").read_text()
(CHAPTER,) = re.findall(r"\n## \d+\. What a node agrees to\n(.*?)\n## ", GUIDE, re.S)
BLOCKS = re.findall(r"\*\*An? (\w+)\*\*.*?```toml\n(.*?)```", CHAPTER, re.S)


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


def test_the_guide_has_the_three():
    assert [owner for owner, _ in BLOCKS] == ["bank", "hospital", "arbiter"]


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


def test_without_any_key_it_is_as_the_guide_says():
    none = Policy()
    for key, asked in (
        ("policy.labels", {"label_column": "profit"}),
        ("policy.alignments", {"alignment": "plain"}),
        ("policy.exchanges", {"exchanges": ("sums",)}),
    ):
        assert [one.key for one in refusals(none, request(**asked))] == [key]
    assert refusals(none, request(strategy="vcds")) == []


def test_the_refusal_that_the_guide_shows_is_what_a_node_says(tmp_path):
    hospital = read_policy("hospital", as_nodes_read(tmp_path)["hospital"][1])
    with pytest.raises(PolicyError) as caught:
        check_request("party 'hospital'", hospital, request(strategy="glm"))
    (shown,) = re.findall(r"```\n(party 'hospital' refuses.*?)\.\.\.\n```", CHAPTER, re.S)
    assert str(caught.value).startswith(shown.strip())
