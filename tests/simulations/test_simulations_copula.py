import numpy as np
import pandas as pd
import pytest

from flwr_vertical.incomplete import drop_blocks
from simulations.copula.criteria import least_rmse, selection_criteria
from simulations.copula.design import (
    KINDS,
    LINEAR,
    LOGISTIC,
    component_covariances,
    draw_copula,
    effects,
)
from simulations.copula.mechanisms import (
    MAR_COMPLEX,
    MAR_SIMPLE,
    MCAR,
    MECHANISMS,
    draw_mask,
    may_be_missing,
)
from simulations.copula.methods import (
    CENTRAL,
    FEDERATED,
    NOISY,
    ORACLE,
    SHRUNK,
    make_synthesis,
    measure,
)
from simulations.copula.preset import Preset
from simulations.copula.sme import draw_firms
from simulations.preset import Options

pytestmark = pytest.mark.studies


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    return Preset.load("copula", Options(tmp_path_factory.mktemp("preset")))


@pytest.fixture(scope="module")
def sample(preset):
    return draw_copula(preset["design"], rows=20_000, seed=1)


def test_columns_are_of_the_papers_kinds(preset, sample):
    design = preset["design"]
    assert sample.kinds.value_counts().to_dict() == dict.fromkeys(KINDS, 25)
    wide = pd.concat(sample.tables, axis=1)
    by_kind = {kind: wide.loc[:, sample.kinds.to_numpy() == kind] for kind in KINDS}
    assert set(np.unique(by_kind["multinomial"])) == {1, 2, 3}
    assert set(np.unique(by_kind["binary"])) == {0, 1}
    # Moments of the mixture: variance 1 + 0.6, and of Poisson(2 + 0.3 u) 2 + 0.09 * 1.6.
    np.testing.assert_allclose(by_kind["continuous"].var(), 1.6, atol=0.1)
    np.testing.assert_allclose(by_kind["ordinal"].mean(), 2.0, atol=0.06)
    np.testing.assert_allclose(by_kind["ordinal"].var(), 2.144, atol=0.15)
    np.testing.assert_allclose(by_kind["binary"].mean(), 0.5, atol=0.02)
    assert {k: t.shape[1] for k, t in sample.tables.items()} == {f"c{k}": 20 for k in range(1, 6)}
    beta = effects(design).reshape(5, 20)
    assert (beta[:, 12:] == 0).all()
    assert (np.sign(beta[:, :12]) == np.tile([-1, 1], 6)).all()
    assert np.abs(beta[beta != 0]).max() == pytest.approx(1 / 3)


def test_covariances_are_the_papers():
    first = [matrix[0].tolist() for matrix in component_covariances(np.array([0, 0, 1, 1]))]
    assert first == [[1.0, 0.3, 0.1, 0.1], [1.0, 0.5, 0.25, 0.125], [1.0, 0.5, 0.25, 0.0]]
    for matrix in component_covariances(np.repeat(np.arange(5), 20)):
        assert np.linalg.eigvalsh(matrix).min() > 0


def test_labels_are_of_their_model(preset):
    linear = draw_copula(preset["design"], model=LINEAR, rows=20_000)
    eta = pd.concat(linear.tables, axis=1).to_numpy() @ linear.truth.to_numpy()
    assert (linear.labels - eta).std() == pytest.approx(1.0, abs=0.02)
    assert abs(eta.mean()) < 0.4
    logistic = draw_copula(preset["design"], model=LOGISTIC, rows=20_000)
    assert set(logistic.labels) == {0.0, 1.0}
    assert logistic.labels.mean() == pytest.approx(0.5, abs=0.06)
    again = draw_copula(preset["design"], model=LOGISTIC, rows=20_000)
    assert logistic.labels.equals(again.labels)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_mechanisms_leave_the_printed_shares(preset, mechanism):
    share = preset["missing"]["shares"][mechanism]
    for seed in range(3):
        drawn = draw_copula(preset["design"], rows=3000, seed=seed)
        mask = draw_mask(drawn, mechanism, share, seed)
        found = (~mask.any(axis=1)).mean()
        assert found == pytest.approx(share, abs=0.03 if mechanism == MCAR else 2e-3)
        if mechanism != MCAR:
            assert (mask.any(axis=0) == may_be_missing(5, seed)).all()


def test_complex_gaps_depend_on_labels(preset):
    drawn = draw_copula(preset["design"], rows=5000, seed=2)
    share = preset["missing"]["shares"]
    simple = draw_mask(drawn, MAR_SIMPLE, share[MAR_SIMPLE], 2)
    complicated = draw_mask(drawn, MAR_COMPLEX, share[MAR_COMPLEX], 2)
    k = int(np.flatnonzero(may_be_missing(5, 2))[0])

    def gap(mask):
        lost = mask[:, k]
        return (drawn.labels[lost].mean() - drawn.labels[~lost].mean()) / drawn.labels.std()

    assert gap(complicated) < -0.3
    assert abs(gap(simple)) < abs(gap(complicated))


def test_criteria_are_the_papers():
    truth = np.array([1.0, 1.0, 0.0, 0.0])
    found = selection_criteria(np.array([1.0, 0.0, 0.5, 0.0]), truth)
    assert found["rmse"] == pytest.approx(np.sqrt(1.25 / 4))
    assert found["g_means"] == 0.5
    assert found["fdr"] == 0.5
    assert selection_criteria(np.zeros(4), truth)["fdr"] == 0
    # 6 of 60 missed and nothing false: 6 / 9 over 100 columns. Then 54 of 60 found and 6 of 40
    # false: sensitivity 0.9, specificity 0.85.
    for g_means, fdr in ((np.sqrt(0.9), 0.0), (np.sqrt(0.9 * 0.85), 0.1)):
        least = least_rmse(g_means, fdr, 60, 100, 1 / 3)
        assert least == pytest.approx(np.sqrt(6 / 900), rel=1e-6)


def test_methods_are_what_their_names_say(preset):
    assert make_synthesis("CC-VCDS", 1.0).missing == "complete-case"
    assert make_synthesis("Impute-EVCDS", 1.0).settings()["rearrange"] is True
    fresh = make_synthesis("IEVCDS (fresh rows)", 2.0)
    assert (fresh.name, fresh.rearrange, fresh.budget) == ("ievcds", False, "per-variable")
    drawn = draw_copula(preset["design"], rows=800, seed=3)
    settings = {
        "model": LINEAR,
        "epsilon": 1.0,
        "glm": preset["glm"] | {"n_lambdas": 10},
        "seed": 0,
    }

    def measured(name, held=drawn.tables):
        return measure({**settings, "method": name}, drawn, held)

    found = {name: measured(name) for name in (CENTRAL, FEDERATED, NOISY)}
    assert found[CENTRAL]["rmse"] == pytest.approx(found[FEDERATED]["rmse"], rel=0.1)
    assert found[NOISY]["rmse"] > 2 * found[FEDERATED]["rmse"]
    assert found[FEDERATED]["iterations"] <= 300
    oracle, shrunk = measured(ORACLE), measured(SHRUNK)
    assert oracle["fdr"] == shrunk["fdr"] == 0
    assert shrunk["rmse"] < oracle["rmse"] < found[CENTRAL]["rmse"]
    mask = draw_mask(drawn, MCAR, 0.5, 0)
    assert measured("CC-VCDS", drop_blocks(drawn.tables, mask))["failed"] == 0


def test_firms_are_as_the_paper_says(preset):
    sme = preset["sme"]
    frames, labels, mask = draw_firms(sme, 14_365, 0)
    assert [frame.shape[1] for frame in frames.values()] == [13, 6, 6, 19, 10]
    np.testing.assert_allclose(mask.mean(axis=0), [0.7234, 0.8353, 0.8733, 0.2711, 0.0], atol=0.02)
    assert 120 < (~mask.any(axis=1)).sum() < 260
    assert labels.mean() == pytest.approx(0.3, abs=0.02)
