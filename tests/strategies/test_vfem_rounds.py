"""What a run of VFEM costs: rounds and numbers as the strategy's docstring states."""

import numpy as np
import pytest
from oracles.vfem import generate
from vfem_runs import PAPER, fit, fit_tables, party_tables, recorded, rounds_of

DATA = {"n": 200, "sizes": [2, 1, 3], "rates": [0.3, 0.4, 0.2], "seed": 3}
OPENING = ("hello", "share_ids", "prepare", "finish", "keep_model")  # and the end
ITERATIONS = {"step": "scoring", "taken again": "scoring", "shortened": "shorten",
              "extrapolated": "extrapolate", "back": "shorten"}  # fmt: skip


@pytest.fixture(scope="module")
def pooled():
    return generate(**DATA)[0]


@pytest.mark.parametrize("cross", [0.0, 1.0])
@pytest.mark.parametrize("mode", ["masked"])
@pytest.mark.parametrize("settings", [{}, {"acceleration": None}, {"intercept": False}])
def test_one_round_an_iteration(settings, mode, cross):
    """Correlated parties make it shorten steps and extrapolate."""
    pooled, _ = generate(**DATA, cross=cross)
    result = fit(pooled, mode, check_correlation=False, **settings)
    expected = dict.fromkeys((*OPENING, "information"), 1)
    for entry in result.history:
        step = ITERATIONS[entry["kind"]]
        expected[step] = expected.get(step, 0) + 1
    assert rounds_of(result) == expected
    assert result.ledger.rounds == 6 + len(result.history)
    assert result.metrics["iterations"] == len(result.history)
    assert [entry["iteration"] for entry in result.history] == [*range(1, len(result.history) + 1)]


def test_the_paper_s_iteration_takes_a_round_where_its_algorithm_takes_four(pooled):
    result = fit(pooled, "masked", max_iter=9, **PAPER)
    assert rounds_of(result) == dict.fromkeys(OPENING, 1) | {"gradient": 9}


def test_ckks_opens_each_sum_in_a_round_of_its_own(pooled):
    result = fit(pooled, "ckks", max_iter=3, **PAPER)
    # No sum has to be opened in 'finish': there is nothing to predict.
    assert rounds_of(result) == dict.fromkeys(OPENING, 1) | {"gradient": 3, "reveal": 4}


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"standard_errors": None}, {}),
        ({"standard_errors": "expected"}, {"information": 1}),
        ({"standard_errors": "gram"}, {"parts": 1, "product_keys": 1, "encrypt_rows": 1,
                                       "multiply_rows": 1, "open_products": 1}),
        ({"standard_errors": "sketch"}, {"parts": 1, "pair_key": 1, "keep_pair_keys": 1,
                                         "sketch_rows": 1}),
        ({"standard_errors": None, "check_correlation": True}, {"pair_key": 1, "sketch_ranks": 1}),
        ({"standard_errors": "sketch", "check_correlation": True},
         {"parts": 1, "pair_key": 1, "sketch_ranks": 1, "sketch_rows": 1}),
        ({"standard_errors": None, "initial": "mean-imputed"}, {"ls_step": None, "begin": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_rounds_besides_the_iterations(pooled, settings, more):
    if settings["standard_errors"] == "gram":
        pytest.importorskip("tenseal")
    got = rounds_of(fit(pooled, "masked", **{"check_correlation": False, **settings}))
    for step in ("scoring", "shorten", "extrapolate"):
        got.pop(step, None)
    if "ls_step" in more:
        assert 1 <= got.pop("ls_step") <= 9  # columns and three
        more = {"begin": 1}
    always = dict.fromkeys(OPENING, 1)
    assert got == always | more


def test_one_party_has_nothing_to_check_or_multiply():
    pytest.importorskip("tenseal")
    pooled, _ = generate(100, [3], 0.0, seed=1)
    for kind, more in (("gram", set()), ("sketch", set())):
        got = rounds_of(fit(pooled, "masked", standard_errors=kind))
        assert set(got) == {*OPENING, "scoring", "parts"} | more


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_numbers_and_bytes_of_an_iteration(pooled, mode):
    result = fit(pooled, mode, check_correlation=False)
    n, held = len(pooled.y), (~pooled.mask).sum(axis=0)
    frame = result.ledger.to_frame()
    rounds = frame[frame["step"] == "scoring"]
    first = rounds["round"].min()
    for k, name in enumerate(["p0", "p1", "p2"]):
        own = rounds[rounds["party"] == name]
        assert (own["values_up"] == n + 4).all()  # fits, margin, three lengths
        # 8 bytes each, and names; 4 public numbers.
        assert own["bytes_up"].between(8 * (n + 8), 8 * (n + 8) + 200).all()
        down = own.set_index("round")["bytes_down"]
        groups = len(np.unique(pooled.mask, axis=0))
        assert down.drop(first).between(8 * held[k], 8 * (held[k] + groups) + 250).all()
        # Which samples share a pattern is sent once.
        assert down[first] - down.drop(first).min() == pytest.approx(8 * held[k], abs=20)
    prepare = frame[frame["step"] == "prepare"]
    assert (prepare["values_up"] == 2).all()
    assert (prepare["bytes_up"] < 400).all()
    finish = frame[frame["step"] == "finish"]
    assert (finish["values_up"] == 0).all()
    information = frame[frame["step"] == "information"]
    assert (information["bytes_up"] < 150).all()


def test_predictions_cost_a_number_a_sample(pooled):
    tables, labels = party_tables(pooled)
    labels = labels[~pooled.mask.all(axis=1)]
    labels.iloc[-50:] = np.nan
    frame = fit_tables(tables, labels, check_correlation=False).ledger.to_frame()
    free = len(set.union(*[set(t.index) for t in tables.values()])) - labels.notna().sum()
    assert (frame.loc[frame["step"] == "keep_model", "values_up"] == free).all()
    scoring = frame.loc[frame["step"] == "scoring", "values_up"]
    assert (scoring == labels.notna().sum() + 4).all()


def test_a_party_gets_residuals_of_the_rows_it_holds_and_no_more(pooled):
    tables, labels = party_tables(pooled)
    run = recorded(tables, labels, "masked", check_correlation=False)
    seen = 0
    for m in run.messages:
        if "r" in m.arguments:
            assert not m.up
            assert m.arguments["r"].shape == (len(tables[m.node]),)
            assert set(m.arguments) <= {
                "r", "missing", "coupling", "weight", "group", "restore", "share", "again",
            }  # fmt: skip
            seen += 1
    assert seen == 3 * sum(e["kind"] in ("step", "taken again") for e in run.result.history)
