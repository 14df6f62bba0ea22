"""Formulas of a party's columns: the grammar refuses all else; fits equal those of the pooled."""

import json
import sys
from html import unescape

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from formulaic import model_matrix

from flwr_vertical import Table, make_strategy, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.products.told_rows import ToldRows
from flwr_vertical.reports.report import report_html
from strategies.explore import Explore
from strategies.glm import VerticalGLM
from strategies.linear.formula import parse_formula, read_formulas
from strategies.linear.formula_design import made_columns, new_columns
from strategies.linear.moments.collect import Prepared
from strategies.linear.moments.groups import MinimumRows
from strategies.linear.prediction.party_model import LinearPart
from strategies.normal import JointNormal
from tests.kit.blocked import Absent
from tests.kit.ledgered import Nodes
from tests.kit.told import largest_share, record_told

N = 900


def labels_of(text):
    return [":".join(factor.label for factor in term) for term in parse_formula(text, "bank")]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("b + a", ["b", "a"]),
        ("a*b - a", ["b", "a:b"]),
        ("a:b + b:a + c", ["c", "a:b"]),
        ("(a + b + c)**2 - b:c", ["a", "b", "c", "a:b", "a:c"]),
        ("a:(b + c)*d", ["d", "a:b", "a:c", "a:b:d", "a:c:d"]),
        ("a:a", ["a"]),
        ("`age in years`:C(`a`) + log(b)", ["log(b)", "age in years:C(a)"]),
        ("bs(age, 4) + bs(age, df=4, degree=3)", ["bs(age, 4)"]),
        ("bs(age, 5, 2) + poly(x, degree=2)", ["bs(age, 5, degree=2)", "poly(x, 2)"]),
    ],
)  # fmt: skip
def test_terms_are_those_of_wilkinson_and_rogers(text, terms):
    assert labels_of(text) == terms


HOSTILE = [
    "__import__('os').system('x')",
    "bs.__globals__",
    "bs(age, 4).__class__",
    "lambda: 0",
    "{a}",
    "{__import__('os')}",
    "I(a)",
    "I(a ** 2)",
    "eval(a)",
    "np.log(a)",
    "Q('a')",
    "log(log(a))",
    "log(a + b)",
    "bs(age, df=a)",
    "bs(age, df=1e3)",
    "bs(age, 4, knots=(1, 2))",
    "bs(age, 4, lower_bound=3)",
    "bs(age, 4, 3, 1)",
    "bs(age, 4, df=4)",
    "bs(age)",
    "bs(4)",
    "bs()",
    "bs(age, 31)",
    "bs(age, 2)",
    "bs(age, 9999999)",
    "poly(a, 9)",
    "poly(a, -1)",
    "(a + b)**5",
    "(a + b)**0",
    "(a + b)**a",
    "a**b",
    "a ** 99999999999",
    "((a + b + c)**4 + d + e)**4",
    "a:b:c:d:e",
    "*".join(f"x{j}" for j in range(30)),
    f"({'+'.join(f'x{j}' for j in range(60))})**2",
    "(" * 5000 + "a" + ")" * 5000,
    "(" * 21 + "a" + ")" * 21,
    "+".join(["a"] * 2000),
    "1 + a",
    "a - 1",
    "0",
    "a - a",
    "",
    " ",
    "y ~ a",
    "a | b",
    "a | b ~ c",
    "a % b",
    "a / b",
    "a; b",
    "a b",
    "a +",
    "+ a",
    "(a",
    "a)",
    "'a'",
    '"a"',
    "``",
    "`a",
    "a.b",
    "a[0]",
    "a\x00",
    "a=4",
    "bs(age, 4)(a)",
    "C(a, Treatment)",
    "C(a, contr=1)",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_formula_that_the_grammar_does_not_have_is_refused(text):
    with pytest.raises(ConfigError, match="formula of party 'bank'"):
        parse_formula(text, "bank")


def test_only_what_the_grammar_writes_reaches_formulaic(monkeypatch):
    """Names of columns do not, whatever they are."""
    import formulaic

    seen = []
    kept = formulaic.Formula
    monkeypatch.setattr(formulaic, "Formula", lambda text: seen.append(text) or kept(text))
    name = "__import__('os').system('x') + {1/0}"
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.normal(size=800), "np": rng.choice(["}", "'"], 800)})
    made = made_columns(Table.of(frame), "bank", f"bs(`{name}`, 4)*np", None)
    assert made.columns[0] == f"bs({name}, 4)[1]"
    assert len(made.columns) == 9
    bs = "bs(v0, df=4, degree=3, extrapolation='extend')"
    assert seen == [f"1 + {bs} + v1 + {bs}:v1"]


@pytest.mark.parametrize("formula", [{"bank": 3}, "[1]", "{", 7.0, '{"bank": ["a"]}'])
def test_other_than_a_mapping_of_texts_is_refused(formula):
    with pytest.raises(ConfigError, match="formula"):
        VerticalGLM(formula=formula)


def test_a_mapping_and_its_json_are_one_setting():
    formula = {"bank": "age + bs(income, 4)"}
    made = [
        VerticalGLM(formula=formula),
        make_strategy("glm", {"glm.formula": json.dumps(formula)}),
    ]
    assert {one.formula for one in made} == {json.dumps(formula)}
    assert read_formulas(None) == ""


def tables(seed=0):
    rng = np.random.default_rng(seed)
    ids = pd.Index([f"s{j:04}" for j in range(N)], name="id")
    bank = pd.DataFrame(
        {
            "income": rng.normal(size=N),
            "age": rng.uniform(20, 80, N),
            "owner": rng.choice(["no", "yes"], N),
            "unused": rng.choice(["u", "v"], N),
        },
        index=ids,
    )
    court = pd.DataFrame(
        {"cases": rng.poisson(3, N).astype(float), "size": rng.uniform(1, 9, N)}, index=ids
    )
    eta = np.sin(bank["age"] / 15) + 0.5 * bank["income"] * (bank["owner"] == "yes")
    eta += 0.3 * np.log(court["size"]) - 0.1 * court["cases"]
    return {"bank": bank, "court": court}, eta, rng


FORMULA = {"bank": "income*owner + bs(age, 5)", "court": "poly(cases, 2) + log(size)"}


def ends_of_period(own):
    step = 2.0 ** np.ceil(np.log2(own.std(ddof=0))) / 4.0
    return np.floor(own.min() / step) * step, np.ceil(own.max() / step) * step


def by_formulaic(text, frame, **n_inner):
    """Columns by formulaic's own reading; ``knots of NAME`` are means over hundred rows."""
    for name, number in n_inner.items():
        own = np.sort(frame[name].dropna())
        means = [np.full(len(part), part.mean()) for part in np.array_split(own, len(own) // 100)]
        low, *inner, high = np.quantile(
            np.concatenate(means), np.linspace(0, 1, number + 2), method="nearest"
        )
        if f"cc({name}" in text:
            low, high = ends_of_period(frame[name])
        knots = f"knots={[*map(float, inner)]}, lower_bound={low}, upper_bound={high}"
        text = text.replace(f"knots of {name}", f"{knots}, extrapolation='extend'")
    return model_matrix(text, frame)


def pooled(parties):
    """The same columns by formulaic's own reading."""
    one = by_formulaic("income*owner + bs(age, knots of age)", parties["bank"], age=2)
    other = model_matrix("0 + poly(cases, 2) + log(size)", parties["court"])
    X = pd.concat([one, other], axis=1)
    assert list(X.columns[:3]) == ["Intercept", "income", "owner[T.yes]"]
    return X


NAMES = [
    "intercept", "income", "owner=yes", *(f"bs(age, 5)[{j}]" for j in range(1, 6)),
    "income:owner=yes", "poly(cases, 2)[1]", "poly(cases, 2)[2]", "log(size)",
]  # fmt: skip


@pytest.mark.parametrize(
    "family", ["gaussian", pytest.param("poisson", marks=pytest.mark.slow), "binomial"]
)
def test_the_fit_is_that_of_the_pooled_table(family):
    parties, eta, rng = tables()
    made = {
        "gaussian": lambda: eta + rng.normal(size=N),
        "poisson": lambda: pd.Series(rng.poisson(np.exp(eta)), eta.index),
        "binomial": lambda: pd.Series(rng.random(N) < 1 / (1 + np.exp(-eta)), eta.index),
    }
    y = made[family]().astype(float).rename("y")
    kind = {"gaussian": "Gaussian", "poisson": "Poisson", "binomial": "Binomial"}[family]
    normal = family == "gaussian"
    glm = VerticalGLM(
        family=family,
        penalty="none",
        formula=FORMULA,
        standard_errors="model" if normal else "robust",
    )
    result = simulate(glm, parties, y)
    model = sm.GLM(y, pooled(parties), family=getattr(sm.families, kind)())
    other = model.fit(tol=1e-14, cov_type="nonrobust" if normal else "HC0")
    assert list(result.coefficients.index.get_level_values("variable")) == NAMES
    distance = (result.coefficients["estimate"].to_numpy() - other.params) / other.bse
    # Sums of functions of linear predictors have so many digits, whatever the columns are.
    assert np.abs(distance).max() < (1e-9 if normal else 3e-4)
    rtol = 1e-9 if normal else 2e-4
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=rtol)
    report = report_html(result)
    assert result.model.summary() in unescape(report)
    assert "***" not in report


def test_new_rows_become_the_same_columns():
    """Knots are those of the fit, also where new rows lie beyond them."""
    parties, eta, rng = tables()
    y = (eta + 0.1 * rng.normal(size=N)).rename("y")
    fitted = {name: table.iloc[:800] for name, table in parties.items()}
    result = simulate(VerticalGLM(penalty="none", formula=FORMULA), fitted, y[:800])
    new = {name: table.iloc[800:].copy() for name, table in parties.items()}
    new["bank"]["age"] = new["bank"]["age"].clip(*fitted["bank"]["age"].agg(["min", "max"]))
    inside = result.predict(new).predictions["prediction"]
    X = pooled(fitted)
    specs = (
        by_formulaic("income*owner + bs(age, knots of age)", fitted["bank"], age=2),
        model_matrix("0 + poly(cases, 2) + log(size)", fitted["court"]),
    )
    expected = (
        pd.concat(
            [
                spec.model_spec.get_model_matrix(new[name])
                for spec, name in zip(specs, new, strict=True)
            ],
            axis=1,
        )
        @ sm.OLS(y[:800], X).fit().params
    )
    np.testing.assert_allclose(inside, expected, atol=0.02)  # the grid of terms
    assert np.corrcoef(inside, y[800:])[0, 1] > 0.95
    # A formula keeps plain values, and reads them again.
    part = LinearPart.from_bytes(result._party_models["bank"])
    again = new_columns(part.formula, Table.of(fitted["bank"]), "bank")
    np.testing.assert_allclose(again, X.to_numpy()[:, 1:9], atol=1e-12)
    beyond = fitted["bank"].head(3).copy()
    beyond["age"], beyond["owner"] = [500.0, -5.0, 30.0], ["yes", "no", "other"]
    found = new_columns(part.formula, Table.of(beyond), "bank")
    assert np.isfinite(found[:2]).all()
    assert np.isnan(found[2]).all()  # a level that the fit did not know


def test_interactions_alone_have_a_column_for_each_level():
    bank = tables()[0]["bank"]
    made = made_columns(Table.of(bank), "bank", "income:owner + cr(age, 4) + cc(income, 3)", None)
    assert made.columns[:3] == ["cr(age, 4)[1]", "cr(age, 4)[2]", "cr(age, 4)[3]"]
    assert made.columns[-2:] == ["income:owner=no", "income:owner=yes"]
    text = "0 + income:owner + cr(age, knots of age, constraints='center')"
    text += " + cc(hour, knots of hour, constraints='center')"
    expected = by_formulaic(text, bank.assign(hour=bank["income"]), age=3, hour=3)
    order = [*range(4, 7)]
    assert made.x.shape == (N, len(expected.columns)), order
    by_sum = np.sort(made.x.sum(axis=0))
    np.testing.assert_allclose(by_sum, np.sort(expected.to_numpy().sum(axis=0)), atol=1e-9)


def test_cells_that_are_missing_are_missing_in_the_row():
    bank = tables()[0]["bank"].astype({"owner": object})
    bank.iloc[3, 2], bank.iloc[5, 1], bank.iloc[7, 3] = None, np.nan, None
    made = made_columns(Table.of(bank), "bank", "income*owner + bs(age, 5)", None)
    assert np.flatnonzero(np.isnan(made.x).any(axis=1)).tolist() == [3, 5]  # "unused" is not used
    whole = by_formulaic("income*owner + bs(age, knots of age)", bank, age=2)
    np.testing.assert_allclose(np.delete(made.x, [3, 5], axis=0), whole.to_numpy()[:, 1:])
    parties, eta, _ = tables()
    parties["bank"] = bank
    run = {"parties": parties, "labels": eta, "progress": False}
    dropped = simulate(VerticalGLM(formula=FORMULA, penalty="none"), **run)
    assert dropped.metrics["n_samples"] == N - 2


def test_rare_levels_count_as_one_and_rare_sets_of_levels_not_at_all():
    rows = np.arange(N)
    frame = pd.DataFrame(
        {
            "region": np.select([rows < 15, rows < 450], [np.array([*"cde"])[rows % 3], "b"], "a"),
            "code": np.where(rows % 3, 7, 8),
            "one": "same",
            "x": np.sin(rows),
        }
    )
    made = made_columns(Table.of(frame), "bank", "region*C(code) + one:x", None)
    assert made.columns == ["region=b", "region=other", "C(code)=8", "region=b:C(code)=8"]
    assert made.left_out == ["one", "region=other:C(code)=8"]
    with pytest.raises(DataError, match="no column left by its formula"):
        made_columns(Table.of(frame), "bank", "one", None)
    with pytest.raises(DataError, match="cannot take"):
        made_columns(Table.of(frame), "bank", "log(region)", None)
    with pytest.raises(DataError, match="no column 'nothing'"):
        made_columns(Table.of(frame), "bank", "nothing", None)
    with pytest.raises(DataError, match="x' has values that"):
        made_columns(Table.of(frame), "bank", "log(x)", None)


def test_few_rows_between_knots_are_not_told_of():
    bank = Table.of(tables()[0]["bank"])
    made_columns(bank, "bank", "bs(age, 6)", None)
    for formula in ("bs(age, 9)", "bs(age, 12)", "cr(age, 12)", "bs(age, 6):owner"):
        with pytest.raises(DataError, match="fewer than 1") as refused:
            made_columns(bank, "bank", formula, None)
        cells = [f"{value:.3f}" for value in bank.frame["age"]]
        assert not any(cell in str(refused.value) for cell in cells)
        made_columns(bank, "bank", formula, 20)  # the owner's minimum goes before
    # Knots of cubic splines are of different values: many zeros leave few rows between them.
    many = Table.of(pd.DataFrame({"x": np.append(np.zeros(840), np.arange(1.0, 61.0))}))
    with pytest.raises(DataError, match="between two knots"):
        made_columns(many, "bank", "cr(x, 4)", None)
    constant = Table.of(pd.DataFrame({"x": np.zeros(N)}))
    with pytest.raises(DataError, match="few different values"):
        made_columns(constant, "bank", "cr(x, 4)", 1)


def test_what_relations_among_columns_tell_are_means_over_rows():
    """A column is a sum of its B-splines, times their knots: products of columns tell these."""
    bank = tables()[0]["bank"]
    ages = np.sort(bank["age"])
    means = [part.mean() for part in np.array_split(ages, 9)]
    for spline in ("bs(age, 3, 1)", "bs(age, 4, 1)", "bs(age, 5)", "cr(age, 3)", "cr(age, 4)"):
        made = made_columns(Table.of(bank), "bank", f"age + {spline}", None)
        (state,) = made.kept.state.values()
        distance = np.abs(np.subtract.outer(state["knots"], means)).min(axis=1)
        assert distance.max() < 1e-9, spline
        if spline.endswith("1)"):
            x = np.column_stack([np.ones(N), made.x[:, 1:]])
            told = np.linalg.lstsq(x, made.x[:, 0])[0]
            told[1:] += told[0]
            np.testing.assert_allclose(told, np.unique(state["knots"]))
    (state,) = made_columns(Table.of(bank), "bank", "cc(age, 3)", None).kept.state.values()
    assert not np.isin(state["knots"], ages).any()


def test_columns_made_of_few_others_need_more_rows(monkeypatch):
    """Sums go with the square of the columns made, and cells with those of the table."""
    parties, eta, _ = tables()
    formula = {"bank": "bs(age, 5)*poly(income, 3)"}
    made = made_columns(Table.of(parties["bank"]), "bank", formula["bank"], None)
    assert len(made.columns) == 23
    assert made.at_least == 3 * 24 * 23 / 2
    assert made_columns(Table.of(parties["bank"]), "bank", "age + owner", None).at_least == 0
    run = {"parties": parties, "progress": False, "alignment": "plain"}
    glm = VerticalGLM(penalty="none", formula=formula)
    simulate(glm, labels=eta, **run)
    with pytest.raises(DataError, match="fewer than 828"):
        simulate(glm, labels=eta.where(np.arange(N) < 800), **run)
    parties["court"] = parties["court"].iloc[:800]  # all samples have labels, fewer all parties
    with pytest.raises(DataError, match="fewer than 828"):
        simulate(glm, labels=eta, **run)
    monkeypatch.setattr(Prepared, "minimum", property(lambda self: MinimumRows()))
    with pytest.raises(PartyError, match=r"'bank'.*sets of at least 828 rows"):
        simulate(glm, labels=eta, **run)


def test_what_does_not_go_together_is_said():
    parties, eta, _ = tables()
    with pytest.raises(ConfigError, match="formula names the parties"):
        simulate(VerticalGLM(formula={"shop": "a"}), parties, eta)
    with pytest.raises(ConfigError, match="no bounds"):
        VerticalGLM(formula=FORMULA, epsilon=1.0, bounds={"age": (0, 1)})
    wide = "bs(age, 29):poly(income, 8):bs(income, 29)"
    with pytest.raises(PartyError, match="at most 500"):
        simulate(VerticalGLM(formula={"bank": wide}), parties, eta)


def test_columns_of_a_formula_go_without_a_penalty_by_name():
    parties, eta, rng = tables()
    free = ["bank:bs(age, 5)[2]", "bank:income:owner=yes"]
    glm = VerticalGLM(penalty="lasso", lambdas=50.0, formula=FORMULA, unpenalized=free)
    y = (eta + rng.normal(size=N)).rename("y")
    result = simulate(glm, parties, y)
    kept = result.coefficients.index[result.coefficients["estimate"] != 0.0]
    assert [f"{party}:{name}" for party, name in kept[1:]] == free


def test_all_labelled_samples_with_a_formula():
    """Of rows that a party lacks, its made columns are expected as other columns are."""
    parties, eta, rng = tables()
    y = (eta + 0.3 * rng.normal(size=N)).rename("y")
    lacking = {"bank": parties["bank"].iloc[:700], "court": parties["court"].iloc[150:]}
    columns = {}
    for name, table in lacking.items():
        made = made_columns(Table.of(table), name, FORMULA[name], None)
        columns[name] = pd.DataFrame(made.x, table.index, made.columns)
    glm = {"penalty": "none", "rows": "all"}
    found = simulate(VerticalGLM(**glm, formula=FORMULA), lacking, y)
    other = simulate(VerticalGLM(**glm), columns, y)
    assert found.metrics["n_samples"] == other.metrics["n_samples"] == N
    distance = (found.coefficients["estimate"] - other.coefficients["estimate"]).abs()
    assert (distance < 1e-6 * other.coefficients["std_error"]).all()


def test_a_node_without_formulaic_says_how_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "formulaic"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(["formulaic"]), *sys.meta_path])
    with pytest.raises(ConfigError, match=r"flwr-vertical\[formula\]"):
        made_columns(Table.of(tables()[0]["bank"]), "bank", "age", None)


def test_formulas_of_several_runs_tell_no_row_apart_together(tmp_path):
    """Four functions and 1 make flags of the five values of a column, of which one row has one."""
    rng = np.random.default_rng(0)
    ids = pd.Index([f"s{i:03}" for i in range(1000)], name="id")
    values = rng.integers(1, 5, 1000).astype(float)
    values[3] = 5.0
    bank = pd.DataFrame({"a": values}, ids)
    court = pd.DataFrame({"debts": rng.normal(size=1000)}, ids)
    labels = pd.Series(rng.normal(size=1000), ids)

    def withheld(nodes, formula):
        glm = VerticalGLM(formula={"bank": formula}, penalty="none")
        return nodes.run(glm, labels).metrics["columns_withheld"]

    formulas = ("a + sqrt(a)", "a:center(a) + log(a)")
    for number, formula in enumerate(formulas):  # each by itself
        alone = tmp_path / str(number)
        alone.mkdir()
        assert withheld(Nodes(alone, {"bank": bank, "court": court}), formula) == 0
    nodes = Nodes(tmp_path, {"bank": bank, "court": court})
    assert withheld(nodes, formulas[0]) == 0
    assert withheld(nodes, formulas[1]) == 1
    assert withheld(nodes, formulas[0]) == 0  # the same again


@pytest.mark.parametrize(
    "order", ["gf", "fg", "er", "re", "jf", "fj", "ej", "je", "go", "og", "ib"]
)
def test_columns_of_several_methods_tell_no_row_apart_together(order, tmp_path, monkeypatch):
    """Each method alone tells of no row; both together read another party's cell of one."""
    told = record_told(monkeypatch, "bank", 1000)
    rng = np.random.default_rng(0)
    ids = pd.Index([f"s{i:03}" for i in range(1000)], name="id")
    values = rng.integers(1, 5, 1000).astype(float)
    values[3] = 5.0
    bank, kinds = pd.DataFrame({"a": values}, ids), {}
    if "j" in order and "e" in order:  # they fill a missing cell by different numbers
        bank = pd.DataFrame({"a": rng.normal(size=1000)}, ids)
        bank["b"] = bank["a"] + rng.normal(size=1000)
        bank.iloc[3, 0] = np.nan
    if "o" in order:  # levels in a regression, one column of numbers in an exploration
        levels = np.repeat([1, 2, 3, 4], [600, 370, 29, 1])
        bank, kinds = pd.DataFrame({"a": levels}, ids), {"kind.a": "ordinal"}
    if "i" in order:  # a column and its product with one that differs in a row
        a = np.where(np.arange(1000) == 3, 2.0, 1.0)
        bank = pd.DataFrame({"a": a, "b": rng.normal(size=1000)}, ids)
    nodes = Nodes(
        tmp_path, {"bank": bank, "court": pd.DataFrame({"d": rng.normal(size=1000)}, ids)}
    )
    nodes.configs["bank"] |= kinds
    formula = {"f": "sqrt(a) + log(a) + a:center(a)", "r": "sqrt(a) + log(a)", "i": "a:b", "b": "b"}
    for method in order:
        glm = VerticalGLM(
            penalty="none", formula={"bank": formula[method]} if method in formula else ""
        )
        how = {"e": Explore(), "o": Explore(), "j": JointNormal()}.get(method, glm)
        nodes.run(how, None if method in "eoj" else pd.Series(rng.normal(size=1000), ids))
    assert len(told) > 1
    assert largest_share(told) < 0.5


@pytest.mark.parametrize("n_rare", [1, 6])
@pytest.mark.parametrize("at_once", [False, True])
def test_columns_told_of_again_over_more_rows_tell_no_row_apart(
    at_once, n_rare, tmp_path, monkeypatch
):
    """Two formulas of a column, one of some rows first: then of all, after the other or with it."""
    told = record_told(monkeypatch, "bank", 5000)
    rng = np.random.default_rng(0)
    ids = pd.Index([f"s{i:04}" for i in range(5000)], name="id")
    values = rng.integers(1, 5, 5000).astype(float)
    values[:n_rare] = 5.0
    bank, court = (pd.DataFrame({name: v}, ids) for name, v in [("a", values), ("d", values[::-1])])
    nodes = Nodes(tmp_path, {"bank": bank, "court": court})

    def run(formula, first=0):
        labels = pd.Series(rng.normal(size=5000), ids)
        labels.iloc[:first] = np.nan
        nodes.run(VerticalGLM(formula={"bank": formula}, penalty="none"), labels)

    judge, other = ToldRows._judged, ["a:center(a) + log(a)"]

    def judged(self, *request, **options):
        if self._name == "bank" and at_once and other:  # a run that is faster
            run(other.pop())
        return judge(self, *request, **options)

    run("a + sqrt(a)", first=2000)
    if not at_once:
        run(other.pop())
    monkeypatch.setattr(ToldRows, "_judged", judged)
    run("a + sqrt(a)")
    assert len(told) == 3
    assert not other
    assert largest_share(told) < 0.5 / n_rare


def test_columns_of_formulas_of_several_runs_need_more_rows(tmp_path):
    parties, eta, _ = tables()
    nodes = Nodes(
        tmp_path, {"bank": parties["bank"].iloc[:150], "court": parties["court"].iloc[:150]}
    )
    formulas = ("poly(income, 5)", "income:center(income) + scale(income):center(income):income")
    nodes.run(VerticalGLM(formula={"bank": formulas[0]}, penalty="none"), eta[:150])
    with pytest.raises((DataError, PartyError), match="rows"):
        nodes.run(VerticalGLM(formula={"bank": formulas[1]}, penalty="none"), eta[:150])


def test_formulas_that_a_changed_table_has_no_more_are_left_out(tmp_path):
    parties, eta, _ = tables()
    nodes = Nodes(tmp_path, parties)

    def run(formula):
        return nodes.run(VerticalGLM(formula={"bank": formula}, penalty="none"), eta)

    run("income:age + age")
    nodes.write({**parties, "bank": parties["bank"].rename(columns={"age": "years"})})
    # Together longer than a formula may be.
    run(" + ".join([f"income:{call}(years)" for call in ("scale", "center")] * 44))
    assert run("income + years:center(years)").metrics["columns_withheld"] == 0
