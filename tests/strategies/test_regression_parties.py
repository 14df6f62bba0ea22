"""Parties of regressions offer what their own method asks for, and nothing of the others'."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from flwr_vertical.errors import PartyError
from flwr_vertical.node.steps import steps_of
from strategies.glm import VerticalGLM
from strategies.glm_admm import GLMADMM
from strategies.least_squares import CompleteCase, MeanImpute, Single
from strategies.predict import Predict
from strategies.vfem import VFEM
from strategies.vfem_iterations import VFEMIterations

PAIR_KEYS = {"pair_key", "keep_pair_keys"}
MOMENTS = {
    "prepare",
    "prepare_moments",
    "seal_group_seed",
    "erase_group_seed",
    "send_masked",
    "open_products",
    "count_columns",
    "encrypt_groups",
    "multiply_groups",
}
LINEAR = PAIR_KEYS | MOMENTS | {"keep_model", "finish_moments"}
MEANS = {"send_digits", "place_fits", "open_means"}
SHARING = {"prepare", "begin", "admm", "count", "finish"}
STEPS = {
    CompleteCase: LINEAR,
    MeanImpute: LINEAR,
    Single: LINEAR,
    VFEM: LINEAR,
    VFEMIterations: PAIR_KEYS | {"prepare", "gradient", "finish", "sketch_rows", "keep_model"},
    Predict: {"open_model", "predict_kept"},
    VerticalGLM: LINEAR | MEANS,
    GLMADMM: SHARING,
}


@pytest.mark.parametrize("strategy", STEPS, ids=lambda cls: cls.name)
def test_a_party_offers_the_steps_of_its_method(strategy):
    assert set(steps_of(strategy.party)) == STEPS[strategy] | {"labels"}


def test_a_step_of_another_method_is_refused():
    rng = np.random.default_rng(0)
    tables = {name: pd.DataFrame({name: rng.normal(size=40)}) for name in ("a", "b")}

    class Asks(Single):
        def run(self, federation, alignment, result, progress):
            federation.call("admm")

    labels = pd.Series(rng.normal(size=40))
    with pytest.raises(PartyError, match="MomentParty has no step 'admm'"):
        simulate(Asks(), tables, labels, progress=False)


def test_too_few_rows_and_collinear_columns_are_looked_for_unless_the_fit_is_penalised():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 3))
    tables = {
        "a": pd.DataFrame({"one": x[:, 0], "two": x[:, 1], "both": x[:, 0] + x[:, 1]}),
        "b": pd.DataFrame(x[:, 2:], columns=["other"]),
    }
    labels = pd.Series(x @ [1.0, 2.0, 0.5] + 0.1 * rng.normal(size=40))
    penalized = GLMADMM(penalty="lasso", lambdas=0.1)
    free = CompleteCase()
    notes = simulate(free, tables, labels, min_rows=10, progress=False).notes
    assert any("['both'] are constant or follow from others" in note for note in notes)
    notes = simulate(penalized, tables, labels, progress=False).notes
    assert not any("follow from others" in note for note in notes)
    few = {name: table[:4] for name, table in tables.items()}
    with pytest.raises(PartyError, match=r"holds 4 rows of labelled samples.* at least 5"):
        simulate(free, few, labels[:4], progress=False)
    assert simulate(penalized, few, labels[:4], progress=False).coefficients is not None
