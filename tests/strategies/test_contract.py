"""What every strategy must do, whatever its method. A new strategy is added to the list."""

import html
import json

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Arbiter, Party, Result, Strategy, load_strategy, make_strategy, simulate
from flwr_vertical.errors import ConfigError
from flwr_vertical.node.steps import steps_of
from flwr_vertical.policy.requirements import exchanges_of
from flwr_vertical.privacy import seeded_noise
from simulations.attacks.recording import Recording, watching
from simulations.attacks.suite import ATTACKS, LABELS, RULED, attack_run
from simulations.attacks.views import SERVER
from strategies import BUILTIN
from strategies.baselines import Max, Mean, Min, MostFrequent
from strategies.copula import EVCDS, IEVCDS, VCDS
from strategies.false_vfl import FalseVFL
from strategies.fedpsg import FedPSGAR
from strategies.fknn import FKNN
from strategies.forest import VerticalForest
from strategies.glm import VerticalGLM
from strategies.glm_admm import GLMADMM
from strategies.predict import Predict
from strategies.split import FedHSSL, FinalNet, LaserVFL, PlugVFL, VanillaVFL
from strategies.svm import VerticalSVM
from strategies.trees import VerticalGBDT
from strategies.vertigan import VertiGAN
from strategies.vfem import VFEM, CompleteCase, MeanImpute, Single
from strategies.vfem_iterations import VFEMIterations

IMPUTERS = [
    FKNN(n_neighbors=3),
    FKNN(n_neighbors=2, weighting="exact", weights="distance", standardize=True),
    Mean(),
    Min(),
    Max(),
    MostFrequent(),
]


SYNTHESES = [
    VCDS(min_joint=10),
    VCDS(5.0, "total", rows=50, missing="impute"),
    EVCDS(min_joint=10),
    IEVCDS(min_joint=10, iterations=2, rearrange=True, rows=100),
]


# Samples that a party lacks, from others; cells that only it lacks, from its own columns.
GENERATORS = [
    FedPSGAR(n_associated=2, rule="mean"),
    FedPSGAR(n_associated=1, imputer="mice", rule="mean"),
    FedPSGAR(n_associated=1, imputer="gain", generator="joint", iterations=2, batch=8),
    VertiGAN(iterations=2, batch=8, rows=12),
]


def named(strategies):
    ids = [f"{s.name}-{i}" for i, s in enumerate(strategies)]
    return pytest.mark.parametrize("strategy", strategies, ids=ids)


# Predict samples that have no label.
PREDICTS = (
    FalseVFL,
    VanillaVFL,
    LaserVFL,
    PlugVFL,
    FedHSSL,
    FinalNet,
    VerticalGBDT,
    VerticalForest,
)


def tables(n=40, seed=0, cells=0.2):
    """Two parties, columns of all kinds, missing cells and missing blocks."""
    rng = np.random.default_rng(seed)
    ids = [f"firm {i:02}" for i in range(n)]
    size = pd.CategoricalDtype(["small", "mid", "large"], ordered=True)
    bank = pd.DataFrame(
        {
            "income": rng.normal(50, 10, size=n),
            "rating": pd.Categorical(rng.choice(["A", "B", "C"], size=n)),
            "size": pd.Categorical(rng.choice(size.categories, size=n), dtype=size),
            "loans": rng.poisson(2, size=n),
        },
        index=ids,
    )
    court = pd.DataFrame(
        {
            "cases": rng.poisson(1, size=n).astype(float),
            "member": rng.random(n) < 0.5,
            "town": rng.choice(["Delft", "Ulm", "Gent"], size=n),
        },
        index=ids,
    )
    frames = {
        "bank": bank.mask(rng.random(bank.shape) < cells),
        "court": court.astype({"member": "boolean"}).mask(rng.random(court.shape) < cells),
    }
    return {"bank": frames["bank"].iloc[3:], "court": frames["court"].drop(ids[20:24])}


def labels(n=40):
    rng = np.random.default_rng(1)
    return pd.Series(rng.normal(size=n), index=[f"firm {i:02}" for i in range(n)], name="y")


def of_two_classes(strategy):
    return isinstance(strategy, VerticalSVM) or getattr(strategy, "family", "") == "binomial"


def size_of(strategy):
    """How many samples: a vector of the server that columns are multiplied with takes ten rows."""
    return 260 if of_two_classes(strategy) else 40


def labels_for(strategy):
    """Numbers of all samples; a method that predicts what has no label lacks a tenth of them."""
    found = labels(size_of(strategy))
    if of_two_classes(strategy):
        return found.gt(0).astype(float).drop(found.index[::10])
    if not isinstance(strategy, PREDICTS):
        return found
    numbers = getattr(strategy, "task", getattr(strategy, "objective", "")) == "regression"
    return (found if numbers else found.gt(0).astype(float)).drop(found.index[::10])


def run(strategy, mode="masked", **kwargs):
    some = strategy in IMPUTERS + GENERATORS + SYNTHESES
    given = tables(size_of(strategy), cells=0.2 if some else 0.0)
    with seeded_noise(1):  # else no two runs are alike; has no say inside Ray's actors
        return simulate(
            strategy,
            given,
            labels_for(strategy),
            aggregation=mode,
            progress=False,
            min_rows=1,
            **({"seed": 1} | kwargs),
        )


KEPT = {}


def kept(strategy, mode="masked"):
    """Return one run of a strategy for all tests that only look at its result."""
    if (id(strategy), mode) not in KEPT:
        KEPT[id(strategy), mode] = run(strategy, mode)
    return KEPT[id(strategy), mode]


REGRESSIONS = [
    VFEM(encoding="one-hot"),
    VFEMIterations(learning_rate=0.1, encoding="one-hot", missing_cells="drop-row", max_iter=20),
    CompleteCase(encoding="one-hot"),
    MeanImpute(encoding="one-hot"),
    Single("court", encoding="one-hot"),
    VerticalGLM(penalty="lasso", lambdas=0.1, encoding="one-hot"),
    GLMADMM(penalty="lasso", lambdas=0.1, encoding="one-hot", tol=1e-6),
]
REGRESSIONS += [Predict(run(REGRESSIONS[0]))]
SMALL = {
    "encoding": "one-hot",
    "precision": "float64",
    "h_dim": 4,
    "z_dim": 2,
    "width": 8,
    "pretrain_epochs": 2,
    "epochs": 2,
    "pretrain_batch_size": 20,
    "importance_samples": 3,
    "prediction_samples": 5,
}
DEEP = [FalseVFL(task="regression", **SMALL)]
# The last of those with one party half runs on Ray: one that trains.
DEEP = [Predict(run(DEEP[0])), *DEEP, FalseVFL(variant="II", **SMALL)]
SPLIT = {
    "encoding": "one-hot",
    "precision": "float64",
    "latent_dim": 4,
    "width": 6,
    "pretrain_epochs": 1,
    "epochs": 2,
    "batch_size": 16,
}
BASELINES = [
    VanillaVFL(task="regression", **SPLIT),
    PlugVFL(**SPLIT),
    LaserVFL(**SPLIT),
    FedHSSL(task="regression", **SPLIT),
]
BASELINES += [
    FinalNet(encoding="one-hot", precision="float64", latent_dim=3, width=6, iterations=6)
]
DEEP += [Predict(run(BASELINES[0])), *BASELINES]
FEW_TREES = {"n_trees": 2, "max_depth": 2, "n_bins": 4, "min_child": 4}
TREES = [
    VerticalGBDT(**FEW_TREES),
    VerticalGBDT(**FEW_TREES, objective="regression", histograms="open"),
]
TREES = [Predict(run(TREES[0])), *TREES]
FORESTS = [VerticalForest(**FEW_TREES, objective="regression")]
FORESTS = [Predict(run(FORESTS[0])), *FORESTS]
# What needs a key stream that parties share has no encrypted sums.
MASKED = [
    VerticalGLM("binomial", "ridge", l2=2.0, encoding="one-hot"),
    VerticalSVM(l2=2.0, encoding="one-hot"),
]
CLASSIFIERS = [*MASKED, VerticalSVM(l2=2.0, loss="squared", rows="mean", encoding="one-hot")]
STRATEGIES = IMPUTERS + GENERATORS + SYNTHESES + REGRESSIONS + DEEP + TREES + FORESTS + CLASSIFIERS
every_strategy, every_imputer = named(STRATEGIES), named(IMPUTERS)
every_predictor = named(REGRESSIONS + DEEP + TREES + FORESTS + CLASSIFIERS)
every_synthesis = named(SYNTHESES)


@every_imputer
@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_tables_come_back_complete(strategy, mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    result = kept(strategy, mode)
    assert set(result.tables) == {"bank", "court"}
    for name, given in tables().items():
        got = result.tables[name]
        assert list(got.columns) == list(given.columns)
        assert list(got.index[: len(given)]) == list(given.index)
        assert not got.isna().any().any()
        # What was observed is not touched.
        for column in given.columns:
            seen = given[column].dropna()
            assert (got.loc[seen.index, column] == seen).all(), column
    assert len(result.tables["bank"]) == len(result.tables["court"]) == 40


@every_synthesis
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_synthetic_tables_have_the_columns_and_nobody_s_rows(strategy, mode):
    result = kept(strategy, mode)
    for name, given in tables().items():
        got = result.tables[name]
        assert list(got.columns) == list(given.columns)
        assert not got.isna().any().any()
        assert not got.index.isin(given.index).any()
        assert got.index.equals(result.labels.index)
        assert len(got) == (strategy.rows or 40)


@every_imputer
def test_modes_agree(strategy):
    """Also where levels give many equal distances."""
    plain, masked = kept(strategy, "plain"), kept(strategy, "masked")
    for name in ("bank", "court"):
        pd.testing.assert_frame_equal(masked.tables[name], plain.tables[name], rtol=1e-9, atol=1e-9)


@every_predictor
@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_modes_agree_on_coefficients_and_predictions(strategy, mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
        if strategy in [*TREES[1:], *FORESTS]:
            pytest.skip("grown with sums of whole numbers, and refuses ciphertexts")
    if mode == "ckks" and strategy in MASKED:
        with pytest.raises(ConfigError, match="aggregation='masked'"):
            run(strategy, mode)
        return
    plain, other = kept(strategy, "plain"), kept(strategy, mode)
    for name in ("coefficients", "predictions"):
        left, right = getattr(plain, name), getattr(other, name)
        if left is not None:
            pd.testing.assert_frame_equal(left, right, rtol=1e-4, atol=1e-4)
    assert plain.predictions is not None or plain.coefficients is not None


@every_strategy
def test_the_same_seed_gives_the_same_result(strategy):
    first, second = kept(strategy), run(strategy)
    for name in first.tables:
        pd.testing.assert_frame_equal(first.tables[name], second.tables[name], check_exact=True)
    if strategy in MASKED:  # whole numbers are rounded behind streams that no seed repeats
        assert_near(first, second)
        return
    assert_same_numbers(first, second)
    assert first.metrics == second.metrics


def assert_near(first, second):
    """Compare to the grid of predictions."""
    estimates = [result.coefficients["estimate"] for result in (first, second)]
    np.testing.assert_allclose(*estimates, rtol=1e-3, atol=1e-4)
    pd.testing.assert_frame_equal(first.predictions, second.predictions, atol=0.03)
    assert first.metrics == pytest.approx(second.metrics, rel=1e-3)


def assert_same_numbers(first, second):
    for name in ("coefficients", "predictions"):
        one, other = getattr(first, name), getattr(second, name)
        assert (one is None) == (other is None)
        if one is not None:
            pd.testing.assert_frame_equal(one, other, check_exact=True)


@every_strategy
def test_the_result_is_filled_in(strategy):
    result = recorded(strategy).result
    assert result.strategy == strategy.name
    assert result.parties == ["bank", "court"]
    assert result.mask.shape == (size_of(strategy), 2)
    assert result.mask.sum(axis=0).tolist() == [3, 4]
    assert result.ledger.rounds >= 3
    assert result.settings["aggregation"] == "masked"
    assert result.settings["engine"] == "local"
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert set(result.party_metrics) <= {"bank", "court"}


@pytest.mark.parametrize(
    "strategy",
    {(type(s), getattr(s, "chosen", "")): s for s in STRATEGIES}.values(),
    ids=lambda s: s.name,
)
def test_the_result_can_be_saved_and_loaded(strategy, tmp_path):
    result = kept(strategy)
    again = Result.load(result.save(tmp_path / "run"))
    assert again.strategy == strategy.name
    assert again.metrics == result.metrics
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(
            again.tables[name], table, check_dtype=False, check_categorical=False
        )
    if result.coefficients is not None:
        pd.testing.assert_frame_equal(again.coefficients, result.coefficients)
    if result.predictions is not None:
        pd.testing.assert_frame_equal(again.predictions, result.predictions, check_names=False)


# Drawing a page takes seconds; the pages of strategies with the same party half are alike.
@pytest.mark.parametrize(
    "strategy", {s.party: s for s in STRATEGIES}.values(), ids=lambda s: s.name
)
def test_the_result_can_be_reported(strategy, tmp_path):
    page = html.unescape(kept(strategy).report(tmp_path).read_text())
    assert strategy.name in page
    assert "court" in page
    assert all(what in page for _, what in strategy.disclosure)


@every_strategy
def test_settings_are_plain_and_make_the_strategy_again(strategy):
    settings = strategy.settings()
    assert json.loads(json.dumps(settings)) == settings
    # Flower's run config carries numbers, truth values and text only.
    assert all(type(value) in (int, float, bool, str) for value in settings.values())
    run_config = {f"{strategy.name}.{k.replace('_', '-')}": v for k, v in settings.items()}
    target = f"{type(strategy).__module__}:{type(strategy).__name__}"
    again = make_strategy(target, run_config)
    assert type(again) is type(strategy)
    assert again.settings() == settings


AS_MADE = {id(strategy): dict(vars(strategy)) for strategy in STRATEGIES}


@every_strategy
def test_a_run_leaves_the_strategy_as_it_was(strategy):
    kept(strategy)
    assert vars(strategy) == AS_MADE[id(strategy)]


@every_strategy
def test_it_declares_its_halves_and_what_it_discloses(strategy):
    assert isinstance(strategy, Strategy)
    assert issubclass(strategy.party, Party)
    assert issubclass(strategy.arbiter, Arbiter)
    assert steps_of(strategy.party) > steps_of(Party)
    assert steps_of(strategy.arbiter) >= {"reveal"}
    assert len(strategy.disclosure) > 0
    for who, what in strategy.disclosure:
        assert who.split(" ")[0].strip(",") in ("server", "every", "arbiter", "nobody", "a")
        assert what == what.strip()
        assert len(what) > 5
    assert type(strategy).__doc__
    result = recorded(strategy).result
    assert set(strategy.disclosure) <= {tuple(row) for row in result.disclosure}


@every_imputer
def test_new_rows_are_completed_from_an_earlier_result(strategy):
    """Blocks are missing among the donors as well as among the new rows."""
    given = tables()
    ids = [f"firm {i:02}" for i in range(40)]
    early = {name: t[t.index.isin(ids[:22])] for name, t in given.items()}
    late = {name: t[t.index.isin(ids[22:])] for name, t in given.items()}
    first = simulate(strategy, early, progress=False)
    second = simulate(strategy, late, fitted=first, progress=False)
    for table in second.tables.values():
        assert sorted(table.index) == ids[22:]
        assert not table.isna().any().any()
    # Donors of which a party has no row are not new samples.
    third = simulate(strategy, late, fitted=early, progress=False)
    for table in third.tables.values():
        assert sorted(table.index) == ids[22:]


# Strategies with the same party half travel alike; tests/grids runs some on Ray itself.
@pytest.mark.parametrize(
    "strategy",
    {s.party: s for s in STRATEGIES if s not in SYNTHESES}.values(),
    ids=lambda s: s.name,
)
def test_ray_gives_the_same_result(strategy, ray_in_process):
    local, ray = kept(strategy), run(strategy, engine="ray")
    assert ray_in_process.started == 2
    for name in local.tables:
        pd.testing.assert_frame_equal(local.tables[name], ray.tables[name], check_exact=True)
    if strategy in MASKED:
        assert_near(local, ray)
        return
    assert_same_numbers(local, ray)
    assert local.metrics == ray.metrics
    assert ray.settings["engine"] == "ray"


RECORDED = {}


def recorded(strategy):
    """Return one run of a strategy for all tests that only look at it, with its messages."""
    if id(strategy) not in RECORDED:
        some = strategy in IMPUTERS + GENERATORS + SYNTHESES
        given = tables(size_of(strategy), cells=0.2 if some else 0.0)
        worked, transcript = [], []
        with watching(worked, transcript):
            result = run(strategy, transcript=transcript)
        RECORDED[id(strategy)] = Recording(
            strategy, "masked", given, labels_for(strategy), result, transcript, worked
        )
    return RECORDED[id(strategy)]


def needs_consent(strategy):
    """Whether nodes must agree to it, since it tells numbers of single samples."""
    return bool({"sums", "distances", "embeddings", "histograms"} & {*exchanges_of(strategy)})


@every_strategy
def test_attacks_on_what_nodes_see_find_nothing(strategy):
    """Rules on rows, vectors and flags are not for so few rows; tests/attacks has more of them."""
    if needs_consent(strategy):
        pytest.skip("tells numbers of single samples, by consent of each node")
    attacks = [name for name in (*ATTACKS, LABELS) if name not in RULED]
    for finding in attack_run(recorded(strategy), attacks):
        if finding.view == SERVER and strategy in TREES:
            continue  # is told sides of splits, which are counted; tests/attacks has how much
        assert finding.beyond <= (0.01 if finding.attack == LABELS else 0.0), finding


def test_every_built_in_strategy_is_in_the_list():
    tested = {type(strategy) for strategy in STRATEGIES}
    assert {load_strategy(target) for target in BUILTIN.values()} == tested
    for name, target in BUILTIN.items():
        assert load_strategy(target).name == name
