"""The result of a run: its data, and what can be done with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from flwr_vertical.errors import ConfigError, DataError, VerticalError
from flwr_vertical.grading.attacks import grade
from flwr_vertical.grading.record import Grade
from flwr_vertical.pages.page import format_named, human_bytes, human_seconds
from flwr_vertical.reports.glossary import most_telling_first
from flwr_vertical.results import imputation
from flwr_vertical.results.data import ResultData, needed_lines
from flwr_vertical.results.storage import load, save
from flwr_vertical.tables.ids import with_joined_ids

if TYPE_CHECKING:
    # Nodes import this module, too: scikit-learn and matplotlib wait until they are needed.
    from flwr_vertical.results.evaluation import Evaluation

_MOST_SHOWN = 6  # metrics of a repr


class Result(ResultData):
    """What `start` and `simulate` return: the data of a run, to be saved, reported and graded.

    Fields are those of `flwr_vertical.results.ResultData`; only `strategy` is required.
    """

    # What predicts new rows; runs are above this module, and set it.
    _predict_by: ClassVar[Callable[..., Result] | None] = None

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save the result in a folder and return its path.

        Writes result.json (strategy, settings, metrics, history, notes, disclosure, privacy
        statement, grade, totals of the ledger), ledger.csv, privacy.csv, coefficients.csv,
        predictions.parquet, evaluation.parquet, contributions.parquet, importance.parquet,
        imputation.parquet, labels.parquet, mask.npy, model.npz, predictor.npz, figures and Parquet
        files per party under tables (intervals and draws, too); of a simulation, also its part of a
        model, under parties. Originals and truth are not saved: they are the user's own. A model
        that is neither a `Model` nor made of arrays, DataFrames, numbers and text is left out, and
        the log says so.

        Every file is whole or not there, result.json is the last one, and files of others in the
        folder stay.

        Raises
        ------
        ConfigError
            The folder holds other things and no result.
        """
        self.where = save(self, Path(folder))
        return self.where

    def predict(
        self, parties: Mapping[str, Any], labels: pd.Series | None = None, **options: Any
    ) -> Result:
        """Predict new rows with the model of a simulated fit, by a run of its own.

        Parameters
        ----------
        parties : Mapping[str, pandas.DataFrame]
            The new rows of each party, with the columns of the fit. A party that is left out counts
            as missing in every row.
        labels : pandas.Series, optional
            Where labels are known, the result says how far off predictions are.
        **options
            Further arguments of `flwr_vertical.simulate`.

        Returns
        -------
        Result
            With `predictions`.

        Raises
        ------
        ConfigError
            If this is no fit that can predict, or the parties kept their parts elsewhere: predict
            by a run of the app there, with the strategy ``predict`` and the fit's run named as
            ``fitted``.
        """
        if self._predict_by is None:
            raise ConfigError("predictions need flwr_vertical; import it first")
        found: Result = self._predict_by(self, parties, labels, **options)
        return found

    def evaluate(
        self,
        labels: pd.Series,
        *,
        task: str | None = None,
        threshold: float | str = 0.5,
        known: pd.Series | None = None,
        beside: Mapping[str, pd.DataFrame] | None = None,
        what: str = "test samples",
        prefix: str = "test_",
    ) -> Evaluation:
        """Compare predictions with true labels; the report then has the figures.

        Parameters
        ----------
        labels : pandas.Series
            True labels, indexed by sample ID; those of samples that are not predicted are left out.
        task : {"classes", "numbers"}, optional
            What labels are. By default, classes where the predictions have probabilities, or are
            the expectation of a label that is 0 or 1, here and in the fit.
        threshold : float or "youden", default 0.5
            Of two classes: the probability of the second from which it is predicted; or the one
            with the largest difference of true and false positive rates.
        known : pandas.Series, optional
            Labels of the fit, of which the constant prediction is made (default: those of this run,
            else the true ones).
        beside : Mapping of str to DataFrame, optional
            Predictions of others to compare with, as `predictions`. Those of an earlier evaluation
            are kept.
        what : str, optional
            Which samples these are, in words.
        prefix : str, default "test_"
            Before the names of figures of merit in `metrics`.

        Returns
        -------
        Evaluation
            Also kept as `evaluation`; its figures of merit are added to `metrics`.

        Raises
        ------
        ConfigError, DataError
            If there are no predictions, or none of a sample that has a label.

        Examples
        --------
        >>> predictions = pd.DataFrame({"prediction": [1.0, 2.0, 4.0]}, index=["a", "b", "c"])
        >>> result = Result("any", predictions=predictions)
        >>> result.evaluate(pd.Series({"a": 1.0, "b": 3.0, "c": 4.0})).metrics()["mae"]
        0.3333333333333333
        """
        from flwr_vertical.results.evaluation import CONSTANT, evaluate

        if self.predictions is None or not len(self.predictions):
            raise ConfigError(
                f"this result of {self.strategy!r} has no predictions to compare; label NaN is "
                "what makes a sample one to predict"
            )
        if known is None and self.labels is not None and self.labels.notna().any():
            # Some methods complete the labels with their predictions.
            known = with_joined_ids(self.labels)
            known = known[~known.index.isin(self.predictions.index)]
            known = None if known.isna().all() else known
        others = {} if self.evaluation is None else dict(self.evaluation.beside)
        others.pop(CONSTANT, None)
        found = evaluate(
            self.predictions, labels, known=known, task=task, threshold=threshold,
            beside={**others, **(beside or {})}, what=what,
        )  # fmt: skip
        self.evaluation = found
        self.metrics |= {prefix + name: value for name, value in found.metrics().items()}
        return found

    def check_predictions(self) -> None:
        """Refuse predictions of another form than that of a table by sample ID."""
        found = self.predictions
        if not (found is None or isinstance(found, pd.DataFrame)):
            raise ConfigError(
                f"strategy {self.strategy!r}: result.predictions is {type(found).__name__}, "
                "expected a DataFrame by sample ID with a column 'prediction'"
            )

    def compare(self, labels: pd.Series, **options: Any) -> None:
        """Call `evaluate` at the end of a run, which an error must not lose: it becomes a note."""
        try:
            self.evaluate(labels, **options)
        except VerticalError as error:
            text = f"predictions are not compared with the true labels: {error}"
            self.notes += [text] * (text not in self.notes)  # the run may try after the strategy

    def compare_imputed(
        self,
        before: Mapping[str, pd.DataFrame],
        after: Mapping[str, pd.DataFrame],
        truth: Mapping[str, pd.DataFrame],
        alone: Mapping[str, pd.DataFrame] | None = None,
    ) -> None:
        """Compare imputed cells with their true values; fills `imputation`, metrics and notes.

        Parameters
        ----------
        before, after : Mapping of str to DataFrame
            By party, the table that the run was given and the one that it made.
        truth : Mapping of str to DataFrame
            By party, values of cells that were missing.
        alone : Mapping of str to DataFrame, optional
            By party, its table as imputed without the others.
        """
        columns = imputation.imputed_columns(before, after, truth)
        found = imputation.imputation_quality(columns, alone)
        if found.empty:
            return
        self.imputation = found
        self._judged = dict(before), dict(after), dict(truth)
        self.metrics |= imputation.imputation_metrics(found)
        self.notes += imputation.worse_than_mean(found)

    def grade(
        self,
        originals: Mapping[str, pd.DataFrame] | None = None,
        others: Mapping[str, pd.DataFrame] | None = None,
        *,
        target: str | tuple[str, str] | None = None,
        n_attacks: int = 1000,
        seed: int = 0,
    ) -> Grade:
        """Attack the synthetic tables and compare them with the real ones; the report shows it.

        Parameters
        ----------
        originals : mapping of party to pandas.DataFrame, optional
            The real tables (default: `originals`, which a simulation knows).
        others : mapping of party to pandas.DataFrame, optional
            Real tables of people of the same population whom the run did not see. Success against
            them is the chance that success against members is compared with.
        target : str or tuple (party, column), optional
            A column that models predict, fitted on synthetic rows and on real ones.
        n_attacks : int, default 1000
            Of each kind, at most.
        seed : int, default 0
            Of all choices.

        Returns
        -------
        Grade
            Also kept as `graded`, in words in `privacy`.

        Raises
        ------
        DataError
            If no table is synthetic, or too few rows are complete.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> real = pd.DataFrame(rng.normal(size=(300, 3)), columns=list("xyz"))
        >>> result = Result("any", tables={"bank": real.set_axis(range(300, 600))})
        >>> result.grade({"bank": real}).privacy  # a copy of every row
        'D'
        """
        known = self.originals if originals is None else originals
        if not known:
            raise DataError(
                "a grade compares with real tables, and this result has none: give them by party, "
                "as in result.grade({'bank': table})"
            )
        found = grade(known, self.tables, others, target=target, n_attacks=n_attacks, seed=seed)
        self.take_grade(found)
        return found

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Result:
        """Load what `save` wrote.

        Raises
        ------
        DataError
            If the folder holds no result, or a file of it is damaged.
        ConfigError
            If its model is another one than it says, or of a newer version than this library's.
        """
        return load(Path(folder), cls)

    def report(self, folder: str | os.PathLike[str]) -> Path:
        """Write the report, one self-contained page, to report.html in `folder`; return its path.

        A path that ends in ``.html`` names the file itself. A notebook in which the path is the
        last value of a cell shows the report.
        """
        from flwr_vertical.reports.notebook import ReportPath
        from flwr_vertical.reports.report import write_report

        path: Path = ReportPath(write_report(self, Path(folder)))
        return path

    def _repr_html_(self) -> str:
        from flwr_vertical.reports.notebook import result_html

        return result_html(self)

    def __str__(self) -> str:
        ledger = self.ledger
        cost = (
            f"{ledger.rounds:,} ({ledger.messages:,} messages, {human_bytes(ledger.bytes_up)} up, "
            f"{human_bytes(ledger.bytes_down)} down, {human_seconds(ledger.seconds)})"
        )
        shapes = [f"{name} {t.shape[0]:,} x {t.shape[1]:,}" for name, t in self.tables.items()]
        lines = {
            "strategy": self.call or self.strategy,
            "run": self.name,
            "parties": f"{len(self.parties)} ({', '.join(self.parties)})" if self.parties else "–",
            "metrics": _pairs({n: self.metrics[n] for n in most_telling_first(self.metrics)}),
            "by party": "\n".join(
                f"{name}: {_pairs(values)}" for name, values in self.party_metrics.items() if values
            ),
            "rounds": cost,
            "privacy": _pairs(ledger.epsilon, "epsilon "),
            "tables": ", ".join(shapes),
            "grade": _letters(self.graded),
            "node keys": "\n".join(needed_lines(self.needed_keys)),
            "notes": "\n".join(self.notes),
            "saved in": "" if self.where is None else str(self.where),
        }
        return "\n".join(
            f"{name:<10}" + text.replace("\n", "\n" + " " * 10)
            for name, text in lines.items()
            if text
        )

    def __repr__(self) -> str:
        first = {n: self.metrics[n] for n in most_telling_first(self.metrics)[:_MOST_SHOWN]}
        more = len(self.metrics) - len(first)
        told = (_pairs(first) or "no metrics") + (f" and {more} more metrics" if more else "")
        return f"Result({self.strategy}: {told}; {self.ledger!r})"


def _letters(graded: Grade | None) -> str:
    return "" if graded is None else f"privacy {graded.privacy}, utility {graded.utility}"


def _pairs(values: dict[str, float], prefix: str = "") -> str:
    return ", ".join(
        f"{prefix}{name} {format_named(name, value)}" for name, value in values.items()
    )
