"""Levels as columns: which get a name that leaves, and what becomes of rare ones."""

import math

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from flwr_vertical.errors import PartyError
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import VALUES
from strategies.forest import VerticalForest
from strategies.glm import VerticalGLM
from strategies.glm_admm import GLMADMM
from strategies.lda import LDA
from strategies.linear.design import encode_levels
from strategies.predict import Predict
from strategies.scorecard import Scorecard
from strategies.split import VanillaVFL
from strategies.trees import VerticalGBDT
from strategies.vfem import VFEM, CompleteCase, MeanImpute, Single
from strategies.vfem_iterations import VFEMIterations


def test_a_level_is_named_if_its_rows_could_be_any_of_many():
    # By hand: of 1,000 rows, 11 can be chosen in 2^84.1 ways and 10 in 2^77.7; 84 are needed.
    assert math.log2(math.comb(1000, 11)) > 84 > math.log2(math.comb(1000, 10))
    for name, counts, least, columns in (
        ("town", {"a": 500, "b": 478, "c": 11, "d": 11}, None,
         {"town=b": ["b"], "town=c": ["c"], "town=d": ["d"]}),
        ("town", {"a": 500, "b": 477, "c": 12, "d": 6, "e": 5}, None,
         {"town=b": ["b"], "town=c": ["c"], "town=other": ["d", "e"]}),
        # Rare levels that are few together take the rarest other with them.
        ("town", {"a": 500, "b": 460, "c": 37, "d": 2, "e": 1}, None,
         {"town=b": ["b"], "town=other": ["d", "e", "c"]}),
        # The first level that is not rare is the baseline.
        ("town", {"a": 5, "b": 10, "c": 500, "d": 485}, None,
         {"town=d": ["d"], "town=other": ["a", "b"]}),
        # Flags that are rare, and levels of nobody, have no column.
        ("mark", {"no": 998, "yes": 2}, None, {}),
        ("mark", {"no": 900, "yes": 100, "never": 0}, None, {"mark=yes": ["yes"]}),
        # An owner's own minimum counts.
        ("mark", {"no": 55, "yes": 5}, None, {}),
        ("mark", {"no": 55, "yes": 5}, 5, {"mark=yes": ["yes"]}),
        # A level called other is another one.
        ("town", {"a": 500, "other": 480, "c": 10, "d": 10}, None,
         {"town=other": ["other"], "town=other levels": ["c", "d"]}),
    ):  # fmt: skip
        minimum = {} if least is None else {"minimum": least}
        encoded = encode_levels(name, counts, **minimum)
        assert encoded.columns == columns
        if name == "town" and "other" not in counts:
            assert encoded.other == columns.get("town=other", [])


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(3)
    n = 1000
    towns = rng.choice(["Bonn", "Kiel", "Trier", "Ulm"], n, p=[0.4, 0.3, 0.28, 0.02]).astype(object)
    towns[rng.choice(n, 4, replace=False)] = "Sankt-Blasien-im-Tal"
    bank = pd.DataFrame({"town": towns, "income": rng.normal(size=n)})
    court = pd.DataFrame({"debts": rng.normal(size=n)})
    effect = pd.Series(towns).map({"Kiel": 1.0, "Trier": -1.0}).fillna(0.0)
    y = (effect + bank["income"] + 0.1 * rng.normal(size=n)).rename("y")
    y.iloc[:50] = np.nan
    transcript = []
    result = simulate(
        VFEM(), {"bank": bank, "court": court}, y, transcript=transcript,
    )  # fmt: skip
    return bank, court, result, transcript


def test_the_name_of_a_rare_level_does_not_leave(fitted):
    _, _, result, transcript = fitted
    names = result.coefficients.loc["bank"].index.tolist()
    assert names == ["town=Kiel", "town=Trier", "town=other", "income"]
    sent = [decode(record.content, VALUES) for record in transcript if record.direction == "up"]
    assert any("town=Kiel" in repr(told) for told in sent)
    assert not any("Blasien" in repr(told) for told in sent)
    assert not any(b"Blasien" in bytes(str(record.content), "utf-8") for record in transcript)


def test_rare_levels_are_fitted_and_predicted_as_one(fitted):
    """The same as centralised least squares on the table in which they are one level."""
    bank, court, result, _ = fitted
    merged = bank["town"].where(bank["town"].isin(["Bonn", "Kiel", "Trier"]), "other")
    x = pd.get_dummies(merged, dtype=float)[["Kiel", "Trier", "other"]].to_numpy()
    x = np.column_stack([np.ones(len(x)), x, bank["income"], court["debts"]])
    known = result.labels.notna() & ~result.labels.index.isin(result.predictions.index)
    y = result.labels[known]
    beta = np.linalg.lstsq(x[y.index], y.to_numpy(), rcond=None)[0]
    estimates = result.coefficients["estimate"].to_numpy()
    np.testing.assert_allclose(estimates, beta, atol=2e-6)
    exact = x[result.predictions.index] @ beta
    np.testing.assert_allclose(result.predictions["prediction"], exact, atol=0.02)
    new = {"bank": bank[:3].assign(town=["Sankt-Blasien-im-Tal", "Ulm", "Rom"]), "court": court[:3]}
    later = result.predict(new)
    assert later.metrics["n_samples"] == 3
    x_new = np.array([1.0, 0, 0, 1.0, bank["income"][0], court["debts"][0]])
    assert later.predictions["prediction"].iloc[0] == pytest.approx(x_new @ beta, abs=0.02)
    # A level that the fit did not know makes the block count as missing.
    assert later.predictions["std_error"].iloc[2] > later.predictions["std_error"].iloc[0]


STRATEGIES = [
    VFEM(),
    VFEMIterations(tol=1e-2),
    CompleteCase(),
    MeanImpute(),
    Single(party_name="court"),
    VerticalGLM(),
    VerticalGLM(rows="all"),
    GLMADMM(lambdas=0.1),
    pytest.param(VerticalGLM("binomial", "ridge"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    "strategy",
    STRATEGIES,
    ids=lambda s: f"{s.name} {getattr(s, 'exchange', '')} {getattr(s, 'rows', '')}",
)
def test_a_column_whose_levels_are_all_rare_is_named_and_counted(strategy, caplog):
    rng = np.random.default_rng(4)
    n = 600
    court = pd.DataFrame({"debts": rng.normal(size=n), "lawyer": rng.integers(0, 281, size=n)})
    court["lawyer"] = "lawyer " + court["lawyer"].astype(str)
    bank = pd.DataFrame({"income": rng.normal(size=n)})
    y = pd.Series(court["debts"] + bank["income"] + rng.normal(size=n))
    labels = (y > 0).astype(float) if getattr(strategy, "family", "") == "binomial" else y
    result = simulate(strategy, {"bank": bank, "court": court}, labels)
    assert result.metrics["columns_withheld"] == 1.0
    assert not any("lawyer" in str(name) for name in result.coefficients.index)
    note = next(note for note in result.notes if "lawyer" in note)
    assert note.startswith("party 'court': columns ['lawyer'] are left out and have no coefficient")
    assert note in caplog.text


@pytest.mark.parametrize("levels", [["no", "yes"], ["1", "2"]])
def test_two_columns_never_share_a_name(levels):
    rng = np.random.default_rng(0)
    answer = rng.choice(levels, 300)
    table = pd.DataFrame({"answer": answer, f"answer={levels[1]}": rng.normal(size=300)})
    other = pd.DataFrame({"u": rng.normal(size=300)})
    with pytest.raises(PartyError, match=rf"named \['answer={levels[1]}'\].* rename"):
        simulate(
            CompleteCase(), {"bank": table, "court": other}, other["u"],
            kinds={"bank": {"answer": "categorical"}},
        )  # fmt: skip


@pytest.mark.parametrize(
    "strategy",
    [VerticalForest(n_trees=5), VerticalGBDT(n_trees=5), Scorecard(), LDA(), VanillaVFL(epochs=1)],
    ids=lambda strategy: strategy.name,
)
def test_levels_of_new_rows_are_known_whatever_their_type_and_new_ones_logged(strategy, caplog):
    rng = np.random.default_rng(0)
    rooms, size = rng.integers(1, 5, 500), rng.normal(size=500)
    table = pd.DataFrame({"rooms": pd.Categorical(rooms), "size": size})
    other = pd.DataFrame({"u": rng.normal(size=500)})
    dear = (rooms % 2 + 0.3 * rng.normal(size=500) > 0.5).astype(float)
    labels = pd.Series(dear).iloc[:440]
    parties = {"bank": table[:440], "court": other[:440]}
    fitted = simulate(strategy, parties, labels)
    found = []
    for dtype in ("category", "int64", "float64", "str"):
        column = table["rooms"].astype("int64").astype(dtype)
        new = {"bank": table.assign(rooms=column)[440:], "court": other[440:]}
        found.append(simulate(Predict(fitted), new).predictions)
        pd.testing.assert_frame_equal(found[-1], found[0])
    assert "did not know" not in caplog.text
    new["bank"] = new["bank"].assign(rooms="five")
    assert not simulate(Predict(fitted), new).predictions.equals(found[0])
    assert "'rooms': 60 cells have a level that the fit did not know" in caplog.text
