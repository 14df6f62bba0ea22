"""The study's page: what was aimed at, then each part with its tables and figures."""

import pandas as pd

from flwr_vertical.pages import Section, bullet_list, dataframe_html, render_page, subheading
from simulations.fedpsg.preset import Preset
from simulations.fedpsg.targets import reached
from simulations.study import FAIL, PASS
from simulations.vfem.page import marked

PAPER = (
    "Liu, He, Tan, Chen, Qian, Wei and Zhu, participants sample generation based on association "
    "rules and data imputation in vertical federated learning (FedPSG-AR)"
)
GOALS = ("target_errors", "target_dependence", "target_training")
# What is printed on the terminal, in this order.
TITLES = {
    "target_errors": "Target: RMSE near the conditional mean's, and below the others",
    "target_dependence": "Target: dependence of drawn rows",
    "target_training": "Target: AUC of completed tables less that of aligned rows alone",
    "tables12": "Tables 1 and 2: RMSE by Cnum (the paper's in brackets)",
    "table3": "Table 3: RMSE by imputer, Cnum 5 (the paper's in brackets)",
    "table4": "Table 4: imputed by both parties or by B alone (the paper's in brackets)",
    "table5": "Table 5: the same, other networks, Cnum 5 (the paper's in brackets)",
    "tables67": "Tables 6 and 7: RMSE by share that B lacks (the paper's in brackets)",
    "quality": "Levels, dependence, margins, copies",
    "attributes": "RMSE by attribute, half of B's samples missing",
    "experiment3_auc": "Experiment 3: AUC",
    "experiment3_acc": "Experiment 3: accuracy",
    "experiment3_f1": "Experiment 3: F1",
    "aligned": "AUC by number of aligned samples",
}

Tables = dict[str, pd.DataFrame]
Pictures = dict[str, bytes]


def make_page(found: Tables, pictures: Pictures, preset: Preset, absent: list[str]) -> str:
    """Return the page."""
    goals = [found[name] for name in GOALS]
    return render_page(
        "Samples that a party lacks",
        [
            _goals(found, preset, absent),
            _errors(found, pictures, preset),
            _variants(found, preset),
            _quality(found),
            _downstream(found, preset),
            _aligned(found, pictures, preset),
        ],
        subtitle=PAPER,
        facts={"targets": "all met" if reached(*goals) else "not all met"},
        kicker="flwr-vertical · study",
    )


def _html(frame: pd.DataFrame) -> str:
    return dataframe_html(frame, max_rows=400)


def _goals(found: Tables, preset: Preset, absent: list[str]) -> Section:
    part, networks = preset["targets"], preset["networks"]
    texts = [
        f"RMSE of the best variant within {part['rmse_within']:g} of the conditional mean's; the "
        "paper's own variant beside it; both below imputation by B alone, rules left out, and "
        "every local generator.",
        "RMSE alone rewards the mean. So drawn rows shall have a correlation distance of at most "
        f"{part['correlation_share']:g} of the conditional mean's, and a quality no worse than the "
        "copula methods'.",
        f"Completed tables train better classifiers than aligned rows alone up to {part['few']} "
        f"aligned samples, and lose at most {part['loses']:g} AUC from {part['many']:,} on.",
        f"Networks of FedPSG-AR take {networks['iterations']:,} training steps here, local "
        f"generators {networks['local_iterations']:,}; the paper's take 10,000 each.",
    ]
    if absent:
        texts.append(f"Not here, so left out: {', '.join(absent)}.")
    body = [bullet_list(texts)]
    body += [marked(_html(found[name])) for name in GOALS]
    return Section(
        "What was aimed at",
        body,
        f"{PASS} or {FAIL} follows from the numbers; limits are in brackets. What was not run has "
        "no row. 'seeds' is how many stand behind the numbers of a row.",
    )


def _errors(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    texts = [
        "RMSE is over all attributes of B's missing rows, as integer codes (levels by their "
        "names) divided by each attribute's range. The paper does not say how levels enter its "
        "RMSE.",
        "Three floors tell how to read a number. A random row of B is what a generator reaches "
        "that has learnt B's distribution perfectly and knows nothing of A. The mean is what "
        "ignoring A costs. The conditional mean (gradient boosting on A's attributes) is the least "
        "that any method can be expected to reach; with levels rounded to valid ones it is larger.",
        "On Letter even the paper's best numbers are worse than a random draw's, and on Bank its "
        "VF-CGAIN (0.169) is below the conditional mean's. So its metric is not this one, and its "
        "numbers are shown for their order only.",
        "B's and A's attributes on Bank and German Credit are our split: the paper prints how many "
        "there are, not which. Letter and News are halved in the order of their columns.",
        "“codes” hand every attribute over as an integer code, which is a number, as the paper "
        "does; so a mean of codes is a valid answer. “draw rule” hands levels over as levels.",
        "CTGAN, TableGAN, TVAE and TabDDPM are small networks of the study "
        "(simulations/fedpsg/generators), not the authors' code; CTAB-GAN is left out. "
        "TableGAN and TabDDPM are used without labels, which B does not have.",
        "Networks of FedPSG-AR are the library's, trained in one place without messages "
        "(simulations/fedpsg/pooled.py); a test compares the gradients with the federation's.",
    ]
    return Section(
        "Errors (Tables 6 and 7)",
        [
            pictures["errors"],
            bullet_list(texts),
            _html(found["tables67"]),
            subheading("By attribute, half of B's samples missing"),
            _html(found["attributes"]),
        ],
        "All rows of each data set; columns are the share of samples that B lacks.",
    )


def _variants(found: Tables, preset: Preset) -> Section:
    rows = {**preset["cnum"]["rows"], **preset["imputers"]["rows"]}
    drawn = ", ".join(f"{count:,} rows of {name}" for name, count in rows.items())
    return Section(
        "Settings of FedPSG-AR (Tables 1 to 5)",
        [
            bullet_list(
                [
                    "AG: the first attributes are generated by TabDDPM at B; AR: by rules.",
                    "“of B”: the networks of B alone impute, as the paper's non-federated forms.",
                    "Bank has eight attributes at B, so at Cnum 8 nothing is left to impute, and "
                    "both forms are the same; the paper prints two different numbers.",
                ]
            ),
            *(part for name in ("tables12", "table3", "table4", "table5")
              for part in (subheading(TITLES[name]), _html(found[name]))),
        ],
        f"Drawn before anything else: {drawn or 'nothing'}; every other data set is whole.",
    )  # fmt: skip


def _quality(found: Tables) -> Section:
    texts = [
        "Correlation distance: mean absolute difference of Spearman's correlations, over pairs "
        "with an attribute of B. Margin distance: Kolmogorov and Smirnov's, or total variation. "
        "Quality: 1 less the mean of both.",
        "A row that B has already may be a copy or chance: true rows have as many doubles as the "
        "column beside says. Membership: points above chance of guessing B's rows from the "
        "generated ones; a random draw, which is made of copies, shows what the attack can do.",
        "VCDS and EVCDS (at epsilon 5 for each variable) and VertiGAN synthesise all columns of "
        "both parties from the aligned rows.",
    ]
    return Section("What rows look like", [bullet_list(texts), _html(found["quality"])])


def _downstream(found: Tables, preset: Preset) -> Section:
    part = preset["downstream"]
    body = [
        bullet_list(
            [
                f"{part['test']:.0%} of the aligned samples are the test, all of them real; "
                "nothing is learnt from them. The paper generates before it splits.",
                "Inputs are integer codes, standardised. LR and FinalNet take the paper's 1,000 "
                "batches of 64; SVM (linear), GBDT and RF are scikit-learn's with its settings.",
                "VertiGAN (the paper's A∞B-GM) adds as many new joint samples as B lacks, labels "
                "included; the other approaches add B's part to A's real rows.",
            ]
        )
    ]
    for measure in ("auc", "acc", "f1"):
        name = f"experiment3_{measure}"
        body += [subheading(TITLES[name]), _html(found[name])]
    return Section("Classifiers (Experiment 3)", body)


def _aligned(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    part = preset["aligned"]
    return Section(
        "How many aligned samples",
        [pictures["aligned"], _html(found["aligned"])],
        f"{part['dataset']}: {part['test_rows']:,} samples are the test; of the others so many are "
        "aligned, and A has all. Completed tables have all of them, aligned rows alone only these.",
    )
