"""The study's page: what was found beside what the paper says, and what to think of it."""

import pandas as pd

from flwr_vertical.pages import (
    Section,
    bullet_list,
    dataframe_html,
    format_value,
    paragraph,
    render_page,
    subheading,
)
from simulations.fknn.preset import SCOPES, Preset
from simulations.fknn.sections import (
    READING_NAMES,
    baselines_section,
    data_section,
    lossless_section,
    regression_section,
    robustness_section,
    table3_section,
)
from simulations.fknn.tables import TABLE4, reached
from simulations.study import FAIL, PASS, beside_paper

PAPER = (
    "Du, Wang, Meng and Guo (2024), Privacy-Preserving Vertical Federated KNN Feature Imputation "
    "Method, Electronics 13(2), 381"
)
READINGS = {
    "strong": (
        "(a) Usual local imputers",
        "LR and RF regress each of the guest's features on the other three, iterating over "
        "columns; KNN is scikit-learn's KNNImputer with the same K as FKNN. This is the comparison "
        "that should decide.",
    ),
    "label": (
        "(b) The same, allowed to use the label",
        "The guest also holds motor_speed, complete. FKNN makes no use of it; here the local "
        "imputers may.",
    ),
    "printed": (
        "(c) Local imputers as the paper's numbers suggest",
        "LR and RF regress each feature on motor_speed, the guest's only informative complete "
        "column; KNN takes distances over the whole file with the row number idx among the "
        "features, K = 3.",
    ),
}

TARGET_NAMES = {
    "target": "against the paper",
    **{f"below local ({reading})": f"below {name}" for reading, name in READING_NAMES.items()},
}


def make_page(
    found: dict[str, pd.DataFrame],
    paper: dict[str, pd.DataFrame],
    pictures: dict[str, bytes],
    preset: Preset,
) -> str:
    """Return the page."""
    return render_page(
        "FKNN on the motor data",
        [
            _summary(found, preset),
            table3_section(found, paper, pictures, preset),
            Section(
                "Original and imputed values (Figure 4)",
                pictures["figure4_imputed"],
                "One run. On the diagonal an imputed value equals the one that was removed.",
            ),
            _table4(found, paper, pictures, preset),
            baselines_section(found, preset),
            robustness_section(found, preset),
            lossless_section(found, preset),
            *(regression_section(scope, found, pictures, preset) for scope in SCOPES),
            data_section(found),
        ],
        subtitle=f"Section 4 of {PAPER}, run through the federated code with masked sums.",
        facts=_facts(found, preset),
        kicker="flwr-vertical · study",
    )


def _facts(found: dict[str, pd.DataFrame], preset: Preset) -> dict[str, str]:
    average = found["targets"].loc["average"]
    changed = sum(found["table5"][f"{name}: cells"].sum() for name in ("masked", "ckks", "exact"))
    return {
        "targets": "all met" if reached(found["targets"]) else "not all met",
        "FKNN, mean RMSE": f"{average['FKNN']:.3f}",
        "the paper's": f"{average['paper']:.3f}",
        "best local, mean": f"{_best_local(found)[1]:.3f}",
        "cells unlike centralised": format_value(int(changed)),
        "neighbours K": str(preset.method["n_neighbors"]),
    }


def _best_local(found: dict[str, pd.DataFrame]) -> tuple[str, float]:
    means = {
        f"{name}, reading {READING_NAMES[reading]}": float(found[f"table4_{reading}"][name].mean())
        for reading in READINGS
        for name in TABLE4[1:]
    }
    best = min(means, key=lambda name: means[name])
    return best, means[best]


def _summary(found: dict[str, pd.DataFrame], preset: Preset) -> Section:
    average = found["targets"].loc["average"]
    best, value = _best_local(found)
    texts = [
        f"FKNN's RMSE is {average['FKNN']:.3f} on average over the missing rates; the paper prints "
        f"{average['paper']:.3f} (ratio {average['ratio']:.2f}).",
        f"The best method that sees the guest's data alone is {best}: {value:.3f} on average.",
        "The paper's LR and RF are far worse than usual imputers of these names. Its numbers fit "
        "regressions on the label alone, and a KNN that takes the row number for a feature: see "
        "“What the paper's baselines were”.",
    ]
    return Section(
        "What was aimed at",
        [
            bullet_list(texts),
            _marked(dataframe_html(found["targets"].rename(columns=TARGET_NAMES))),
        ],
        f"At every missing rate FKNN's RMSE shall be at most {preset.target:g} times the paper's "
        "(on average: below it) and below MEAN, LR, KNN and RF on the guest's data, in each of "
        f"three readings of these names. Mean of {preset.runs('table4')} runs. {PASS} or {FAIL} "
        "follows from the numbers; nothing was left out.",
    )


def _marked(html: str) -> str:
    """Colour what passed and what failed."""
    for word, ink in ((PASS, "#00704f"), (FAIL, "#b3261e")):
        html = html.replace(f"<td>{word}", f'<td style="color:{ink};font-weight:600">{word}')
    return html


def _table4(
    found: dict[str, pd.DataFrame],
    paper: dict[str, pd.DataFrame],
    pictures: dict[str, bytes],
    preset: Preset,
) -> Section:
    body: list[str | bytes] = [pictures["figure8_rmse"]]
    for reading, (title, text) in READINGS.items():
        body += [
            subheading(title),
            paragraph(text),
            dataframe_html(beside_paper(found[f"table4_{reading}"], paper["table4"])),
        ]
    return Section(
        "Table 4: against methods that see the guest's data alone (Figure 8)",
        body,
        f"RMSE over the guest's removed cells, mean of {preset.runs('table4')} runs; in "
        "parentheses, and dotted, the paper's numbers. Cells are removed one by one, completely "
        "at random, as the paper's Section 4.3.1 says.",
    )
