"""FKNN: what a run costs, and bad input to it and to `simulate`: errors that say what to do."""

import math

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import load_strategy, make_strategy, register_strategy, simulate
from flwr_vertical import registry as registry_module
from flwr_vertical.errors import ConfigError, DataError, PartyError, VerticalError
from strategies.fknn import FKNN


def good():
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in range(12)]
    bank = pd.DataFrame(rng.normal(size=(12, 2)), index=ids, columns=["income", "debt"])
    court = pd.DataFrame({"cases": rng.normal(size=12), "type": list("abc") * 4}, index=ids)
    bank.iloc[3, 0] = np.nan
    court.iloc[5, 1] = np.nan
    return {"bank": bank, "court": court}


def run(tables, **kwargs):
    if kwargs.get("aggregation") == "ckks":
        pytest.importorskip("tenseal")
    kwargs = {"strategy": FKNN(n_neighbors=2), "progress": False} | kwargs
    return simulate(parties=tables, **kwargs)


def change(tables, party, edit):
    tables[party] = edit(tables[party])
    return tables


# -- what a run costs ------------------------------------------------------------------------


def every_third(n_rows=60):
    """Three parties; every third row needs imputing."""
    rng = np.random.default_rng(0)
    made = {n: pd.DataFrame(rng.normal(size=(n_rows, 2))).add_prefix(n) for n in "abc"}
    made["a"].iloc[::3, 1] = np.nan
    made["c"].iloc[::6, 0] = np.nan
    return made


OPENING = 2 + 2  # greeting and alignment; keys of pairs, and of the group


@pytest.mark.parametrize(("mode", "rows_a_block"), [
    ("plain", 20), ("masked", 20), ("masked", 7), ("masked", 1), ("ckks", 7),
])  # fmt: skip
def test_rounds_are_blocks_and_five(mode, rows_a_block):
    strategy = FKNN(n_neighbors=3, block_pairs=rows_a_block * 60)
    result = run(every_third(), strategy=strategy, aggregation=mode)
    assert result.metrics["rows_imputed"] == 20
    sums = math.ceil(20 / rows_a_block) + 2  # prepare, and the last block's donors
    openings = sums if mode == "ckks" else 0  # the arbiter opens each
    assert result.ledger.rounds == OPENING + sums + openings + 1  # finish
    if mode == "ckks":
        frame = result.ledger.to_frame()
        steps = frame.groupby("step").agg({"mode": "unique", "party": "unique"})
        assert set(steps.index) == {
            "hello", "share_ids", "pair_key", "seal_group_seed", "prepare", "reveal", "impute",
            "rank", "finish",
        }  # fmt: skip
        assert [*steps.loc["rank", "mode"], *steps.loc["rank", "party"]] == ["open", "(arbiter)"]
        assert sorted(steps.loc["impute", "party"]) == ["a", "b", "c"]
        assert list(steps.loc["impute", "mode"]) == ["ckks"]


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_a_run_that_needs_nothing_takes_four_rounds(mode):
    complete = {name: table.fillna(0.0) for name, table in every_third().items()}
    flags = mode == "ckks"
    assert run(complete, aggregation=mode).ledger.rounds == OPENING + 2 + flags


@pytest.mark.parametrize(
    ("mode", "n", "bytes_a_number"), [("plain", 480, 8), ("masked", 480, 8), ("ckks", 300, 32)]
)
def test_bytes_of_a_pair(mode, n, bytes_a_number):
    """A number for each pair of row and donor, two where donors lack cells; encrypted, one more."""
    strategy = FKNN(n_neighbors=3, weighting="exact")
    frame = run(every_third(n), strategy=strategy, aggregation=mode).ledger.to_frame()
    up = frame[(frame["step"] == "impute") & (frame["party"] == "b")].iloc[0]
    rows = lacking = n // 3
    numbers = rows * ((2 if mode == "ckks" else 1) * n + 1 + lacking)
    assert up["values_up"] == numbers
    assert up["bytes_up"] / numbers == pytest.approx(bytes_a_number, rel=0.1)


# -- tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_more_neighbours_than_donors(mode):
    tables = good()
    tables["bank"].iloc[:9, 1] = np.nan
    with pytest.raises(PartyError) as caught:
        run(tables, strategy=FKNN(n_neighbors=4), aggregation=mode)
    assert (caught.value.party, caught.value.step) == ("bank", "prepare")
    assert (
        "column 'debt': n_neighbors = 4 but only 3 donors have a value; use a smaller n_neighbors"
    ) in caught.value.cause
    run(tables, strategy=FKNN(n_neighbors=3), aggregation=mode)


def test_fewer_donors_than_neighbours_are_refused():
    with pytest.raises(ConfigError, match="max_donors = 3 is below n_neighbors = 4; compare rows"):
        FKNN(n_neighbors=4, max_donors=3)
    run(good(), strategy=FKNN(n_neighbors=3, max_donors=3))


def test_columns_that_need_nothing_may_have_few_donors():
    """Only a column with missing cells needs as many donors as are asked for."""
    tables = {name: table.dropna() for name, table in good().items()}
    tables = {n: table.loc[table.index.isin(tables["bank"].index)] for n, table in tables.items()}
    result = run(tables, strategy=FKNN(n_neighbors=50, complete_blocks=False))
    pd.testing.assert_frame_equal(result.tables["bank"], tables["bank"])


@pytest.mark.parametrize("standardize", [False, True])
def test_values_whose_squares_overflow(standardize):
    huge = change(good(), "bank", lambda t: t.assign(income=t["income"] * 1e200))
    with pytest.raises(PartyError, match=r"'bank'.*squared differences overflow; rescale"):
        run(huge, strategy=FKNN(n_neighbors=2, standardize=standardize))


# -- fitted donors ---------------------------------------------------------------------------


def new_rows():
    return {name: table.set_axis([f"new{i}" for i in range(12)]) for name, table in good().items()}


def test_a_level_that_the_donors_do_not_have(caplog):
    new = change(new_rows(), "court", lambda t: t.assign(type="zebra"))
    with pytest.raises(PartyError) as caught:
        run(new, fitted=good())
    assert caught.value.party == "court"
    assert (
        "party 'court', column 'type': 1 level(s) were not seen when the donors were fitted "
        "(the party's log names them)"
    ) in caught.value.cause
    # The error travels to the server, and levels are values of cells.
    assert "zebra" not in caught.value.cause
    assert "party 'court', column 'type': unseen level(s) ['zebra']" in caplog.text


@pytest.mark.parametrize(
    ("edit", "error", "why"),
    [
        (lambda fitted: change(fitted, "bank", lambda t: t.assign(age=1.0)), VerticalError,
         r"party 'bank' has columns \['income', 'debt'\], and lacks \['age'\] of the earlier"),
        (lambda fitted: change(fitted, "court", lambda t: t.rename(index={"s1": "new1"})),
         PartyError, "'court': 1 sample IDs of the new rows are also among the donors"),
        (lambda fitted: {"bank": fitted["bank"]}, DataError,
         r"parties \['court'\] have no fitted table although others have"),
    ],
)  # fmt: skip
def test_fitted_tables_that_do_not_fit(edit, error, why):
    with pytest.raises(error, match=why):
        run(new_rows(), fitted=edit(good()))


def test_new_rows_may_have_their_columns_in_another_order():
    new = change(new_rows(), "bank", lambda t: t.assign(debt=[np.nan] * 3 + [*t["debt"][3:]]))
    turned = change(new, "bank", lambda t: t[["debt", "income"]])
    found, in_order = (run(tables, fitted=good()).tables["bank"] for tables in (turned, new))
    assert found["debt"].notna().all()
    pd.testing.assert_frame_equal(found, in_order)


def test_a_new_sample_that_is_a_donor_elsewhere():
    rng = np.random.default_rng(0)
    ids = [f"s{k}" for k in range(20)]
    bank = pd.DataFrame({"x": rng.normal(size=20)}, index=ids)
    court = pd.DataFrame({"y": rng.normal(size=19)}, index=ids[1:])
    strategy = FKNN(2, complete_blocks=False)
    fitted = run({"bank": bank, "court": court}, strategy=strategy)
    new = {"bank": pd.DataFrame({"x": [np.nan, 1.0]}, index=["n0", "n1"]),
           "court": pd.DataFrame({"y": [1.0, np.nan]}, index=["n0", "s0"])}  # fmt: skip
    with pytest.raises(PartyError, match=r"party 'court': 1 of its new samples are fitted donors"):
        run(new, fitted=fitted)  # s0 is the bank's donor


# -- arguments of `simulate`, and the registry -----------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"engine": "spark"}, r"unknown engine 'spark'; expected one of \['local', 'ray'\]"),
        ({"strategy": "fknn"}, r"must be a Strategy object such as FKNN\(\), got str"),
        ({"strategy": FKNN}, r"must be a Strategy object such as FKNN\(\), got FKNN"),
        ({"kinds": {"bnak": {}}},
         r"unknown parties \['bnak'\]; the parties are \['bank', 'court'\]"),
        ({"kinds": {"bank": {"incme": "count"}}},
         "column 'incme' of party 'bank'.*not in the table"),
        ({"fraction_bits": 70}, "fraction_bits must be 0 to 62, got 70"),
        ({"parties": {}}, "at least one entry"),
        ({"parties": [good()["bank"]]}, "dict of party name to DataFrame.*got list"),
        ({"parties": {"../bank": good()["bank"]}}, "party name '../bank' is not usable"),
        ({"parties": {3: good()["bank"]}}, "party name 3 is not usable"),
    ],
)  # fmt: skip
def test_arguments_of_simulate(kwargs, why):
    with pytest.raises(ConfigError, match=why):
        run(kwargs.pop("parties", good()), **kwargs)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry_module, "_REGISTERED", {})
    register_strategy("neighbours", "strategies.fknn:FKNN")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fkn",
         r"'fkn' \(did you mean 'fknn'\?\); expected one of \[.*'neighbours'.*\] or 'module:"),
        ("strategies.nowhere:FKNN", "cannot load 'strategies.nowhere:FKNN'.*No module named"),
        ("strategies.fknn:FKKN", "cannot load .*has no attribute 'FKKN'"),
        ("strategies.fknn.party:FKNNParty", "fknn.party:FKNNParty' is not a subclass of Strategy"),
        ("flwr_vertical:simulate", "is not a subclass of Strategy"),
    ],
)  # fmt: skip
def test_strategies_that_cannot_be_loaded(name, why):
    with pytest.raises(ConfigError, match=why):
        load_strategy(name)


@pytest.mark.usefixtures("registered")
def test_a_strategy_is_made_by_name_from_the_run_config():
    assert load_strategy("neighbours") is load_strategy("strategies.fknn:FKNN") is FKNN
    assert registry_module.available_strategies()["neighbours"] == "strategies.fknn:FKNN"
    config = {"fknn.n-neighbors": 7, "fknn.complete-blocks": False, "vfem.max-iterations": 3}
    strategy = make_strategy("neighbours", config | {"strategy": "neighbours"})
    assert (strategy.n_neighbors, strategy.complete_blocks) == (7, False)
    assert strategy.weighting == "party-mean"
    valid = "'fknn.n-neighbors', 'fknn.weighting', 'fknn.weights'"
    with pytest.raises(ConfigError, match=rf"(?s)\['neighbors'\].*{valid}"):
        make_strategy("neighbours", {"fknn.neighbors": 7, "fknn.weights": "uniform"})
