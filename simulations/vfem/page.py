"""The page of the VFEM study: its sections."""

from flwr_vertical.pages.page import format_value
from simulations.page import Part, Tables
from simulations.vfem.design import noise_variance
from simulations.vfem.preset import Preset
from simulations.vfem.sme_tables import INDEPENDENT


def parts(found: Tables, preset: Preset) -> list[Part]:
    """Return the sections of the page."""
    sme, splits, repeats = preset["sme"], preset["splits"], preset["repeats"]
    return [
        *_default_parts(preset),
        *_finite_parts(preset),
        Part(
            "Data like the paper's (Tables 1 to 3)",
            f"{sme['rows']:,} generated rows, masked sums, each method in a process of its own. "
            "The paper starts VFEM from CC (CC-VFEM) and from Impute (Impute-VFEM); the maximum "
            "of the likelihood is the same from anywhere, so there is one VFEM here.",
            items=[
                "Why we differ, Tables 2 and 3. The paper's data are not public. Here its CC-VFEM "
                "estimates are the truth, so "
                "the estimates can be compared with the truth and the paper's CC-VFEM column only "
                "shows what the truth was taken from.",
                "If institutions missed blocks independently, the printed rates would leave about "
                f"{format_value(found['sme_data'].loc[INDEPENDENT, 'here'])} complete cases in so "
                "many rows. A common normal factor, independent of all values, keeps the rates "
                "and brings the expected number to the paper's 96.",
                "Columns' scales are proportional to the inverse of the standard errors that the "
                "paper prints for CC, so that ours come out alike; the unit of the label is free.",
                "RMSE in standard units multiplies each error by its column's standard deviation. "
                "Raw RMSE is mostly ABNOPE, the column with the smallest scale.",
                "Why we differ, Table 1. It has 53.65 % missing at the Credit Agency, but its "
                "Single "
                "method uses 89,170 of 166,207 rows, which is 53.65 % seen. Table 1 was followed.",
                "Why we differ, Impute in Table 2. Under missingness completely at random Impute "
                "is unbiased here: it loses "
                "precision, not signs as in the paper's table. More data sets, below, show what "
                "it does where blocks are missing by the label.",
            ],
            tables={
                "sme_summary": "Fit, error against the truth, cost",
                "sme_table3": "Estimates (standard errors), * significant at 5 %",
                "sme_data": "The generator: what the paper says of its data, and here",
            },
            figures=["sme_forest"],
        ),
        Part(
            "Prediction over random splits (Figure 4)",
            f"{splits['test_share']:.0%} of the complete cases lose their label and are predicted; "
            f"everything else is for the fit. {splits['runs']} splits of {splits['rows']:,} "
            "SME-like rows. Root mean squared error; the paper's axis is not explained, and it "
            "has a figure only. Boxes span the middle half, lines are medians.",
            tables={"figure4_splits": ""},
            figures=["figure4_boxes"],
        ),
        Part(
            "More SME-like data sets",
            f"Coefficient RMSE in standard units, mean of {repeats['runs']} data sets of "
            f"{repeats['rows']:,} rows.",
            items=[
                "missing by the label: the factor that institutions' missing blocks have in "
                "common is the label itself; rates and complete cases stay. VFEM allows for it, "
                "CC and Impute do not.",
                "log-normal columns: standard deviation of the logarithm "
                f"{repeats['log_normal']:g}, means, variances and R² as before. VFEM completes "
                "blocks as if columns were normal.",
            ],
            tables={"sme_repeats": ""},
        ),
    ]


def _default_parts(preset: Preset) -> list[Part]:
    """Return the sections on the default model."""
    apart, correlated = preset["apart"], preset["correlated"]
    return [
        Part(
            "Parties that share few rows, or none",
            f"{apart['runs']} replications of each case, {apart['rows']:,} rows, correlation of "
            f"every two columns {apart['correlation']:g}, rows missing completely at random at "
            "each party. VFEM and CC run by the default rules: no sum over fewer than 100 rows is "
            "opened, so CC is mostly impossible with ten parties. Coefficients that depend on how "
            "columns of parties without common rows go together get no interval.",
            tables={"apart": ""},
        ),
        Part(
            "Correlated parties",
            f"RMSE of coefficients and coverage of 95 % intervals, {correlated['runs']} "
            f"replications for each cell, {correlated['rows']:,} rows, parties of "
            f"{correlated['widths']} columns, blocks missing at the rate stated. VFEM is the "
            "default, with any covariance between parties; VFEM, block is the paper's model, in "
            "which columns of different parties are uncorrelated. All sections below have the "
            "paper's model.",
            tables={"correlated": ""},
        ),
    ]


def _finite_parts(preset: Preset) -> list[Part]:
    """Return the sections on the paper's model, five parties of five columns."""
    design, finite = preset["design"], preset["finite"]
    inference, few = preset["inference"], preset["parting"]
    rates = ", ".join(f"{rate:.0%}" for rate in inference["rates"])
    return [
        Part(
            "Estimation and prediction by missing rate",
            f"Five parties with five columns each, AR(1) with {design['rho']:g} within a party "
            f"and nothing between; R² {design['r2']:g}. Mean of {finite['runs']} runs; "
            f"{finite['held_out']} further rows have no label and miss blocks alike. A dash: "
            "impossible.",
            items=[
                "Single sees party A's columns alone; the coefficients of the other parties, "
                "which it does not estimate, count as 0 in the coefficient RMSE.",
                "CC needs more complete rows than columns; a dash says that no run had them, and "
                "where some had, the mean is over these.",
                "MAR: the log-odds of a missing block grow with the label "
                f"({design['label_weight']:g} per standard deviation) and with the sum of A's "
                f"columns ({design['first_weight']:g}), with an offset that keeps the rate. CC "
                "and Impute are then biased, VFEM is not.",
                f"The noise variance is {noise_variance(design):.3g}. Where few rows are held by "
                "several parties, maximum likelihood takes noise for variance of missing blocks: "
                "VFEM's estimate is too small, so it trusts the rows with many blocks too much. "
                "Impute weighs all rows alike, which costs less there. “VFEM, prior” has "
                "noise_prior = 2, a prior on the noise variance (two samples a column at half of "
                "the label's variance).",
                "“A to E”: the first party, which holds the label, misses blocks too.",
            ],
            tables={
                "finite_coefficients": "Coefficient RMSE",
                "finite_prediction": "Prediction error of rows without label",
                "finite_effort": "Effort, noise variance, and fits that were impossible (shares)",
                "target_ahead_prior": "Ahead of all baselines with noise_prior = 2",
            },
            figures=["finite"],
        ),
        Part(
            "Intervals and standard errors",
            f"{inference['runs']} replications of {inference['rows'][0]:,} rows; A to E miss "
            f"{rates} of their blocks, completely at random. Coverage and the ratio of standard "
            "error to the spread of estimates are means over a party's columns. VFEM: from the "
            "information of the observed sums. Algorithm 2: the paper's iterations "
            "(`vfem-iterations`), where random projections stand in for the products between "
            "parties; shown beside, nothing was expected of it.",
            tables={"inference": ""},
            figures=["coverage"],
        ),
        Part(
            "Few rows, correlated parties",
            f"{few['runs']} replications for each point, means over parties; a common factor "
            "correlates every two columns of different parties. In the paper's data the mean "
            "absolute correlation between institutions is 0.03.",
            items=[
                "VFEM takes columns of different parties for uncorrelated. Where they are not, "
                "the missing blocks are completed without what the seen ones tell of them, and "
                "estimates are biased, the more, the stronger the correlation. R² stays, so noise "
                "and spread grow as well.",
                "Standard errors measure spread; no kind can make up for bias, which costs "
                "coverage.",
                "With so few rows the likelihood hardly tells noise from the variance of missing "
                "blocks; where its noise variance is far too small, so are the standard errors.",
            ],
            tables={"parting": ""},
            figures=["parting"],
        ),
    ]
