"""What the server learns of rows is in the nodes' ledgers, whatever the strategy.

Every strategy runs on real files. Of what the server saw, numbers that go with single samples and
sums over groups of rows are looked for; so are those that the strategy's own words name. Each must
have an entry in every node's ledger. A strategy that forgets to count fails here.
"""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from leaky import Leaky, make_tables
from site_of_nodes import PARTIES, ROOT, Site, refused

from apps.client_app import app as client_app
from flwr_vertical import Party, Strategy, load_strategy, party_app, step
from flwr_vertical.node.file_storage import FileStorage
from simulations.attacks.cases import cases, make_case_tables, make_strategy_of, routed_cases
from simulations.attacks.recording import PRODUCTS, Recording, watching
from simulations.attacks.vectors import families
from simulations.attacks.views import GOT, SERVER, WORKED, views_of
from strategies import BUILTIN
from strategies.forest import VerticalForest
from strategies.forest.predict import VotesPredictParty
from strategies.glm import VerticalGLM
from strategies.glm_admm import GLMADMM
from strategies.predict import Predict
from strategies.predict.linear import PredictParty
from strategies.trees import VerticalGBDT
from strategies.trees.predict import TreesPredictParty
from strategies.vfem import VFEM, CompleteCase

pytestmark = pytest.mark.slow

N = 330
ROWS = {"fedpsg-ar": 900, "pipeline": 3000}  # counts of pairs, sums that differ between stages
OF_ONE_ROW = {"bits", "predictions", "epsilon"}
# All that a method may ask for, so that it runs to its end; what it tells is looked at.
OPEN = {
    "policy.alignments": "any", "policy.exchanges": "any", "policy.openings": 1e9,
    "policy.predictions": 1e9, "policy.epsilon-total": 1e9,
}  # fmt: skip
# Numbers of samples that tell nothing of them: of nameless rows, each under a scale and a shift of
# its own; of fits and predictions, under a stream that the server does not have; columns turned at
# random. Which cells are missing is a fact of a run, which nobody counts.
BLINDED = {
    "prepare.donor", "prepare.needs", "impute.distance", "impute.weight", "impute.counts",
    "place_fits.angles", "rotate_selected", "predict.term:0", "take_up.missing",
}  # fmt: skip
OPEN_TREES = VerticalGBDT(n_trees=3, max_depth=3, histograms="open")
"""Grown without an arbiter, to be predicted with."""
FOREST = VerticalForest(n_trees=3, max_depth=3)
# Words of a disclosure table, and the kind of entry that they ask for.
WORDS = {
    "rows": r"^(over|for each missingness|by missingness|.*sums over groups of rows)",
    "predictions": r"^for each sample without a label, the (sum of the parties'|prediction)",
    "epsilon": r"perturbed rank",
    "bits": r"^(by sample|of each split|for each sample and tree|"
    r"for each (sample of the fit|labelled sample).*fits|with networks.*for each sample)",
}


def distinct():
    """One case for each party half, way to fit and family."""
    found = {}
    for case in [*cases(), *cases(consented=True), *routed_cases()]:
        if case.family != "poisson":  # as binomial
            kind = load_strategy(BUILTIN[case.fit or case.strategy])
            half = ((kind.predictions or Predict) if case.fit else kind).party
            found.setdefault((half, case.family, case.consented), case)
    return list(found.values())


def recorded(strategy, tables, labels, folder):
    """Run it over files, each node with a ledger, and keep all that passes."""
    protocol = strategy.protocol_of_run()
    halves = {"arbiter": strategy.arbiter, "protocol": protocol}
    app = party_app(strategy.party, **halves, storage=FileStorage())
    named = {name: table.rename_axis("id") for name, table in tables.items()}
    nodes = Site(folder, named, app=app, all=OPEN)
    if strategy.needs_arbiter:
        nodes.nodes.append({"role": "arbiter", "output": str(folder / "arbiter-out")} | OPEN)
    worked, transcript = [], []
    asked = {"alignment": "plain", "transcript": transcript}
    fits = {PredictParty: VFEM(), TreesPredictParty: OPEN_TREES, VotesPredictParty: FOREST}
    fit = fits.get(strategy.party)
    if fit is not None:  # what nodes keep of the fit must be there
        nodes.app, own = client_app, nodes.app
        fitted = nodes.run(fit, labels, run_id=2, alignment="plain")
        nodes.app = own
        strategy, asked["fitted"] = type(strategy)(fitted), "run-2"
    with watching(worked, transcript):
        result = nodes.run(strategy, labels, **asked)
    return nodes, Recording(strategy, "masked", tables, labels, result, transcript, worked)


def told_of_rows(run):
    """Names of numbers that the server has of single samples, and that are not blinded."""
    keys = [
        family.key.rpartition(" axis ")
        for family in families(views_of(run)[SERVER])
        if f" {GOT} " in family.key or f" {WORKED} " in family.key
    ]
    names = {key.split(" ")[0] for key, _, axis in keys if axis == "0"}
    return {n for n in names if not {n, n.split(".")[0]} & BLINDED}


def asked_by_words(strategy):
    """Kinds of entries that the rows of the disclosure table ask for."""
    exchange, found = getattr(strategy, "exchange", ""), set()
    for who, what in strategy.disclosure:
        stated = re.search(r"exchange=?\s?'(\w+)'", who)
        said = exchange != "sums" if stated is None else stated[1] == exchange
        if what.startswith("with networks"):
            said = "sums" in strategy.exchanges_asked
        if who.startswith("server") and said:
            found |= {kind for kind, words in WORDS.items() if re.search(words, what)}
    return found


def forgotten(nodes, run):
    """What the server has and the ledgers lack, by party."""
    needed = asked_by_words(run.strategy)
    if any(worked.step == PRODUCTS for worked in run.worked):
        needed |= {"rows"}
    of_rows = told_of_rows(run)
    found = {}
    for name in nodes.tables:
        kinds = set(nodes.kinds(name, run="run-1"))
        lacking = sorted(needed - kinds)
        lacking += sorted(of_rows) if not kinds & OF_ONE_ROW else []
        if lacking:
            found[name] = lacking
    return found


@pytest.mark.parametrize("case", distinct(), ids=lambda case: case.name)
def test_what_the_server_learns_is_in_the_ledgers(case, tmp_path):
    tables, labels = make_case_tables(case, ROWS.get(case.strategy, N), 2)
    strategy = make_strategy_of(case, tables, labels)
    nodes, run = recorded(strategy, tables, labels, tmp_path)
    assert forgotten(nodes, run) == {}
    if case.consented or case.routed:
        assert "bits" in asked_by_words(strategy)
    if case.consented:  # sides of splits are packed, eight to a number
        assert told_of_rows(run)


BOUNDS = {"a": (-4, 4), "b": (-4, 4), "label": (-12, 12)}


@pytest.mark.parametrize(
    "strategy",
    [
        CompleteCase(epsilon=1.0, bounds=BOUNDS),
        VerticalGLM(epsilon=1.0, delta=1e-5, bounds=BOUNDS),
        GLMADMM(epsilon=1.0, max_iter=3, lambdas=0.1, penalty="lasso"),
    ],
    ids=["complete-case", "glm moments", "glm admm"],
)
def test_noise_that_is_spent_is_in_the_ledgers(strategy, tmp_path):
    rng = np.random.default_rng(8)
    index = pd.Index([f"c{i:03}" for i in range(N)], name="id")
    tables = {
        n: pd.DataFrame({c: rng.normal(size=N)}, index) for n, c in zip(PARTIES, "ab", strict=True)
    }
    labels = tables["bank"]["a"] - tables["court"]["b"] + rng.normal(size=N)
    nodes, run = recorded(strategy, tables, labels.rename("label"), tmp_path)
    for name in PARTIES:
        assert "epsilon" in nodes.kinds(name)
        assert nodes.ledger(name).state["epsilon"] >= strategy.epsilon
        assert nodes.ledger(name).state["delta"] > 0
    # Noisy sums need no count of rows: epsilon covers what they add up to.
    assert not told_of_rows(run) or "bits" in nodes.kinds("bank")


@pytest.mark.parametrize("leak", ["fits", "column", "nothing"])
def test_a_strategy_that_forgets_is_found(leak, tmp_path):
    tables, labels = make_tables()
    nodes, run = recorded(Leaky(leak), tables, labels, tmp_path)
    assert set(forgotten(nodes, run)) == ({*tables} if leak != "nothing" else set())
    assert bool(told_of_rows(run)) == (leak != "nothing")


class TellRanks(Strategy):
    """Runs the party half that docs/add-a-strategy.md shows."""

    name = "tell-ranks"
    disclosure = (("server", "the ranks of all columns"),)

    def run(self, federation, alignment, result, progress):
        federation.call("tell_ranks")


def example():
    text = (ROOT / "docs" / "add-a-strategy.md").read_text()
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.S) if "TellingParty" in b)
    names = {"__name__": __name__, "np": np, "math": math, "Party": Party, "step": step}
    exec(code, names)
    return type("Told", (TellRanks,), {"party": names["TellingParty"]})()


def two_of_64_rows():
    index = pd.Index([f"c{i}" for i in range(64)], name="id")
    return {
        name: pd.DataFrame({"x": np.random.default_rng(k).normal(size=64)}, index)
        for k, name in enumerate(("bank", "court"))
    }


def test_the_example_of_the_authors_page_is_counted(tmp_path):
    tables = two_of_64_rows()
    nodes, run = recorded(example(), tables, None, tmp_path)
    assert told_of_rows(run) == {"tell_ranks.ranks"}
    assert forgotten(nodes, run) == {}
    assert nodes.ledger("bank").state["other_bits"] == 6.0


@pytest.mark.parametrize("key", ["policy.exchanges", "policy.openings"])
def test_the_example_is_refused_without_consent(tmp_path, key):
    told = example()
    app = party_app(told.party, storage=FileStorage())
    allowed = OPEN | {key: "" if key == "policy.exchanges" else 5.0}  # of the 6 bits of a rank
    nodes = Site(tmp_path, two_of_64_rows(), app=app, all=allowed)
    for run_id in (1, 2):
        with refused(key):
            nodes.run(told, alignment="plain", run_id=run_id)
    assert nodes.kinds("bank") == []
