"""Pipeline: impute, select, fit, evaluate and predict in one run, over one alignment.

The parties are greeted and aligned once. Then the rounds of each stage follow, under the stage's
name: ``fit.open_products`` is the round ``open_products`` of the stage ``fit``. A node answers the
rounds of a stage once those of the stages before are over, and none of an earlier stage again.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from flwr_vertical import Alignment, Federation, Ledger, Progress, Result, Strategy, simulate
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.settings import setting
from strategies.linear.problem import sample_index
from strategies.pipeline.federation import StageFederation, in_stage, protocol_of
from strategies.pipeline.party import (
    PipelineArbiter,
    PipelineParty,
    StageHalf,
    arbiter_of,
    party_of,
)
from strategies.pipeline.result import PipelineResult
from strategies.pipeline.stages import (
    EVALUATE,
    EXPLORE,
    FIT,
    PREDICT,
    SELECT,
    Evaluate,
    Stage,
    as_text,
    read_stages,
)
from strategies.predict import Predict
from strategies.scorecard import Scorecard


class _OfStages:
    """An attribute that follows from the stages; of the class, and without stages, a default."""

    def __init__(self, made: Callable[["Pipeline"], Any], default: Any) -> None:
        self._made, self._default = made, default

    def __get__(self, pipeline: "Pipeline | None", owner: type) -> Any:
        return self._default if pipeline is None else self._made(pipeline)


def _of_stages(made: Callable[["Pipeline"], Any], default: Any) -> Any:
    return _OfStages(made, default)


def _needs_labels(stage: Stage) -> bool:
    return stage.role in (SELECT, EVALUATE) or bool(getattr(stage.half, "needs_labels", False))


class Pipeline(Strategy):
    """Several strategies one after the other: one alignment, one run, one report.

    Notes
    -----
    A stage is ``(name, strategy)``. Its name says what becomes of its outcome:

    * ``explore``: figures and tables of what there is (`Explore`); nothing is passed on;
    * ``impute``: each party goes on with the table that the stage completed, on its own disk;
    * ``select``: each party leaves out its columns whose coefficients the stage set to zero, and
      keeps its first where that would be all of them;
    * ``fit``: the model is evaluated and predicted with;
    * ``evaluate``: a share of the labels is hidden from all stages before, and compared with what
      the fit predicts (`Evaluate`);
    * ``predict``: all samples are predicted with the model of the last fit.

    Several of a kind have more after a hyphen, ``fit-trees``. The strategy of ``impute``,
    ``select`` and ``fit`` is an object, or the name of one; that of the others may be left out:
    ``("predict", None)``.

    Rows stay those of the alignment: a sample that a party lacks is missing in every stage, whether
    a stage completes it or not. Rows that one stage tells of and another does not (without a label,
    held out), and rows whose cells were completed in between, have to be as many as sums may be
    told of (``min-rows``), or none: their sums are the difference of the stages'.

    The result is that of the last fit, its evaluation included; `PipelineResult.stages` has those
    of all stages. `Result.predictions` has the samples without a label, the stage's own all.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from strategies.glm import VerticalGLM
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame(rng.normal(size=(800, 2)), columns=["a", "b"])
    >>> court = pd.DataFrame(rng.normal(size=(800, 2)), columns=["c", "d"])
    >>> y = 1 + 2 * bank["a"] - court["d"] + rng.normal(scale=0.1, size=800)
    >>> tables = {"bank": bank.mask(rng.random(bank.shape) < 0.2), "court": court}
    >>> pipeline = Pipeline(
    ...     [
    ...         ("impute", "joint-normal"),
    ...         ("select", VerticalGLM(penalty="lasso")),
    ...         ("fit", VerticalGLM(penalty="none")),
    ...         ("evaluate", Evaluate(hold_out=0.25)),
    ...     ]
    ... )
    >>> result = pipeline.simulate(tables, y, progress=False)
    >>> list(result.stages), len(result.evaluation)
    (['impute', 'select', 'fit', 'evaluate'], 200)
    """

    stages: tuple[Stage, ...] = setting(
        "",
        "The stages in their order: a list of (name, strategy), where the strategy is an object or "
        "a name; or of mappings with the keys ``name``, ``strategy`` and settings of that "
        "strategy; or such a list as JSON text. Names are ``explore``, ``impute``, ``select``, "
        "``fit``, ``evaluate`` and ``predict``.",
        parse=read_stages,
        plain=as_text,
    )

    name: ClassVar[str] = "pipeline"
    result_type: ClassVar[type[Result]] = PipelineResult
    party = _of_stages(lambda self: self._party, PipelineParty)
    arbiter = _of_stages(lambda self: self._arbiter, PipelineArbiter)
    protocol: ClassVar[Protocol | None] = Protocol()
    disclosure = _of_stages(
        lambda self: tuple(
            (who, f"{stage.name}: {learns}")
            for stage in self.stages
            for who, learns in getattr(stage.half, "disclosure", ())
        ),
        (
            ("each role", "what it learns in each stage, as that strategy states"),
            ("server", "which columns a stage that selects left out, by the next stage's names"),
        ),
    )
    needs_labels = _of_stages(lambda self: any(map(_needs_labels, self.stages)), False)
    needs_parties = _of_stages(lambda self: self._most("needs_parties", 1), 1)
    needs_common_samples = _of_stages(lambda self: self._most("needs_common_samples", False), True)
    uses_labels: ClassVar[bool] = True
    check_requirements = _of_stages(lambda self: self._check_stages, lambda: None)

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter, if a stage does."""
        asked = [getattr(stage.half, "needs_arbiter", None) for stage in self.stages]
        return next((one for one in asked if one), None)

    @property
    def exchanges_asked(self) -> tuple[str, ...]:
        """Exchanges of all stages to which each node must agree."""
        return tuple(dict.fromkeys(one for stage in self.stages for one in stage.exchanges))

    @property
    def stages_asked(self) -> tuple[str, ...]:
        """Strategies of all stages, each of which a node's policy must allow."""
        made = [stage for stage in self.stages if stage.role != EVALUATE]
        return tuple(dict.fromkeys(stage.method for stage in made))

    @property
    def epsilon(self) -> float | None:
        """Privacy budget of all stages together."""
        asked = [getattr(stage.made, "epsilon", None) for stage in self.stages]
        stated = [one for one in asked if one is not None]
        return sum(stated) if stated else None

    def _most(self, attribute: str, least: Any) -> Any:
        return max((getattr(stage.half, attribute, least) for stage in self.stages), default=least)

    @cached_property
    def _party(self) -> type[PipelineParty]:
        return party_of(self._halves("party"))

    @cached_property
    def _arbiter(self) -> type[PipelineArbiter]:
        return arbiter_of(self._halves("arbiter"))

    def _halves(self, side: str) -> dict[str, StageHalf]:
        found = {}
        for stage in self.stages:
            kind = getattr(stage.half, side, None) or getattr(stage.made, side, None)
            if kind is not None:
                found[stage.name] = StageHalf(stage.name, stage.role, kind)
        return found

    def _check_stages(self) -> None:
        for stage in self.stages:
            if isinstance(stage.made, Strategy):
                stage.made.check_requirements()

    def protocol_of_run(self) -> Protocol:
        """Return the protocols of all stages in their order, each under its stage's name."""
        return self._protocol

    @cached_property
    def _protocol(self) -> Protocol:
        parts = []
        for stage in self.stages:
            declared = stage.protocol()
            assert declared is not None
            parts.append(protocol_of(stage.name, declared))
        keys = tuple(key for part in parts for key in part.hands_over)
        return Protocol(*parts, hands_over=keys)

    def building_on(self, earlier: Result | Path) -> Self:
        """Refuse an earlier run: a stage goes on with what the stages before it left."""
        raise ConfigError(
            "a pipeline builds on no earlier run; leave 'fitted' out, or run its stages one by one"
        )

    def simulate(
        self,
        parties: Mapping[str, pd.DataFrame],
        labels: "pd.Series[Any] | None" = None,
        **options: Any,
    ) -> PipelineResult:
        """Run it over tables in this process; see `flwr_vertical.simulate`."""
        found = simulate(self, parties, labels, **options)
        assert isinstance(found, PipelineResult)
        return found

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Run the stages one after the other."""
        assert isinstance(result, PipelineResult)
        if not self.stages:
            raise ConfigError("a pipeline needs stages, such as [('fit', VerticalGLM())]")
        whole, seed = federation.labels, int(result.settings["seed"])
        hidden = self._hidden(whole, seed)
        fitted: Result | None = None
        for number, stage in enumerate(self.stages):
            progress.done, progress.total = 0, None
            progress.title = f"{self.name} {stage.name}"
            federation.rng = np.random.default_rng([seed, number])
            found = Result(
                stage.method,
                settings=_settings(stage),
                parties=list(federation.parties),
                mask=alignment.mask,
                labels=_without(result.labels, alignment, hidden),
                name=stage.name,
                call=repr(stage.made),
                version=result.version,
            )
            scored = [one.made for one in self.stages[number:] if isinstance(one.made, Scorecard)]
            if stage.role == EXPLORE and scored:
                # It tells of the labels by bin itself; two sets of bins together would tell more.
                federation.labels = None
            elif hidden is not None and stage.role != EVALUATE:
                federation.labels = np.where(hidden, np.nan, whole)
            if isinstance(stage.made, Evaluate):
                assert fitted is not None
                assert hidden is not None
                _evaluate(fitted, found, alignment, result.labels, whole, hidden)
                federation.labels, hidden = whole, None
                result.evaluation = found.evaluation
                result.metrics |= found.metrics
            else:
                strategy = stage.made
                if isinstance(strategy, Predict):
                    # Labels are known to the model; how good it is says a stage that evaluates.
                    federation.labels = None
                    assert fitted is not None
                    strategy = Predict(fitted, strategy.contributions)
                # What a selection would predict is nobody's concern, and would count as told.
                own = StageFederation(federation, stage.name, predicts=stage.role != SELECT)
                try:
                    strategy.run(own, alignment, found, progress)
                except PartyError as error:
                    raise _with_advice(error, [*result.stages]) from error
                federation.labels = whole
            if stage.role == SELECT and found.coefficients is not None:
                effects = found.coefficients["estimate"].abs().groupby(level=0).sum()
                found.notes += [
                    f"no column of party {name!r} has an effect; it keeps the first of them"
                    for name in result.parties
                    if not effects.get(name, 0.0)
                ]
            if stage.role == FIT:
                fitted = found
                _take_over(found, result)
            elif stage.role == PREDICT:
                _take_predictions(found, result, alignment, whole)
            messages = federation.ledger.to_frame()
            mine = messages["step"].str.startswith(in_stage(stage.name, ""))
            found.ledger = Ledger.from_frames(messages[mine])
            result.stages[stage.name] = found
            result.notes += [f"{stage.name}: {note}" for note in found.notes]
            result.privacy = found.privacy or result.privacy

    def _hidden(self, labels: Any, seed: int) -> Flags | None:
        """Choose the labels that only the stage which evaluates gets to see.

        Shapes: labels (n_samples,); returns (n_samples,).
        """
        shares = [s.made.hold_out for s in self.stages if isinstance(s.made, Evaluate)]
        if not shares:
            return None
        known = np.flatnonzero(np.isfinite(np.asarray(labels, dtype=float)))
        count = round(shares[0] * len(known))
        if not 0 < count < len(known):
            raise DataError(
                f"of {len(known)} labels a share of {shares[0]:g} is {count}; evaluate with "
                "another hold-out"
            )
        hidden = np.zeros(len(labels), dtype=bool)
        hidden[np.random.default_rng([seed, len(known)]).permutation(known)[:count]] = True
        return hidden


def _with_advice(error: PartyError, before: list[str]) -> PartyError:
    """Return the error; of a refusal by what adds up, with what can be done about stages."""
    if not before or not any(f"policy.{key}" in error.cause for key in ("min-rows", "vectors")):
        return error
    advice = (
        f"Stages {before} of this pipeline told of these rows before, and what stages tell adds "
        "up. Leave one of them out, such as 'explore'; take the rows that all parties hold "
        "(align-rows='intersection'); or have the nodes' owners allow more, if they agree"
    )
    return PartyError(error.party, error.step, f"{error.cause}\n{advice}")


def _settings(stage: Stage) -> dict[str, Any]:
    return {key: value for key, value in stage.written().items() if key not in ("name", "strategy")}


def _without(
    labels: "pd.Series[Any] | None", alignment: Alignment, hidden: Flags | None
) -> "pd.Series[Any] | None":
    """Return the server's labels without those that are hidden."""
    if labels is None or hidden is None or alignment.label_rows is None:
        return labels
    rows = alignment.label_rows
    return labels.astype(float).mask((rows >= 0) & hidden[np.maximum(rows, 0)])


def _evaluate(
    fitted: Result,
    found: Result,
    alignment: Alignment,
    labels: "pd.Series[Any] | None",
    whole: Array,
    hidden: Flags,
) -> None:
    """Compare what the fit predicts of samples whose label was hidden from it."""
    if fitted.predictions is None or not len(fitted.predictions):
        raise ConfigError(
            f"stage {fitted.name!r} (strategy {fitted.strategy!r}) predicts no sample without a "
            "label, so there is nothing to evaluate; leave the stage out"
        )
    given = np.isfinite(whole) & ~hidden
    index = sample_index(alignment, labels, np.arange(alignment.n_samples))
    found.predictions = fitted.predictions[fitted.predictions.index.isin(index[hidden])]
    truth = pd.Series(whole[hidden], index=index[hidden])
    known = pd.Series(whole[given], index=index[given])
    found.evaluate(truth, known=known, what="samples whose label was held out")


def _take_over(found: Result, result: Result) -> None:
    """Make the outcome of a fit that of the pipeline."""
    for name in ("coefficients", "predictions", "model", "predictor", "importance", "frames"):
        setattr(result, name, getattr(found, name))
    result.metrics = dict(found.metrics)
    result.evaluation = None  # of a fit before it


def _take_predictions(found: Result, result: Result, alignment: Alignment, labels: Any) -> None:
    """Make predictions those of the pipeline, but for samples that have a label."""
    assert found.predictions is not None
    index = sample_index(alignment, result.labels, np.arange(alignment.n_samples))
    if labels is not None:
        index = index[~np.isfinite(labels)]
    unlabelled = found.predictions[found.predictions.index.isin(index)]
    result.predictions = unlabelled if len(unlabelled) else None
