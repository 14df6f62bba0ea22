"""A node's policy: what it reads, and what it refuses of a run."""

import pickle

import pytest

from apps.cli.policy_words import in_words
from flwr_vertical.errors import ConfigError, PolicyError
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.record import Policy
from flwr_vertical.policy.run_request import RunRequest, check_request, needed_keys, refusals
from flwr_vertical.settings import settings_of

WHO = "party 'bank'"
# Key of the policy, a value that forbids what is asked, one that allows it, and what is asked.
EACH = [
    ("strategies", "glm,fknn", "glm,vfem", RunRequest(strategy="vfem")),
    ("strategies", "", "any", RunRequest(strategy="vfem")),
    ("modules", "", "mine:Method", RunRequest(strategy="mine:Method")),
    ("modules", "mine:Other", "mine:Method", RunRequest(alignment="mine:Method")),
    ("aggregations", "masked", "any", RunRequest(aggregation="plain")),
    ("alignments", "private-id", "private-id,plain", RunRequest(alignment="plain")),
    ("exchanges", "distances", "sums", RunRequest(exchanges=("sums",))),
    ("labels", "", "default", RunRequest(label_column="default")),
    ("labels", "default", "income", RunRequest(label_column="income")),
    ("min-parties", 3, 2, RunRequest(n_parties=2)),
    ("max-epsilon", 0.5, 1, RunRequest(epsilon=1.0)),
]


@pytest.mark.parametrize(("key", "forbids", "allows", "request_"), EACH)
def test_each_key_allows_and_refuses(key, forbids, allows, request_):
    policy = read_policy(WHO, {f"policy.{key}": forbids})
    with pytest.raises(PolicyError) as caught:
        check_request(WHO, policy, request_)
    error = caught.value
    assert error.key == f"policy.{key}"
    assert all(part in str(error) for part in (WHO, error.key, error.asked, error.allowed))
    check_request(WHO, read_policy(WHO, {f"policy.{key}": allows}), request_)
    # What the refusal says is needed does allow it.
    changed = {one.key: one.needed for one in refusals(policy, request_)}
    assert refusals(read_policy(WHO, changed), request_) == []


def test_what_a_run_config_alone_must_not_get_is_refused_without_any_key():
    for asked in (
        {"alignment": "plain"}, {"aggregation": "plain"}, {"label_column": "income"},
        {"strategy": "os:path"}, {"alignment": "os:path"}, {"exchanges": ("sums",)},
        {"n_parties": 1},
    ):  # fmt: skip
        with pytest.raises(PolicyError, match="policy"):
            check_request(WHO, Policy(), RunRequest(**asked))
    ordinary = RunRequest("vfem", "masked", "private-id", 3, epsilon=1.0)
    assert refusals(read_policy(WHO, {"party": "bank", "data": "x.csv"}), ordinary) == []
    # Any method is not any module.
    policy = read_policy(WHO, {"policy.strategies": "any", "policy.modules": "any"})
    assert refusals(policy, RunRequest(strategy="victim:X"))


def test_a_run_is_told_all_keys_that_it_needs_at_once():
    request = RunRequest("mine:A", "plain", "mine:B", 1, "y", ("sums", "distances"))
    needed = needed_keys(request)
    assert set(needed) == {
        "policy.modules", "policy.aggregations", "policy.exchanges", "policy.labels",
        "policy.min-parties",
    }  # fmt: skip
    assert needed["policy.modules"] == ("mine:A", "mine:B")
    assert refusals(read_policy(WHO, needed), request) == []
    with pytest.raises(PolicyError, match=r"policy\.labels.*forbid it as well"):
        check_request(WHO, Policy(), request)


def test_what_a_run_config_asks_of_whom():
    config = {
        "strategy": "vfem", "aggregation": "ckks", "alignment": "plain", "label-holder": "bank",
        "label-column": "default", "parties": "bank, court",
    }  # fmt: skip
    asked = RunRequest.of(config, "bank", exchanges=["sums"])
    assert asked == RunRequest("vfem", "ckks", "plain", 2, "default", ("sums",))
    assert RunRequest.of(config, "court").label_column == ""
    assert RunRequest.of({**config, "parties": ""}, "bank").n_parties is None


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"policy.min-row": 200}, r"policy\.min-row .*did you mean 'min-rows'"),
        ({"policy.min_rows": 200}, "did you mean 'min-rows'"),
        ({"policy.blur": 1.0}, r"policy\.blur is no key .*was removed: .*'epsilon'"),
        ({"policy.min-rows": 0}, r"policy\.min-rows must be an integer of at least 1.*got 0"),
        ({"policy.min-rows": True}, "got True"),
        ({"policy.min-rows": "many"}, "got 'many'"),
        ({"policy.grid": 31}, "at most 30, got 31"),
        ({"policy.openings": -1.0}, "at least 0 or none, got -1"),
        ({"policy.epsilon-total": float("inf")}, "above 0.*got inf"),
        ({"policy.aggregations": "maskd"}, "maskd.*expected some of"),
        ({"policy.labels": 3}, "labels must be text"),
        ({"min-rows": -5}, "node config min-rows must be .* at least 1"),
        ({"min-rows": 50, "policy.min-rows": 60}, "set the same; keep one"),
        ({"policy": "a.toml", "policy.grid": 3}, "put all of them in one place"),
        ({"policy": "/nowhere/policy.toml"}, r"cannot be read \(No such file"),
    ],
)
def test_a_policy_that_cannot_be_used_says_which_key_what_came_and_what_is_allowed(config, says):
    with pytest.raises(ConfigError, match=says) as caught:
        read_policy(WHO, config)
    assert str(caught.value).startswith(WHO)


def test_a_file_says_the_same_as_keys(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text('min-rows = 200\nstrategies = ["vfem", "glm"]\nlabels = "default"\n')
    expected = {
        "policy.min-rows": 200, "policy.strategies": "vfem,glm", "policy.labels": "default"
    }  # fmt: skip
    assert read_policy(WHO, {"policy": str(file)}) == read_policy(WHO, expected)
    assert read_policy(WHO, expected).min_rows == 200
    file.write_text("min-rowss = 200\n")
    with pytest.raises(ConfigError, match=r"policy\.toml: min-rowss is no key.*'min-rows'"):
        read_policy(WHO, {"policy": str(file)})
    file.write_text("min-rows = = 2")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_policy(WHO, {"policy": str(file)})


def test_keys_without_the_prefix_set_the_same_policy():
    config = {"min-rows": 30, "exchanges": "sums,distances", "prediction-bits": 8, "max-epsilon": 1}
    assert read_policy(WHO, config) == Policy(
        min_rows=30, exchanges=("sums", "distances"), grid=8, max_epsilon=1.0
    )


def test_words_tell_every_key_apart():
    """Each key changes some sentence, so that none is left out of what its owner reads."""
    other = {
        "strategies": ("vfem",), "modules": ("a:B",), "aggregations": ("any",),
        "alignments": ("plain",), "exchanges": ("sums",), "labels": "y", "min_parties": 4,
        "min_rows": 7, "vectors": 3, "openings": 2.0, "grid": 5, "predictions": 9.0,
        "max_epsilon": 0.5, "epsilon_total": 8.0, "foreign_ids": 3.0,
    }  # fmt: skip
    assert set(other) == {item.name for item in settings_of(Policy)}
    plain = in_words(Policy())
    for name, value in other.items():
        assert in_words(Policy(**{name: value})) != plain, name


def test_refusals_cross_processes():
    error = PolicyError(WHO, "policy.labels", "a column", "none", "ask its owner")
    again = pickle.loads(pickle.dumps(error))
    assert (again.key, again.advice, str(again)) == (error.key, error.advice, str(error))


def test_an_app_may_use_the_key_parties_for_something_else():
    for other in (3, 0.5, True, [1, 2], {"a": 1}):
        assert RunRequest.of({"parties": other}, "bank").n_parties is None
        assert RunRequest.of({"parties": other}, "bank", n_parties=2).n_parties == 2
    for parties in ("bank, court", ["bank", "court"]):
        assert RunRequest.of({"parties": parties}, "bank").n_parties == 2
