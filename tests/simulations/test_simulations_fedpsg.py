import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError
from simulations.__main__ import main
from simulations.data import Sources, read_paper
from simulations.fedpsg import criteria, tables
from simulations.fedpsg.data import (
    CODES,
    Joint,
    coded,
    draw_task,
    lacking,
    load,
    task_of,
    with_data,
)
from simulations.fedpsg.experiments import PARTS, other_true_rows
from simulations.fedpsg.floors import BEST, BOOSTED, DRAW, FLOORS, MEAN, VALID
from simulations.fedpsg.generation import first_attributes, generate
from simulations.fedpsg.preset import Preset
from simulations.preset import Options

pytestmark = pytest.mark.studies

torch = pytest.importorskip("torch")

from simulations.fedpsg.classifiers import CLASSIFIERS, evaluate  # noqa: E402
from simulations.fedpsg.generators import GENERATORS  # noqa: E402
from simulations.fedpsg.pooled import Imputation, impute  # noqa: E402

NETWORKS = {"iterations": 20, "local_iterations": 20}


@pytest.fixture(scope="module")
def joint():
    """A party whose number and levels follow those of the other one."""
    rng = np.random.default_rng(0)
    n = 900
    x, level = rng.normal(size=n), rng.integers(0, 3, size=n)
    a = pd.DataFrame({"x": x, "level": np.array(["p", "q", "r"])[level]})
    same = np.where(rng.random(n) < 0.9, level, rng.integers(0, 3, size=n))
    b = pd.DataFrame(
        {
            "y": np.round(10 * x + rng.normal(size=n)),
            "same": np.array(["s", "t", "u"])[same],
            "noise": rng.normal(size=n),
            "binary": np.where(x + rng.normal(size=n) > 0, "yes", "no"),
        }
    )
    labels = pd.Series((x + rng.normal(size=n) > 0).astype(float), name="label")
    return Joint(a, b, labels, "made")


@pytest.fixture(scope="module")
def task(joint):
    return draw_task(joint, 0.5, seed=1)


def test_tasks_split_samples(joint, task):
    assert len(task.truth) == 450
    assert not task.seen.index.isin(task.truth.index).any()
    pd.testing.assert_frame_equal(pd.concat([task.seen, task.truth]).sort_index(), joint.b)
    few = draw_task(joint, 0.2, seed=1, rows=100)
    assert (len(few.a), len(few.truth)) == (100, 20)
    nested = task_of(joint, joint.a.index[:50], joint.a.index[:10])
    assert list(nested.missing) == list(range(10, 50))


def test_codes_are_places_in_the_order_of_names(joint, task):
    codes = task.encoded(CODES, joint.a)
    assert set(codes.seen["same"]) == {0.0, 1.0, 2.0}
    assert (coded(joint.b, joint.b)["binary"] == (joint.b["binary"] == "yes")).all()
    # Codes stay codes.
    pd.testing.assert_frame_equal(coded(codes.truth, joint.b), codes.truth)


def test_floors_are_ordered(joint, task):
    errors = {name: criteria.rmse(make(task, joint.a, 0), task) for name, make in FLOORS.items()}
    assert errors[BEST] < errors[VALID] < errors[DRAW]
    assert errors[BEST] < errors[MEAN] < errors[DRAW]
    # Drawing doubles the variance.
    drawn = [criteria.rmse(FLOORS[DRAW](task, joint.a, seed), task) ** 2 for seed in range(20)]
    assert np.mean(drawn) / errors[MEAN] ** 2 == pytest.approx(2.0, abs=0.15)


def test_criteria_know_the_truth_and_copies(joint, task):
    true = criteria.judge(task.truth, task, 0)
    assert true["rmse"] == 0
    assert true["accuracy"] == true["quality"] == 1
    assert true["correlation"] == true["margin"] == 0
    copied = criteria.judge(FLOORS[DRAW](task, joint.a, 0), task, 0)
    assert copied["copies"] == 1
    assert copied["copies by chance"] == true["copies"] == 0
    assert copied["membership"] > 15
    # By hand: y's range, then the mean square over four attributes.
    made = task.truth.assign(y=task.truth["y"] + 2)
    expected = 2 / np.ptp(joint.b["y"]) / 2
    assert criteria.rmse(made, task) == pytest.approx(expected)


@pytest.mark.parametrize("name", GENERATORS)
def test_local_generators_learn_margins(task, name):
    made = GENERATORS[name](iterations=100, seed=0, batch=100)
    losses = made.fit(task.seen)
    rows = made.sample(600)
    assert list(rows) == list(task.seen)
    assert np.isfinite(losses).all()
    assert set(rows["same"]) <= {"s", "t", "u"}
    assert rows["y"].between(task.seen["y"].min(), task.seen["y"].max()).all()
    assert (rows["y"] == rows["y"].round()).all()
    margin = criteria.compare(
        {"a": task.a.iloc[:450], "b": task.truth}, {"a": task.a.iloc[:450], "b": rows.iloc[:450]}
    )[1]
    assert margin < (0.4 if name in ("CTGAN", "TableGAN") else 0.25)
    again = GENERATORS[name](iterations=2, seed=0, batch=100)
    assert again.fit(task.seen) == losses[:2]
    pd.testing.assert_frame_equal(again.sample(20), again.sample(20))


def test_local_generators_learn_dependence_within_b():
    """The levels follow the number, which no product of margins does."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    frame = pd.DataFrame({"x": x, "sign": np.where(x > 0, "up", "down")})
    for name, least in {"TVAE": 0.58, "TabDDPM": 0.8}.items():  # chance is 0.5 (+- 0.02)
        made = GENERATORS[name](iterations=300, seed=0)
        made.fit(frame)
        rows = made.sample(1000)
        assert ((rows["x"] > 0) == (rows["sign"] == "up")).mean() > least


def test_joint_pooled_networks_learn_from_a(joint, task):
    work = task.encoded(CODES, joint.a)
    begun = work.seen.reindex(work.a.index)
    held = begun.loc[task.seen.index]
    settings = Imputation(iterations=200, generator="joint", hidden=0.5)
    made = impute({"a": work.a, "b": begun}, work.labels, settings, seed=0)
    pd.testing.assert_frame_equal(made["b"].loc[task.seen.index], held)
    assert not made["b"].isna().to_numpy().any()
    error = criteria.rmse(made["b"].loc[task.missing], task)
    # Whoever does not see A cannot be below the mean.
    assert error < criteria.rmse(FLOORS[MEAN](task, joint.a, 0), task) - 0.02


def test_pooled_networks_are_the_federations(joint, task, monkeypatch):
    """The same draws give the same rows, but for the fixed point of private sums."""
    from simulations.fedpsg import pooled
    from strategies.fedpsg import FedPSGAR
    from strategies.fedpsg.gan.steps import GanSteps
    from strategies.fedpsg.gan.training import GanTraining

    drawn, seen = [], {}
    original_step, original_start = GanTraining.step, GanSteps.start

    def step(self, rows, seed):
        drawn.append((self.shape.seed, rows, seed))
        return original_step(self, rows, seed)

    def start(self, codes, *arguments):
        seen[self.party.name] = codes.copy()
        return original_start(self, codes, *arguments)

    monkeypatch.setattr(GanTraining, "step", step)
    monkeypatch.setattr(GanSteps, "start", start)
    work = task.encoded(CODES, joint.a)
    kinds = {"a": dict.fromkeys(work.a, "continuous"), "b": dict.fromkeys(work.seen, "continuous")}
    strategy = FedPSGAR(imputer="gain", iterations=5, batch=64)
    result = simulate(strategy, {"a": work.a, "b": work.seen}, seed=3, kinds=kinds)
    # In the order of the aligned samples, which x tells.
    place = {x: sample for sample, x in work.a["x"].items()}
    order = [place[x] for x in seen["a"][:, 0]]

    class Replay:
        """Gives what the federation drew, and then something else."""

        def __init__(self, seed):
            self.left = [drawn[0][0]] + [part for _, rows, s in drawn for part in (rows, s)]

        def integers(self, *bounds, size=None):
            return self.left.pop(0) if self.left else 7

    monkeypatch.setattr(pooled.np.random, "default_rng", Replay)
    begun = {"a": work.a.loc[order], "b": work.seen.reindex(order)}
    made = impute(begun, work.labels.loc[order], Imputation(iterations=5, batch=64), 0)["b"]
    monkeypatch.undo()
    gap = (made - result.tables["b"].loc[order]).abs() / np.ptp(work.whole, axis=0)
    # Noise in place of what is missing is up to 0.01 of the range, and another draw at the end.
    assert gap.to_numpy().max() < 2e-3
    assert gap.loc[task.seen.index].to_numpy().max() == 0


@pytest.mark.parametrize(
    "how",
    [
        {"rule": "mean", "imputer": "mean"},
        {"rule": "draw", "imputer": "forest", "encoding": "levels"},
        {"rule": "draw", "imputer": "mice", "encoding": "levels", "with_labels": True},
        {"imputer": "gain", "imputes": "B"},
        {"imputer": "cgain", "first": "cag"},
        {"imputer": "vgain", "first": "ag", "encoding": "levels"},
    ],
    ids=str,
)
def test_every_kind_of_method_completes_the_rows(joint, task, how):
    how = {"kind": "fedpsg", **how}
    made = generate(task, joint, {"how": how, "cnum": 2, "networks": NETWORKS, "seed": 0})
    assert list(made) == list(joint.b)
    assert made.index.equals(task.missing)
    assert not made.isna().to_numpy().any()
    if how.get("rule") == "mean":
        assert criteria.rmse(made, task) < criteria.rmse(FLOORS[MEAN](task, joint.a, 0), task)


@pytest.mark.parametrize("method", [{"kind": "joint"}, {"kind": "nothing"}], ids=str)
def test_downstream_trains_on_aligned_and_on_new_samples(joint, method, monkeypatch):
    from simulations.fedpsg import experiments

    given = {}
    monkeypatch.setattr(experiments, "evaluate", lambda *args: given.update(args=args) or {})
    settings = {"dataset": "made", "ratio": 0.5, "rows": 0, "seed": 0, "test": 0.3, "cnum": 0,
                "how": method, "networks": NETWORKS}  # fmt: skip
    PARTS["downstream"](settings, {"made": joint})
    x, y, test, truth, *_ = given["args"]
    aligned, new = 315, 450 if method["kind"] == "joint" else 0
    assert (len(x), len(y), len(test), len(truth)) == (aligned + new, aligned + new, 135, 135)
    assert set(y) == {0.0, 1.0}
    assert np.isfinite(x).all()
    # No test row is among the training rows.
    known = set(map(tuple, x[:aligned].tolist()))
    assert not any(tuple(row) in known for row in test.tolist())


def test_samples_are_missing_at_random_or_by_the_first_attribute(joint):
    for mechanism in ("MCAR", "MAR"):
        gone = lacking(joint.a, 0.3, mechanism, seed=2)
        assert gone.sum() == 270
        gap = joint.a["x"][gone].mean() - joint.a["x"][~gone].mean()
        # Four standard errors of a difference of means: 4 sqrt(1/270 + 1/630).
        assert (gap > 0.5) if mechanism == "MAR" else (abs(gap) < 0.29)


def test_the_default_is_compared_in_standard_deviations_on_samples_that_nobody_learnt_from(joint):
    settings = {"dataset": "made", "ratio": 0.5, "mechanism": "MCAR", "rows": 0, "seed": 0,
                "test": 0.3, "cnum": 0, "networks": {}}  # fmt: skip
    hows = {
        "mean": {"kind": "floor", "name": MEAN}, "boosting": {"kind": "floor", "name": BOOSTED},
        "default": {"kind": "fedpsg", "rule": "mean", "imputer": "forest"},
        "normal": {"kind": "normal"}, "nothing": {"kind": "nothing"},
    }  # fmt: skip
    found = {
        name: PARTS["default"]({**settings, "how": how}, {"made": joint})
        for name, how in hows.items()
    }
    assert found["mean"]["error"] == pytest.approx(1.0, abs=0.05)
    assert found["default"]["error"] < found["boosting"]["error"] + 0.05 < 0.9
    assert found["normal"]["error"] < 0.9
    assert "error" not in found["nothing"]
    assert all(0.6 < of["GBDT auc"] < 1.0 for of in found.values())


def test_first_attributes_are_those_that_correlate(joint, task):
    assert set(first_attributes(task, "ag", 2)) == {"y", "same"}
    assert set(first_attributes(task, "cag", 2)) == {"y", "binary"}


def test_classifiers_find_a_separable_label():
    rng = np.random.default_rng(0)
    x, test = rng.normal(size=(600, 4)), rng.normal(size=(300, 4))
    y, truth = (x[:, 0] > 0).astype(float), (test[:, 0] > 0).astype(float)
    found = evaluate(x, y, test, truth, 0)
    for name in CLASSIFIERS:
        assert found[f"{name} auc"] > 0.95
        assert found[f"{name} acc"] > 0.8
    one_class = evaluate(x, np.zeros(600), test, truth, 0)
    assert np.isnan(list(one_class.values())).all()


@pytest.fixture(scope="module")
def paper():
    return tables.paper_errors([read_paper("fedpsg", f"table{i}") for i in range(1, 8)])


def test_preset_asks_for_every_cell_of_the_papers_tables(paper, tmp_path):
    preset = Preset.load("fedpsg", Options(tmp_path))
    asked = {
        (s["dataset"], s["ratio"], s["method"], s["cnum"])
        for s in (job.settings for job in preset.jobs())
        if "ratio" in s
    }
    left_out = {key for key in paper.index if key not in asked}
    assert {key[2] for key in left_out} == {"CTAB-GAN"}
    assert {job.part for job in preset.jobs()} == set(PARTS)


SIZES = [
    ("Bank", "bank/bank_full.csv", (45211, 8, 8)),
    ("Credit", "german/german_credit.csv", (1000, 9, 11)),
    ("Letter", "letter/letter_recognition.csv", (20000, 8, 8)),
]


@pytest.mark.parametrize(("name", "file", "size"), SIZES)
def test_splits_have_the_papers_numbers_of_attributes(name, file, size, sources_with):
    found = load(name, sources_with(file))
    assert (len(found.a), found.a.shape[1], found.b.shape[1]) == size


def test_news_is_halved_and_its_popular_articles_are_labelled(tmp_path):
    news = pd.DataFrame({f" n{i}": [1.0, 2.0] for i in range(5)})
    news = news.assign(url="u", **{" shares": [5, 2000]})
    (tmp_path / "news").mkdir()
    news.to_csv(tmp_path / "news/OnlineNewsPopularity.csv", index=False)
    found = load("News", Sources(tmp_path))
    assert (list(found.a), list(found.labels)) == (["n0", "n1"], [0.0, 1.0])


def test_other_true_rows_are_due_to_few_rows_alone(joint, task):
    made = other_true_rows(task, seed=0)
    assert made["a"].index.equals(made["b"].index)
    assert made["b"].index.isin(task.seen.index).all()
    assert len(made["b"]) == len(task.truth)
    many = draw_task(joint, 0.9, seed=1)
    assert len(other_true_rows(many, 0)["b"]) == len(many.seen)
    distance = {}
    for ratio in (0.05, 0.5):  # 45 rows beside 45, and 450 beside 450
        tasks = [draw_task(joint, ratio, seed) for seed in range(6)]
        found = [
            criteria.compare({"a": t.a.loc[t.missing], "b": t.truth}, other_true_rows(t, 0))[0]
            for t in tasks
        ]
        distance[ratio] = np.mean(found)
    # Differences of correlations go down with the root of the rows.
    assert distance[0.05] / distance[0.5] == pytest.approx(np.sqrt(10), rel=0.35)


def test_absent_news_says_where_it_is_from(tmp_path):
    with pytest.raises(DataError, match=r"news/OnlineNews.*Online News Popularity.*where"):
        load("News", Sources(tmp_path))


def test_quick_study_writes_page_and_goes_on(tmp_path, capsys, monkeypatch, sources_with):
    """The parts that take no networks; the page alone afterwards runs nothing."""
    sources_with("german/german_credit.csv")
    quick = Preset.load("fedpsg", Options(tmp_path, quick=True))
    light = {"methods_compared": [DRAW, "mean rule (mean)"], "aligned": ["nothing"]}
    wanted = [
        job for part, names in light.items() for job in quick.of_part(part)
        if job.settings["method"] in names and job.settings.get("aligned", 100) == 100
    ]  # fmt: skip
    monkeypatch.setattr(Preset, "jobs", lambda self: wanted)
    arguments = [
        "fedpsg", "--quick", "--workers", "0", "--fresh", "--output", str(tmp_path / "out")
    ]  # fmt: skip
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Tables 6 and 7" in printed
    assert "mean rule (mean)" in printed
    page = (tmp_path / "out/index.md").read_text()
    assert "Three floors" in page
    kept = (tmp_path / "out/records.jsonl").read_text()
    assert kept.count("\n") == len(wanted)
    monkeypatch.setattr("simulations.study.run_all", None)
    assert main([*arguments, "--report", "--write", str(tmp_path / "study.md")]) == 0
    assert "| Credit | 0.5 | mean rule (mean) |" in (tmp_path / "study.md").read_text()
    assert (tmp_path / "out/records.jsonl").read_text() == kept
    assert (tmp_path / "out/tables67.csv").is_file()
    # What is kept beside the page makes it again, without the folder of the run.
    text = (tmp_path / "study.md").read_text()
    monkeypatch.setattr("simulations.study.ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "records").rename(tmp_path / "docs/records")
    arguments = ["fedpsg", "--quick", "--report", "--output", str(tmp_path / "new")]
    assert main([*arguments, "--write", str(tmp_path / "again.md")]) == 0
    assert (tmp_path / "again.md").read_text() == text
    lines = {path: path.read_text() for path in (tmp_path / "docs/records").iterdir()}
    assert [path.read_text() for path in (tmp_path / "records").iterdir()] == [*lines.values()]
    (kept,) = lines
    kept.write_text(lines[kept].replace('"names":0', '"names":9'))
    capsys.readouterr()
    assert main([*arguments, "--fresh"]) == 2
    assert "has no runs with these settings" in capsys.readouterr().err
    assert main(arguments) == 2
    assert "is no finished replication" in capsys.readouterr().err


def test_jobs_name_their_data(joint, tmp_path):
    quick = Preset.load("fedpsg", Options(tmp_path, quick=True))
    jobs = with_data(quick.jobs(), {"Credit": joint})
    assert {job.settings["data"] for job in jobs} == {"made"}
    assert not with_data(quick.jobs(), {})
    assert quick["networks"]["iterations"] == 20
    changes = ("networks.iterations = 5",)
    fewer = Preset.load("fedpsg", Options(tmp_path, quick=True, changes=changes))
    assert fewer["networks"] == {"iterations": 5, "local_iterations": 20}


def test_command_line_chooses_replications(tmp_path):
    full = Preset.load("fedpsg", Options(tmp_path))
    chosen = {"parts": ("imputers",), "datasets": ("Credit",), "ratios": ("0.5",),
              "methods": ("FedPSG-AR (VF-GAIN)",), "only-seeds": ("1",)}  # fmt: skip
    jobs = [job.settings for job in full.chosen(full.jobs(), Options(tmp_path, chosen=chosen))]
    assert sorted((s["cnum"], s["seed"], s["rows"]) for s in jobs) == [
        (1, 1, 0), (5, 1, 0), (8, 1, 0)
    ]  # fmt: skip
    assert len(full.chosen(full.jobs(), Options(tmp_path))) == len(full.jobs())
    aligned = full.chosen(full.jobs(), Options(tmp_path, chosen={"parts": ("aligned",)}))
    assert {job.part for job in aligned} == {"aligned"}
    with pytest.raises(ConfigError, match="--datasets 'Bnak' is unknown"):
        full.chosen(full.jobs(), Options(tmp_path, chosen={"datasets": ("Bnak",)}))
