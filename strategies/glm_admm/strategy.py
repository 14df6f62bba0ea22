"""GLMADMM: VFL-GLM-VS of Tang, Feng, Li and Wang, Section 4, and VFL-ADMM-DP of Section 5.1.

VFL-ADMM-DP (after Hu et al., 2020): in every iteration a party adds normal noise with covariance
``sigma^2 (X_k' X_k)^-1`` to ``beta_k`` and goes on from there. If one party's row changes, its fit
there does by at most twice `BOUND`; what this changes at other rows is taken as part of it, as in
the paper. The noise lies in the span of the party's columns, so whoever knows as many rows as there
are columns solves for the noisy coefficients, and reads any other row's columns off its fit
(`simulations.audits` finds it): a baseline to compare with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.privacy import MOST_DELTA
from flwr_vertical.protocol.declaration import BITS, EPSILON, FACTS, Protocol, Repeat, Round
from strategies.glm.outcome import CONVERGED, GLMModel
from strategies.glm.penalties import CONCAVE, SELECTING, grid, parse_lambdas, stated
from strategies.glm_admm.admm import bic, composed, nearest, noise_scale
from strategies.glm_admm.party import EXCHANGE, NORM, GLMADMMParty
from strategies.linear import settings as shared
from strategies.linear.coefficients import by_name, coefficient_table
from strategies.linear.families import FAMILIES, Family, check_labels, family_named
from strategies.linear.problem import Problem, note, open_problem, sample_index

EXHAUSTED = "max iterations"


@dataclass
class FittedPath:
    """Fits of all values of lambda, and which of them BIC prefers."""

    family: Family
    unit: float  # What labels were divided by
    lambdas: Array  # (n_lambdas,): in label units
    fit: Array  # (n_samples, n_lambdas): ``sum of X_k beta_k``, in units of `unit`
    level: Array  # (n_lambdas,): intercepts, of centred columns
    rounds: Indices  # (n_lambdas,): when each met the tolerances; 0 if it did not
    selected: Indices  # (n_lambdas,): how many coefficients are not zero
    bic: Array  # (n_lambdas,): of a fit that did not converge, where it ended
    chosen: int = 0


class GLMADMM(Strategy):
    """VFL-GLM-VS as printed: sparse generalised linear models by sharing ADMM, a round a step.

    Minimises what `VerticalGLM` minimises, on the labelled samples that all parties hold. Every
    round opens the sum of the parties' fits of every sample; these span what the columns span. So
    every node has to agree (``exchanges = "sums"`` in its node config), and `VerticalGLM` is to be
    preferred: it has the same estimates, and standard errors, from sums over rows. Columns of
    different parties that follow from each other share their effect here; no product of columns is
    opened that would tell, so nothing names them.

    With ``epsilon`` this is the baseline VFL-ADMM-DP, which protects no row from who knows others.
    """

    family: str = setting(
        "gaussian",
        "Of the labels, with the canonical link: any numbers; 0 and 1; counts.",
        choices=tuple(FAMILIES),
    )
    penalty: str | None = setting(
        "scad", "What keeps coefficients zero.", choices=(*SELECTING, "none")
    )
    lambdas: str | float | Sequence[float] = setting(
        "bic",
        "Strength of the penalty in label units per standard deviation of a column (with "
        "`standardize`); of several, BIC chooses. ``bic`` makes the values itself.",
        parse=parse_lambdas,
    )
    n_lambdas: int = setting(50, "How many values ``bic`` compares.", at_least=1)
    lambda_ratio: float = setting(0.01, "The smallest of them over the largest.", above=0, below=1)
    lla_steps: int = setting(
        3, "How often tangents of SCAD or MCP are drawn again, from a lasso on.", at_least=1
    )
    standardize: bool = setting(
        True,
        "Whether a penalty treats columns in units of their standard deviation. Results are in "
        "the units given.",
    )
    max_iter: int = setting(500, "Most rounds; with `epsilon`, all of them.", at_least=1)
    tol: float = setting(
        2e-4,
        "Absolute and relative, of primal and dual residuals. Steps are short where columns of "
        "several parties correlate: at 0.95, estimates are up to a third of a standard error "
        "from their limit; a smaller one takes more rounds.",
        above=0,
        below=1,
    )
    missing_labels: str = shared.missing_labels()
    epsilon: float | None = setting(
        None,
        "Of one round of one lambda (the ledger holds all rounds together): VFL-ADMM-DP, noise on "
        "every party's coefficients. Some 20 rounds (`max_iter`) are usual.",
        above=0,
    )
    delta: float = setting(
        1e-5,
        "As `epsilon`; to be well below one over the number of rows.",
        above=0,
        at_most=MOST_DELTA,
    )

    name: ClassVar[str] = "glm-admm"
    needs_labels = True
    exchanges_asked = (EXCHANGE,)
    demo: ClassVar[Mapping[str, Any]] = shared.demo(0.1)
    party = GLMADMMParty
    protocol = Protocol(
        Round("prepare", "names of columns, number of rows", tells=FACTS),
        Round("begin", "summed, a power of the largest correlation with the labels", tells=BITS),
        Repeat(
            Round("admm", "summed, a fit of each sample for each lambda", tells=(BITS, EPSILON)),
            at_most="max_iter",
        ),
        Round("count", "summed, how many coefficients are not zero", tells=BITS),
        Round("finish", "its coefficients; summed, fits of samples without a label", tells=BITS),
    )
    disclosure = (
        (
            "server, and arbiter in ckks mode",
            "for each sample of the fit, each lambda and each iteration, the sum of the parties' "
            "fits; for each sample without a label, the last one. Together these span what the "
            "columns span, and with coefficients or moments they give every cell of every party",
        ),
        (
            "server",
            "names of the parties' columns, which are constant, and which rows a party leaves out "
            "for missing cells, and whether these differ from others; a bound on the largest "
            "correlation of a column with the labels; "
            "for each lambda how many columns are selected (sums over parties); each party's "
            "coefficients for the chosen lambda",
        ),
        (
            "every party",
            "which samples that it holds all parties hold, and which have a label; for each sample "
            "of the fit, each lambda and each iteration, label less expectation (or that and a "
            "multiple of what the fits lack): the first shows the labels",
        ),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Iterate all values of lambda with the parties, and let BIC choose."""
        problem = open_problem(
            federation, alignment, result, missing_labels=self.missing_labels,
            standardize=self.standardize, intercept=True,
        )  # fmt: skip
        used: Flags = np.asarray(~problem.mask.any(axis=1))
        n, lacking = int(used.sum()), int((~used).sum())
        needed = 3 if self.penalty in SELECTING else problem.n_columns + 2
        held = dict(zip(problem.columns, (~problem.mask).sum(axis=0).tolist(), strict=True))
        text = f"of {len(used):,} labelled samples (of which each party holds: {held})"
        if n < needed:
            raise DataError(
                f"all parties hold {n} {text}, but penalty={self.penalty!r} needs at least "
                f"{needed}; leave out columns or the party that holds the fewest, or use a method "
                "for incomplete tables (strategy 'vfem')"
            )
        if lacking:
            note(result, f"{lacking:,} {text} are left out of the fit: some party lacks them")
        y = np.asarray(federation.labels)[problem.labelled][used]
        check_labels(family_named(self.family), y)
        fit = self._iterate(federation, problem, used, y, result, progress)
        if self.epsilon is not None:
            n_releases = self.max_iter * len(fit.lambdas)
            spent = composed(noise_scale(self.epsilon, self.delta), self.delta, n_releases)
            text = f"{n_releases} noisy fits (delta {self.delta:g})"
            for name in federation.parties:
                federation.ledger.spend(name, spent, text)
            note(
                result,
                "VFL-ADMM-DP protects no row: whoever knows as many rows as a party has columns "
                "reads the others off its noisy fits. Use VerticalGLM(epsilon=...) instead",
            )
        elif not fit.rounds[fit.chosen]:
            text = f"not converged after {self.max_iter} rounds; raise max_iter. Labels 0 and 1 "
            note(result, text + "that the columns tell apart without error need penalty='lasso'")
        progress.step("finish")
        total = federation.sum("finish", {"chosen": fit.chosen})
        self._fill_in(problem, fit, total.public, y, result)
        if not problem.has_free:
            return
        whole = ~problem.free_mask.any(axis=1)
        eta = fit.unit * (total["fit"] + fit.level[fit.chosen])[whole]
        if lacking := int((~whole).sum()):
            note(result, f"{lacking:,} samples that some party lacks are not predicted")
        result.predictions = pd.DataFrame(
            {"prediction": fit.family.mean(eta), "linear_predictor": eta},
            index=sample_index(alignment, result.labels, problem.free[whole]),
        )

    def _iterate(
        self,
        federation: Federation,
        problem: Problem,
        used: Flags,
        y: Array,
        result: Result,
        progress: Progress,
    ) -> FittedPath:
        """Run Algorithm 4 for all values of lambda; one that has met the tolerances is done."""
        family, private = family_named(self.family), self.epsilon is not None
        unit = float(y.std()) if family.has_dispersion else 1.0
        labels = (y / unit)[:, None]
        start = family.link(float(labels.mean()))
        residual = labels[:, 0] - family.mean(np.full(len(y), start))
        reach = self._begin(federation, problem, used, residual, result)
        if self.penalty not in SELECTING:
            strengths = np.zeros(1)
        elif (lambdas := stated(parse_lambdas(self.lambdas))) is not None:
            strengths = lambdas / unit
        else:
            strengths = grid(max(reach, 1e-12), self.n_lambdas, self.lambda_ratio)
        first: dict[str, Any] = {"strengths": strengths, "penalty": str(self.penalty)}
        if self.epsilon is not None:
            sigma = noise_scale(self.epsilon, self.delta)
            first |= {"noise": sigma, "delta": self.delta, "rounds": self.max_iter}
        n, n_fits, n_parties = len(y), len(strengths), len(federation.parties)
        eta, gamma = np.full((n, n_fits), start), np.zeros((n, n_fits))
        fit, level = np.zeros((n, n_fits)), np.full(n_fits, start)
        rounds = np.zeros(n_fits, dtype=np.int64)
        phi = float(family.variance(eta[:, :1]).mean())
        tangents = np.full(n_fits, self.lla_steps if self.penalty in CONCAVE else 0)
        active, again = np.arange(n_fits), np.arange(0)
        every = max(self.max_iter // (self.lla_steps + 1), 1)
        for number in range(1, self.max_iter + 1):
            h = fit[:, active] + level[active] - eta[:, active]
            slope = gamma[:, active] + phi * h
            asked = {"fits": active, "slope": slope, "steep": n_parties * phi, "again": again}
            total = np.asarray(federation.sum("admm", asked | first)["fit"])  # (4.4)
            first = {}
            before = eta[:, active] - level[active]
            centre = total + gamma[:, active] / phi
            eta[:, active], level[active] = nearest(  # (4.5)
                family, labels, centre, phi, eta[:, active], level[active]
            )
            fit[:, active] = total
            h = total + level[active] - eta[:, active]
            gamma[:, active] += phi * h  # (4.6)
            primal = np.linalg.norm(h, axis=0)
            dual = phi * np.linalg.norm(eta[:, active] - level[active] - before, axis=0)
            size = np.linalg.norm(eta[:, active], axis=0)
            size = np.maximum(np.linalg.norm(total + level[active], axis=0), size)
            met = primal <= self.tol * (np.sqrt(n) + size)
            multiplier = np.linalg.norm(gamma[:, active], axis=0)
            met &= dual <= self.tol * (np.sqrt(problem.n_columns) + multiplier)
            if private:  # data must not decide: tangents at even distances
                met[:] = number % every == 0
            again = active[met & (tangents[active] > 0)]
            tangents[again] -= 1
            done = np.setdiff1d(active[met], again)
            largest = {"primal": float(primal.max()), "dual": float(dual.max())}
            result.history.append({"iteration": number, "active": len(active), **largest})
            progress.step("admm", open_lambdas=len(active))
            rounds[done] = number
            if not private:
                active = np.setdiff1d(active, done)
            if not len(active):
                break
        level = family.level(labels, fit, level)
        selected = np.asarray(federation.sum("count")["selected"], dtype=np.int64)
        values = bic(family, labels[:, 0], fit + level, selected)
        chosen = int(np.argmin(np.where((rounds > 0) | ~rounds.any(), values, np.inf)))
        return FittedPath(
            family, unit, strengths * unit, fit, level, rounds, selected, values, chosen
        )

    def _begin(
        self, federation: Federation, problem: Problem, used: Flags, residual: Array, result: Result
    ) -> float:
        """Say which samples take part; return the lambda from which on nothing is selected."""
        per_party = {
            name: {"used": used[~problem.mask[:, k]].view(np.uint8)}
            for k, name in enumerate(federation.parties)
        }
        total = federation.sum("begin", {"residual": residual}, per_party=per_party)
        for name, told in total.public.items():
            problem.collinear[name] = list(told["constant"])
            if told["constant"]:
                note(
                    result,
                    f"party {name!r}: columns {list(told['constant'])} do not vary over the "
                    "samples of the fit; they are left out and have no coefficient",
                )
        if self.epsilon is not None:  # data must not decide; the largest correlation there can be
            return float(np.sqrt(np.mean(residual**2)))
        return float(max(float(total["reach"]), 0.0) ** (1.0 / NORM))

    def _fill_in(
        self,
        problem: Problem,
        fit: FittedPath,
        told: Mapping[str, Mapping[str, Any]],
        y: Array,
        result: Result,
    ) -> None:
        """Fill in coefficients, metrics and model."""
        family, unit = fit.family, fit.unit
        beta = unit * np.concatenate([told[name]["beta"] for name in problem.columns])
        offset = sum(float(told[name]["offset"]) for name in problem.columns)
        level = float(unit * (fit.level[fit.chosen] - offset))
        eta = unit * (fit.fit[:, fit.chosen] + fit.level[fit.chosen])
        n_selected = int(np.count_nonzero(beta))
        deviance = float(family.deviance(y[:, None], eta[:, None])[0])
        freedom = max(len(y) - n_selected - 1, 1)
        none = np.full((len(y), 1), family.link(float(y.mean())))
        null = float(family.deviance(y[:, None], none)[0])
        left_out = [np.isin(own, problem.collinear[name]) for name, own in problem.columns.items()]
        estimates = np.where(np.concatenate(left_out), np.nan, beta)
        result.coefficients = coefficient_table(problem.columns, estimates, intercept=level)
        result.metrics |= {
            "deviance_explained": 1.0 - deviance / max(null, 1e-300),
            "deviance": deviance,
            "log_likelihood": family.log_likelihood(y, eta),
            "lambda": float(fit.lambdas[fit.chosen]),
            "n_selected": float(n_selected),
            "dispersion": deviance / freedom if family.has_dispersion else 1.0,
            "converged": float(fit.rounds[fit.chosen] > 0),
            "iterations": float(len(result.history)),
            "n_samples": float(len(y)),
        }
        outcomes = np.where(fit.rounds > 0, CONVERGED, EXHAUSTED)
        path = {"bic": fit.bic, "selected": fit.selected, "rounds": fit.rounds}
        result.model = GLMModel(
            str(outcomes[fit.chosen]),
            self.family,
            level,
            by_name(problem.columns, beta),
            result.metrics["dispersion"],
            pd.DataFrame(path | {"outcome": outcomes}, index=pd.Index(fit.lambdas, name="lambda")),
        )
