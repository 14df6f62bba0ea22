"""The app's own code, driven over a LocalGrid: own files, labels, errors as users meet them."""

import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
import tomllib

import numpy as np
import pandas as pd
import pytest
from app_runs import DEFAULTS, ROOT, own_files, preset, run_app, simulated
from flwr.app import Context, RecordDict
from resuming import ServerKilled
from third_party import install_known_cells

from apps.client_app import pick
from apps.lock import taken
from apps.server_app import app as server_app
from apps.storage import AppStorage
from flwr_vertical import RecordingGrid, Result, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError, VerticalError
from flwr_vertical.incomplete.demo import demo_labels, demo_names, demo_tables
from flwr_vertical.server.federation import Federation
from flwr_vertical.server.journal import Journal
from flwr_vertical.settings.toml import flat, read_items, toml_text
from strategies.fknn import FKNN
from strategies.pipeline.stages import as_text, read_stages


@pytest.mark.parametrize(
    "aggregation",
    ["masked"] + [pytest.param(mode, marks=pytest.mark.slow) for mode in ("plain", "ckks")],
)
def test_demonstration_runs_and_keeps_tables_at_the_parties(home, aggregation):
    """By the names that the run asks for, or by the demonstration's; the last is the arbiter."""
    names = demo_names(2) if aggregation == "ckks" else ["bank", "court", "hospital"]
    settings = {} if aggregation == "ckks" else {"parties": ",".join(names)}
    run_app(simulated(3), aggregation=aggregation, checkpoint=aggregation == "ckks", **settings)
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]  # none is left
    nodes = json.loads((home / "results" / "server" / "node-names.json").read_text())
    assert sorted(nodes["nodes"].values()) == nodes["last"]
    assert set(nodes["last"]) - {"(arbiter)"} == set(names)
    parties = home / "results" / "parties" / "test"
    server = home / "results" / "server" / "test"
    assert sorted(path.name for path in parties.iterdir()) == sorted(
        f"{name}.{end}" for name in names for end in ("html", "parquet")
    )
    assert {p.stat().st_mode & 0o777 for p in parties.glob("*.parquet")} == {0o600}
    assert not list(server.rglob("*.parquet"))
    assert json.loads((server / "result.json").read_text())["strategy"] == "fknn"
    incomplete, _ = demo_tables(n_parties=len(names))
    for name, given in zip(names, incomplete.values(), strict=True):
        imputed = pd.read_parquet(parties / f"{name}.parquet")
        assert not imputed.isna().to_numpy().any()
        seen = given.notna().to_numpy()
        np.testing.assert_array_equal(
            imputed.loc[given.index].to_numpy()[seen], given.to_numpy()[seen]
        )


def test_a_demonstration_agrees_to_exchanges_that_tell_more(home):
    """Its data are public, and a simulated node has no owner to ask; own files have one."""
    given = preset("vfem", "demo.") | {"strategy": "vfem-iterations", "labels": "demo"}
    given["vfem-iterations.max-iter"] = 20
    run_app(simulated(2), **given)
    result = Result.load(home / "results" / "server" / "test")
    assert result.coefficients is not None
    keys = {"policy.alignments": "private-id,kkrt,blind-rsa,plain", "policy.exchanges": "sums"}
    assert result.needed_keys == dict.fromkeys(demo_names(2), keys)
    assert "policy.exchanges='sums'" in str(result)
    tables, _ = demo_tables(n_parties=2)
    with pytest.raises(PartyError, match=r"policy\.exchanges: asked: exchange 'sums'"):
        run_app(own_files(home, **tables), **given, run_name="again")


@pytest.mark.parametrize(("place", "who"), [(1, f"party {demo_names(2)[1]!r}"), (2, "the arbiter")])
def test_errors_name_simulated_nodes_as_results_do(home, place, who):
    nodes = simulated(3)
    nodes[place]["max-epsilom"] = 0.5
    with pytest.raises(PartyError, match=f"{who}: unknown key 'max-epsilom'"):
        run_app(nodes, aggregation="ckks")


def test_synthetic_tables_stay_at_the_parties_with_a_report_of_their_own(home, pages):
    nodes = simulated(2)
    nodes[1]["grade"] = False
    grid = run_app(nodes, wrap=RecordingGrid, **preset("vcds"))
    results = home / "results"
    for name, graded in zip(demo_names(2), (True, False), strict=True):
        made = pd.read_parquet(results / "parties" / "test" / f"{name}.parquet")
        assert len(made) == 435  # the samples that either party has
        assert all(str(i).startswith("synthetic-") for i in made.index)
        page = (results / "parties" / "test" / f"{name}.html").read_text()
        assert "Synthetic and observed values" in page
        assert ("attacks were tried on" in page) == graded
        assert ("Utility A: quality" in page or "Utility B: quality" in page) == graded
    # A grade is a function of real rows that no epsilon covers: nothing of it goes to the server.
    assert not any("Utility" in repr(message) for message in grid.transcript)
    server = results / "server" / "test"
    assert [path.name for path in server.rglob("*.parquet")] == ["labels.parquet"]
    assert len(pd.read_parquet(server / "labels.parquet")) == 435
    saved = json.loads((server / "result.json").read_text())
    assert "takes part in a comparison with every other record" in " ".join(
        saved["privacy"]["text"]
    )
    assert saved["graded"] is None
    assert "Utility" not in json.dumps(saved)


def test_a_node_may_limit_what_is_spent(home, bank, court):
    nodes = own_files(home, bank=bank, court=court)
    nodes[1]["max-epsilon"] = 0.5
    nodes[0]["policy.epsilon-total"] = 1000.0  # the first run may have spent something there
    with pytest.raises(PartyError, match=r"'court' refuses by policy\.max-epsilon.*allowed: 0\.5"):
        run_app(nodes, strategy="vcds")
    run_app(nodes, strategy="vcds", **{"vcds.epsilon": 0.5, "run-name": "less"})


def test_own_files_give_what_simulate_gives(home, bank, court):
    run_app(own_files(home, bank=bank, court=court))
    expected = simulate(FKNN(standardize=True), {"bank": bank, "court": court})
    for name, table in expected.tables.items():
        written = pd.read_parquet(home / f"{name}-out" / "test" / f"{name}.parquet")
        pd.testing.assert_frame_equal(written, table, check_index_type=False, check_names=False)


def test_new_rows_are_imputed_from_an_earlier_run(home, bank, court):
    nodes = own_files(home, bank=bank, court=court)
    run_app(nodes, run_name="train")
    new = bank.iloc[:2].set_axis(["n1", "n2"]).rename_axis("customer")
    new.loc["n1", "v"] = np.nan
    own_files(home, bank=new, court=court.iloc[:1].set_axis(["n1"]).rename_axis("customer"))
    run_app(nodes, run_name="later", fitted="train")
    written = pd.read_parquet(home / "bank-out" / "later" / "bank.parquet")
    assert list(written.index) == ["n1", "n2"]
    assert not written.isna().to_numpy().any()
    assert list(pd.read_parquet(home / "court-out" / "later" / "court.parquet").index) == [
        "n1",
        "n2",
    ]


def test_intervals_and_draws_stand_beside_the_table_and_new_rows_follow(home):
    given = preset("joint-normal", "demo.") | {"joint-normal.draws": 2}
    run_app(simulated(3), strategy="joint-normal", run_name="fit", **given)
    folder = home / "results" / "server"
    result = Result.load(folder / "fit")
    covered = [values["coverage"] for values in result.party_metrics.values()]
    assert len(covered) == 3
    assert 0.9 < np.mean(covered) < 1.0
    parties = home / "results" / "parties" / "fit"
    name = sorted(parties.glob("*.html"))[0].stem
    names = {path.name for path in parties.glob(f"{name}.*")} - {f"{name}.html"}
    assert names == {f"{name}.{end}" for end in
                     ("parquet", "model.npz", "intervals.parquet", "draw-1.parquet",
                      "draw-2.parquet")}  # fmt: skip
    run_app(simulated(3), strategy="joint-normal", run_name="later", fitted="fit", **given)
    assert Result.load(folder / "later").ledger.rounds == result.ledger.rounds - 1
    with pytest.raises(ConfigError, match="fitted names a result of 'joint-normal' that holds no"):
        run_app(simulated(3), strategy="joint-normal", run_name="third", fitted="later", **given)


def test_new_rows_are_predicted_with_what_each_side_kept_of_an_earlier_run(home):
    rng = np.random.default_rng(2)
    index = pd.Index([f"c{i}" for i in range(200)], name="customer")
    both = pd.DataFrame(rng.normal(size=(200, 2)), index, ["u", "debts"])
    y = (1 + both["u"] - 2 * both["debts"] + 0.1 * rng.normal(size=200)).rename("y")
    y.iloc[:160].to_csv(home / "labels.csv")
    tables = {"bank": both[["u"]], "court": both[["debts"]]}
    nodes = own_files(home, **{name: table.iloc[:160] for name, table in tables.items()})
    labels = {"labels": str(home / "labels.csv")}
    run_app(nodes, strategy="vfem", run_name="fit", **labels)
    own_files(home, **{name: table.iloc[160:] for name, table in tables.items()})
    run_app(nodes, strategy="predict", run_name="later", fitted="fit")
    found = Result.load(home / "results" / "server" / "later").predictions
    np.testing.assert_allclose(found.loc[index[160:], "prediction"], y.iloc[160:], atol=0.5)
    with pytest.raises(ConfigError, match="no model: name the run of the fit"):
        run_app(nodes, strategy="predict", run_name="another")
    with pytest.raises(DataError, match="gone holds no saved result"):
        run_app(nodes, strategy="predict", run_name="another", fitted="gone")


def test_a_deep_model_predicts_what_has_no_label_and_later_new_rows(home, caplog):
    """The preset's data, smaller networks; then own files, whose owners have to agree."""
    assert preset("false-vfl")["demo.missing-labels"] > 0
    given = {"demo.missing-blocks": 0.3, "demo.missing-labels": 0.25, "labels": "demo"}
    few = {"pretrain-epochs": 2, "epochs": 2, "h-dim": 4, "z-dim": 2, "width": 8}
    few["prediction-samples"] = 2
    given |= {f"false-vfl.{key}": value for key, value in few.items()}
    with caplog.at_level("INFO", logger="flwr_vertical"):
        logging.getLogger("flwr_vertical").addHandler(caplog.handler)
        run_app(simulated(2), strategy="false-vfl", run_name="fit", **given)
        logging.getLogger("flwr_vertical").removeHandler(caplog.handler)
    folder = home / "results" / "server"
    found = Result.load(folder / "fit").predictions
    unknown = demo_labels("breast-cancer", 0.25).isna()
    assert 0.2 * 569 < len(found) < 0.3 * 569
    assert unknown[found.index].all()
    where = folder / "fit" / "predictions.parquet"
    assert f"predictions of {len(found)} samples: {where}" in caplog.text
    run_app(simulated(2), strategy="predict", run_name="later", fitted="fit", **given)
    assert len(Result.load(folder / "later").predictions) > 500
    tables, _ = demo_tables(n_parties=2, missing_cells=0.0)
    with pytest.raises(PartyError, match=r"policy\.exchanges: asked: exchange 'embeddings'"):
        run_app(own_files(home, **tables), strategy="false-vfl", run_name="again", **given)


@pytest.mark.parametrize(("method", "n_nodes"), [("gbdt", 2), ("forest", 3)])
def test_trees_of_the_preset_grow_with_an_arbiter_and_predict_new_rows(home, method, n_nodes):
    """The last of the simulated nodes is the arbiter; predictions by boosted trees need none."""
    given = preset(method, "demo.")
    given |= {"labels": "demo", f"{method}.n-trees": 3, f"{method}.max-depth": 2}
    given |= {"gbdt.dependence": True} if method == "gbdt" else {}
    run_app(simulated(3), strategy=method, run_name="fit", **given)
    folder = home / "results" / "server"
    result = Result.load(folder / "fit")
    assert result.model["splits"].sum() >= 3
    told = list((home / "results/parties/fit").glob("*.partial-dependence.parquet"))
    assert len(told) == (2 if method == "gbdt" else 0)
    assert all(pd.read_parquet(path).index.name == "row" for path in told)  # which are no samples
    unknown = demo_labels("breast-cancer", given["demo.missing-labels"]).isna()
    found = result.predictions["probability_1"]
    assert 100 < len(found) <= unknown.sum()
    assert unknown[found.index].all()
    run_app(simulated(n_nodes), strategy="predict", run_name="later", fitted="fit", **given)
    again = Result.load(folder / "later").predictions["probability_1"]
    np.testing.assert_allclose(again[found.index], found, rtol=1e-12)


def test_labels_from_a_file_and_from_a_party(home, bank, court):
    labels = pd.Series(np.arange(40.0), index=bank.index, name="y")
    labels.to_csv(home / "labels.csv")
    run_app(own_files(home, bank=bank, court=court), labels=str(home / "labels.csv"))
    with_label = bank.assign(y=labels)
    nodes = own_files(home, bank=with_label.fillna(0.0), court=court)
    nodes = [node | {"policy.labels": "y", "policy.min-rows": 10} for node in nodes]
    held = {"strategy": "complete-case", "label_holder": "bank", "label_column": "y"}
    run_app(nodes, run_name="held", **held)
    # The label is no feature.
    own = Result.load(home / "results" / "server" / "held").coefficients.loc["bank"]
    assert list(own.index) == ["u", "v", "w"]


def test_predictions_are_compared_with_test_labels(home, pages):
    run_app(
        simulated(2), strategy="complete-case", labels="demo", test_labels="demo",
        **{"demo.dataset": "diabetes", "demo.missing-labels": 0.3, "demo.missing-cells": 0.0,
           "demo.missing-blocks": 0.0},
    )  # fmt: skip
    result = Result.load(home / "results" / "server" / "test")
    assert len(result.evaluation) == len(result.predictions) == round(0.3 * 442)
    rmse = result.evaluation.table()["rmse"]
    assert result.metrics["test_rmse"] == rmse["this run"] < 0.9 * rmse["constant"]
    page = (home / "results" / "server" / "test" / "report.html").read_text()
    assert "Predictions against true labels" in page


@pytest.fixture
def known_cells(home, monkeypatch):
    monkeypatch.syspath_prepend(install_known_cells(home / "elsewhere"))
    yield
    sys.modules.pop("somebody_elses", None)


@pytest.mark.usefixtures("known_cells")
def test_a_strategy_of_somebody_else_is_given_its_settings(home, bank, court):
    nodes = own_files(home, bank=bank, court=court)
    settings = '{"scale": 2.5, "columns": "u,debts"}'
    run_app(nodes, strategy="known-cells", settings=settings)
    saved = json.loads((home / "results" / "server" / "test" / "result.json").read_text())
    assert saved["metrics"]["cells"] == pytest.approx(2.5 * (39 + 38))
    assert saved["settings"]["columns"] == "u,debts"


@pytest.mark.usefixtures("known_cells")
def test_server_and_party_refuse_settings_that_cannot_be(home, bank, court):
    nodes = own_files(home, bank=bank, court=court)
    wrong = {"strategy": "known-cells", "settings": '{"scale": 0}'}
    with pytest.raises(ConfigError, match="strategy 'known-cells': scale must be a number above 0"):
        run_app(nodes, **wrong)
    context = Context(1, 1, dict(nodes[0]), RecordDict(), DEFAULTS | wrong)
    with pytest.raises(ConfigError, match="scale must be a number above 0"):
        pick(context)


def test_demo_data_are_seeded_and_complete():
    first, truth = demo_tables(seed=3)
    second, _ = demo_tables(seed=3)
    for name, table in first.items():
        pd.testing.assert_frame_equal(table, second[name])
        assert not truth[name].isna().to_numpy().any()
        assert abs(table.isna().to_numpy().mean() - 0.1) < 0.02
        assert abs(1 - len(table) / len(truth[name]) - 0.05) < 0.03
    assert len(demo_labels("wine")) == 178
    some, same = (demo_labels("wine", 0.25, seed=3) for _ in range(2))
    assert some.isna().sum() == round(0.25 * 178)
    pd.testing.assert_series_equal(some, same)
    pd.testing.assert_series_equal(some.dropna(), demo_labels("wine")[some.notna()])
    with pytest.raises(ConfigError, match="breast-cancer"):
        demo_tables("iris")
    with pytest.raises(ConfigError, match="13 columns"):
        demo_tables("wine", n_parties=14)


def test_label_holder_with_new_rows(home, bank, court):
    bank = bank.fillna(0.0)
    nodes = own_files(home, bank=bank.assign(y=2.0 * bank["u"]), court=court)
    nodes = [node | {"policy.labels": "y", "policy.min-rows": 10} for node in nodes]
    held = {"label_holder": "bank", "label_column": "y", "alignment": "private-id"}
    run_app(nodes, strategy="complete-case", run_name="train", **held)
    new = bank.iloc[:2].set_axis(["n1", "n2"]).rename_axis("customer").assign(y=[0.0, np.nan])
    own_files(home, bank=new, court=court.iloc[:2].set_axis(["n1", "n2"]).rename_axis("customer"))
    run_app(nodes, strategy="predict", run_name="later", fitted="train", **held)
    predicted = Result.load(home / "results" / "server" / "later").predictions["prediction"]
    # The server does not know IDs; each party knows which of its samples is which.
    names = pd.read_parquet(home / "bank-out" / "later" / "bank.names.parquet")["sample"]
    assert set(names) == {"aligned-0", "aligned-1"}
    assert set(predicted.index) == set(names)
    np.testing.assert_allclose(predicted[names["n2"]], 2.0 * new.loc["n2", "u"], atol=0.1)


def test_a_node_compares_held_out_cells_and_tells_nobody(home, pages):
    rng = np.random.default_rng(0)
    index = pd.Index([f"c{i}" for i in range(120)], name="customer")
    common = rng.normal(size=120)
    columns = {name: common + 0.2 * rng.normal(size=120) for name in ("u", "v", "debts")}
    both = pd.DataFrame(columns, index)
    nodes = own_files(home, bank=both[["u", "v"]], court=both[["debts"]])
    nodes[0]["hold-out"] = 0.1
    grid = run_app(nodes, wrap=RecordingGrid)
    folder = home / "bank-out" / "test"
    after = pd.read_parquet(folder / "bank.parquet")
    pd.testing.assert_frame_equal(after, both[["u", "v"]], check_names=False, rtol=1e-12)
    page = (folder / "bank.html").read_text()
    for part in ("Cells were held out of the run for this, and put back.", "rmse_mean",
                 "bank: fknn"):  # fmt: skip
        assert part in page
    assert "rmse_mean" not in (home / "court-out" / "test" / "court.html").read_text()
    text = (home / "results" / "server" / "test" / "result.json").read_text()
    # The server learns how many cells are missing, as in any run, and nothing of the comparison.
    assert 20 <= json.loads(text)["metrics"]["cells_imputed"] <= 24
    assert "skill" not in text
    assert not any("skill" in repr(message) for message in grid.transcript)


def test_a_pipeline_holds_cells_out_of_its_imputations_alone(home, pages):
    rng = np.random.default_rng(0)
    index = pd.Index([f"c{i}" for i in range(500)], name="customer")
    common = rng.normal(size=500)
    columns = {name: common + 0.3 * rng.normal(size=500) for name in ("u", "v", "debts")}
    both = pd.DataFrame(columns, index)
    labels = (both["u"] + both["debts"] + rng.normal(size=500)).rename("y")
    labels.to_csv(home / "labels.csv")
    nodes = own_files(home, bank=both[["u", "v"]], court=both[["debts"]])
    nodes[0]["hold-out"] = 0.2
    stages = [("explore", None), ("impute", "joint-normal"), ("impute-2", "mean"),
              ("fit", {"strategy": "glm", "penalty": "none"})]  # fmt: skip
    settings = {"pipeline.stages": as_text(read_stages(stages)), "labels": str(home / "labels.csv")}
    nodes = [node | {"policy.min-rows": 1, "policy.vectors": 999} for node in nodes]
    run_app(nodes, strategy="pipeline", **settings)
    folder = home / "bank-out" / "test"
    for name in ("bank.parquet", "bank.impute.parquet"):
        after = pd.read_parquet(folder / name)
        pd.testing.assert_frame_equal(after, both[["u", "v"]], check_names=False, rtol=1e-12)
    page = (folder / "bank.html").read_text()
    assert page.count("Cells were held out of the run for this, and put back.") == 2
    server = home / "results" / "server" / "test"
    stage = {n: Result.load(server / "stages" / f"{k}-{n}") for k, (n, _) in enumerate(stages, 1)}
    hidden = [stage[name].metrics["cells_imputed"] for name in ("impute", "impute-2")]
    assert 150 <= hidden[0] == hidden[1] <= 200  # a row keeps a cell
    # What comes before and after goes on with the values that were held out.
    assert "skill" not in (server / "result.json").read_text()
    x = np.column_stack([np.ones(500), both])
    expected = np.linalg.lstsq(x, labels, rcond=None)[0]
    found = Result.load(server).coefficients["estimate"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_ledger_tells_rows_with_cells_held_out_from_those_of_another_run(home, bank, court):
    (node, _) = own_files(home, bank=bank, court=court)
    versions = []
    for name, strategy in (("one", "fknn"), ("two", "fknn"), ("three", "glm")):
        config = DEFAULTS | {"strategy": strategy, "run-name": name}
        context = Context(1, 1, node | {"hold-out": 0.1}, RecordDict(), config)
        versions.append(AppStorage().data_version(context))
    assert len(set(versions)) == 3


class Breaking(RecordingGrid):
    """Breaks off after so many rounds."""

    left = 5

    def push_messages(self, messages):
        self.left -= 1
        if self.left < 0:
            raise OSError("the network is down")
        return super().push_messages(messages)


def test_a_run_that_broke_off_is_resumed(home, bank, court, monkeypatch):
    nodes = own_files(home, bank=bank, court=court)
    monkeypatch.setattr(Breaking, "left", 99)
    run_app(nodes, wrap=Breaking, run_name="whole")
    plain = {"checkpoint": True, "transport": "messages"}  # a channel would go round the break
    monkeypatch.setattr(Breaking, "left", 3)
    with pytest.raises(OSError, match="network") as caught:
        run_app(nodes, wrap=Breaking, **plain)
    assert "resume=true run-name='test'" in caught.value.__notes__[0]
    server = home / "results" / "server" / "test"
    assert [path.name for path in server.iterdir()] == [".flwr-vertical-journal"]
    assert (home / "bank-out" / "test" / ".checkpoint" / "bank.party").is_file()
    with pytest.raises(ConfigError, match="n_neighbors: 5 then, 3 now"):
        run_app(nodes, resume=True, **{"fknn.n-neighbors": 3})
    own_files(home, bank=bank + 1)
    with pytest.raises(PartyError, match="'bank': its data have changed"):
        run_app(nodes, resume=True)
    own_files(home, bank=bank)
    run_app(nodes, resume=True)
    assert (server / "result.json").is_file()
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]
    for name in ("bank", "court"):
        tables = (home / f"{name}-out" / run / f"{name}.parquet" for run in ("whole", "test"))
        pd.testing.assert_frame_equal(*map(pd.read_parquet, tables))


@pytest.mark.parametrize("at", ["report", "discard", "end"])
def test_a_run_killed_between_result_and_end_is_finished_by_resume(
    home, bank, court, monkeypatch, at
):
    nodes = own_files(home, bank=bank, court=court)

    def killed(*_):
        raise ServerKilled

    def killed_half_way(result, folder):
        result.save(folder)
        raise ServerKilled

    with monkeypatch.context() as patch:
        if at == "report":
            patch.setattr("apps.server_app.save_result", killed_half_way)
        elif at == "discard":
            patch.setattr(Journal, "discard", killed)
        if at == "end":  # all is there, and only Flower does not know
            run_app(nodes, checkpoint=True)
        else:
            with pytest.raises(ServerKilled):
                run_app(nodes, checkpoint=True)
    server = home / "results" / "server" / "test"
    assert (server / "result.json").is_file()
    assert (server / "report.html").is_file() == (at != "report")
    made = (home / "bank-out" / "test" / "bank.parquet").read_bytes()
    if at != "end":
        with pytest.raises(ConfigError, match=r"unfinished run of this name.*resume=true"):
            run_app(nodes)
    run_app(nodes, resume=True)
    assert (server / "report.html").is_file()
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]
    assert (home / "bank-out" / "test" / "bank.parquet").read_bytes() == made
    # Once more: it is finished, and nobody is asked for anything.
    run_app(nodes[:1], resume=True)
    with pytest.raises(ConfigError, match=r"was another one .*n_neighbors: 5 then, 3 now"):
        run_app(nodes, resume=True, **{"fknn.n-neighbors": 3})
    (server / "report.html").unlink()
    run_app(nodes, resume=True)
    assert (server / "report.html").is_file()


def test_a_second_run_of_a_name_is_refused_before_anything_is_computed(home, bank, court):
    nodes = own_files(home, bank=bank, court=court)
    run_app(nodes)
    server = home / "results" / "server" / "test"
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    grids = []
    with pytest.raises(ConfigError, match=rf"{server}.*use another run-name"):
        run_app(nodes, wrap=lambda grid: grids.append(RecordingGrid(grid)) or grids[0])
    assert grids[0].transcript == []
    # At the parties, too: the server's folder may be another one.
    with pytest.raises(PartyError, match=r"party '(bank|court)' has the result of an earlier run"):
        run_app(nodes, output=str(home / "elsewhere"))
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    run_app(nodes, run_name="second")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"labels": "nowhere.csv"}, "nowhere.csv does not exist"),
        ({"test_labels": "nowhere.csv"}, "nowhere.csv does not exist"),
        ({"strategy": "predict", "fitted": "first"}, "first holds no saved result"),
        ({"output": "/dev/null"}, "the lock of the run /dev/null.* cannot be written"),
        ({"strategy": "vfem"}, r"vfem needs labels: .*\('label-holder', 'label-column'\)"),
        ({"labels": "{labels}", "weights_column": "y"}, "strategy 'fknn': it takes no weights"),
        ({"resume": True}, "no run can be resumed from .*: it holds no journal"),
        ({"channel_bind": "192.0.2.1:7070"}, r"listen at channel-bind = '192.0.2.1:7070' \("),
        ({"channel_bind": "0.0.0.0:0"}, "set channel-address='HOST:PORT'"),
        ({"alignment": "by-hand"}, "by-hand"),
    ],
)  # fmt: skip
def test_what_the_server_can_check_alone_is_checked_before_a_node_is_asked(home, settings, says):
    labels = home / "labels.csv"
    labels.write_text("id,y\na,1\n")
    given = {k: v.format(labels=labels) if k == "labels" else v for k, v in settings.items()}
    grid = RecordingGrid(None)  # has no node, and cannot be asked for one
    context = Context(1, 1, {}, RecordDict(), DEFAULTS | {"run-name": "test"} | {
        key.replace("_", "-"): value for key, value in given.items()
    })  # fmt: skip
    with pytest.raises(VerticalError, match=says):
        server_app(grid, context)
    assert not [*(home / "results").rglob("*")]


def test_settings_of_several_options_are_put_together():
    """Of two options `flwr run` would keep the last setting of a strategy's table alone."""
    given = [
        str(ROOT / "apps" / "vfem.toml"),
        'vfem.covariance="block"',
        "vfem.noise-prior=2.0 seed=1",
    ]
    read = read_items(given)
    assert (read["strategy"], read["demo.dataset"], read["seed"]) == ("vfem", "blood-pressure", 1)
    found = read["vfem.covariance"], read["vfem.noise-prior"], read["vfem.intercept"]
    assert found == ("block", 2.0, True)
    assert flat(tomllib.loads(toml_text(read))) == read
    assert read_items([]) == {}


LATE_RAY = "RuntimeError: Timed out waiting for file /tmp/ray/session_1/gcs_server_port_d3b2"
FLWR = """#!{python}
import json, pathlib, sys
calls = pathlib.Path({calls!r})
if sys.argv[1] == "run":
    number = len(calls.read_text()) if calls.exists() else 0
    calls.write_text("." * (number + 1))
    print("Successfully started run 7")
    print({line!r} if number < {late} else "all is well")
else:
    failed = len(calls.read_text()) <= {late}
    status = "finished:failed" if failed else "finished:completed"
    details = "An error was encountered." if failed else ""
    print(json.dumps({{"runs": [{{"status": status, "status-details": details}}]}}))
"""


@pytest.mark.parametrize(("late", "code"), [(1, 0), (3, 1)])
def test_a_ray_that_does_not_start_is_started_again(tmp_path, monkeypatch, capsys, late, code):
    """Stands in for `flwr`, as no real Ray can be made late in a test."""
    from apps.cli import run

    calls, fake = tmp_path / "calls", tmp_path / "flwr"
    fake.write_text(FLWR.format(python=sys.executable, calls=str(calls), line=LATE_RAY, late=late))
    fake.chmod(0o700)
    monkeypatch.setattr(run, "_flwr", lambda: str(fake))
    assert run._stream(str(ROOT), None, [], []) == code
    shown = capsys.readouterr()
    assert "trying again (2 of 3)" in shown.out
    assert len(calls.read_text()) == min(late + 1, 3)
    assert ("run the command again" in shown.err) == bool(code)
    assert run._is_ray_start('  File "/lib/ray/_private/worker.py", line 1842, in init\n')
    assert not run._is_ray_start("RuntimeError: Timed out waiting for a party")


# -- one name, one run -----------------------------------------------------------------------


class Meanwhile(RecordingGrid):
    """Has something happen while a run is under way."""

    def push_messages(self, messages):
        happens, type(self).happens = type(self).happens, staticmethod(lambda: None)
        happens()
        return super().push_messages(messages)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["no checkpoint", "checkpoint"])
def test_a_second_run_of_a_name_is_refused_while_the_first_lasts(home, bank, court, checkpoint):
    nodes = own_files(home, bank=bank, court=court)
    refused = []

    def second():
        with pytest.raises(ConfigError) as caught:
            run_app(own_files(home, bank=bank, court=court), **{"fknn.n-neighbors": 3})
        refused.append(str(caught.value))

    Meanwhile.happens = staticmethod(second)
    run_app(nodes, wrap=Meanwhile, checkpoint=checkpoint)
    who = rf"run of the name 'test' is under way \(.*process {os.getpid()} on .*since .* UTC\)"
    assert [re.search(who, one) is not None for one in refused] == [True]
    server = home / "results" / "server"
    assert Result.load(server / "test").settings["n_neighbors"] == 5
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]


def test_a_result_that_came_meanwhile_is_not_replaced(home, bank, court):
    """As from a server on another machine, whose lock nobody sees here."""
    nodes = own_files(home, bank=bank, court=court)
    run_app(nodes, run_name="other", **{"fknn.n-neighbors": 3})
    server = home / "results" / "server"
    Meanwhile.happens = staticmethod(lambda: shutil.copytree(server / "other", server / "test"))
    with pytest.raises(ConfigError, match="holds another result than when this run began"):
        run_app(nodes, wrap=Meanwhile)
    assert Result.load(server / "test").settings["n_neighbors"] == 3


def test_a_run_that_is_resumed_waits_for_the_one_that_ends(home):
    folder = home / "results" / "server" / "test"
    ended = []

    def hold():
        with taken(folder, 1):
            held.set()
            time.sleep(0.5)
            ended.append(True)

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    with pytest.raises(ConfigError, match="is under way"), taken(folder, 2):
        pass
    with taken(folder, 2, patience=30.0):
        assert ended
    holder.join()


def test_a_run_that_was_killed_leaves_no_lock(home, bank, court):
    folder = home / "results" / "server" / "test"
    if (child := os.fork()) == 0:
        with taken(folder, 1):
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name for path in folder.parent.iterdir()] == [".flwr-vertical-test.lock"]
    run_app(own_files(home, bank=bank, court=court))
    assert Result.load(folder).strategy == "fknn"
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]


def test_a_pipeline_that_is_started_again_goes_on(home, bank, court, monkeypatch):
    stages = [{"name": "impute", "strategy": "mean"}, {"name": "fit", "strategy": "glm"}]
    labels = (bank["v"] + court["debts"].reindex(bank.index).fillna(0)).rename("y")
    labels.to_csv(home / "y.csv")
    nodes = [n | {"policy.min-rows": 1, "policy.vectors": 99} for n in
             own_files(home, bank=bank, court=court)]  # fmt: skip
    config = {"strategy": "pipeline", "pipeline.stages": json.dumps(stages), "checkpoint": True,
              "labels": str(home / "y.csv"), "parties": "bank,court"}  # fmt: skip
    send, sent = Federation._round, []

    def killed(federation, step, *arguments, **options):
        sent.append(step)
        if step.startswith(f"{dies_in}."):
            raise KeyboardInterrupt
        return send(federation, step, *arguments, **options)

    monkeypatch.setattr(Federation, "_round", killed)
    for dies_in in ("impute", "fit"):  # noqa: B007
        with pytest.raises(KeyboardInterrupt):
            run_app(nodes, **config)
    dies_in = "nowhere"
    run_app(nodes, **config)
    assert sent.count("share_ids") == 1
    assert sent.count("impute.fill") == 2  # the first was not sent
    folder = home / "results" / "server" / "test"
    assert sorted(path.name for path in (folder / "stages").iterdir()) == ["1-impute", "2-fit"]
    with pytest.raises(ConfigError, match="holds the result of an earlier run"):
        run_app(nodes, **config)
