"""Pipelines: stages give what they give by hand, and what they tell adds up."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from sklearn.metrics import mean_squared_error

from apps.cli.main import main
from apps.cli.run_config import app_defaults, checked_config
from apps.cli.stages import read_pipeline
from apps.client_app import pick
from flwr_vertical import Result, Strategy, load_demo, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError, PolicyError
from flwr_vertical.node.service import StepServer
from flwr_vertical.policy.requirements import asked_by
from flwr_vertical.protocol.messages import read_envelope
from strategies.cox import Cox, survival_labels
from strategies.explore import Explore
from strategies.glm import VerticalGLM
from strategies.normal import JointNormal
from strategies.pipeline import Evaluate, Pipeline, PipelineResult
from strategies.pipeline.party import StagePart
from strategies.predict import Predict
from strategies.scorecard import Scorecard
from strategies.vfem import VFEM

ROOT = Path(__file__).parents[2]
LASSO, PLAIN = VerticalGLM(penalty="lasso", lambdas=0.2), VerticalGLM(penalty="none")
STAGES = [("impute", JointNormal()), ("select", LASSO), ("fit", PLAIN)]
WHOLE = [*STAGES, ("evaluate", Evaluate(0.25)), ("predict", Predict())]


def data(n=900, gaps=0.2):
    rng = np.random.default_rng(3)
    ids = [f"s{i:03}" for i in range(n)]
    bank = pd.DataFrame(rng.normal(size=(n, 3)), index=ids, columns=list("abc"))
    court = pd.DataFrame(rng.normal(size=(n, 2)), index=ids, columns=list("de"))
    court["d"] += 0.8 * bank["a"]
    labels = 1 + bank["a"] - 2 * court["d"] + 0.5 * rng.normal(size=n)
    return {"bank": bank.mask(rng.random(bank.shape) < gaps), "court": court}, labels.rename("y")


@pytest.fixture(scope="module")
def tables_and_labels():
    return data()


@pytest.fixture(scope="module")
def whole(tables_and_labels):
    return Pipeline(WHOLE).simulate(*tables_and_labels)


def test_stages_give_what_they_give_by_hand_and_align_once(tables_and_labels):
    tables, labels = tables_and_labels
    labels = labels.copy()
    labels.iloc[::9] = np.nan
    found = Pipeline([*STAGES, ("predict", None)]).simulate(tables, labels)

    completed = simulate(JointNormal(), tables, labels)
    imputed = completed.tables
    selected = simulate(LASSO, imputed, labels)
    kept = {
        name: table[[c for c in table if selected.coefficients.loc[(name, c), "estimate"]]]
        for name, table in imputed.items()
    }
    assert {name: list(table) for name, table in kept.items()} == {"bank": ["a"], "court": ["d"]}
    fitted = simulate(PLAIN, kept, labels)
    predicted = fitted.predict(kept)

    for name, table in imputed.items():
        pd.testing.assert_frame_equal(found.tables[name], table, rtol=1e-9)
    pd.testing.assert_frame_equal(
        found.stages["select"].coefficients, selected.coefficients, rtol=1e-6
    )
    pd.testing.assert_frame_equal(found.coefficients, fitted.coefficients, rtol=1e-6)
    pd.testing.assert_frame_equal(
        found.stages["predict"].predictions, predicted.predictions, rtol=1e-6, check_names=False
    )
    # Of the pipeline, those of samples without a label, as of every other method.
    assert set(found.predictions.index) == set(labels.index[labels.isna()])
    # Three runs more would greet and align three times more, a round each.
    apart = sum(run.ledger.rounds for run in (completed, selected, fitted, predicted))
    assert found.ledger.rounds == apart - 3 * 2


def test_evaluation_is_of_labels_that_no_stage_was_given(tables_and_labels, whole):
    tables, labels = tables_and_labels
    found = whole.stages["evaluate"]
    hidden = found.predictions.index
    assert len(hidden) == round(0.25 * len(labels))
    error = mean_squared_error(labels[hidden], found.predictions["prediction"]) ** 0.5
    assert whole.metrics["test_rmse"] == pytest.approx(error, rel=1e-12)

    without = labels.mask(labels.index.isin(hidden))
    other = labels.copy()
    other[hidden] = 1e6  # would be seen in any fit that they took part in
    again = Pipeline(WHOLE).simulate(tables, other)
    by_hand = Pipeline(STAGES).simulate(tables, without)
    for name in ("select", "fit"):
        expected = whole.stages[name].coefficients
        for run in (again, by_hand):
            pd.testing.assert_frame_equal(run.stages[name].coefficients, expected, rtol=1e-6)


def test_one_greeting_and_one_alignment(whole):
    steps = whole.ledger.to_frame().drop_duplicates("round")["step"]
    assert [step for step in steps if "." not in step] == ["hello", "share_ids"]
    stages = [step.partition(".")[0] for step in steps if "." in step]
    assert list(dict.fromkeys(stages)) == ["impute", "select", "fit", "predict"]
    assert whole.summary()["rounds"].sum() == whole.ledger.rounds - 2


def test_a_result_has_all_stages_on_disk_and_on_one_page(whole, tmp_path):
    loaded = PipelineResult.load(whole.save(tmp_path / "r"))
    assert list(loaded.stages) == [name for name, _ in WHOLE]
    pd.testing.assert_frame_equal(
        loaded.stages["fit"].coefficients, whole.stages["fit"].coefficients
    )
    text = loaded.report(tmp_path / "r").read_text()
    for name, _ in WHOLE:
        assert f"{name}: Metrics" in text
    assert Result.load(tmp_path / "r").strategy == "pipeline"


def test_new_rows_are_predicted_with_the_last_fit(whole):
    new = {name: table.head(1) * 0 + 1 for name, table in whole.tables.items()}
    with pytest.raises(ConfigError, match="builds on no earlier run"):
        Pipeline(STAGES).building_on(whole)
    estimate = whole.coefficients["estimate"]
    found = whole.predict(new).predictions["prediction"]
    expected = estimate["server"].sum() + estimate["bank"].sum() + estimate["court"].sum()
    assert found.item() == pytest.approx(expected, abs=0.02)


def test_another_fit_and_other_seeds_of_stages(tables_and_labels):
    tables, labels = tables_and_labels
    stages = [("impute", "joint-normal"), ("fit-a", PLAIN), ("fit-b", VFEM()), ("predict", None)]
    found = Pipeline(stages).simulate(tables, labels)
    assert list(found.stages) == ["impute", "fit-a", "fit-b", "predict"]
    pd.testing.assert_frame_equal(found.coefficients, found.stages["fit-b"].coefficients)


def test_an_evaluation_is_of_the_fit_before_it_and_not_of_a_later_one(tables_and_labels):
    tables, labels = tables_and_labels
    stages = [("fit-a", PLAIN), ("evaluate", None), ("fit-b", PLAIN)]
    found = Pipeline(stages).simulate(tables, labels, min_rows=1)
    assert found.metrics["n_samples"] > found.stages["fit-a"].metrics["n_samples"]
    assert found.stages["evaluate"].evaluation is not None
    assert found.evaluation is None
    assert "test_r2" not in found.metrics


def test_written_stages_are_read_again():
    one = Pipeline(WHOLE)
    other = Pipeline(one.settings()["stages"])
    assert other.settings() == one.settings()
    assert other.protocol_of_run().of_strategy == one.protocol_of_run().of_strategy
    assert json.loads(one.settings()["stages"])[1] == {
        "name": "select", "strategy": "glm", "penalty": "lasso", "lambdas": 0.2,
    }  # fmt: skip


@pytest.mark.slow
def test_explore_passes_nothing_on():
    """On demonstration data of ordinary size, with cells, blocks and labels missing."""
    demo = load_demo("blood-pressure", missing_cells=0.1, missing_blocks=0.2, missing_labels=0.2)
    rest = [("impute", JointNormal()), ("fit", PLAIN), ("predict", None)]
    options = {"policy": policy(), "alignment": "plain", "progress": False}
    found = Pipeline([("explore", Explore()), *rest]).simulate(demo.parties, demo.labels, **options)
    assert list(found.stages) == ["explore", "impute", "fit", "predict"]
    alone = simulate(Explore(), demo.parties, demo.labels, alignment="plain")
    for name, frame in alone.frames.items():
        pd.testing.assert_frame_equal(found.stages["explore"].frames[name], frame)
    without = Pipeline(rest).simulate(demo.parties, demo.labels, **options)
    pd.testing.assert_frame_equal(found.coefficients, without.coefficients, rtol=1e-6)
    own = {f"correlations of {name}" for name in found.parties}
    assert set(found.frames) == own | {"rows_by_pattern"}  # of the fit


def test_explore_is_on_the_page_under_its_stage(tmp_path):
    stages = [("fit", VFEM()), ("explore", None)]  # anywhere
    found = Pipeline(stages).simulate(*data(gaps=0.0))
    assert found.coefficients is not None
    text = found.report(tmp_path).read_text()
    for title in ("Overlap", "Correlations", "Figures of the strategy"):
        assert f"explore: {title}" in text
    assert not list(tmp_path.rglob("*.correlations.parquet"))


def test_points_of_two_scorecards_are_both_kept():
    tables, labels = data(2000, gaps=0.0)
    stages = [("fit-a", Scorecard(bins=6)), ("fit-b", Scorecard(bins=3))]
    labels = (labels > 1).astype(float)
    found = Pipeline(stages).simulate(tables, labels)
    of_one = {"points of bank", "bins of bank", "points of court", "bins of court"}
    assert of_one | {f"fit-a.{name}" for name in of_one} <= set(found.frames)
    first, last = found.frames["fit-a.bins of bank"], found.frames["bins of bank"]
    assert len(first) > len(last)


@pytest.mark.parametrize("policy", [None, {}])
def test_levels_stay_where_stages_take_the_same_labels(policy):
    """They would be withheld if the labels of the second stage counted as others."""
    tables, labels = data(gaps=0.0)
    tables["bank"]["town"] = np.random.default_rng(1).choice(["Ulm", "Gent", "Bern"], size=900)
    town = [VerticalGLM(penalty=p) for p in ("lasso", "none")]
    labels = labels + (tables["bank"]["town"] == "Ulm")
    stages = [("select", town[0]), ("fit", town[1])]
    found = Pipeline(stages).simulate(tables, labels, policy=policy, progress=False)
    assert found.stages["fit"].metrics["columns_withheld"] == 0
    assert found.coefficients.loc[("bank", "town=Ulm"), "estimate"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("after", [("impute", JointNormal()), ("select", LASSO)])
def test_new_rows_are_predicted_with_the_fit_whatever_comes_after_it(after):
    tables, labels = data(gaps=0.2 if after[0] == "impute" else 0.0)
    fit = VerticalGLM(penalty="none")
    found = Pipeline([("fit", fit), after]).simulate(tables, labels, min_rows=1)
    new = {name: frame.dropna().iloc[:200] for name, frame in tables.items()}
    new = {name: frame.set_axis([f"n{i}" for i in range(200)]) for name, frame in new.items()}
    predicted = found.predict(new).predictions["prediction"]
    slopes = found.coefficients["estimate"]
    expected = slopes["server", "intercept"] + sum(
        frame @ slopes[name][frame.columns].to_numpy() for name, frame in new.items()
    )
    np.testing.assert_allclose(predicted, expected, atol=0.01)
    turned = {name: frame[frame.columns[::-1]] for name, frame in new.items()}
    again = found.predict(turned, progress=False).predictions["prediction"]
    pd.testing.assert_series_equal(again, predicted)


def test_a_scorecard_is_fitted_evaluated_and_predicted_with(tmp_path):
    tables, labels = data(2000, gaps=0.0)
    labels = (labels > 1).astype(float)
    stages = [("explore", None), ("fit", Scorecard()), ("evaluate", None), ("predict", None)]
    found = Pipeline(stages).simulate(tables, labels)
    assert list(found.stages["explore"].frames) == ["overlap", "variables", "correlations"]
    assert found.metrics["test_auc"] > 0.9
    assert found.predictions is None  # all samples have a label
    predicted = found.stages["predict"].predictions
    held_out = found.stages["evaluate"].predictions
    assert len(predicted) == 2000
    pd.testing.assert_frame_equal(
        predicted.loc[held_out.index, ["score"]], held_out[["score"]], atol=0.5
    )
    text = found.report(tmp_path).read_text()
    assert "fit: Scorecard" in text
    assert text.count(">Scorecard<") == 0
    pd.testing.assert_frame_equal(found.scorecard, found.stages["fit"].scorecard)


def test_hazards_are_fitted_and_predicted():
    tables, labels = data(gaps=0.0)
    rng = np.random.default_rng(0)
    time = rng.exponential(size=len(labels)) / np.exp(0.5 * (labels - 1))
    end = rng.exponential(2.0, size=len(labels))
    times = survival_labels(np.minimum(time, end), time <= end)
    stages = [("explore", None), ("fit", Cox()), ("predict", None)]
    found = Pipeline(stages).simulate(tables, times)
    alone = simulate(Cox(), tables, times)
    estimates = (run.coefficients["estimate"] for run in (found, alone))
    pd.testing.assert_series_equal(*estimates, atol=1e-4)  # both iterate
    assert len(found.stages["predict"].predictions) == len(times)
    assert (found.stages["predict"].predictions["prediction"] > 0).all()


# -- what adds up ---------------------------------------------------------------------------


def policy(**keys):
    return {"alignments": "plain"} | {key.replace("_", "-"): v for key, v in keys.items()}


def test_a_node_refuses_before_the_first_stage_what_it_does_not_allow(tables_and_labels):
    steps = []
    answer = StepServer.answer

    def noted(server, request, context):
        steps.append(str(read_envelope(request)["step"]))
        return answer(server, request, context)

    tables, labels = tables_and_labels
    allowed = policy(strategies="pipeline,joint-normal,glm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepServer, "answer", noted)
        with pytest.raises(PartyError, match=r"policy\.strategies: asked: strategy 'predict'"):
            Pipeline(WHOLE).simulate(tables, labels, policy=allowed, alignment="plain")
    assert set(steps) == {"hello"}
    assert asked_by(Pipeline(WHOLE)).stages == ("joint-normal", "glm", "predict")


def test_a_node_imports_no_stage_that_its_owner_does_not_allow():
    stages = json.dumps([{"name": "fit", "strategy": "no.such.module:Class"}])
    config = {"strategy": "pipeline", "pipeline.stages": stages}
    node = Context(1, 1, {"party": "bank", "data": "bank.csv"}, RecordDict(), config)
    with pytest.raises(PolicyError, match=r"policy\.modules: asked: strategy 'no\.such\.module:Cl"):
        pick(node)


@pytest.mark.parametrize("predictions", [23, 24])
def test_predictions_of_all_stages_count_together(tables_and_labels, predictions):
    """The fit predicts what was held out, and the last stage predicts it again."""

    def run():
        return Pipeline(WHOLE).simulate(
            *tables_and_labels, policy=policy(predictions=predictions), alignment="plain",
        )  # fmt: skip

    if predictions == 24:
        assert run().stages["predict"].predictions is not None
        return
    with pytest.raises(PartyError, match=r"'predict.predict_kept'.*policy.predictions"):
        run()


@pytest.mark.parametrize("with_policy", [False, True])
def test_few_completed_rows_are_not_told_apart(with_policy):
    """The difference of two stages' sums would be that of 20 rows' completed cells."""
    tables, labels = data(gaps=0.0)
    tables["bank"].iloc[:20, 0] = np.nan
    options = {"policy": policy(), "alignment": "plain"} if with_policy else {}
    with pytest.raises(
        PartyError, match="tell of 20 of its rows alone, as their cells have chan"
    ) as found:
        Pipeline(STAGES).simulate(tables, labels, **options)
    assert "Stages ['impute'] of this pipeline told of these rows before" in str(found.value)


def test_a_stage_with_noise_reads_no_completed_table():
    bounds = dict.fromkeys("abcdey", (-4, 4))
    noisy = VerticalGLM(epsilon=1.0, bounds=bounds)
    with pytest.raises(ConfigError, match="stage 'fit' promises differential privacy, and reads"):
        Pipeline([("impute", JointNormal()), ("fit", noisy)])
    assert Pipeline([("fit-a", noisy), ("fit-b", noisy)]).epsilon == 2.0


def test_stages_have_states_of_their_own():
    state = {"positions": 1, "fit.seed": 2, "select.seed": 3}
    part = StagePart(state, "fit")
    assert dict(part) == {"positions": 1, "seed": 2}
    part["positions"] = 4
    assert (state["positions"], part["positions"], len(part)) == (1, 4, 2)
    del part["seed"]
    assert "seed" not in part
    assert state["select.seed"] == 3


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([("predict", None)], "'predict' comes before any stage that fits a model"),
        ([*STAGES[:2], ("evaluate", None)], r"before it \(here: \['impute', 'select'\]\)"),
        ([("imput", JointNormal())], r"unknown stage 'imput' \(did you mean 'impute'\?\)"),
        ([("fit", "gml")], r"stage 'fit': unknown strategy 'gml' \(did you mean 'glm'\?\)"),
        ([("fit", {"strategy": "glm", "penalti": "none"})], "did you mean 'glm.penalty'"),
        ([("fit", Explore())], "strategy 'explore' fits no model; name the stage 'explore'"),
        ([("explore", PLAIN)], "it is 'explore' there"),
        ([("fit", JointNormal())], "fills in cells, and fits no model; name the stage 'impute'"),
        ([("impute", PLAIN)], "strategy 'glm' fills in no cells"),
        ([("select", PLAIN)], "with these settings keeps all columns"),
        ([STAGES[2], STAGES[2]], "stage 'fit' comes twice"),
        ([STAGES[2], ("evaluate", {"hold-ou": 0.1})], r"no setting 'hold_ou' \(did you mean"),
        ([STAGES[2], ("predict", PLAIN)], "it is 'predict' there"),
        ([STAGES[2], ("predict", "glm")], "its strategy must be 'predict' alone"),
        ([STAGES[2], ("fit-2", Pipeline(STAGES))], "stage 'fit-2' is a pipeline"),
        ([STAGES[2], ("evaluate", None), ("evaluate-2", None)], "one stage of a pipeline eval"),
        ([{"strategy": "glm"}], "unknown stage ''"),
        (["fit"], r"a stage is \(name, strategy\)"),
        ("[fit", "no JSON list of stages"),
        (7, "stages must be a list"),
    ],
)
def test_wrong_stages_are_refused_in_words(stages, message):
    with pytest.raises(ConfigError, match=message):
        Pipeline(stages)


def test_a_run_without_what_its_stages_need(tables_and_labels):
    tables, labels = tables_and_labels
    with pytest.raises(DataError, match="pipeline needs labels: give them"):
        Pipeline(WHOLE).simulate(tables)
    with pytest.raises(ConfigError, match="a pipeline needs stages"):
        Pipeline().simulate(tables, labels)


def test_a_strategy_without_protocol_is_no_stage():
    class Silent(Strategy):
        """Declares nothing."""

        name = "silent"
        party = JointNormal.party

        def run(self, federation, alignment, result, progress): ...

    with pytest.raises(ConfigError, match="declares no protocol"):
        Pipeline([("impute", Silent())])


def test_a_party_that_fails_is_named_with_the_stage(tables_and_labels):
    tables, labels = tables_and_labels
    tables = {**tables, "court": tables["court"][["e"]].assign(e="x")}  # no column is left
    stages = [("impute", "mean"), ("fit", PLAIN)]
    with pytest.raises(PartyError, match=r"'court' failed in step 'fit\.prepare_moments'"):
        Pipeline(stages).simulate(tables, labels)


def test_files_of_pipelines(tmp_path):
    path = tmp_path / "credit.toml"
    path.write_text('labels = "y.csv"\n[[stages]]\nname = "fit"\nstrategy = "glm"\n')
    assert read_pipeline(path) == {
        "run-name": "credit", "checkpoint": True, "labels": "y.csv", "strategy": "pipeline",
        "pipeline.stages": '[{"name": "fit", "strategy": "glm"}]',
    }  # fmt: skip
    for text, message in [
        ("", "has no stages"),
        ("stages = 3", "has no stages"),
        ("[[stages", "cannot be read as TOML"),
        ('strategy = "glm"\n[[stages]]\nname = "fit"', "outside its stages"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_pipeline(path)


def test_the_examples_can_be_run():
    examples = sorted((ROOT / "apps" / "pipelines").glob("*.toml"))
    assert examples
    for path in examples:
        checked_config(app_defaults(ROOT), read_pipeline(path))


def test_a_nodes_owner_asks_whether_it_would_take_part(capsys):
    run = str(ROOT / "apps" / "pipelines" / "blood-pressure.toml")
    ask = ["policy", "--app", str(ROOT), "--run-config", run, "--node-config"]
    assert main([*ask, "party='bank' policy.strategies='pipeline,explore,joint-normal,glm'"]) == 1
    assert (
        "policy.strategies='pipeline,explore,joint-normal,glm,predict'" in capsys.readouterr().out
    )
    assert main([*ask, "party='bank'"]) == 0


@pytest.mark.parametrize("engine", ["local", "checkpoint"])
def test_cells_are_held_out_of_imputing_stages_alone(tmp_path, engine):
    """As on nodes: stages before and after go on with the values, also a party's labels."""
    demo = load_demo("blood-pressure", missing_cells=0, missing_blocks=0)
    names = list(demo.parties)
    tables = {name: table.iloc[:600] for name, table in demo.parties.items()}
    tables[names[0]] = tables[names[0]].assign(y=demo.labels.iloc[:600])
    stages = [
        ("impute", "joint-normal"),
        ("impute-2", "mean"),
        ("fit", VerticalGLM(penalty="none")),
    ]
    labels = {"label_holder": names[0], "label_column": "y", "progress": False}
    options = {} if engine == "local" else {"checkpoint": tmp_path}
    result = simulate(Pipeline(stages), tables, hold_out=0.2, **labels, **options)
    expected = simulate(Pipeline([stages[-1]]), tables, **labels)
    pd.testing.assert_frame_equal(result.coefficients, expected.coefficients, atol=1e-9)
    for stage in ("impute", "impute-2"):
        assert result.stages[stage].metrics["cells_imputed"] > 500
    assert result.settings["hold_out"] == 0.2
    assert "rmse" in result.imputation  # of the last one
    for name, table in tables.items():
        shown = result.tables[name]
        pd.testing.assert_frame_equal(shown, table[list(shown)], check_dtype=False, rtol=1e-12)
    last = result.imputation
    np.testing.assert_allclose(last["rmse"], last["rmse_mean"], rtol=0.02)
