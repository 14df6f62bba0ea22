"""The page of the FedPSG-AR study: its sections, and what a reader must know."""

from simulations.fedpsg.preset import Preset
from simulations.page import Part

DEFAULT = {
    "error": "error", "margin": "margin", "correlation": "correlation", "auc": "GBDT auc",
    "lr": "LR auc",
}  # fmt: skip
"""Measures of the part on the default, by the name of its table."""
BESIDE = {"error": "error", "margins": "margin", "AUC": "GBDT auc"}
"""Measures of which methods have a mean beside the default's, by title."""


def notes(preset: Preset, absent: list[str]) -> list[str]:
    """Return what a reader must know, and where the paper was left."""
    networks = preset["networks"]
    texts = [
        "The replications behind this page are in [records/fedpsg.jsonl](records/fedpsg.jsonl), "
        "so `--report` makes it anew without running any, and a run without it goes on from them. "
        "What has no row was not run.",
        "The paper's numbers are in brackets; 'seeds' is how many runs stand behind the numbers "
        "of a row.",
        f"Networks of FedPSG-AR took {networks['iterations']:,} training steps, local generators "
        f"{networks['local_iterations']:,}; the paper's took 10,000 each, which nobody has run "
        "here: "
        "`python -m simulations fedpsg --set networks.iterations=10000 --set "
        "networks.local_iterations=10000 --output results/fedpsg-10000` does, and goes on from "
        "that folder; networks take ten times as long. They are the library's, "
        "trained in one place without messages (simulations/fedpsg/pooled.py); a test compares "
        "the gradients with the federation's.",
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
        "'means, no rules' and 'draws, no rules' impute all attributes by FedPSG-AR's regressions "
        "(mice, forest), variant='impute'; 'mean rule' and 'draw rule' have five attributes by "
        "rules first, variant='ar'. `FedPSGAR()` is 'means, no rules (VF-MissFI)'.",
        "'VF-MissFI' is `imputer='forest'`, which stands in for MissForest: leaves of trees drawn "
        "at random with fitted weights. MissForest's trees split where the values to be predicted "
        "say so, which another party must not see.",
        "'other true rows' are aligned rows of both parties beside the missing ones, as many if "
        "there are: their distances are due to few rows alone, so a target below them is below "
        "what B's own rows reach.",
    ]
    if absent:
        texts.append(
            f"Not here, so left out: {', '.join(absent)}; `python -m simulations data` says how to "
            "get it."
        )
    return texts


def parts(preset: Preset) -> list[Part]:
    """Return the sections of the page."""
    drawn = {**preset["cnum"]["rows"], **preset["imputers"]["rows"]}
    rows = ", ".join(f"{count:,} rows of {name}" for name, count in drawn.items())
    downstream, aligned, default = preset["downstream"], preset["aligned"], preset["default"]
    few = " and ".join(f"{count:,} of {name}" for name, count in default["rows"].items())
    return [
        Part(
            "The default",
            f"`python -m simulations fedpsg --parts default`: {default['test']:.0%} of the samples "
            "are the test, and of the others B lacks a share at random (MCAR) or rather where A's "
            "first attribute is large (MAR). Motor, Breast cancer and MAR were not looked at when "
            "the imputer was made; Bank, Credit and Letter were, MCAR (Tables 6 and 7).",
            items=[
                "Error: RMSE over all attributes of B, each in units of its standard deviation. "
                "'conditional mean' and 'boosting of A' are gradient boosting on A's attributes, "
                "attribute by attribute, in one place: 100 trees, and as many as held-out rows "
                "gain by.",
                f"Drawn first: {few}; the other data sets are whole. A of Motor is FATE's guest, B "
                "its host; Breast cancer is scikit-learn's, every second column at A.",
                "AUC: of classifiers of both parties' columns, trained on aligned and completed "
                "rows and tested on true ones ('nothing': trained on aligned rows alone). Labels "
                "are 0 and 1: of Letter the second half of the alphabet, of Motor speeds above the "
                "median.",
                "The default, `FedPSGAR()`, is 'means, no rules (VF-MissFI)'; 'draws' is "
                '`rule="draw"`, for rows that look like real ones.',
                "Why regressions and not boosting across parties: a forest of random trees is one "
                "product of columns and one linear system, five rounds for all attributes. "
                "Boosting takes rounds for each level of each tree of each attribute.",
            ],
            tables={
                "default_beside": "Means over data sets, mechanisms and ratios",
                "default_error": "Error",
                "default_auc": "AUC of boosted trees",
                "default_margin": "Distance of margins (Kolmogorov and Smirnov's, or total "
                "variation)",
            },
        ),
        Part(
            "Errors (Tables 6 and 7)",
            "RMSE on all rows of each data set; columns are the share of samples that B lacks.",
            items=[
                "Why we differ, Table 6. Local generators know nothing of A, so that at their best "
                "they draw from B's distribution: they are at the random draw here, whatever the "
                "share. The paper's are worse than a random draw, and worsen with the share, as of "
                "generators that had few rows to learn from; Bank leaves them 9,000 at a share of "
                "0.8.",
                "Why we differ, Table 7. Letter's attributes vary little in their range, so that "
                "even a random draw has an RMSE of 0.21; all of the paper's are above. Its numbers "
                "need another scale, which it does not state.",
            ],
            tables={"tables67": ""},
            figures=["errors"],
        ),
        Part(
            "Settings of FedPSG-AR (Tables 1 to 5)",
            f"RMSE. Drawn before anything else: {rows or 'nothing'}; every other data set is "
            "whole.",
            items=[
                "AG: the first attributes are generated by TabDDPM at B; AR: by rules.",
                "“of B”: the networks of B alone impute, as the paper's non-federated forms.",
                "Bank has eight attributes at B, so at Cnum 8 nothing is left to impute, and both "
                "forms are the same; the paper prints two different numbers.",
                "Why we differ, Table 3. With Cnum 5 three attributes are left to impute on Bank. "
                "What fills them changes RMSE by 0.01 at most here, by 0.24 in the paper, whose "
                "attributes by rules would then be without error. On German Credit the networks' "
                "errors lie between those of means and of rows drawn at random: networks are "
                "trained until their values look like real ones, not until they are near them.",
                "Why we differ, Tables 4 and 5. Networks of both parties are no better than "
                "those of B alone here: most that A tells of B is in the rules already, which have "
                "seen A's attributes in both forms. In the paper B alone loses up to 0.17.",
                "Why we differ, Tables 1 and 2 (below). In the paper RMSE falls with Cnum and "
                "rises at the end. A rule hands over the most frequent level among the rows that "
                "are alike, whose squared error is above that of a mean wherever A tells little. "
                "So RMSE does not fall with Cnum here.",
            ],
            tables={
                "table3": "Table 3: by imputer, Cnum 5",
                "table4": "Table 4: imputed by both parties or by B alone",
                "table5": "Table 5: the same, other networks, Cnum 5",
            },
        ),
        Part(
            "Classifiers (Experiment 3)",
            items=[
                f"{downstream['test']:.0%} of the aligned samples are the test, all of them real; "
                "nothing is learnt from them. The paper generates before it splits.",
                "Inputs are integer codes, standardised. LR and FinalNet take the paper's 1,000 "
                "batches of 64; SVM (linear), GBDT and RF are scikit-learn's with its settings.",
                "VertiGAN (the paper's A∞B-GM) adds as many new joint samples as B lacks, labels "
                "included; the other approaches add B's part to A's real rows.",
            ],
            tables={"experiment3_auc": ""},
        ),
        Part(
            "AUC by number of aligned samples",
            f"{aligned['dataset']}: {aligned['test_rows']:,} samples are the test; of the others "
            "so many are aligned, and A has all. Completed tables have all of them, aligned rows "
            "alone only these.",
            tables={
                "aligned": "AUC",
                "target_training": "AUC of completed tables less that of aligned rows alone",
            },
            figures=["aligned"],
        ),
        Part(
            "The default: logistic regression, dependence",
            tables={
                "default_lr": "AUC of logistic regression",
                "default_correlation": "Distance of correlations",
            },
            folded=True,
        ),
        Part("Tables 1 and 2: RMSE by Cnum", tables={"tables12": ""}, folded=True),
        Part(
            "Levels, dependence, margins, copies",
            items=[
                "Correlation distance: mean absolute difference of Spearman's correlations, over "
                "pairs with an attribute of B. Margin distance: Kolmogorov and Smirnov's, or "
                "total variation. Quality: 1 less the mean of both.",
                "A row that B has already may be a copy or chance: true rows have as many doubles "
                "as the column beside says. Membership: points above chance of guessing B's rows "
                "from the generated ones; a random draw, which is made of copies, shows what the "
                "attack can do.",
                "VCDS and EVCDS (at epsilon 5 for each variable) and VertiGAN synthesise all "
                "columns of both parties from the aligned rows.",
            ],
            tables={"quality": ""},
            folded=True,
        ),
        Part(
            "RMSE by attribute, half of B's samples missing", tables={"attributes": ""}, folded=True
        ),
        Part("Experiment 3: accuracy", tables={"experiment3_acc": ""}, folded=True),
        Part("Experiment 3: F1", tables={"experiment3_f1": ""}, folded=True),
    ]
