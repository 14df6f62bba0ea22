"""Sections of the study's page, one for each part."""

import pandas as pd

from flwr_vertical.pages import (
    Section,
    bullet_list,
    dataframe_html,
    details_html,
    format_value,
    subheading,
)
from simulations.vfem.design import noise_variance
from simulations.vfem.preset import Preset
from simulations.vfem.sme_tables import INDEPENDENT

Tables = dict[str, pd.DataFrame]
Pictures = dict[str, bytes]


def finite_section(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    """Compare the methods over missing rates and mechanisms."""
    design, part = preset["design"], preset["finite"]
    texts = [
        "Single sees party A's columns alone; the coefficients of the other parties, which it "
        "does not estimate, count as 0 in the coefficient RMSE.",
        "CC needs more complete rows than columns; a dash says that no run had them, and where "
        "some had, the mean is over these.",
        "MAR: the log-odds of a missing block grow with the label "
        f"({design['label_weight']:g} per standard deviation) and with the sum of A's columns "
        f"({design['first_weight']:g}), with an offset that keeps the rate. CC and Impute are "
        "then biased, VFEM is not.",
        f"The noise variance is {noise_variance(design):.3g}. Where few rows are held by several "
        "parties, maximum likelihood takes noise for variance of missing blocks: VFEM's estimate "
        "is too small, so it trusts the rows with many blocks too much. Impute weighs all rows "
        "alike, which costs less there. “VFEM, prior” has noise_prior = 2, a prior on the noise "
        "variance (two samples a column at half of the label's variance).",
        "“A to E”: the first party, which holds the label, misses blocks too.",
    ]
    return Section(
        "Estimation and prediction by missing rate",
        [
            pictures["finite"],
            bullet_list(texts),
            subheading("Coefficient RMSE"),
            dataframe_html(found["finite_coefficients"]),
            subheading("Prediction error of rows without label"),
            dataframe_html(found["finite_prediction"]),
            subheading("Effort, noise variance, and fits that were impossible"),
            dataframe_html(found["finite_effort"]),
        ],
        f"Five parties with five columns each, AR(1) with {design['rho']:g} within a party and "
        f"nothing between; R² {design['r2']:g}. Mean of {part['runs']} runs; "
        f"{part['held_out']} further rows have no label and miss blocks alike.",
    )


def inference_section(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    """Check intervals and standard errors."""
    part = preset["inference"]
    rates = ", ".join(f"{rate:.0%}" for rate in part["rates"])
    texts = [
        "expected: from the model's own information, no further message about a row.",
        "gram: from the products of all columns, computed exactly.",
        "sketch: the paper's Algorithm 2, where random projections stand in for the products "
        "between parties. Shown beside; nothing was aimed at.",
    ]
    return Section(
        "Intervals and standard errors",
        [pictures["coverage"], bullet_list(texts), dataframe_html(found["inference"])],
        f"{part['runs']} replications of {part['rows'][0]:,} rows; A to E miss {rates} of their "
        "blocks, completely at random. Coverage and the ratio of standard error to the spread of "
        "estimates are means over a party's columns.",
    )


def correlated_section(found: Tables, preset: Preset) -> Section:
    """Show what the correlation of parties is worth, and what it costs the paper's model."""
    part = preset["correlated"]
    return Section(
        "Correlated parties: maximum likelihood from moments",
        [dataframe_html(found["correlated"])],
        f"{part['runs']} replications for each cell, {part['rows']:,} rows, parties of "
        f"{part['widths']} columns, blocks missing at the rate stated. VFEM is the default, with "
        "any covariance between parties; VFEM, block is the paper's model, in which columns of "
        "different parties are uncorrelated.",
    )


def apart_section(found: Tables, preset: Preset) -> Section:
    """Show what is given and what is withheld where parties share few rows."""
    part = preset["apart"]
    return Section(
        "Parties that share few rows, or none",
        [dataframe_html(found["apart"])],
        f"{part['runs']} replications of each case, {part['rows']:,} rows, correlation of every "
        f"two columns {part['correlation']:g}, rows missing completely at random at each party. "
        "VFEM and CC run by the default rules: no sum over fewer than 100 rows is opened, so CC is "
        "mostly impossible with ten parties. Coefficients that depend on how columns of parties "
        "without common rows go together get no interval.",
    )


def parting_section(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    """Show where kinds of standard errors part, and what correlation between parties costs."""
    part = preset["parting"]
    texts = [
        "VFEM takes columns of different parties for uncorrelated. Where they are not, the missing "
        "blocks are completed without what the seen ones tell of them, and estimates are biased, "
        "the more, the stronger the correlation. R² stays, so noise and spread grow as well.",
        "Standard errors measure spread; no kind can make up for bias, which costs coverage.",
        "With so few rows the likelihood hardly tells noise from the variance of missing blocks; "
        "where its noise variance is far too small, so are the standard errors.",
    ]
    return Section(
        "Where the three part: few rows, correlated parties",
        [
            pictures["parting"],
            bullet_list(texts),
            dataframe_html(found["parting"]),
            details_html("By party", dataframe_html(found["parting_by_party"], max_rows=400)),
        ],
        f"{part['runs']} replications for each point; a common factor correlates every two columns "
        "of different parties. In the paper's data the mean absolute correlation between "
        "institutions is 0.03.",
    )


def convergence_section(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    """Compare steps and acceleration."""
    part = preset["convergence"]
    rates = " and ".join(f"{rate:.0%}" for rate in part["rates"])
    return Section(
        "Convergence",
        pictures["convergence"],
        f"Log likelihood short of the best one reached, {part['rows']:,} rows, "
        f"{rates} of the blocks of B to E missing. The paper's step is the gradient, here with "
        f"learning rate {part['learning_rate']:g} in standardised units. Every iteration is one "
        "round. Curves end where gaps are rounding; where acceleration has nothing to gain, it "
        "is not used.",
    )


def sme_section(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    """Show the SME-like data beside the paper's Tables 2 and 3."""
    texts = [
        "The paper's data are not public. Here its CC-VFEM estimates are the truth, so the "
        "estimates can be compared with the truth and the paper's CC-VFEM column only shows what "
        "the truth was taken from.",
        "If institutions missed blocks independently, the printed rates would leave about "
        f"{format_value(found['sme_data'].loc[INDEPENDENT, 'here'])} "
        "complete cases in so many rows. A common normal factor, independent of all values, keeps "
        "the rates and brings the expected number to the paper's 96.",
        "Columns' scales are proportional to the inverse of the standard errors that the paper "
        "prints for CC, so that ours come out alike; the unit of the label is free.",
        "RMSE in standard units multiplies each error by its column's standard deviation. Raw RMSE "
        "is mostly ABNOPE, the column with the smallest scale.",
        "The paper's Table 1 has 53.65 % missing at the Credit Agency, but its Single method uses "
        "89,170 of 166,207 rows, which is 53.65 % seen. Table 1 was followed.",
        "Under missingness completely at random Impute is unbiased here: it loses precision, not "
        "signs as in the paper's table. More data sets, below, show what it does where blocks are "
        "missing by the label.",
    ]
    return Section(
        "Data like the paper's (Tables 1 to 3)",
        [
            dataframe_html(found["sme_summary"]),
            bullet_list(texts),
            pictures["sme_forest"],
            subheading("Estimates (standard errors), * significant at 5 %"),
            dataframe_html(found["sme_table3"]),
            subheading("The generator"),
            dataframe_html(found["sme_data"]),
        ],
        f"{preset['sme']['rows']:,} generated rows, masked sums, each method in a process of its "
        "own. VFEM starts from CC (CC-VFEM) and from Impute (Impute-VFEM), as in the paper.",
    )


def splits_section(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    """Show the paper's Figure 4."""
    part = preset["splits"]
    return Section(
        "Prediction over random splits (Figure 4)",
        [pictures["figure4_boxes"], dataframe_html(found["figure4_splits"])],
        f"{part['test_share']:.0%} of the complete cases lose their label and are predicted; "
        f"everything else is for the fit. {part['runs']} splits of {part['rows']:,} SME-like rows. "
        "Root mean squared error; the paper's axis is not explained, and it has a figure only. "
        "Boxes span the middle half, lines are medians.",
    )


def repeats_section(found: Tables, preset: Preset) -> Section:
    """Show more data sets, and what changes where assumptions do."""
    part = preset["repeats"]
    texts = [
        "missing by the label: the factor that institutions' missing blocks have in common is the "
        "label itself; rates and complete cases stay. VFEM allows for it, CC and Impute do not.",
        f"log-normal columns: standard deviation of the logarithm {part['log_normal']:g}, means, "
        "variances and R² as before. VFEM completes blocks as if columns were normal.",
    ]
    return Section(
        "More SME-like data sets",
        [dataframe_html(found["sme_repeats"]), bullet_list(texts)],
        f"Coefficient RMSE in standard units, mean of {part['runs']} data sets of "
        f"{part['rows']:,} rows.",
    )
