"""The page of the FKNN study: its sections, and what a reader must know."""

from collections.abc import Mapping

import pandas as pd

from simulations.fknn.experiments import ROOTS
from simulations.fknn.preset import SCOPES, Preset
from simulations.fknn.tables import TABLE3
from simulations.page import Part, Tables

READINGS = {
    "strong": "(a) usual local imputers",
    "label": "(b) the same, allowed to use the label",
    "printed": "(c) as the paper's numbers suggest",
}
REGRESSION_NAMES = {"A": "figure11_regression", "A and B": "figure15_regression"}


def notes(preset: Preset) -> list[str]:
    """Return what differs from the paper, and why."""
    return [
        "The replications behind this page are in [records/fknn.jsonl](records/fknn.jsonl), so "
        "`--report` makes it anew without running any.",
        "The paper does not say what its LR, KNN and RF are, so they are read in three ways. "
        "(a) LR and RF regress each of the guest's features on the other three, iterating over "
        "columns; KNN is scikit-learn's KNNImputer with the same K as FKNN. This is the "
        "comparison that should decide. (b) The same with motor_speed, the label, which the guest "
        "holds complete and FKNN makes no use of. (c) LR and RF regress each feature on "
        "motor_speed alone; KNN takes the row number idx as a feature, K = 3.",
        "Why we differ, Table 4. The paper's LR and RF are far worse than usual imputers of these "
        "names. The guest's "
        "features correlate up to 0.97 with each other, so a regression on the other three does "
        "far better than MEAN; the paper's LR is 4 to 6 % better than MEAN at every rate, which is "
        "what a regression on motor_speed gives. Its KNN starts below MEAN and ends above it, as "
        "with the row number among the features, which the paper's Table 1 lists. So reading (c) "
        "is likely what was done; the paper does not say.",
        "Why we differ, Table 3. The paper's numbers of Tables 3 and 4 cannot both be met: MEAN at "
        "20 % "
        "(0.819) cannot come from cells missing completely at random in these data, where it "
        "moves by about 0.02 from run to run, and Table 4 has 1.024. Relative to MEAN of the same "
        "runs, what was removed plays a smaller part.",
        "Cells are removed one by one, completely at random, as Section 4.3.1 says. Numbers of the "
        f"paper stand in brackets. The preset ({preset.method['n_neighbors']} neighbours) keeps "
        "the paper's equations; no setting was chosen by these numbers.",
    ]


def parts(tables: Tables, seeds: Mapping[str, int]) -> list[Part]:
    """Return the sections of the page; `seeds`: how many were run of each part."""
    table4 = {f"table4_{name}": text for name, text in READINGS.items()}
    return [
        Part(
            "Table 3: against MAX, MIN and MEAN (Figures 5 to 7)",
            f"RMSE over the guest's removed cells; runs of each rate: {seeds['table3']}.",
            tables={"table3_beside": "RMSE", "table3_relative": "Relative to MEAN"},
            figures=["figures5-7_runs"],
        ),
        Part(
            "Table 4: against methods that see the guest's data alone (Figures 4 and 8)",
            f"RMSE over the guest's removed cells; runs of each rate: {seeds['table4']}. Figure 4 "
            "is of one run: on the diagonal an imputed value equals the one that was removed.",
            tables={f"{name}_beside": text for name, text in table4.items()},
            figures=["figure4_imputed", "figure8_rmse"],
        ),
        Part(
            "What the paper's baselines were",
            "Root mean squared difference to the paper's Table 4 over the missing rates, for each "
            "reading: the smaller, the likelier that the paper did this. Whole rows missing at the "
            "guest would take LR to MEAN, too, but then local KNN could not do better than MEAN "
            "at low rates, and FKNN would stay near 0.55 at every rate.",
            tables={"table4_closeness": "Distance", "table4_rows": "Whole rows missing"},
        ),
        Part(
            "More runs, other settings",
            "The paper's three runs may be lucky. Runs of each rate here: of FKNN alone "
            f"{seeds['stability']}, with other settings {seeds['settings']}. “{ROOTS}” is no "
            "setting but a formula: each party's root mean squared difference, added. From 10 % "
            "missing upwards it comes nearest to the paper's FKNN, so its code may have added "
            "roots where its Eq. (10) adds squares; it is worse than the equations as printed.",
            tables={"table4_stability": "More runs", "table4_settings": "Other settings"},
        ),
        Part(
            "Table 5: lossless",
            "Federated against centralised imputation of the same cells, "
            f"runs of each rate: {seeds['lossless']}. masked, ckks: against a "
            "program that holds both tables and follows Eqs. (6), (7) and (10). exact: exact "
            "weighting against scikit-learn's KNNImputer on the pooled table. A paired t-test is "
            "undefined where both vectors of RMSE are the same, which “identical” says. "
            "party-mean against pooled are two distances: a small p says that they differ, not "
            "that anything was lost. Why we differ: the paper's p-values are of vectors that are "
            "not "
            "the same, so its two programs computed different things or with other precision.",
            tables={"table5_turned": ""},
        ),
        *(_regression(scope, seeds) for scope in SCOPES),
        Part(
            "The data, and a check of them (Section 4.2)",
            "Four-fold cross-validated error of predicting motor_speed from complete data. The "
            "paper calls its numbers RMSE; they are close to the squares.",
            tables={"section42_regression": ""},
        ),
    ]


def _regression(scope: str, seeds: Mapping[str, int]) -> Part:
    first, last = (11, 14) if scope == "A" else (15, 18)
    return Part(
        f"Regression, cells of {scope} missing (Figures {first} to {last})",
        "Linear regression of motor_speed on all features after imputation, scored on the test "
        "rows, whose missing cells are imputed from the imputed training rows. Random "
        f"splits: {seeds['regression']}. The paper gives these results as figures "
        "only.",
        tables={REGRESSION_NAMES[scope]: ""},
        figures=[f"figure{first}_bars", f"figures{first + 1}-{last}_boxes"],
    )


def relative(table: pd.DataFrame) -> pd.DataFrame:
    """Return Table 3 in units of MEAN's error."""
    return table[list(TABLE3)].div(table["MEAN"], axis=0)
