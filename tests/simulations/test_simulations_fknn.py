import csv

import numpy as np
import pandas as pd
import pytest
from data_sets import sources_with
from sklearn.impute import KNNImputer

from simulations.__main__ import main
from simulations.data import load_motor
from simulations.fknn import local, oracle, tables
from simulations.fknn.preset import PARTS, Preset
from simulations.page import FAIL, PASS, beside_paper, reached
from simulations.preset import Options


@pytest.fixture(scope="module")
def sources():
    return sources_with("motor/motor_hetero_guest.csv", "motor/motor_hetero_host.csv")


@pytest.fixture
def incomplete():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4))
    return X, np.where(rng.random(X.shape) < 0.2, np.nan, X)


def numbers(fknn, mean, reading_values, part="table4"):
    rows = []
    for rate, value in fknn.items():
        values = {"FKNN": value, "MEAN": mean}
        values |= {f"{r}/{m}": v for r, vs in reading_values.items() for m, v in vs.items()}
        rows += [
            {"part": part, "rate": rate, "seed": 0, "metric": name, "value": v}
            for name, v in values.items()
        ]
    return pd.DataFrame(rows)


PAPER = pd.DataFrame(
    {"missing_rate": [0.1, 0.2, 0.1], "method": ["FKNN", "FKNN", "LR"], "rmse": [0.4, 0.5, 1.0]}
)
LOCAL = {reading: {"LR": 0.9, "KNN": 0.8, "RF": 0.7} for reading in local.READINGS}


def test_numbers_are_joined_with_the_papers_by_rate_and_method():
    paper = tables.paper_table(PAPER)
    ours = tables.table4(numbers({0.1: 0.3, 0.2: 0.45}, 1.0, LOCAL), "strong")
    text = beside_paper(ours, paper)
    assert text.loc[0.1, "FKNN"] == "0.300 (0.400)"
    assert text.loc[0.1, "LR"] == "0.900 (1.000)"
    assert text.loc[0.2, "LR"] == "0.900"


def test_targets_pass_and_fail_by_the_numbers():
    paper = tables.paper_table(PAPER)
    good = tables.targets(numbers({0.1: 0.41, 0.2: 0.45}, 1.0, LOCAL), paper, 1.03)
    assert reached([good])
    assert good.index.tolist() == ["0.1", "0.2", "average"]

    worse = tables.targets(numbers({0.1: 0.42, 0.2: 0.5}, 1.0, LOCAL), paper, 1.03)
    assert worse["target"].tolist() == [FAIL, PASS, FAIL]
    assert not reached([worse])

    beaten = {**LOCAL, "label": {"LR": 0.3, "KNN": 0.8, "RF": 0.41}}
    row = tables.targets(numbers({0.1: 0.41, 0.2: 0.45}, 1.0, beaten), paper, 1.03).loc["0.1"]
    assert row["below local (strong)"] == PASS
    assert row["below local (label)"] == f"{FAIL} LR, RF"


def test_t_test_of_equal_vectors_is_not_a_p_value():
    left = pd.Series([0.3, 0.4, 0.5])
    assert tables._p_value(left, left + 1e-16) == "identical"
    assert 0 < tables._p_value(left, left + pd.Series([0.01, 0.02, 0.015])) < 0.05
    assert np.isnan(tables._p_value(left[:1], left[:1] + 1))


def test_oracle_equals_scikit_learn_where_one_party_holds_all(incomplete):
    _, X = incomplete
    # The mean over shared columns and scikit-learn's rescaled sum rank alike.
    values = oracle.impute(X, oracle.distances([X], "party-mean"), 5)
    np.testing.assert_allclose(values, KNNImputer(n_neighbors=5).fit_transform(X), atol=1e-12)


def test_oracle_weighs_parties_alike():
    one, two = np.array([[0.0], [2.0]]), np.array([[0.0, 0.0, 0.0], [1.0, 1.0, np.nan]])
    assert oracle.distances([one, two], "party-mean")[0, 1] == (4 + 1) / 2
    assert oracle.distances([one, two], "roots")[0, 1] == 2 + 1


def test_local_imputers_keep_what_is_known(incomplete):
    truth, X = incomplete
    names = []
    for name, values in local.local_imputations(
        pd.DataFrame(X, index=range(1, 61)),
        pd.Series(truth[:, 0], index=range(1, 61)),
        local.READINGS,
        n_neighbors=5, trees=5, lr_iterations=5, rf_iterations=1, seed=0,
    ):  # fmt: skip
        names.append(name)
        known = ~np.isnan(X)
        np.testing.assert_array_equal(values[known], X[known])
        assert np.isfinite(values).all()
    assert len(names) == len(set(names)) == 1 + 3 * 3


def test_preset_names_the_papers_experiments(tmp_path):
    preset = Preset.load(Options(tmp_path))
    assert preset.rates("table4") == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    assert (preset.runs("table3"), preset.runs("table4")) == (10, 3)
    quick = Preset.load(Options(tmp_path, quick=True, seeds=1))
    assert {job.part for job in quick.jobs()} == set(PARTS)
    assert len(quick.jobs()) < 20 < len(preset.jobs())


def test_motor_data_are_those_of_the_paper(sources):
    data = load_motor(sources)
    assert {name: frame.shape for name, frame in data.parties.items()} == {
        "guest": (800, 4),
        "host": (800, 7),
    }
    assert data.labels.name == "motor_speed"


def test_quick_study_makes_page_figures_and_tables_and_resumes(
    sources, tmp_path, capsys, monkeypatch
):
    """With fewer rates than --quick has: what is tested is the way, not the numbers."""
    load = Preset.load.__func__

    def small(cls, options):
        found = load(cls, options)
        for part in PARTS:
            found.values[part] |= {"rates": [0.1]}
        found.values["local"] |= {"trees": 3, "rf_iterations": 1}
        return found

    monkeypatch.setattr(Preset, "load", classmethod(small))
    command = ["fknn", "--quick", "--seeds", "1", "--workers", "0", "--output", str(tmp_path)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "Table 4" in text
    assert PASS in text
    page = (tmp_path / "index.md").read_text()
    assert page.count(".png)") == 7 == len(list(tmp_path.glob("*.png")))
    assert PASS not in page
    with (tmp_path / "table5.csv").open() as file:
        row = next(csv.DictReader(file))
    assert row["masked: p"] == row["ckks: p"] == row["exact: p"] == "identical"
    assert {row["masked: cells"], row["ckks: cells"], row["exact: cells"]} == {"0"}

    kept = (tmp_path / "records.jsonl").read_bytes()
    assert main(command) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == kept
