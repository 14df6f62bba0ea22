"""The result of a run: everything `start()` returns, and how to keep it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.errors import ConfigError, DataError, VerticalError
from flwr_vertical.privacy.accounting import UNGRADED, PrivacyStatement
from flwr_vertical.privacy.statement import MomentStatement
from flwr_vertical.results.definitions import most_telling_first
from flwr_vertical.results.ledger import Ledger
from flwr_vertical.results.page import format_value
from flwr_vertical.results.units import human_bytes, human_seconds

if TYPE_CHECKING:
    # Parties import this package for every message: scikit-learn waits until it is needed.
    from flwr_vertical.results.evaluation import Evaluation
    from flwr_vertical.results.graded import Grade

_MOST_SHOWN = 6  # metrics of a repr


_Judged: TypeAlias = tuple[
    dict[str, pd.DataFrame], dict[str, pd.DataFrame], dict[str, pd.DataFrame]
]


@dataclass(eq=False, repr=False)
class Result:
    """What a run leaves behind.

    Only `strategy` is required; what a method has no use for stays empty.

    Parameters
    ----------
    strategy : str
        Name of the strategy.
    settings : dict, optional
        Its settings, as run.
    metrics : dict of str to float, optional
        Overall figures of merit.
    history : list of dict, optional
        One entry per round or iteration.
    ledger : Ledger, optional
        What the run cost.
    tables : dict of str to DataFrame, optional
        What each party holds afterwards. Empty in a deployment: tables never leave the parties.
    coefficients : DataFrame, optional
        Index (party, variable); estimate and, where known, std_error, z, p_value, ci_low, ci_high.
    labels : Series, optional
        The server's labels after the run, indexed by sample ID: predicted, completed or synthetic.
    predictions : DataFrame, optional
        Of samples without a label: index sample ID; prediction, std_error, lower, upper.
    evaluation : Evaluation, optional
        How good predictions are where the truth is known; see `evaluate`.
    importance : DataFrame, optional
        Index party, or (party, column) where the nodes agreed to tell names; gain, cover, splits.
    contributions : DataFrame, optional
        What each party adds to the raw predictions of samples: index of `predictions` (of several
        classes also ``class``); ``base``, then a column for each party.
    imputation : DataFrame, optional
        How good imputed columns are, where the truth is known or cells were held out: index
        (party, column); see `flwr_vertical.results.imputation.imputation_quality`.
    model : Model or plain values, optional
        The fitted model, as the server knows it.
    predictor : Model, optional
        What the server needs to predict new rows, where the parties keep their coefficients.
    mask : bool array of shape (n_samples, n_parties), optional
        True where the party has no row of the sample (a missing block).
    parties : list of str, optional
        Names of the parties, in the order of the mask's columns; found from the rest if left out.
    party_metrics : dict of str to dict, optional
        Figures of merit of each party.
    originals : dict of str to DataFrame, optional
        The incomplete tables as given; only where the run had them in one process.
    truth : dict of str to DataFrame, optional
        The complete tables, where somebody knows them (studies).
    notes : list of str, optional
        What a reader should know: warnings, early stops.
    disclosure : list of (who, learns), optional
        Who learned what in this run.
    privacy : PrivacyStatement or MomentStatement, optional
        What differential privacy the run spent, in numbers and in plain words.
    graded : Grade, optional
        What attacks on the synthetic tables find, and how useful these are; see `grade`. It takes
        real rows, so a server has none.
    needed_keys : dict of str to dict, optional
        By node, the keys of its node config without which it would not take part in this run in a
        federation; nodes that need none are left out. The arbiter stands as ``"arbiter"``.
    figures : dict of str to (SVG str or PNG bytes), optional
        The strategy's own figures, by title; the report shows them.
    where : Path, optional
        The folder of the last `save`, or the one it was loaded from.
    name : str, optional
        Name of the run, where it has one.
    call : str, optional
        The strategy and its settings that differ from their defaults, as a call.
    finished : str, optional
        When the run ended, in UTC.
    version : str, optional
        Of this library, when it ran.
    """

    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    coefficients: pd.DataFrame | None = None
    labels: pd.Series | None = None
    predictions: pd.DataFrame | None = None
    evaluation: Evaluation | None = None
    importance: pd.DataFrame | None = None
    contributions: pd.DataFrame | None = None
    imputation: pd.DataFrame | None = None
    model: Any = None
    predictor: Any = None
    mask: npt.NDArray[np.bool_] | None = None
    parties: list[str] = field(default_factory=list)
    party_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    originals: dict[str, pd.DataFrame] = field(default_factory=dict)
    truth: dict[str, pd.DataFrame] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    disclosure: list[tuple[str, str]] = field(default_factory=list)
    privacy: PrivacyStatement | MomentStatement | None = None
    graded: Grade | None = None
    needed_keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    figures: dict[str, str | bytes] = field(default_factory=dict)
    where: Path | None = None
    name: str = ""
    call: str = ""
    finished: str = ""
    version: str = ""
    # What the parties of a simulation saved of their models, as files' bytes. `simulate` hands
    # them on to a later run's parties; the server half of a strategy never has them.
    _party_models: dict[str, bytes] = field(default_factory=dict, init=False)
    # Tables before and after, and the truth, of what `imputation` compares: for figures.
    _judged: _Judged | None = field(default=None, init=False)
    # What predicts new rows; runs are above this folder, and set it.
    _predict_by: ClassVar[Callable[..., Result] | None] = None

    def __post_init__(self) -> None:
        if not self.parties:
            named: list[Iterable[str]] = [self.originals, self.tables, self.party_metrics]
            self.parties = list(dict.fromkeys(name for names in named for name in names))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save the result in a folder and return its path.

        Writes result.json (strategy, settings, metrics, history, notes, disclosure, privacy
        statement, grade, totals of the ledger), ledger.csv, privacy.csv, coefficients.csv,
        predictions.parquet, evaluation.parquet, contributions.parquet, importance.parquet,
        imputation.parquet, labels.parquet, mask.npy, model.npz, predictor.npz, figures and one
        Parquet file per party under tables; of a simulation, also what each party saved of its
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
        from flwr_vertical.results.storage import save

        self.where = save(self, Path(folder))
        return self.where

    def predict(
        self,
        parties: Mapping[str, Any],
        labels: pd.Series | None = None,
        **options: Any,
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
            the expectation of a label that is 0 or 1.
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
            known = self.labels[~self.labels.index.isin(self.predictions.index)]
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

    def compare(self, labels: pd.Series, **options: Any) -> None:
        """Call `evaluate` at the end of a run, which an error must not lose: it becomes a note."""
        try:
            self.evaluate(labels, **options)
        except VerticalError as error:
            self.notes.append(f"predictions are not compared with the true labels: {error}")

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
        from flwr_vertical.results.imputation import (
            imputation_metrics,
            imputation_quality,
            worse_than_mean,
        )
        from flwr_vertical.results.imputed import imputed_columns

        columns = imputed_columns(before, after, truth)
        found = imputation_quality(columns, alone)
        if found.empty:
            return
        self.imputation = found
        self._judged = dict(before), dict(after), dict(truth)
        self.metrics |= imputation_metrics(found)
        self.notes += worse_than_mean(found)

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
        from flwr_vertical.results.grading import grade

        known = self.originals if originals is None else originals
        if not known:
            raise DataError(
                "a grade compares with real tables, and this result has none: give them by party, "
                "as in result.grade({'bank': table})"
            )
        found = grade(known, self.tables, others, target=target, n_attacks=n_attacks, seed=seed)
        self.graded = found
        if isinstance(self.privacy, PrivacyStatement):
            self.privacy = replace(self.privacy, graded=found.sentences)
            self.notes = [note for note in self.notes if note != UNGRADED]
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
        from flwr_vertical.results.storage import load

        return load(Path(folder))

    def report(self, folder: str | os.PathLike[str]) -> Path:
        """Write the report, one self-contained page, to report.html in `folder`; return its path.

        A path that ends in ``.html`` names the file itself. A notebook in which the path is the
        last value of a cell shows the report.
        """
        from flwr_vertical.results.notebook import ReportPath
        from flwr_vertical.results.report import write_report

        path: Path = ReportPath(write_report(self, Path(folder)))
        return path

    def _repr_html_(self) -> str:
        from flwr_vertical.results.notebook import result_html

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


def needed_lines(needed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return keys of node configs, one node a line; nodes that need the same share one."""
    nodes: dict[str, list[str]] = {}
    for node, keys in needed.items():
        text = " ".join(
            f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}"
            for key, value in keys.items()
        )
        nodes.setdefault(text, []).append(node)
    return [f"{', '.join(names)}: {text}" for text, names in nodes.items()]


def _pairs(values: dict[str, float], prefix: str = "") -> str:
    return ", ".join(f"{prefix}{name} {format_value(value)}" for name, value in values.items())
