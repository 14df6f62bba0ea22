"""The data of a result: everything that `start()` fills in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from flwr_vertical.arrays import Flags
from flwr_vertical.grading.record import Grade
from flwr_vertical.privacy.accounting import UNGRADED, PrivacyStatement
from flwr_vertical.privacy.statement import Statement
from flwr_vertical.results.ledger import Ledger

if TYPE_CHECKING:  # scikit-learn waits until it is needed
    from flwr_vertical.results.evaluation import Evaluation

_Judged: TypeAlias = tuple[
    dict[str, pd.DataFrame], dict[str, pd.DataFrame], dict[str, pd.DataFrame]
]


@dataclass(eq=False, repr=False)
class ResultData:
    """What a run leaves behind: `strategy`, its name, and what a method has a use for.

    - ``settings``: its settings, as run.
    - ``metrics``: overall figures of merit.
    - ``meanings``: what metrics of the strategy's own mean, in a sentence each, for the report.
    - ``history``: one entry per round or iteration.
    - ``ledger``: what the run cost.
    - ``tables``: what each party holds afterwards. Empty in a deployment: tables never leave the
      parties.
    - ``intervals``: of each party's completed numbers, where the method gives them: for each column
      x ``x std_error``, ``x lower`` and ``x upper`` (95 %), NaN in cells that were there.
    - ``draws``: multiple imputations: as `tables`, with cells drawn.
    - ``coefficients``: index (party, variable); estimate and, where known, std_error, z, p_value,
      ci_low, ci_high.
    - ``labels``: the server's labels after the run, indexed by sample ID: predicted, completed or
      synthetic.
    - ``predictions``: of samples without a label: index sample ID; prediction, std_error, lower,
      upper.
    - ``evaluation``: how good predictions are where the truth is known; see `evaluate`.
    - ``importance``: index party, or (party, column) where the nodes agreed to tell names; gain,
      cover, splits.
    - ``contributions``: what each party adds to the raw predictions of samples: index of
      `predictions` (of several classes also ``class``); ``base``, then a column for each party.
    - ``imputation``: how good imputed columns are, where the truth is known or cells were held out:
      index (party, column); see `flwr_vertical.results.imputation.imputation_quality`.
    - ``model``: the fitted model, as the server knows it.
    - ``predictor``: what the server needs to predict new rows, where the parties keep their
      coefficients.
    - ``mask``: (n_samples, n_parties), true where the party has no row of the sample (a missing
      block).
    - ``parties``: names of the parties, in the order of the mask's columns; found from the rest if
      left out.
    - ``party_metrics``: figures of merit of each party.
    - ``originals``: the incomplete tables as given; only where the run had them in one process.
    - ``truth``: the complete tables, where somebody knows them (studies).
    - ``notes``: what a reader should know: warnings, early stops.
    - ``disclosure``: who learned what in this run.
    - ``privacy``: what differential privacy the run spent, in numbers and in plain words.
    - ``graded``: what attacks on the synthetic tables find, and how useful these are; see `grade`.
      It takes real rows, so a server has none.
    - ``needed_keys``: by node, the keys of its node config without which it would not take part in
      this run in a federation; nodes that need none are left out. The arbiter stands as
      ``"arbiter"``.
    - ``frames``: the strategy's own tables, by name; each is an attribute of the result, too. After
      a simulation also those that a party keeps beside its own, such as ``points of bank``.
    - ``figures``: the strategy's own figures, by title; the report shows them.
    - ``where``: the folder of the last `save`, or the one it was loaded from.
    - ``name``: name of the run, where it has one.
    - ``call``: the strategy and its settings that differ from their defaults, as a call.
    - ``finished``: when the run ended, in UTC.
    - ``version``: of this library, when it ran.
    """

    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    intervals: dict[str, pd.DataFrame] = field(default_factory=dict)
    draws: list[dict[str, pd.DataFrame]] = field(default_factory=list)
    coefficients: pd.DataFrame | None = None
    labels: pd.Series | None = None
    predictions: pd.DataFrame | None = None
    evaluation: Evaluation | None = None
    importance: pd.DataFrame | None = None
    contributions: pd.DataFrame | None = None
    imputation: pd.DataFrame | None = None
    model: Any = None
    predictor: Any = None
    mask: Flags | None = None
    parties: list[str] = field(default_factory=list)
    party_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    originals: dict[str, pd.DataFrame] = field(default_factory=dict)
    truth: dict[str, pd.DataFrame] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    disclosure: list[tuple[str, str]] = field(default_factory=list)
    privacy: Statement | None = None
    graded: Grade | None = None
    needed_keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
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

    def __post_init__(self) -> None:
        if not self.parties:
            named: list[Iterable[str]] = [self.originals, self.tables, self.party_metrics]
            self.parties = list(dict.fromkeys(name for names in named for name in names))

    if not TYPE_CHECKING:  # a checker of types knows `frames`

        def __getattr__(self, name: str) -> pd.DataFrame:
            frames = vars(self).get("frames", {})
            if name in frames:
                return frames[name]
            has = f"; its frames are {list(frames)}" if frames else ""
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}{has}")

    def take_grade(self, grade: Grade) -> None:
        """Keep a grade, and say it in the statement of privacy."""
        self.graded = grade
        if isinstance(self.privacy, PrivacyStatement):
            self.privacy = replace(self.privacy, graded=grade.sentences)
            self.notes = [note for note in self.notes if note != UNGRADED]


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
