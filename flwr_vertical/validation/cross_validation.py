"""`cross_validate`: fit to all folds of the labels but one, and predict that one, by turns."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.pages.page import human_bytes, human_seconds
from flwr_vertical.policy.record import Policy
from flwr_vertical.result import Result
from flwr_vertical.results import Progress
from flwr_vertical.simulation import simulate
from flwr_vertical.strategy import Strategy
from flwr_vertical.tables import Table, label_index, label_numbers
from flwr_vertical.tables.codes import level_text

LOWER_IS_BETTER = ("log_loss", "brier", "rmse", "mae", "bias")
FIRST = ("auc", "accuracy", "concordance", "rmse")
"""By which of the scores that there are settings are compared unless it is said."""

MOST_CLASSES = 50
"""Whole numbers of more different values are not taken for classes."""


def are_classes(labels: Array) -> bool:
    """Tell whether labels look like classes: few different whole numbers from 0 on."""
    found = np.unique(labels)
    return bool(
        len(found) <= min(MOST_CLASSES, max(2, len(labels) // 5))
        and (found == np.round(found)).all()
        and (found >= 0).all()
    )


def make_folds(labels: Array, n_folds: int, seed: int, stratify: bool) -> Indices:
    """Return the number of each sample's fold, from 0."""
    # Parties import this package with every message; scikit-learn costs them a second.
    from sklearn.model_selection import KFold, StratifiedKFold

    if len(labels) < n_folds:
        raise DataError(f"{len(labels)} samples have a label; {n_folds} folds need as many or more")
    values, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if stratify:
        rarest = int(counts.argmin())
        if counts[rarest] < n_folds:
            raise DataError(
                f"label {level_text(values[rarest])} has {counts[rarest]} samples, and {n_folds} "
                "folds are to have one each at least; take fewer folds, merge classes, or set "
                "stratify=False"
            )
    kind = StratifiedKFold if stratify else KFold
    splitter = kind(n_folds, shuffle=True, random_state=seed)
    out = np.empty(len(labels), dtype=np.int64)
    for fold, (_, test) in enumerate(splitter.split(labels[:, None], number)):
        out[test] = fold
    return out


Grid = Mapping[str, Sequence[Any]]

COSTS = ("n_train", "n_test", "n_unpredicted", "rounds", "bytes", "seconds")
"""Columns of the table of folds that are no scores."""

_ADDS_UP = r"refuses by policy\.(min-rows|vectors|openings|predictions|epsilon-total)"
"""Refusals by what nodes count over runs."""

_RUNS = "each fold is a run of its own: alignment, keys and openings are made anew"

_NOT_STRATIFIED = "folds are not stratified: some label has fewer samples than there are folds"


@dataclass(eq=False, repr=False)
class CrossValidation:
    """What cross-validation found.

    Parameters
    ----------
    strategy : Strategy
        With the settings that were validated; of a grid, the best ones.
    folds : pandas.DataFrame
        Index fold, from 1. Scores of the withheld labels; ``n_train`` and ``n_test`` labelled
        samples, of the latter ``n_unpredicted`` without a prediction; ``rounds``, ``bytes`` and
        ``seconds`` of the run.
    predictions : pandas.DataFrame
        Of all labelled samples that were predicted, each by the fold that withheld its label:
        the strategy's columns, ``fold`` and ``label``.
    score : str
        By which settings of a grid were compared.
    candidates : pandas.DataFrame, optional
        Of a grid: its settings, and the mean scores; best first.
    notes : list of str
    """

    strategy: Strategy
    folds: pd.DataFrame
    predictions: pd.DataFrame
    score: str
    candidates: pd.DataFrame | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def scores(self) -> pd.DataFrame:
        """Mean and standard deviation over the folds; index score."""
        own = self.folds.drop(columns=[name for name in COSTS if name in self.folds])
        spread = own.std(ddof=1) if len(own) > 1 else own.iloc[0] * np.nan
        return pd.DataFrame({"mean": own.mean(), "std": spread})

    def __str__(self) -> str:
        shown = self.scores
        lines = [
            f"{self.strategy!r}",
            f"{len(self.folds)} folds, {int(self.folds['rounds'].sum()):,} rounds, "
            f"{human_bytes(int(self.folds['bytes'].sum()))}, "
            f"{human_seconds(float(self.folds['seconds'].sum()))}",
            *(f"{name:<18}{row['mean']:.4f} ± {row['std']:.4f}" for name, row in shown.iterrows()),
            *self.notes,
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        mean = self.scores["mean"]
        pairs = ", ".join(f"{name} {value:.4f}" for name, value in mean.items())
        return f"CrossValidation({self.strategy.name}, {len(self.folds)} folds: {pairs})"


def cross_validate(
    strategy: Strategy,
    parties: Mapping[str, "pd.DataFrame | Table"],
    labels: "pd.Series[Any]",
    folds: int = 5,
    *,
    seed: int = 0,
    stratify: bool | None = None,
    grid: Grid | None = None,
    score_by: str | None = None,
    policy: Policy | Mapping[str, Any] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> CrossValidation:
    """Say how well a strategy predicts labels that it was not given.

    Labelled samples are divided into folds. For each fold its labels are withheld (NaN), the
    strategy runs with the others, and what it predicts is compared. Samples without a label stay
    without.

    Each fold is a run of its own (`simulate`): it aligns, exchanges keys and opens sums anew, since
    within a run a party multiplies its columns with one set of labels only. So all that a run
    discloses is disclosed once for each fold and candidate, of sets of rows that differ by a fold.
    With `policy` the parties keep their privacy ledgers over all these runs, as nodes of a
    federation do, and refuse a fold where a set of rows or the number of vectors forbids it.

    Parameters
    ----------
    strategy : Strategy
        One that predicts samples without a label.
    parties : Mapping[str, pandas.DataFrame]
        As of `simulate`.
    labels : pandas.Series
        Indexed by sample ID.
    folds : int, default 5
    seed : int, default 0
        Of the folds, and of every run.
    stratify : bool, optional
        Whether folds have each label in the same share; by default where labels look like classes
        (few different whole numbers) each of which has as many samples as there are folds.
    grid : Mapping[str, Sequence], optional
        Settings to choose among, such as ``{"n_trees": [50, 100]}``; all combinations are
        validated on the same folds, and the best one is returned.
    score_by : str, optional
        The score that chooses: by default ``auc``, ``accuracy``, ``concordance`` or ``rmse``, the
        first there is.
        The best ``bias`` is the one nearest to 0.
    policy : Policy or Mapping[str, Any], optional
        As of `simulate`.
    progress : bool, optional
        Whether to show it; by default yes.
    **options
        Further arguments of `simulate`, for every run.

    Returns
    -------
    CrossValidation

    Raises
    ------
    ConfigError
        If a setting cannot be used, or the strategy predicts no labels.
    DataError
        If there are too few labels.
    PartyError
        If a party fails in a fold, or refuses it.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import cross_validate
    >>> from flwr_vertical.strategies import CompleteCase
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"a": rng.normal(size=500)})
    >>> court = pd.DataFrame({"b": rng.normal(size=500)})
    >>> labels = bank["a"] - court["b"] + rng.normal(size=500)
    >>> found = cross_validate(
    ...     CompleteCase(), {"bank": bank, "court": court}, labels, progress=False
    ... )
    >>> found.folds["rmse"].round(1).to_list()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"strategy must be a Strategy object such as CompleteCase(), got "
            f"{type(strategy).__name__}"
        )
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
        raise ConfigError(f"folds must be a whole number of at least 2, got {folds!r}")
    candidates = _candidates(strategy, grid)
    labels = label_numbers(labels, str(options.pop("positive_label", "")), "labels")
    labels = labels.set_axis(label_index(labels))
    known = labels.index[labels.notna()]
    values = labels[known].to_numpy(dtype=float)
    alike = stratify is None and are_classes(values)
    if stratify is None:  # counts look like classes, too, and their largest are rare
        stratify = (
            alike and int(np.unique(values, return_counts=True)[1].min(initial=folds)) >= folds
        )
    fold_of = pd.Series(make_folds(values, int(folds), seed, stratify), index=known)
    found = []
    with (
        Progress("cross-validation", len(candidates) * folds, enabled=progress is not False) as bar,
        TemporaryDirectory(prefix="flwr-ledgers-") as ledgers,
    ):
        if policy is not None:
            options = {**options, "policy": policy, "ledgers": ledgers}
        for number, candidate in enumerate(candidates):
            which = f"candidate {number + 1} of {len(candidates)}, " if grid else ""
            tables = []
            for fold in range(int(folds)):
                name = f"{which}fold {fold + 1} of {folds}"
                train = labels.where(~labels.index.isin(known[fold_of == fold]))
                result = _run(candidate, parties, train, seed, options, name)
                tables.append(_scored(result, labels, fold_of, fold, name))
                bar.step(name)
            found.append(_together(candidate, tables))
            scores = list(found[0].scores.index)
            if score_by is not None and score_by not in scores:
                raise ConfigError(
                    f"score_by={score_by!r}: no such score; these labels have {scores}"
                )
            if alike and not stratify:
                found[-1].notes.append(_NOT_STRATIFIED)
    chosen = score_by or next(name for name in FIRST if name in found[0].folds)
    return _best(found, grid or {}, chosen)


def _candidates(strategy: Strategy, grid: Grid | None) -> list[Strategy]:
    """Return the strategy with every combination of settings."""
    if grid is None:
        return [strategy]
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise ConfigError(
                f"grid: expected a list of values of {name!r}, one at least, got {values!r}"
            )
    made = itertools.product(*grid.values())
    return [strategy.clone().set_params(**dict(zip(grid, own, strict=True))) for own in made]


def _run(
    strategy: Strategy,
    parties: Mapping[str, Any],
    labels: "pd.Series[Any]",
    seed: int,
    options: dict[str, Any],
    name: str,
) -> Result:
    try:
        return simulate(strategy, parties, labels, seed=seed, progress=False, **options)
    except PartyError as error:
        if not re.search(_ADDS_UP, str(error)):
            error.add_note(f"in {name} of the cross-validation")
            raise
        raise PartyError(
            error.party,
            error.step,
            f"{error.cause}. That was {name} of the cross-validation: {_RUNS}, and a node counts "
            "them all; take fewer folds or candidates, or ask the node to allow more",
        ) from error
    except Exception as error:
        error.add_note(f"in {name} of the cross-validation")
        raise


def _scored(
    result: Result, labels: "pd.Series[Any]", fold_of: "pd.Series[int]", fold: int, name: str
) -> tuple[dict[str, float], pd.DataFrame]:
    """Return a line of the table of folds, and the predictions of the fold's samples."""
    if result.predictions is None:
        raise ConfigError(
            f"strategy {result.strategy!r} predicted no sample in {name}; cross-validation needs a "
            "strategy whose result has predictions of samples without a label (with the same "
            "settings: differential privacy, say, predicts none)"
        )
    test = fold_of.index[fold_of == fold]
    own = result.predictions.loc[result.predictions.index.isin(test)].dropna(subset=["prediction"])
    if own.empty:
        raise DataError(
            f"{name}: none of its {len(test)} samples was predicted; do parties hold the samples "
            "that the labels are of?"
        )
    truth = labels[own.index].to_numpy(dtype=float)
    line = {
        **result.evaluate(labels[own.index]).metrics(),
        "n_train": float((fold_of != fold).sum()),
        "n_test": float(len(test)),
        "n_unpredicted": float(len(test) - len(own)),
        "rounds": float(result.ledger.rounds),
        "bytes": float(result.ledger.bytes_up + result.ledger.bytes_down),
        "seconds": float(result.ledger.seconds),
    }
    return line, own.assign(fold=fold + 1, label=truth)


def _together(
    strategy: Strategy, tables: list[tuple[dict[str, float], pd.DataFrame]]
) -> CrossValidation:
    lines = pd.DataFrame([line for line, _ in tables])
    lines.index = pd.RangeIndex(1, len(lines) + 1, name="fold")
    counts = [name for name in COSTS if name != "seconds"]
    lines = lines[[c for c in lines if c not in COSTS] + list(COSTS)].astype(
        dict.fromkeys(counts, "int64")
    )
    notes = [_RUNS]
    if missed := int(lines["n_unpredicted"].sum()):
        notes.append(f"{counted(missed, 'labelled sample')} not predicted, and not counted")
    return CrossValidation(strategy, lines, pd.concat([own for _, own in tables]), "", notes=notes)


def _best(found: list[CrossValidation], grid: Grid, chosen: str) -> CrossValidation:
    """Return the best candidate, the first of those that are equal, with a table of all."""
    for one in found:
        one.score = chosen
    if not grid:
        return found[0]
    lines = []
    for one in found:
        own = {name: getattr(one.strategy, name) for name in grid}
        lines.append(own | one.scores["mean"].to_dict())
    table = pd.DataFrame(lines).sort_values(
        chosen,
        ascending=chosen in LOWER_IS_BETTER,
        kind="stable",
        na_position="last",
        key=np.abs if chosen == "bias" else None,
    )
    best = found[int(table.index[0])]
    best.candidates = table.reset_index(drop=True)
    return best
