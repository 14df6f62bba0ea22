"""Units in which columns are stated change coefficients, and nothing else."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.strategies import VFEM, Cox, JointNormal, VerticalGLM, VerticalSVM

# Powers of two, by which what is told in whole numbers is rounded alike.
UNITS = {"rate": 2.0**-27, "turnover": 2.0**27, "income": 2.0**20, "ratio": 2.0**-13}


def tables_and_angle(seed):
    """Two parties that lack rows each, with columns that go together."""
    rng = np.random.default_rng(seed)
    n = 900
    mixed = rng.normal(size=(n, 4)) @ np.array(
        [[1, 0.5, 0.4, 0.1], [0, 1, 0.3, 0.6], [0, 0, 1, 0.2], [0, 0, 0, 1.0]]
    )
    table = pd.DataFrame(mixed, columns=list(UNITS), index=[f"{i:03d}" for i in range(n)])
    held = rng.random((n, 2)) < 0.75
    held[:, 0] |= ~held[:, 1]
    parties = {
        "bank": table.loc[held[:, 0], ["rate", "turnover"]],
        "court": table.loc[held[:, 1], ["income", "ratio"]],
    }
    angle = 0.4 * table["rate"] - 0.3 * table["turnover"] + 0.3 * table["income"]
    return parties, angle, rng


def labels_of(kind, angle, rng):
    """Labels of most samples."""
    n = len(angle)
    drawn = {
        "numbers": angle + rng.normal(size=n),
        "flags": (rng.random(n) < 1 / (1 + np.exp(-angle))).astype(float),
        "counts": pd.Series(rng.poisson(np.exp(angle)).astype(float), index=angle.index),
        "times": rng.exponential(np.exp(-angle)) * np.where(rng.random(n) < 0.6, 1.0, -1.0),
    }
    return pd.Series(drawn[kind], index=angle.index).iloc[:700]


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        (VerticalGLM(penalty="none"), "numbers"),
        (VerticalGLM(penalty="none", rows="all"), "numbers"),
        pytest.param(
            VerticalGLM("binomial", penalty="none", rows="all"), "flags", marks=pytest.mark.slow
        ),
        (VerticalGLM("poisson", penalty="none", rows="all"), "counts"),
        (VerticalSVM(), "flags"),
        (Cox(), "times"),
        (VFEM(), "numbers"),
    ],
)
def test_units_of_columns_change_nothing_but_coefficients(strategy, kind):
    parties, angle, rng = tables_and_angle(0)
    labels = labels_of(kind, angle, rng)
    plain = simulate(strategy, parties, labels)
    in_units = {name: table * pd.Series(UNITS)[table.columns] for name, table in parties.items()}
    other = simulate(strategy, in_units, labels)

    columns = plain.coefficients.drop(index="server", errors="ignore")
    units = columns.index.get_level_values("variable").map(UNITS).to_numpy()
    for number in ("estimate", "std_error"):
        if number in columns:
            found = other.coefficients.loc[columns.index, number] * units
            np.testing.assert_allclose(found, columns[number], rtol=1e-3, atol=1e-3)
    score = "decision" if "decision" in plain.predictions else "prediction"
    # Also of samples that lack a party.
    np.testing.assert_allclose(
        other.predictions[score], plain.predictions[score], rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("unit", [2.0**660, 2.0**-660])
def test_columns_whose_squares_are_no_numbers(unit):
    parties, angle, rng = tables_and_angle(1)
    far = {**parties, "court": parties["court"] * [unit, 1.0]}
    plain, other = (simulate(JointNormal(), t) for t in (parties, far))
    np.testing.assert_allclose(
        other.tables["court"]["income"] / unit, plain.tables["court"]["income"], rtol=1e-6
    )
    with pytest.raises(PartyError, match=r"columns \['income'\] are so large, or vary so little"):
        simulate(VerticalGLM(), far, labels_of("numbers", angle, rng))


def test_a_summary_shows_coefficients_of_any_size_apart():
    parties, angle, rng = tables_and_angle(2)
    labels = labels_of("numbers", angle, rng)
    in_units = {name: table * pd.Series(UNITS)[table.columns] for name, table in parties.items()}
    result = simulate(VerticalGLM(penalty="none"), in_units, labels)
    lines = result.model.summary().splitlines()
    shown = {line.split(":")[1].split()[0]: line.split()[1:] for line in lines if "bank:" in line}
    for name, row in result.coefficients.loc["bank"].iterrows():
        estimate, error = (float(number) for number in shown[name][:2])
        assert estimate == pytest.approx(row["estimate"], rel=1e-3)
        assert error == pytest.approx(row["std_error"], rel=1e-3)


def test_a_column_that_seems_constant_without_an_intercept_is_named():
    parties, angle, rng = tables_and_angle(0)
    court = parties["court"].assign(stamp=1.7e9 + 100.0 * rng.normal(size=len(parties["court"])))
    strategy = VerticalGLM("binomial", penalty="none", intercept=False)
    labels = labels_of("flags", angle, rng)
    result = simulate(strategy, parties | {"court": court}, labels)
    assert np.isnan(result.coefficients.loc[("court", "stamp"), "estimate"])
    assert any("court.stamp" in text and "far from 0" in text for text in result.notes)


@pytest.mark.parametrize("strategy", [VFEM(), VerticalGLM()])
def test_labels_whose_squares_are_no_numbers_are_named(strategy):
    parties, angle, rng = tables_and_angle(3)
    labels = labels_of("numbers", angle, rng)
    for unit in (1e-200, 1e200):
        with pytest.raises(DataError, match=r"squares of such numbers .* labels in other units"):
            simulate(strategy, parties, unit * labels)
    found = simulate(strategy, parties, 2.0**400 * labels).coefficients["estimate"]
    own = simulate(strategy, parties, labels).coefficients["estimate"]
    np.testing.assert_allclose(found / 2.0**400, own, rtol=1e-6, atol=1e-9)
