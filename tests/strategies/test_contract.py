"""What every strategy must do, whatever its method. A new one gets a case in `tests/kit/cases.py`.

What the core does is tried once for each party half; the others are alike. Everything is made when
it is first asked for.
"""

import dataclasses
import html
import json
import os
import secrets

import numpy as np
import pandas as pd
import pytest

from apps.cli.rounds import protocols_of, round_rows
from flwr_vertical import (
    Arbiter,
    Model,
    Party,
    Result,
    Strategy,
    Summands,
    load_strategy,
    make_strategy,
    simulate,
    step,
)
from flwr_vertical.alignment.registry import aligner_class
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.node.steps import steps_of
from flwr_vertical.policy.requirements import exchanges_of
from flwr_vertical.protocol.declaration import ALL, Round
from flwr_vertical.protocol.messages import HELLO
from simulations.attacks.suite import ATTACKS, LABELS, RULED, attack_run
from simulations.attacks.views import SERVER
from strategies import BUILTIN
from tests.kit import cases
from tests.kit.cases import CASES, class_of, made, recorded, result_of, tables
from tests.kit.repeating import SecondAnswerError, every_sum_twice

every_case = pytest.mark.parametrize("case", CASES)
NO_MODEL = cases.COMPLETING | cases.GENERATING | cases.SYNTHETIC
IMPUTERS = ["fknn", "fknn exact", "mean", "most-frequent"]
PREDICTORS = [
    *cases.one_per_half([case for case in CASES if case.split()[0] not in NO_MODEL]),
    "final-net",
    "svm",
]
# The server is told sides of splits, which are counted; tests/attacks has how much.
TOLD_SIDES = {"predict gbdt"}
# They need whole numbers, or a key stream that parties share.
NO_CIPHERTEXTS = cases.MASKED | {"gbdt", "forest"}


def test_every_built_in_strategy_is_here():
    assert {case.split()[0] for case in CASES} == set(BUILTIN)
    for name, target in BUILTIN.items():
        assert load_strategy(target).name == name


def test_settings_are_plain_and_make_the_strategy_again():
    for case in CASES:
        strategy = made(case)
        settings = strategy.settings()
        assert json.loads(json.dumps(settings)) == settings
        # Flower's run config carries numbers, truth values and text only.
        assert all(type(value) in (int, float, bool, str) for value in settings.values()), case
        run_config = {f"{strategy.name}.{k.replace('_', '-')}": v for k, v in settings.items()}
        target = f"{type(strategy).__module__}:{type(strategy).__name__}"
        again = make_strategy(target, run_config)
        assert type(again) is type(strategy)
        assert again.settings() == settings, case


def test_strategies_declare_their_halves_and_what_they_disclose():
    for case in CASES:
        strategy = made(case)
        assert isinstance(strategy, Strategy)
        assert type(strategy).__doc__
        assert issubclass(strategy.party, Party)
        assert issubclass(strategy.arbiter, Arbiter)
        assert steps_of(strategy.party) > steps_of(Party)
        assert steps_of(strategy.arbiter) >= {"reveal"}
        assert len(strategy.disclosure) > 0, case
        for who, what in strategy.disclosure:
            assert who.split(" ")[0].strip(",") in ("server", "every", "arbiter", "nobody", "a")
            assert what == what.strip()
            assert len(what) > 5


@every_case
def test_the_result_is_filled_in_and_the_strategy_left_as_it_was(case):
    strategy = made(case)
    before = dict(vars(strategy))
    result = recorded(case).result
    assert {key: vars(strategy)[key] for key in before} == before  # it may look up what it needs
    assert result.strategy == strategy.name
    assert result.parties == ["bank", "court"]
    assert result.mask.shape == (cases.size_of(case), 2)
    assert result.mask.sum(axis=0).tolist() == [3, 4]
    assert result.ledger.rounds >= 3
    assert result.settings["aggregation"] == "masked"
    assert result.settings["engine"] == "local"
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert set(result.party_metrics) <= {"bank", "court"}
    assert set(strategy.disclosure) <= {tuple(row) for row in result.disclosure}


@every_case
def test_a_recorded_run_took_the_steps_that_its_protocol_declares(case):
    run = recorded(case)
    protocol = run.strategy.protocol_of_run().chosen({"aggregation": run.mode, "n_parties": 2})
    aligner = aligner_class(run.result.settings["alignment"])
    before = {HELLO, "labels", *aligner.steps.protocol.steps}
    taken = set(run.result.ledger.to_frame()["step"]) - before
    assert taken, case
    assert taken <= set(protocol.steps)
    # What stands outside repetitions and choices comes in every run.
    always = {one.step for one in protocol.parts if isinstance(one, Round) and one.ask == ALL}
    assert always <= taken
    described = {row.step for _, declared in protocols_of(class_of(case))
                 for row in round_rows(declared)}  # fmt: skip
    assert case.startswith(("predict", "pipeline")) or taken <= described


@every_case
def test_each_sum_answered_twice_has_equal_bytes(case):
    """A sum answered twice gives the same bytes, or has a new number."""
    repetition = cases.repeated(case)[1]
    repetition.check()
    calls = cases.CALLS.get(case, cases.FITTED_CALLS.get(cases.FITTED.get(case), set()))
    assert calls <= repetition.steps
    # Synthetic tables are made by calls; what is sent is no term of a sum.
    without_sums = case.split()[0] in cases.SYNTHETIC - cases.COUNTED
    assert bool(repetition.steps | repetition.declared) == (not without_sums)


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
    "its own": lambda party: party.rng.normal(size=3) + some(lambda n: party.secret_bytes("x", n)),
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("source", DRAWS)
def test_random_numbers_of_a_third_kind_are_noticed(source, declared):
    """What asks every strategy twice could fail."""

    class Half(Party):
        @step(repeatable=not declared)
        def draw(self):
            return Summands({"noise": np.asarray(DRAWS[source](self), dtype=float)})

    class Drawing(Strategy):
        name = "drawing"
        party = Half

        def run(self, federation, alignment, result, progress):
            for _ in range(3):
                federation.sum("draw")

    def run_twice():
        table = pd.DataFrame({"x": np.arange(20.0)})
        with every_sum_twice() as repetition:
            simulate(Drawing(), {"bank": table, "court": table})
        return repetition.steps, repetition.declared

    if declared:
        assert run_twice() == (set(), {"draw"})
    elif source == "its own":
        assert run_twice() == ({"draw"}, set())
    else:
        with pytest.raises(SecondAnswerError, match="'draw'"):
            run_twice()


def assert_same(case, first, second):
    assert first.tables.keys() == second.tables.keys()
    for name in first.tables:
        pd.testing.assert_frame_equal(first.tables[name], second.tables[name], check_exact=True)
    # Whole numbers are rounded behind streams that no seed repeats; compare to the grid.
    rounded = case in cases.LARGE
    near = {"rtol": 1e-3, "atol": 1e-4} if rounded else {"check_exact": True}
    assert_near(first, second, near, {"atol": 0.03} if rounded else near)
    if rounded:
        assert first.metrics == pytest.approx(second.metrics, rel=1e-3, abs=1e-6)
    else:
        assert first.metrics == second.metrics


def assert_near(first, second, coefficients, predictions):
    for name, near in (("coefficients", coefficients), ("predictions", predictions)):
        one, other = getattr(first, name), getattr(second, name)
        assert (one is None) == (other is None)
        if one is not None:
            pd.testing.assert_frame_equal(one, other, **near)


# tests/attacks has these with ten times the rows, which is slow enough once.
ATTACKED = {"fknn", "gbdt", "predict gbdt", "glm binomial", "svm"}


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in ATTACKED])
def test_attacks_on_what_nodes_see_find_nothing(case):
    """Rules on rows, vectors and flags are not for so few rows; tests/attacks has more of them."""
    asked = {*exchanges_of(made(case))}
    if asked & {"sums", "distances", "embeddings", "histograms"}:
        pytest.skip("tells numbers of single samples, by consent of each node")
    attacks = [name for name in (*ATTACKS, LABELS) if name not in RULED]
    for finding in attack_run(recorded(case), attacks):
        if finding.view == SERVER and case in TOLD_SIDES:
            continue
        assert finding.beyond <= (0.01 if finding.attack == LABELS else 0.0), finding


# -- modes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
@pytest.mark.parametrize("case", IMPUTERS)
def test_tables_come_back_complete(case, mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    result = result_of(case, mode)
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
        if mode == "masked":  # modes agree, also where levels give many equal distances
            plain = result_of(case, "plain").tables[name]
            pd.testing.assert_frame_equal(got, plain, rtol=1e-9, atol=1e-9)
    assert len(result.tables["bank"]) == len(result.tables["court"]) == 40


@pytest.mark.parametrize("case", cases.of_strategies(cases.SYNTHETIC))
@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
def test_synthetic_tables_have_the_columns_and_nobody_s_rows(case, mode):
    result = result_of(case, mode)
    for name, given in tables().items():
        got = result.tables[name]
        assert list(got.columns) == list(given.columns)
        # Where missing cells are a level of their own, synthetic rows have some, too.
        allowed = given.isna().any() if case in cases.COUNTED else False
        assert (~got.isna().any() | allowed).all()
        assert not got.index.isin(given.index).any()
        assert case in cases.COUNTED or got.index.equals(result.labels.index)
        assert len(got) == (made(case).rows or 40)


@pytest.mark.parametrize(
    ("mode", "case"),
    [("masked", case) for case in PREDICTORS]
    + [
        pytest.param("ckks", case, marks=pytest.mark.slow)
        for case in PREDICTORS
        if case not in NO_CIPHERTEXTS
    ],
)
def test_modes_agree_on_coefficients_and_predictions(mode, case):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    plain, other = result_of(case, "plain"), result_of(case, mode)
    assert_near(plain, other, {"rtol": 1e-4, "atol": 1e-4}, {"rtol": 1e-4, "atol": 1e-4})
    for name, frame in plain.frames.items():
        sums = (f.select_dtypes("number").sum().astype(float) for f in (frame, other.frames[name]))
        np.testing.assert_allclose(*sums, rtol=1e-4, atol=1e-4)
    assert plain.frames or plain.predictions is not None or plain.coefficients is not None


# Cases, and what one party alone is told, and two that ask for ciphertexts.
REFUSED = [
    (
        "glm binomial, glm ridge, glm robust, glm all, scorecard",
        "binomial.* needs .*, and there is one.*fit there by statsmodels or",
        "not ciphertexts.*aggregation='masked' .*, or strategy 'glm-admm'",
    ),
    ("gbdt, forest", "'bank' is alone", "trees add .*aggregation='masked'"),
    (
        "lda, explore",
        "two parties or more.*there is one",
        "aggregation='masked' in place of 'ckks'",
    ),
    ("cox, cox all", "of one party, fit by lifelines", "aggregation='masked' in place of 'ckks'"),
    ("svm", "there is one; use loss='squared'", "aggregation='masked' .*; or use loss='squared'"),
    ("joint-normal, pipeline", "it needs two parties or more", "aggregation='masked'"),
    ("mst, aim", "", "under 'ckks' do not carry; use aggregation='masked'"),
]


def test_whom_one_party_and_ciphertexts_cannot_serve_says_so():
    found = set()
    for names, alone, ciphertexts in REFUSED:
        for case in names.split(", "):
            found.add(case)
            own, labels = cases.tables_of(case), cases.labels_of(case)
            one = {"bank": own["bank"]}
            for given, mode, says in ((one, "masked", alone), (own, "ckks", ciphertexts)):
                if says:
                    with pytest.raises((ConfigError, DataError), match=says):
                        simulate(made(case), given, labels, aggregation=mode)
    assert found >= NO_CIPHERTEXTS


# -- what is the core's ----------------------------------------------------------------------


def assert_equal(one, other):
    """Compare values of all kinds that a model holds, types included."""
    if isinstance(one, Model):
        assert type(one) is type(other)
        assert_equal(dataclasses.asdict(one), dataclasses.asdict(other))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert type(one) is type(other)
        np.testing.assert_equal(one, other)  # NaN equals NaN


@every_case
def test_the_result_can_be_saved_and_loaded(case, tmp_path):
    result = result_of(case)
    again = Result.load(result.save(tmp_path / "run"))
    assert again.strategy == result.strategy
    assert again.metrics == result.metrics
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(
            again.tables[name], table, check_dtype=False, check_categorical=False
        )
    assert_equal(again.model, result.model)
    if result.coefficients is not None:
        pd.testing.assert_frame_equal(again.coefficients, result.coefficients)
    if result.predictions is not None:
        pd.testing.assert_frame_equal(again.predictions, result.predictions, check_names=False)


# One for each kind of result.
@pytest.mark.parametrize("case", ["vcds", "glm", "false-vfl"])
def test_the_result_can_be_reported(case, tmp_path):
    page = html.unescape(result_of(case).report(tmp_path).read_text())
    assert made(case).name in page
    assert "court" in page
    assert all(what in page for _, what in made(case).disclosure)


@pytest.mark.parametrize("case", ["fknn", "fknn exact", "mean"])
def test_new_rows_are_completed_from_an_earlier_result(case):
    """Blocks are missing among the donors as well as among the new rows."""
    given = tables()
    ids = [f"firm {i:02}" for i in range(40)]
    early = {name: t[t.index.isin(ids[:22])] for name, t in given.items()}
    late = {name: t[t.index.isin(ids[22:])] for name, t in given.items()}
    first = simulate(made(case), early)
    second = simulate(made(case), late, fitted=first)
    for table in second.tables.values():
        assert sorted(table.index) == ids[22:]
        assert not table.isna().any().any()
    # Donors of which a party has no row are not new samples.
    third = simulate(made(case), late, fitted=early)
    for table in third.tables.values():
        assert sorted(table.index) == ids[22:]


@pytest.mark.parametrize("case", cases.one_per_half())
def test_the_seed_decides_the_result_on_ray_too(case, ray_in_process):
    """tests/grids runs some on Ray itself; noise of copulas has no seed in an actor."""
    if case.split()[0] in cases.SYNTHETIC:
        assert_same(case, result_of(case), cases.run(case))
        return
    ray = cases.run(case, engine="ray")
    assert ray_in_process.started == 2
    assert ray.settings["engine"] == "ray"
    assert_same(case, result_of(case), ray)
