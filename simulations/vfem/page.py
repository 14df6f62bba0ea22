"""The study's page: what was aimed at, then each part with its tables and figures."""

import pandas as pd

from flwr_vertical.pages import Section, bullet_list, dataframe_html, render_page
from flwr_vertical.pages.page import format_value
from simulations.study import FAIL, PASS
from simulations.vfem.preset import Preset
from simulations.vfem.sections import (
    apart_section,
    convergence_section,
    correlated_section,
    finite_section,
    inference_section,
    parting_section,
    repeats_section,
    sme_section,
    splits_section,
)
from simulations.vfem.targets import reached

PAPER = (
    "Tang, Wang, Feng and Li, profit prediction of small and medium-sized enterprises by vertical "
    "federated EM (VFEM)"
)

GOALS = ("target_apart", "target_correlated", "target_ahead", "target_intervals", "target_cost")
# What is printed on the terminal, in this order.
TITLES = {
    "target_apart": "Target: parties that share few rows, VFEM by default",
    "apart": "Parties that share few rows: RMSE of coefficients, 95 % intervals given and coverage",
    "target_correlated": "Target: correlated parties, VFEM with covariance='full' (the default)",
    "correlated": "Correlated parties: RMSE of coefficients, coverage of 95 % intervals",
    "target_ahead": "Target: VFEM (maximum likelihood) ahead of Single, CC and Impute",
    "target_ahead_prior": "The same with noise_prior = 2",
    "finite_coefficients": "Coefficient RMSE (mean over runs; dash: impossible)",
    "finite_prediction": "Prediction error on rows without label (mean over runs)",
    "finite_effort": "Effort, noise variance, and fits that were impossible (shares)",
    "target_intervals": "Target: intervals and standard errors, by party",
    "inference": "Coverage of 95 % intervals and standard errors, by party",
    "parting": "Few rows and correlated parties: means over parties",
    "sme_table3": "SME-like data: estimate (standard error), * significant at 5 %",
    "sme_summary": "SME-like data: fit, error against the truth, cost",
    "target_cost": "Target: the SME-like data",
    "sme_data": "SME-like data: what the paper says of its data, and here",
    "figure4_splits": "Figure 4: prediction of complete cases held out, over random splits",
    "sme_repeats": "More SME-like data sets: mean coefficient RMSE in standard units",
}


def make_page(found: dict[str, pd.DataFrame], pictures: dict[str, bytes], preset: Preset) -> str:
    """Return the page."""
    return render_page(
        "VFEM on generated data",
        [
            _summary(found, preset),
            apart_section(found, preset),
            correlated_section(found, preset),
            finite_section(found, pictures, preset),
            inference_section(found, pictures, preset),
            parting_section(found, pictures, preset),
            convergence_section(found, pictures, preset),
            sme_section(found, pictures, preset),
            splits_section(found, pictures, preset),
            repeats_section(found, preset),
        ],
        subtitle=f"{PAPER}, run through the federated code with "
        f"{preset['method']['aggregation']} sums.",
        facts=_facts(found, preset),
        kicker="flwr-vertical · study",
    )


def _facts(found: dict[str, pd.DataFrame], preset: Preset) -> dict[str, str]:
    goals = [found[name] for name in GOALS]
    summary = found["sme_summary"]
    facts = {
        "targets": "all met" if reached(*goals) else "not all met",
        "SME-like rows": format_value(preset["sme"]["rows"]),
    }
    if "CC-VFEM" in summary.index:
        row = summary.loc["CC-VFEM"]
        facts |= {
            "CC-VFEM, adjusted R²": format_value(row["adjusted R2"]),
            "CC-VFEM, seconds": format_value(row["seconds"]),
            "CC-VFEM, peak GiB": format_value(row["peak GiB"]),
        }
    return facts


def _summary(found: dict[str, pd.DataFrame], preset: Preset) -> Section:
    finite, inference, sme = preset["finite"], preset["inference"], preset["sme"]
    low, high = inference["coverage"]
    correlated = preset["correlated"]
    least, most = correlated["coverage"]
    apart = preset["apart"]
    least_given, most_given = apart["coverage"]
    texts = [
        "Where parties share few rows or none, the 95 % intervals that VFEM gives cover "
        f"{least_given:.0%} to {most_given:.0%}, and its RMSE is at most "
        f"{apart['above_complete']:.0%} above that of complete cases by the same rules on rows, "
        f"over {apart['runs']} replications of every case.",
        f"Where every two columns have a correlation of {correlated['correlations']}, 95 % "
        f"intervals of the default, covariance='full', cover {least:.0%} to {most:.0%} in "
        f"{correlated['runs']} replications, and its RMSE is below that of CC and Impute, in every "
        "cell. The other targets are of the paper's model and iterations (exchange='sums').",
        f"From {finite['target_from']:.0%} missing blocks on, VFEM's coefficient RMSE and "
        "prediction error are below those of Single, CC and Impute in every setting (means over "
        "the runs that both could fit; a method that could fit none is beaten). The first table "
        "is maximum likelihood, the default; the second has noise_prior = 2.",
        f"In {inference['runs']} replications the 95 % intervals cover {low:.0%} to {high:.0%} "
        f"and standard errors are within {inference['se_within']:.0%} of the estimates' spread, "
        "for every party's coefficients.",
        f"On {sme['rows']:,} SME-like rows estimates and standard errors take at most "
        f"{sme['target_seconds']:g} seconds and {sme['target_gib']:g} GiB in a process of their "
        "own, and the coefficients are closer to the truth than those of CC and Impute.",
    ]
    body = [bullet_list(texts)]
    body += [
        marked(dataframe_html(found[name]))
        for name in (
            "target_apart",
            "target_correlated",
            "target_ahead",
            "target_ahead_prior",
            "target_intervals",
            "target_cost",
        )
    ]
    return Section(
        "What was aimed at",
        body,
        f"{PASS} or {FAIL} follows from the numbers; nothing was left out. A {FAIL} names the "
        "methods that were not beaten.",
    )


def marked(html: str) -> str:
    """Colour what passed and what failed."""
    for word, ink in ((PASS, "#00704f"), (FAIL, "#b3261e")):
        html = html.replace(f"<td>{word}", f'<td style="color:{ink};font-weight:600">{word}')
    return html
