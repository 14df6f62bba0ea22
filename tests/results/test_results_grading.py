"""The grade of synthetic tables: letters follow from what attacks find, and from quality."""

import json

import numpy as np
import pandas as pd
import pytest
from test_results_page import Checker

from flwr_vertical import Result
from flwr_vertical.errors import DataError
from flwr_vertical.grading.attacks import grade
from flwr_vertical.grading.proportions import Rate, Risk
from flwr_vertical.grading.quality import downstream_fit
from flwr_vertical.grading.record import Grade
from flwr_vertical.privacy import ColumnSpending, PrivacyStatement
from flwr_vertical.reports.report import report_html
from flwr_vertical.results.storage import load, save


def draw(rng, n, prefix):
    """Two parties' columns of one population: numbers, a skewed one, levels, dates."""
    z = rng.normal(size=(n, 4)) + rng.normal(size=(n, 1))
    ids = [f"{prefix}{i}" for i in range(n)]
    town = np.where(z[:, 1] > 0.5, "Ulm", "Gent")
    bank = pd.DataFrame({"income": np.round(np.exp(z[:, 0] / 2 + 8), -1), "town": town}, ids)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta((z[:, 3] * 100).round(), unit="D")
    court = pd.DataFrame({"claims": np.round(10 * z[:, 2]), "since": days}, ids)
    return {"bank": bank, "court": court}


@pytest.fixture(scope="module")
def drawn():
    """Members, others, a fresh sample, and members' own rows under other names."""
    rng = np.random.default_rng(3)
    members, others, fresh = (draw(rng, 900, prefix) for prefix in "mos")
    copied = {name: table.set_axis(fresh[name].index) for name, table in members.items()}
    return members, others, fresh, copied


@pytest.fixture(scope="module")
def of_fresh(drawn):
    members, others, fresh, _ = drawn
    return grade(members, fresh, others, target="town")


def test_a_fresh_sample_is_graded_well_and_a_copy_badly(drawn, of_fresh):
    members, _, fresh, copied = drawn
    assert (of_fresh.privacy, of_fresh.utility) == ("A", "A")
    alone = grade(members, fresh)
    assert (alone.privacy, alone.utility, alone.n_others) == ("A", "A", 0)
    for table in (grade(members, copied), grade(members, copied, drawn[1])):
        assert table.privacy == "D"
        frame = table.to_frame()
        assert frame.loc["membership", "gain"] == 1
        assert (frame["low"] > 0.02).all()


def test_some_copies_among_fresh_rows_are_found(drawn):
    members, _, fresh, copied = drawn
    mixed = {name: pd.concat([copied[name][:180], fresh[name][180:]]) for name in fresh}
    found = grade(members, mixed)
    assert found.privacy in "CD"
    # Each of a fifth of the members finds the own row, the others what anybody finds.
    assert found.to_frame().loc["linkability", "gain"] == pytest.approx(0.2, abs=0.05)


def test_it_says_what_was_tried(drawn, of_fresh):
    frame = of_fresh.to_frame()
    assert frame.index.tolist() == [
        "singling out, 1 column",
        "singling out, 3 columns",
        "linkability",
        "membership",
        *(f"inference: {c}" for c in ("bank · income", "bank · town", "court · claims",
                                      "court · since")),
    ]  # fmt: skip
    assert ((frame["low"] <= frame["gain"]) & (frame["gain"] <= frame["high"])).all()
    assert of_fresh.mean_inference.value == pytest.approx(frame["gain"].iloc[4:].mean())
    first, control, utility, models = of_fresh.sentences
    assert "no attack is shown to gain more than 0.02 above chance" in first
    assert f"{frame['attacks'].sum():,} attacks were tried on 900 rows; others may find" in first
    assert "900 people whose rows were not used" in control
    assert f"quality {of_fresh.quality:.3f} of 1" in utility
    assert models.startswith("Models of 'bank · town' fitted on synthetic rows score")
    assert of_fresh.models["linear"]["synthetic"] > 0.6
    assert str(of_fresh) == "\n".join(of_fresh.sentences)
    assert "singling out" in of_fresh._repr_html_()
    plain = json.loads(json.dumps(of_fresh.to_dict()))
    assert Grade.from_dict(plain) == of_fresh


def test_letters_follow_from_intervals():
    def graded(members, chance, quality=0.95):
        risk = Risk("linkability", Rate(*members), Rate(*chance))
        return Grade([risk], quality, quality, 100, 100, 100, ["bank"])

    assert graded((30, 1000), (20, 1000)).privacy == "A"  # shown: 0
    assert graded((70, 1000), (20, 1000)).privacy == "B"  # shown: 0.03
    assert graded((150, 1000), (20, 1000)).privacy == "C"
    assert graded((300, 1000), (20, 1000)).privacy == "D"
    few = graded((10, 20), (10, 20))
    assert few.privacy == "?"
    assert "too few rows to tell" in str(few)
    assert [graded((0, 9), (0, 9), q).utility for q in (0.9, 0.8, 0.7, 0.6)] == list("ABCD")


def test_intervals_hold_for_all_attacks_together():
    risks = [Risk(f"inference: {k}", Rate(50, 100), Rate(50, 100)) for k in range(10)]
    together = Grade(risks, 1.0, 1.0, 100, 100, 100, ["bank"])
    alone = Grade(risks[:1], 1.0, 1.0, 100, 100, 100, ["bank"])
    assert alone.gain(risks[0]) == risks[0].gain
    # Bonferroni: 99.5 % instead of 95 %, z of 2.807 instead of 1.960.
    ratio = together.gain(risks[0]).high / risks[0].gain.high
    assert ratio == pytest.approx(2.807 / 1.960, rel=0.03)


def test_models_are_judged_on_others():
    rng = np.random.default_rng(0)
    real, made, judged = (pd.DataFrame({"x": rng.normal(size=300)}) for _ in range(3))
    for table, slope in ((real, 1.0), (made, 1.0), (judged, -1.0)):
        table["y"] = slope * table["x"] + 0.1 * rng.normal(size=300)
    for model in ("linear", "trees"):
        assert downstream_fit(real, made, "y", model=model)["synthetic"] > 0.9
        assert downstream_fit(real, made, "y", judged, model)["synthetic"] < 0


def test_a_result_keeps_its_grade(drawn, tmp_path):
    members, others, fresh, _ = drawn
    stated = PrivacyStatement([ColumnSpending("bank", 900, 0.5, 0.5)])
    result = Result("vcds", tables=fresh, privacy=stated, notes=stated.sentences)
    assert "each party has the grade of its own columns on its own page" in str(result.privacy)
    found = result.grade(members, others, n_attacks=200)
    assert result.graded is found
    assert set(found.sentences) <= set(result.privacy.sentences)
    assert "the grade of its own columns" not in "".join([str(result.privacy), *result.notes])
    assert f"privacy {found.privacy}, utility A" in str(result)
    again = load(save(result, tmp_path / "kept"), Result)
    assert again.graded == found
    assert again.privacy.sentences == result.privacy.sentences
    page = " ".join(Checker(report_html(again)).text)  # without real rows: what was found is shown
    assert found.sentences[0] in page


def test_a_run_s_page_grades_and_a_party_s_shows_what_there_is(drawn):
    members, _, fresh, _ = drawn
    tables = {"bank": fresh["bank"].head(150)}
    result = Result("vcds", originals={"bank": members["bank"].head(150)}, tables=tables)
    assert "Privacy " not in " ".join(Checker(report_html(result, party="bank")).text)
    page = Checker(report_html(result))
    assert result.graded.sentences[0] in " ".join(page.text)
    assert "Grade" in page.text
    few = Result("vcds", originals={"bank": members["bank"].head(5)}, tables=tables)
    text = " ".join(Checker(report_html(few)).text)
    assert "Not graded: originals: attacks need 20 rows or more" in text


def test_what_cannot_be_graded(drawn):
    members, others, fresh, _ = drawn
    with pytest.raises(DataError, match="there is no synthetic table to grade"):
        grade(members, members)
    with pytest.raises(DataError, match="compares with real tables, and this result has none"):
        Result("vcds", tables=fresh).grade()
    with pytest.raises(DataError, match="others lack the column 'claims' of party 'court'"):
        grade(members, fresh, {"bank": others["bank"]})
    holes = {"bank": members["bank"].mask(members["bank"]["town"] == "Ulm")}
    holes["bank"] = holes["bank"].iloc[:22]
    with pytest.raises(DataError, match="originals: attacks need 20 rows or more that all"):
        grade(holes, {"bank": fresh["bank"]})
    with pytest.raises(DataError, match="target 'wage' must name one column"):
        grade(members, fresh, target="wage")
    same = {"bank": pd.DataFrame({"a": ["x"] * 30, "b": ["y"] * 30})}
    made = {"bank": same["bank"].set_axis([f"s{i}" for i in range(30)])}
    found = grade(same, made)
    assert found.skipped[0].startswith("Singling out is not tried: no predicate on 1 columns")
