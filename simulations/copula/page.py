"""The page of the copula study: its sections, and what a reader must know."""

from simulations.copula.preset import Preset
from simulations.page import Part


def notes() -> list[str]:
    """Return what a reader must know, and where the paper was left."""
    return [
        "The replications behind this page are in [records/copula.jsonl](records/copula.jsonl), so "
        "`--report` makes it anew without running any. Column seeds: how many stand behind a row, "
        "the fewest and the most over its methods; the paper has 100. With one seed differences of "
        "a tenth in G-means say little. Noise comes from the seeds, so that the command repeats "
        "the numbers.",
        "The paper's numbers are in brackets.",
        "Synthetic tables are fitted as one, as Original-C is: whoever makes them has all columns, "
        "and the maximum is the same. The paper fits them over parties by VFL-GLM-VS.",
    ]


def parts(preset: Preset) -> list[Part]:
    """Return the sections of the page."""
    return [*_complete(preset), *_missing(preset), *_firms(preset), _attacks(preset)]


def _complete(preset: Preset) -> list[Part]:
    complete, design = preset["complete"], preset["design"]
    return [
        Part(
            "Complete data (Tables 1 to 3)",
            f"Means over seeds; the figure has epsilon {min(complete['epsilons']):g}.",
            items=[
                "Original-C fits one table, Original-VFL the same tables over five parties by "
                "masked sums; Vertigan is the paper's alone. VFL-ADMM-DP here is after Hu et al. "
                "(2020); the paper does not print its noise.",
                "“True support” is maximum likelihood on the columns that have an effect. “True "
                "support, shrunk” is a ridge on these columns, with the penalty that comes nearest "
                "to the truth: what shrinking could gain at most, if the truth were known.",
                "EVCDS is as printed: synthetic rows follow the ranks of real ones. With fresh "
                "rows, the library's default, none belongs to anybody. Budgets are per variable: "
                "with the budget split over variables the correlation matrix is noise.",
                f"The paper does not say how many columns are of each kind ({design['kinds']} "
                "here), nor the multinomial's weights; columns are shuffled until the mean "
                f"predictor is within {design['level']:g} of 0, since uneven labels would make "
                "even the fit on the true support less exact than the paper's.",
                "The paper prints BIC as mean loss + df log(N), which would select nothing; here "
                "it is minus twice the log likelihood + df log(N).",
                "Why we differ, Table 1. The linear model's errors on the data and on synthetic "
                "tables are below the paper's, whose fits miss more columns (Table 2), each of "
                "which costs a third. The logistic model's errors on the data are above the "
                "paper's. With 1,000 rows the reason is that SCAD leaves large coefficients as "
                "maximum likelihood has them, too large: the paper's error lies between that of "
                "maximum likelihood on the true support and that of the best ridge there, so "
                "its fits must be shrunk. With 3,000 and 5,000 rows the paper's is below even that "
                "ridge, so its data must tell more of the effects than ours; it does not state the "
                "kinds of its columns.",
                "Why we differ, Table 2. More columns are found than in the paper, most of all by "
                "the logistic model on synthetic tables. The paper's G-means and RMSE cannot "
                "belong to the same fits: a missed column has an error of 1/3, and the printed "
                "misses alone make a larger RMSE than the printed one (last table).",
                "Why we differ, Table 3. Where synthetic tables are of the linear model, more "
                "false columns are chosen than in the paper: BIC takes synthetic rows for "
                "observations, while errors of the estimated correlations are the same in all of "
                "them and do not shrink with their number. Their coefficients are small, so RMSE "
                "hardly shows them.",
            ],
            tables={
                "table1": "Table 1: RMSE (the paper's in brackets)",
                "table2": "Table 2: G-means",
                "table3": "Table 3: FDR",
                "effort": "Rounds of the federated fits: one path",
                "paper_implies": "What the paper's selection says of its errors",
            },
            figures=["complete"],
        )
    ]


def _missing(preset: Preset) -> list[Part]:
    missing = preset["missing"]
    shares = ", ".join(f"{name} {share:.2%}" for name, share in missing["shares"].items())
    return [
        Part(
            "Missing blocks (Tables 4 to 7)",
            f"Means over seeds; epsilon {missing['epsilon']:g}. Columns of VCDS are Tables 4 "
            "(linear) and 5 (logistic), those of EVCDS and IEVCDS Tables 6 and 7.",
            items=[
                "The paper states missing probabilities of 0.95, 0.90, 0.85, 0.80 and 0.75, which "
                "would leave 0.02 % of rows complete, and prints these shares of complete rows: "
                f"{shares}. The printed shares are kept (they are 0.95⁵, 0.85⁵ and 0.75⁵ to "
                "within half a point): under MCAR every party misses the same share; under MAR "
                "the constant of the log-odds is set for each data set. Which parties may miss is "
                "drawn with probability 1/2, at least one.",
                "CC makes as many synthetic rows as there are complete ones; the others as many "
                "as there are samples.",
                "Why we differ, Table 4. RMSE is mostly smaller than the paper's, but for Impute "
                "under MAR complex, where means take the place of blocks that the label made "
                "missing. CC is better in G-means: the paper's would have to come from far fewer "
                "rows than its shares of complete ones leave. VCDS under MAR complex is worse: "
                "correlations of the rows that are there are not those of all rows, and as many "
                "rows are synthesised as there are samples, so BIC takes that difference for "
                "effects (FDR 0.2 to 0.3). The paper's FDR there falls with the rows, which a "
                "bias does not.",
                "Why we differ, Table 5. As Table 4; labels of two values are told less exactly, "
                "so that fewer false effects pass. G-means are above the paper's nearly "
                "everywhere; RMSE of CC under MAR is above it, since the rows that remain have "
                "other labels.",
                "Why we differ, Table 6. EVCDS mends margins, not correlations. Under MAR complex "
                "with 3,000 and 5,000 rows it finds nearly all effects and with them some 20 % "
                "false ones with small coefficients: G-means are below the paper's, and RMSE is, "
                "too. IEVCDS, which estimates correlations again from completed rows, has fewer "
                "false ones, the more rows the fewer.",
                "Why we differ, Table 7. As Table 5: G-means above the paper's except for few "
                "rows, where coefficients that are too large (see Table 1) make RMSE larger.",
            ],
            tables={
                "tables4to7_g_means": "G-means",
                "tables4to7_rmse": "RMSE",
                "tables4to7_fdr": "FDR",
            },
            figures=["missing"],
        )
    ]


def _firms(preset: Preset) -> list[Part]:
    sme = preset["sme"]
    return [
        Part(
            "Data like the paper's firms (Table 9)",
            f"{sme['rows']:,} generated firms, means over data sets; NS: how many variables are "
            "selected.",
            items=[
                "The paper's data are not public. Institutions, numbers of variables, missing "
                f"rates, the {sme['complete_cases']} complete firms and the {sme['test']} of them "
                "that are predicted are the paper's; correlations, effects and the share of risky "
                "firms are ours, so the paper's numbers are of other data.",
                "Blocks are missing by a factor that the label drives in part. A firm counts as "
                "predicted risky from the share of risky firms in the (synthetic) training labels "
                "on.",
                "Why we differ, Table 9. These are other data. What can be compared is the order, "
                "and how much the rows that are not complete add to CC.",
            ],
            tables={"table9": ""},
            figures=["sme"],
        )
    ]


def _attacks(preset: Preset) -> Part:
    attacks = preset["attacks"]
    return Part(
        "Attacks: percentage points above chance",
        f"{attacks['rows']:,} members and as many others of the same population, epsilon "
        f"{attacks['epsilon']:g}. Membership: whose nearest synthetic row "
        "is nearer than the median. Attribute: a continuous column from the nearest synthetic row, "
        "against the same guess about others. EVCDS as printed follows real rows.",
        tables={"attacks": ""},
    )
