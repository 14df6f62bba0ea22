"""Who learns what in a fit by `VerticalGLM`."""

from strategies.glm.party import TOLD_COMPLETING
from strategies.linear.moment_party import PRIVATE, RECOGNISED, SEED_OF_COLUMNS, TERMS_TO_A_GRID

DISCLOSURE = (
    (
        "server",
        "names of the parties' columns, or of those that a formula makes; knots of splines, means "
        "over rows, follow from sums of products; which "
        "rows a party leaves out for missing cells; with a formula, the fewest rows of a set that "
        "a party tells of",
    ),
    (
        "server",
        "a rough unit and level of each column; sums over groups of rows with the same blocks "
        "present (at least max(100, 3 (columns + 1)) rows, or what a node states) of the "
        "columns, of products of two columns, also of different parties, and of columns with "
        "the labels; which columns have a value too rare for that. From these follow the "
        "coefficients for every lambda",
    ),
    (
        "server, with labels 0 and 1, or counts",
        "for each evaluation, at coefficients of the server's choice, the sum of the means and "
        "of each column times them, and how far linear predictors reach, to a grid; at the "
        "maximum, or the fit that a penalty chooses, also products of two columns "
        "weighted by the labels' variance, and the sum of the cumulants",
    ),
    (
        "server, with weights, robust errors or Pearson's chi-squared",
        "products of two columns weighted by its weights, by variances times these, and by squared "
        "residuals times their squares; sums of squared residuals, of these over the variance, "
        "and of squared means, and of each column times what is summed",
    ),
    (
        "every party, with weights, robust errors or Pearson's chi-squared",
        "of the largest factor of a row, powers of two that it does not exceed; of weights, offset "
        "and labels, random numbers only",
    ),
    TERMS_TO_A_GRID,
    *TOLD_COMPLETING,
    *RECOGNISED,
    PRIVATE,
    SEED_OF_COLUMNS,
    (
        "a party and its helper together",
        "the labels: one has these under a mask, the other the seed of the mask; of labels 0 "
        "and 1, or counts, also their expectations",
    ),
    (
        "arbiter in ckks mode",
        "products of columns under a mask of the server, and sums of predictions",
    ),
    (
        "every party",
        "which samples have a label; of the labelled ones, which are in the fit and, with "
        "rows='all', which have the same parties present; its own coefficients, with labels 0 "
        "and 1 or counts at each evaluation. Of the labels, random numbers only",
    ),
    ("nobody", "a value of another party's columns, or a fitted value; of the parties, a label"),
)
