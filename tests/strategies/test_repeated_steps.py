"""A sum that is answered twice: the same bytes, or a new number. Every built-in strategy."""

import os
import secrets
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import (
    Party,
    Strategy,
    Summands,
    available_strategies,
    load_strategy,
    simulate,
    step,
)
from flwr_vertical.crypto import sealed_box
from strategies import register_all
from strategies.copula import EVCDS, IEVCDS, VCDS
from strategies.false_vfl import FalseVFL
from strategies.fedpsg import FedPSGAR
from strategies.fknn import FKNN
from strategies.forest import VerticalForest
from strategies.glm import VerticalGLM
from strategies.glm_admm import GLMADMM
from strategies.least_squares import CompleteCase, MeanImpute, Single
from strategies.predict import Predict
from strategies.split import FedHSSL, FinalNet, LaserVFL, PlugVFL, VanillaVFL
from strategies.svm import VerticalSVM
from strategies.trees import VerticalGBDT
from strategies.vertigan import VertiGAN
from strategies.vfem import VFEM
from strategies.vfem_iterations import VFEMIterations
from tests.repeating import SecondAnswerError, every_sum_twice

N = 60
IDS = [f"s{i:02}" for i in range(N)]


def complete():
    rng = np.random.default_rng(3)
    tables = {
        "bank": pd.DataFrame(rng.normal(size=(N, 2)), index=IDS, columns=["a", "b"]),
        "court": pd.DataFrame(rng.normal(size=(N, 2)), index=IDS, columns=["c", "d"]),
    }
    labels = 1 + tables["bank"]["a"] - tables["court"]["c"] + rng.normal(scale=0.3, size=N)
    return tables, labels.rename("y")


def with_missing_blocks():
    tables, labels = complete()
    return {"bank": tables["bank"][:50], "court": tables["court"][8:]}, labels


def with_missing_cells():
    tables, _ = with_missing_blocks()
    for k, table in enumerate(tables.values()):
        table.iloc[3 + k :: 6, k] = np.nan
    return tables, None


def unlabelled():
    return complete()[0], None


def binary():
    tables, labels = complete()
    return tables, (labels > 1).astype(float)


def larger():
    """As many rows as moments and masked means need by default."""
    rng = np.random.default_rng(4)
    x = pd.DataFrame(rng.normal(size=(150, 3)), columns=["a", "b", "c"])
    labels = (x["a"] - x["c"] + 2.0 * rng.normal(size=150) > 0).astype(float)
    return {"bank": x[["a", "b"]], "court": x[["c"]]}, labels.rename("y")


def a_model():
    return simulate(VFEM(), *with_missing_blocks(), min_rows=1, progress=False)


def deep(variant="I"):
    few = {"pretrain_epochs": 2, "epochs": 2, "pretrain_batch_size": 30}
    return FalseVFL(variant, "regression", h_dim=3, z_dim=2, width=4, **few)


def a_deep_model():
    return simulate(deep(), *with_missing_blocks(), progress=False)


def split(method):
    few = {"pretrain_epochs": 1, "epochs": 2, "batch_size": 20}
    return method(task="regression", latent_dim=3, width=4, **few)


def a_split_model():
    return simulate(split(VanillaVFL), *with_missing_blocks(), progress=False)


def trees(method, **settings):
    return method(n_trees=2, max_depth=2, n_bins=6, min_child=8, **settings)


def some_trees(method=VerticalGBDT):
    return simulate(trees(method), *binary(), progress=False)


# By strategy: settings that take different steps, and what they are run on.
RUNS = {
    "fknn": [
        (lambda: FKNN(n_neighbors=2, block_pairs=200), with_missing_cells),
        (lambda: FKNN(n_neighbors=2, weighting="exact"), with_missing_cells),
    ],
    "mean": [],
    "min": [],
    "max": [],
    "most-frequent": [],
    "complete-case": [(CompleteCase, with_missing_blocks)],
    "mean-impute": [(MeanImpute, with_missing_blocks)],
    "single": [(lambda: Single(party_name="bank"), with_missing_blocks)],
    "vfem": [
        (VFEM, with_missing_blocks),
    ],
    "predict": [
        (lambda: Predict(a_model()), with_missing_blocks),
        (lambda: Predict(a_deep_model()), with_missing_blocks),
        (lambda: Predict(a_split_model()), with_missing_blocks),
        (lambda: Predict(some_trees()), binary),
        (lambda: Predict(some_trees(VerticalForest)), binary),
    ],
    "vfem-iterations": [(lambda: VFEMIterations(max_iter=4, sketch_size=40), with_missing_blocks)],
    "fedpsg-ar": [
        (lambda: FedPSGAR(n_associated=1, rule="draw", imputer="mice"), with_missing_blocks),
        (
            lambda: FedPSGAR(
                n_associated=1, imputer="gain", generator="joint", iterations=2, batch=8
            ),
            with_missing_blocks,
        ),
    ],
    "vertigan": [(lambda: VertiGAN(iterations=2, batch=8), complete)],
    "glm": [
        (lambda: VerticalGLM(lambdas=0.05), larger),
        (lambda: VerticalGLM("binomial", lambdas=0.05), larger),
        (lambda: VerticalGLM("binomial", "ridge"), larger),
    ],
    "glm-admm": [
        (lambda: GLMADMM("binomial", lambdas=0.05, max_iter=30), binary),
        (lambda: GLMADMM(epsilon=1.0, lambdas=0.05, max_iter=4), complete),
    ],
    "false-vfl": [(deep, with_missing_blocks), (lambda: deep("II"), with_missing_blocks)],
    "vanilla-vfl": [(lambda: split(VanillaVFL), with_missing_blocks)],
    "laser-vfl": [(lambda: split(LaserVFL), with_missing_blocks)],
    "plug-vfl": [(lambda: split(PlugVFL), with_missing_blocks)],
    "fedhssl": [(lambda: split(FedHSSL), with_missing_blocks)],
    "gbdt": [
        (lambda: trees(VerticalGBDT), binary),
        (lambda: trees(VerticalGBDT, histograms="open"), binary),
    ],
    "forest": [(lambda: trees(VerticalForest), binary)],
    "svm": [
        (lambda: VerticalSVM(l2=5.0, corner=0.4), larger),
        (lambda: VerticalSVM(loss="squared", rows="mean"), binary),
    ],
    "final-net": [
        (
            lambda: FinalNet(task="regression", latent_dim=2, width=4, iterations=4),
            with_missing_blocks,
        ),
    ],
    "vcds": [(VCDS, unlabelled)],
    "evcds": [(EVCDS, unlabelled)],
    "ievcds": [(lambda: IEVCDS(iterations=2), unlabelled)],
}
for _name in ("mean", "min", "max", "most-frequent"):
    RUNS[_name] = [(lambda name=_name: load_strategy(name)(), with_missing_cells)]

# Theirs are calls; what is sent is no term of a sum.
WITHOUT_SUMS = {"vcds", "evcds", "ievcds"}
# Calls whose answers are under pads or sealed, or are counted: they are asked twice, too.
_GROWING = {"send_masked", "share", "route"}
CALLS = {"gbdt 0": _GROWING, "gbdt 1": _GROWING, "forest 0": {"send_masked"}}
CALLS |= {"predict 3": {"sides"}, "predict 4": {"tally"}}

CASES = [(name, k) for name, runs in RUNS.items() for k in range(len(runs))]


def test_every_built_in_strategy_is_here():
    register_all()
    own = {n for n, target in available_strategies().items() if target.startswith("strategies.")}
    assert set(RUNS) == own


@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{n}-{k}" for n, k in CASES])
def test_a_sum_answered_twice_gives_equal_bytes_or_has_a_new_number(name, number, monkeypatch):
    # A nonce is new each time: with one for all, what is sealed equal has equal contents.
    monkeypatch.setattr(sealed_box, "secrets", SimpleNamespace(token_bytes=bytes))
    make, data = RUNS[name][number]
    strategy = make()
    tables, labels = data()
    calls = CALLS.get(f"{name} {number}", set())
    with every_sum_twice(also=calls) as repetition:
        simulate(strategy, tables, labels, aggregation="masked", min_rows=1, progress=False)
    assert calls <= repetition.steps
    assert bool(repetition.steps | repetition.declared) == (name not in WITHOUT_SUMS)


def test_the_noise_of_admm_is_another_in_each_run_and_message():
    tables, labels = complete()
    found = []
    for _ in range(2):
        strategy = GLMADMM(epsilon=1.0, lambdas=0.05, max_iter=4)
        result = simulate(strategy, tables, labels, progress=False)
        found.append(result.coefficients["estimate"].to_numpy())
    assert not np.array_equal(*found)


# -- a test that cannot fail shows nothing ---------------------------------------------------


def count_in_process(party):
    party.cache["n"] = party.cache.get("n", 0) + 1
    return np.full(3, party.cache["n"])


def some(draw):
    return np.frombuffer(draw(24), dtype="<u8") >> np.uint64(40)


DRAWS = {
    "numpy": lambda party: np.random.default_rng().normal(size=3),
    "numpy's old one": lambda party: np.random.normal(size=3),  # noqa: NPY002
    "secrets": lambda party: some(secrets.token_bytes),
    "the system": lambda party: some(os.urandom),
    "what the process remembers": count_in_process,
}


def strategy_of(party_class):
    class Drawing(Strategy):
        name = "drawing"
        party = party_class

        def run(self, federation, alignment, result, progress):
            for _ in range(3):
                federation.sum("draw")

    return Drawing()


def run_twice(party_class):
    tables, _ = complete()
    with every_sum_twice() as repetition:
        simulate(strategy_of(party_class), tables, progress=False)
    return repetition


@pytest.mark.parametrize("source", DRAWS)
def test_random_numbers_of_a_third_kind_are_noticed(source):
    class Undeclared(Party):
        @step
        def draw(self):
            return Summands({"noise": np.asarray(DRAWS[source](self), dtype=float)})

    with pytest.raises(SecondAnswerError, match="'draw'"):
        run_twice(Undeclared)


def test_declared_steps_and_own_random_numbers_are_not():
    class Declared(Party):
        @step(repeatable=False)
        def draw(self):
            return Summands({"noise": np.random.default_rng().normal(size=3)})

    class Own(Party):
        @step
        def draw(self):
            key = some(lambda count: self.secret_bytes("noise", count))
            return Summands({"noise": self.rng.normal(size=3) + key})

    assert run_twice(Declared).declared == {"draw"}
    assert run_twice(Own).steps == {"draw"}
