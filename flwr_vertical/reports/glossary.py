"""What figures of merit mean, in one sentence each."""

from collections.abc import Iterable

_PREFIXES = {
    "test_": "on samples held out of the fit",
    "validation_": "on samples held out to stop the fit",
    "train_": "on the samples of the fit",
}

_MEANINGS = {
    "accuracy": "Share of samples whose class is predicted right.",
    "adjusted_r2": "R2, less what as many columns of noise would explain.",
    "concordance": "Share of pairs of samples, one of which is known to end first, in which it has "
    "the larger hazard; 0.5 is chance (Harrell).",
    "auc": "Probability that a sample of the class is ranked above one of the rest; 0.5 is chance.",
    "average_precision": "Area under precision against recall; the class's share is chance.",
    "bias": "Mean of predicted less true values.",
    "bits_per_row": "Bits that a prediction of one row tells at most.",
    "bound": "Lower bound of the mean log-likelihood of a sample; higher is better.",
    "brier": "Mean squared error of the predicted probability; 0 is perfect.",
    "cells_imputed": "Cells that were missing and have been filled in.",
    "cells_with_fewer_donors": "Cells filled in from fewer donors than `n_neighbors`.",
    "cells_without_neighbour": "Cells without a donor; filled in with the column's mean or mode.",
    "columns": "Columns of all parties together.",
    "columns_withheld": "Columns that a party withheld somewhere, as its rules on rows ask.",
    "converged": "1 if the fit met its tolerance, 0 if it stopped before.",
    "correlation_rms": "Root mean square of correlations between columns of different parties.",
    "coverage": "Share of true values inside their prediction interval; compare with its level.",
    "deviance": "Twice the log-likelihood of a perfect fit less that of this one; 0 is perfect.",
    "deviance_explained": "Share of the deviance of a constant that the fit removes; like R2.",
    "dispersion": "Variance of the noise around the prediction; 1 of families that have none.",
    "donors": "Rows that gave values to others.",
    "epochs": "Passes through the samples.",
    "f1": "Harmonic mean of precision and recall; 1 is perfect.",
    "fit_mean": "Mean of the party's part of the prediction.",
    "fit_variance": "Variance of the party's part of the prediction.",
    "iterations": "Iterations of the fit.",
    "kkt_violation": "How far the fit is from its optimality conditions; 0 is exact.",
    "lambda": "Weight of the penalty of the chosen model.",
    "level_variance": "Variance of the parties' parts of the prediction where blocks are missing.",
    "log_likelihood": "Log-likelihood of the fit; higher is better, on the same data.",
    "log_loss": "Mean negative logarithm of the true class's probability; 0 is perfect.",
    "loss": "What the fit minimises.",
    "mae": "Mean absolute difference of predicted and true values.",
    "missingness_p_value": "Chance of so large a difference to the complete rows' coefficients.",
    "missing_information": "Share of the information lost to missing blocks, on average.",
    "n_samples": "Samples that were used.",
    "n_selected": "Coefficients that are not 0.",
    "n_unlabelled": "Samples without a label.",
    "r2": "Share of the variance that is explained; 1 is perfect, 0 is the mean.",
    "rank_correlation_rms": "Root mean square of rank correlations between parties' columns.",
    "ridge": "What was added to the diagonal so that the columns can be told apart.",
    "rmse": "Root mean squared difference of predicted and true values.",
    "rmse_in_sd": "Root mean squared error of imputed numbers, in standard deviations of their "
    "column; filling in the mean has about 1.",
    "rows": "Rows that were made.",
    "rows_held": "Rows that the party holds.",
    "rows_imputed": "Rows in which something was filled in.",
    "rows_learnt_from": "Rows that the tables were learnt from.",
    "rows_left_out": "Rows that took no part in the fit, as 'Rows by pattern' or a note says.",
    "rows_merged": "Rows counted as lacking a block that they have, as their group was too small.",
    "samples_completed": "Samples that got the columns of a party that had no row of them.",
    "selected": "The party's coefficients that are not 0.",
    "share_right": "Share of imputed cells of categories that have their true value.",
    "smallest_joint_rows": "Fewest rows that two parties whose columns were compared both have.",
    "sigma2": "Variance of the noise around the prediction.",
    "imputation_skill": "Share of the squared error of the column mean (of levels, of the wrong "
    "cells of the most frequent one) that is removed; below 0, the mean is better.",
    "imputation_skill_alone": "The same where each party imputes without the others.",
}


# What a reader looks for, the first one that is there.
_TELLING = (
    "test_auc", "test_r2", "test_accuracy", "test_rmse", "validation_auc", "validation_rmse",
    "auc", "r2", "test_concordance", "concordance", "imputation_skill", "deviance_explained",
    "accuracy", "rmse", "validation_loss", "train_auc",
)  # fmt: skip


def most_telling_first(metrics: Iterable[str]) -> list[str]:
    """Return names of figures of merit: the one that says most, then all others in their order."""
    names = list(metrics)
    first = next((name for name in _TELLING if name in names), None)
    return names if first is None else [first, *(name for name in names if name != first)]


def meaning_of(metric: str) -> str:
    """Return what a figure of merit means, in a sentence; ``""`` if that is not known here."""
    name, where = metric, ""
    for prefix, samples in _PREFIXES.items():
        if name.startswith(prefix):
            name, where = name.removeprefix(prefix), samples
    text = _MEANINGS.get(name, "")
    return f"{text[:-1]}; {where}." if text and where else text
