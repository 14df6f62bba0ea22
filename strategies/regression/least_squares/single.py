"""Single: least squares at one party, the first preliminary method of Tang et al., Section 2.2.

One round after ``prepare``: the server hands the party the labels of its rows and gets the fit.
"""

import numpy as np

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from strategies.regression.least_squares.baseline import Baseline, note
from strategies.regression.least_squares.moments import Moments
from strategies.regression.least_squares.party import SingleParty


class _OneParty(Strategy):
    """The setting that comes first, before those of `Baseline`."""

    party_name: str = setting("", "The party; empty for the first in the order of names.")


class Single(Baseline, _OneParty):
    """Least squares on the columns of one party, and the labelled samples that it holds.

    Notes
    -----
    Standard errors are those of ordinary least squares. A sample without a label that the party
    lacks is predicted by the party's mean, and the variance
    of its fit is added to the noise.
    """

    name = "single"
    party = SingleParty
    disclosure = (
        ("server", "the names of the party's columns, and which of them are collinear"),
        ("server", "which rows the party leaves out because of missing cells"),
        (
            "server",
            "the party's coefficients, standard errors, the variance of its fit, the fit of its "
            "columns' means, and for each sample without a label the prediction and how uncertain "
            "it is",
        ),
        ("every party", "which samples have a label"),
        (
            "a party that is fitted",
            "the labels of the samples that it holds, less their mean, in standardised units",
        ),
        ("nobody", "a value of the other parties"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Hand the labels to the party and get its fit."""
        name = self.party_name or federation.parties[0]
        if name not in federation.parties:
            raise ConfigError(
                f"no party {name!r} in this run to be fitted; its parties are {federation.parties}"
            )
        if not self.party_name and len(federation.parties) > 1:
            note(result, f"party_name is not set: the first party, {name!r}, was fitted")
        progress.total = 2
        problem = self._open(federation, alignment, result, party_name=name)
        progress.step("prepare")
        k = federation.parties.index(name)
        y = problem.y[~problem.mask[:, k]]
        level = float(y.mean()) if self.intercept else 0.0
        tss = float(((y - level) ** 2).sum())
        if np.ptp(y) == 0:
            raise DataError(
                f"the labels of all {len(y)} samples that party {name!r} holds are the same"
            )
        told = federation.call(
            "ls_single", {"y": y - level, "std_errors": self.standard_errors}, parties=[name]
        )[name]
        progress.step("fit")
        n_parameters = int(told["rank"]) + self.intercept
        moments = Moments(len(y), n_parameters, float(told["rss"]), tss, level, self.intercept)
        self._fill_in(result, problem, moments, {name: told}, 1, True)
        result.history = [
            {
                "iteration": 1,
                "residual_sum_of_squares": moments.rss * problem.y_scale**2,
                "gradient": 0.0,
            }
        ]
        missing = problem.free_mask[:, k]
        fit = np.full(len(missing), float(told["mean_fit"]))
        leverage = np.full(len(missing), float(told["mean_leverage"]))
        fit[~missing], leverage[~missing] = told["fit"], told["leverage"]
        unseen = np.where(missing, float(told["explained"]), 0.0)
        values = fit, leverage if self.standard_errors else None, unseen
        self._predict(federation, alignment, result, problem, moments, *values)
