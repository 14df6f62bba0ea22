"""The study's page: what was aimed at, then each part with its tables and figures."""

import pandas as pd

from flwr_vertical.pages import Section, bullet_list, dataframe_html, render_page, subheading
from simulations.copula.preset import Preset
from simulations.copula.targets import reached
from simulations.study import FAIL, PASS
from simulations.vfem.page import marked

PAPER = (
    "Tang, Feng, Li and Wang, data privatization in vertical federated learning with client-wise "
    "missing problem (VCDS, EVCDS, IEVCDS, VFL-GLM-VS)"
)
GOALS = ("target_unprotected", "target_synthetic", "target_ranking", "target_attacks")
# What is printed on the terminal, in this order.
TITLES = {
    "target_unprotected": "Target: VFL-GLM-VS on the data themselves (the paper's in brackets)",
    "target_synthetic": "Target: synthetic tables, complete data (limits in brackets)",
    "target_ranking": "Target: MAR complex, G-means",
    "target_attacks": "Target: points above chance of attacks (at most)",
    "table1": "Table 1: RMSE (the paper's in brackets)",
    "table2": "Table 2: G-means",
    "table3": "Table 3: FDR",
    "effort": "Rounds of the federated fits",
    "tables4to7_g_means": "Tables 4 to 7: G-means",
    "tables4to7_rmse": "Tables 4 to 7: RMSE",
    "tables4to7_fdr": "Tables 4 to 7: FDR",
    "table9": "Table 9: data like those of small and medium-sized enterprises",
    "attacks": "Attacks: percentage points above chance",
    "paper_implies": "What the paper's selection says of its errors",
}

Tables = dict[str, pd.DataFrame]
Pictures = dict[str, bytes]


def make_page(found: Tables, pictures: Pictures, preset: Preset) -> str:
    """Return the page."""
    goals = [found[name] for name in GOALS]
    return render_page(
        "Synthetic tables by copulas, sparse GLMs by ADMM",
        [
            _goals(found, preset),
            _complete(found, pictures, preset),
            _missing(found, pictures, preset),
            _sme(found, pictures, preset),
            _attacks(found, preset),
        ],
        subtitle=PAPER,
        facts={"targets": "all met" if reached(*goals) else "not all met"},
        kicker="flwr-vertical · study",
    )


def _goals(found: Tables, preset: Preset) -> Section:
    complete, missing, attacks = preset["complete"], preset["missing"], preset["attacks"]
    texts = [
        f"VFL-GLM-VS on the data themselves (Original-VFL), from {complete['targets_from']:,} rows "
        "on: RMSE, G-means and FDR no worse than the paper's, by more than two standard errors of "
        "our mean; the paper's tolerances within 200 rounds for the whole path.",
        f"Synthetic tables of complete data: RMSE at most {complete['rmse_within']:g} times the "
        f"paper's, G-means at most {complete['g_means_within']:g} below.",
        f"MAR complex, from {missing['targets_from']:,} rows on: IEVCDS at least as good in "
        "G-means as EVCDS, and EVCDS as the baselines; both at most "
        f"{missing['g_means_within']:g} below the paper's.",
        f"Attacks gain at most {attacks['points']:g} points over chance where rows are drawn "
        "afresh.",
    ]
    body = [bullet_list(texts)]
    body += [marked(dataframe_html(found[name], max_rows=200)) for name in GOALS]
    return Section(
        "What was aimed at",
        body,
        f"{PASS} or {FAIL} follows from the numbers; limits are in brackets. Nothing was left out.",
    )


def _complete(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    part, design = preset["complete"], preset["design"]
    texts = [
        "Original-C fits one table, Original-VFL the same tables over five parties by masked sums; "
        "Vertigan is the paper's alone. VFL-ADMM-DP here is after Hu et al. (2020); the paper does "
        "not print its noise.",
        "EVCDS is as printed: synthetic rows follow the ranks of real ones. With fresh rows, the "
        "library's default, none belongs to anybody. Budgets are per variable: with the budget "
        "split over variables the correlation matrix is noise.",
        f"The paper does not say how many columns are of each kind ({design['kinds']} here), nor "
        "the multinomial's weights; columns are shuffled until the mean predictor is within "
        f"{design['level']:g} of 0, since uneven labels would make even the fit on the true "
        "support less exact than the paper's.",
        "The paper prints BIC as mean loss + df log(N), which would select nothing; here it is "
        "minus twice the log likelihood + df log(N).",
        "The paper's G-means and RMSE cannot belong to the same fits: a missed column has an "
        "error of 1/3, and the printed misses alone make a larger RMSE than the printed one (last "
        "table). So a larger RMSE with a better selection is no contradiction. “True support” is "
        "maximum likelihood on the columns that have an effect: an estimate without bias can "
        "hardly be better, and for few rows of the logistic model the paper's is.",
    ]
    return Section(
        "Complete data (Tables 1 to 3)",
        [
            pictures["complete"],
            bullet_list(texts),
            subheading("RMSE"),
            dataframe_html(found["table1"], max_rows=200),
            subheading("G-means"),
            dataframe_html(found["table2"], max_rows=200),
            subheading("FDR"),
            dataframe_html(found["table3"], max_rows=200),
            subheading("Rounds of Original-VFL: one path"),
            dataframe_html(found["effort"]),
            subheading("What the paper's selection says of its errors"),
            dataframe_html(found["paper_implies"]),
        ],
        f"Means of {part['runs']} runs, the paper's of 100 in brackets; the figure has epsilon "
        f"{min(part['epsilons']):g}, the paper's lines dashed.",
    )


def _missing(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    part = preset["missing"]
    shares = ", ".join(f"{name} {share:.2%}" for name, share in part["shares"].items())
    texts = [
        "The paper states missing probabilities of 0.95, 0.90, 0.85, 0.80 and 0.75, which would "
        f"leave 0.02 % of rows complete, and prints these shares of complete rows: {shares}. The "
        "printed shares are kept (they are 0.95⁵, 0.85⁵ and 0.75⁵ to within half a point): under "
        "MCAR every party misses the same share; under MAR the constant of the log-odds is set "
        "for each data set. Which parties may miss is drawn with probability 1/2, at least one.",
        "CC makes as many synthetic rows as there are complete ones; the others as many as there "
        "are samples.",
    ]
    return Section(
        "Missing blocks (Tables 4 to 7)",
        [
            pictures["missing"],
            bullet_list(texts),
            subheading("G-means"),
            dataframe_html(found["tables4to7_g_means"], max_rows=200),
            subheading("RMSE"),
            dataframe_html(found["tables4to7_rmse"], max_rows=200),
            subheading("FDR"),
            dataframe_html(found["tables4to7_fdr"], max_rows=200),
        ],
        f"Means of {part['runs']} runs, the paper's of 100 in brackets; epsilon "
        f"{part['epsilon']:g}.",
    )


def _sme(found: Tables, pictures: Pictures, preset: Preset) -> Section:
    part = preset["sme"]
    texts = [
        "The paper's data are not public. Institutions, numbers of variables, missing rates, the "
        f"{part['complete_cases']} complete firms and the {part['test']} of them that are "
        "predicted are the paper's; correlations, effects and the share of risky firms are ours, "
        "so the paper's numbers are of other data.",
        "Blocks are missing by a factor that the label drives in part. A firm counts as predicted "
        "risky from the share of risky firms in the (synthetic) training labels on.",
    ]
    return Section(
        "Data like the paper's firms (Table 9)",
        [pictures["sme"], bullet_list(texts), dataframe_html(found["table9"])],
        f"{part['rows']:,} generated firms, means of {part['runs']} data sets; NS: how many "
        "variables are selected.",
    )


def _attacks(found: Tables, preset: Preset) -> Section:
    part = preset["attacks"]
    return Section(
        "Attacks",
        [dataframe_html(found["attacks"])],
        f"{part['rows']:,} members and as many others of the same population, epsilon "
        f"{part['epsilon']:g}, {part['runs']} runs. Membership: whose nearest synthetic row is "
        "nearer than the median. Attribute: a continuous column from the nearest synthetic row, "
        "against the same guess about others. EVCDS as printed follows real rows.",
    )
