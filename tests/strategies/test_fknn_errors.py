"""Bad input to FKNN and to `simulate`: each a clear error that says where and what to do."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Party, Strategy, load_strategy, make_strategy, register_strategy, simulate
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
    kwargs = {"strategy": FKNN(n_neighbors=2), "progress": False} | kwargs
    return simulate(parties=tables, **kwargs)


def change(tables, party, edit):
    tables[party] = edit(tables[party])
    return tables


def test_the_good_input_is_good():
    result = run(good())
    assert not any(table.isna().any().any() for table in result.tables.values())


@pytest.mark.parametrize(
    ("party", "edit", "why"),
    [
        ("bank", lambda t: pd.concat([t, t.iloc[:2]]),
         "party 'bank' has 2 rows whose sample ID repeats"),
        ("court", lambda t: t.set_axis([f"x{i}" for i in range(12)]),
         r"party 'bank' has no common sample with any of \['court'\]"),
        ("court", lambda t: t.set_axis(range(12)),
         "different types: {'bank': 'text', 'court': 'integer'}"),
        ("bank", lambda t: t.assign(debt=np.nan),
         "party 'bank' has columns without a single observed value: debt"),
        ("bank", lambda t: t.assign(debt=np.inf),
         r"party 'bank' has infinite values in debt \(12\)"),
        ("bank", lambda t: t.iloc[:0], "party 'bank' has 0 rows and 2 columns"),
        ("court", lambda t: t.iloc[:, :0], "party 'court' has 12 rows and 0 columns"),
        ("court", lambda t: t.assign(when=pd.Timestamp("2024-01-01")),
         "column 'when' of party 'court'.*convert it to a number of days"),
        ("court", lambda t: t.to_numpy(), "party 'court' must be a pandas DataFrame"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_used(party, edit, why):
    with pytest.raises(DataError, match=why):
        run(change(good(), party, edit))


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_more_neighbours_than_donors(mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    tables = good()
    tables["bank"].iloc[:9, 1] = np.nan
    with pytest.raises(PartyError) as caught:
        run(tables, strategy=FKNN(n_neighbors=4), aggregation=mode)
    assert (caught.value.party, caught.value.step) == ("bank", "prepare")
    assert (
        "column 'debt': n_neighbors = 4 but only 3 donors have a value; use a smaller n_neighbors"
    ) in caught.value.cause
    run(tables, strategy=FKNN(n_neighbors=3), aggregation=mode)


def test_columns_that_need_nothing_may_have_few_donors():
    """Only a column with missing cells needs as many donors as are asked for."""
    tables = {name: table.dropna() for name, table in good().items()}
    tables = {name: table.loc[table.index.isin(tables["bank"].index)]
              for name, table in tables.items()}  # fmt: skip
    result = run(tables, strategy=FKNN(n_neighbors=50, complete_blocks=False))
    pd.testing.assert_frame_equal(result.tables["bank"], tables["bank"])


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


@pytest.mark.parametrize("standardize", [False, True])
def test_values_whose_squares_overflow(standardize):
    huge = change(good(), "bank", lambda t: t.assign(income=t["income"] * 1e200))
    with pytest.raises(PartyError, match=r"'bank'.*squared differences overflow; rescale"):
        run(huge, strategy=FKNN(n_neighbors=2, standardize=standardize))


@pytest.mark.parametrize(
    ("edit", "error", "why"),
    [
        (lambda fitted: change(fitted, "bank", lambda t: t[["debt", "income"]]), VerticalError,
         r"party 'bank'.* has columns \[.*; they must be there, in the same order"),
        (lambda fitted: change(fitted, "court", lambda t: t.rename(index={"s1": "new1"})),
         PartyError, "'court': 1 sample IDs of the new rows are also among the donors"),
        (lambda fitted: {"bank": fitted["bank"]}, DataError,
         r"parties \['court'\] have no fitted table although others have"),
    ],
)  # fmt: skip
def test_fitted_tables_that_do_not_fit(edit, error, why):
    with pytest.raises(error, match=why):
        run(new_rows(), fitted=edit(good()))


# -- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"aggregation": "secret"}, r"'secret'; expected one of \['plain', 'masked', 'ckks'\]"),
        ({"engine": "spark"}, r"unknown engine 'spark'; expected one of \['local', 'ray'\]"),
        ({"alignment": "magic"}, r"unknown alignment 'magic'; expected one of \[.*'plain'"),
        ({"strategy": "fknn"}, r"must be a Strategy object such as FKNN\(\), got str"),
        ({"strategy": FKNN}, "must be a Strategy object such as FKNN"),
        (
            {"kinds": {"bnak": {}}},
            r"unknown parties \['bnak'\]; the parties are \['bank', 'court'\]",
        ),
        (
            {"kinds": {"bank": {"incme": "count"}}},
            "column 'incme' of party 'bank'.*not in the table",
        ),
        ({"kinds": {"bank": {"income": "float"}}}, "unknown kind 'float'; valid are continuous"),
        ({"kinds": {"court": {"type": "count"}}}, "column 'type' of party 'court'.*holds labels"),
        ({"fraction_bits": 70}, "fraction_bits must be 0 to 62, got 70"),
    ],
)
def test_arguments_of_simulate(kwargs, why):
    with pytest.raises(ConfigError, match=why):
        run(good(), **kwargs)


@pytest.mark.parametrize(
    ("parties", "why"),
    [
        ({}, "at least one entry"),
        ([good()["bank"]], "dict of party name to DataFrame.*got list"),
        ({"../bank": good()["bank"]}, "party name '../bank' is not usable"),
        ({3: good()["bank"]}, "party name 3 is not usable"),
    ],
)
def test_parties_of_simulate(parties, why):
    with pytest.raises(ConfigError, match=why):
        run(parties)


# -- the registry ----------------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry_module, "_REGISTERED", {})
    register_strategy("neighbours", "strategies.fknn:FKNN")


class NotAStrategy(Party):
    pass


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "fkn",
            r"'fkn' \(did you mean 'fknn'\?\); expected one of \[.*'neighbours'.*\] or 'module:",
        ),
        ("strategies.nowhere:FKNN", "cannot load 'strategies.nowhere:FKNN'.*No module named"),
        ("strategies.fknn:FKKN", "cannot load .*has no attribute 'FKKN'"),
        ("strategies.fknn.party:FKNNParty", "fknn.party:FKNNParty' is not a subclass of Strategy"),
        ("flwr_vertical:simulate", "is not a subclass of Strategy"),
    ],
)
def test_strategies_that_cannot_be_loaded(name, why):
    with pytest.raises(ConfigError, match=why):
        load_strategy(name)


@pytest.mark.usefixtures("registered")
def test_strategies_by_name_and_by_path():
    assert load_strategy("neighbours") is FKNN
    assert load_strategy("strategies.fknn:FKNN") is FKNN
    assert registry_module.available_strategies()["neighbours"] == "strategies.fknn:FKNN"
    assert issubclass(load_strategy("neighbours"), Strategy)


@pytest.mark.usefixtures("registered")
def test_a_strategy_takes_its_settings_from_the_run_config():
    run_config = {
        "strategy": "neighbours",
        "fknn.n-neighbors": 7,
        "fknn.complete-blocks": False,
        "vfem.max-iterations": 3,
        "aggregation": "plain",
    }
    strategy = make_strategy("neighbours", run_config)
    assert isinstance(strategy, FKNN)
    assert (strategy.n_neighbors, strategy.complete_blocks) == (7, False)
    assert strategy.weighting == "party-mean"


@pytest.mark.usefixtures("registered")
def test_unknown_settings_list_the_valid_ones():
    with pytest.raises(ConfigError, match="neighbours") as caught:
        make_strategy("neighbours", {"fknn.neighbors": 7, "fknn.weights": "uniform"})
    assert "['neighbors']" in str(caught.value)
    assert "'fknn.n-neighbors', 'fknn.weighting', 'fknn.weights'" in str(caught.value)


@pytest.mark.usefixtures("registered")
def test_settings_of_the_run_config_are_checked():
    with pytest.raises(ConfigError, match="n_neighbors must be an integer"):
        make_strategy("neighbours", {"fknn.n-neighbors": 0})
    with pytest.raises(ConfigError, match="standardize must be true or false, got 'no'"):
        make_strategy("neighbours", {"fknn.standardize": "no"})


def test_a_new_sample_that_is_a_donor_elsewhere():
    rng = np.random.default_rng(0)
    ids = [f"s{k}" for k in range(20)]
    bank = pd.DataFrame({"x": rng.normal(size=20)}, index=ids)
    court = pd.DataFrame({"y": rng.normal(size=19)}, index=ids[1:])
    fitted = simulate(
        FKNN(2, complete_blocks=False), {"bank": bank, "court": court}, progress=False
    )
    new_bank = pd.DataFrame({"x": [np.nan, 1.0]}, index=["n0", "n1"])
    new_court = pd.DataFrame({"y": [1.0, np.nan]}, index=["n0", "s0"])  # s0 is the bank's donor
    with pytest.raises(PartyError, match=r"party 'court': 1 of its new samples are fitted donors"):
        simulate(FKNN(2), {"bank": new_bank, "court": new_court}, fitted=fitted, progress=False)
