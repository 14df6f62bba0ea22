"""Predict: predict new samples with a fitted model, whatever blocks they lack.

The model's strategy says how (`Strategy.predictions`): linear models by `LinearPredictions`, trees,
forests and networks each by a class of their own.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from flwr_vertical import Alignment, Federation, Model, Progress, Result, Strategy, setting
from flwr_vertical.errors import ConfigError
from flwr_vertical.predictions import Predictions
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.registry import predictions_of
from flwr_vertical.results.model import UnknownModel
from strategies.forest.arbiter import VoteArbiter
from strategies.predict.linear import LinearPredictions
from strategies.trees.contributions import FORMS


def result_or_folder(model: object) -> Result | str:
    """Return a setting that names a fit: a result, or the folder of a saved one, as text."""
    if not isinstance(model, Result | str | Path):
        raise ConfigError(
            f"model must be a Result or the folder of a saved one, got {type(model).__name__}"
        )
    return model if isinstance(model, Result) else str(model)


class _OfModel:
    """An attribute that the model decides; without a model, and of the class, a linear one."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, strategy: "Predict | None", owner: type) -> Any:
        decides = LinearPredictions if strategy is None else strategy.chosen
        return getattr(decides, self._name)


class Predict(Strategy):
    """Predict new samples with the model of a fit; the model's strategy says by which rounds.

    Notes
    -----
    With models of every strategy that fits linear models (`VFEM`, `CompleteCase`, `MeanImpute`,
    `Single`, `VerticalGLM`, `VerticalSVM`), trees (`VerticalGBDT`, `VerticalForest`)
    or networks (`FalseVFL`, `VanillaVFL` and those beside it). Each party uses the part of the
    model that it kept of the fit, on its own disk: the server names the model and can neither send
    nor change one. In an app the run config names the run of the fit as ``fitted``; a simulation
    takes the parties' parts from the result.

    A party that lacks a sample, or took part in the fit and has left, counts as a missing block. No
    labels are needed; where some are given, the metrics say how far off predictions are.

    `Result.predictions` is as of the fit. With a linear model each party rounds its term to 1 % of
    the residual standard deviation, coarser where that would tell more than ``prediction-bits`` of
    its node config (12); the rounding is part of the intervals, and ``metrics["bits_per_row"]`` is
    what a prediction tells at most. There is ``prediction``, ``std_error`` of the label's
    expectation through absent columns and estimated coefficients (on average over rows with the
    same parties), ``lower`` and ``upper``: 95 % of gaussian labels; for other families, with
    ``linear_predictor``, the label's expectation.

    Below stands who learns what with a linear model; with another one it stands with its strategy.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> from strategies.vfem import VFEM
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"a": rng.normal(size=500)})
    >>> court = pd.DataFrame({"b": rng.normal(size=500)})
    >>> labels = bank["a"] + 1 + 0.01 * rng.normal(size=500)
    >>> fitted = simulate(VFEM(), {"bank": bank, "court": court}, labels, progress=False)
    >>> new = {"bank": pd.DataFrame({"a": [2.0]}), "court": pd.DataFrame({"b": [0.0]})}
    >>> found = simulate(Predict(fitted), new, progress=False)
    >>> found.predictions["prediction"].round(2).to_list()
    [3.0]
    """

    model: Result | str | Path = setting(
        "",
        "The result of a fit, or the folder where it was saved. In an app it is by default the "
        "server's own result of the run named as ``fitted``.",
        parse=result_or_folder,
        plain=lambda model: str(model.where or "") if isinstance(model, Result) else model,
    )
    contributions: str = setting(
        "path",
        "What `Result.contributions` has, with boosted trees: how far each party moves a "
        "prediction on its way through the trees, which tells nothing more; or its Shapley value, "
        "for which more sides of splits are told.",
        choices=FORMS,
    )

    name: ClassVar[str] = "predict"
    party: ClassVar[Any] = _OfModel()
    arbiter = VoteArbiter
    disclosure: ClassVar[Any] = _OfModel()
    exchanges_asked: ClassVar[Any] = _OfModel()
    predictions = LinearPredictions
    protocol = LinearPredictions.protocol
    needs_common_samples: ClassVar[bool] = False  # each row is predicted by itself
    uses_labels: ClassVar[bool] = True

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter."""
        return self.chosen.needs_arbiter

    def protocol_of_run(self) -> Protocol | None:
        """See `Strategy.protocol_of_run`: it is the model's own, which an arbiter does not know."""
        if self.earlier is None and "kept_here" not in vars(self):
            return None
        declared = self.chosen.protocol
        return None if declared is None else declared.given({"contributions": self.contributions})

    @cached_property
    def chosen(self) -> type[Predictions]:
        """How the model predicts."""
        return LinearPredictions if self.earlier is None else _chosen_by(self.earlier)

    @cached_property
    def earlier(self) -> Result | None:
        """The result whose parties' parts a simulation hands on."""
        if not self.model:
            return None
        return self.model if isinstance(self.model, Result) else Result.load(Path(self.model))

    def building_on(self, earlier: Result | Path) -> Self:
        """Predict with the result of that run unless another is named."""
        if self.model:
            return self
        # What is missing is said before anybody computes.
        _chosen_by(earlier if isinstance(earlier, Result) else Result.load(earlier))
        return type(self)(**(self.settings() | {"model": earlier}))

    def at_node(self, load_model: Callable[[], bytes | None]) -> Self:
        """Predict with the part of the model that this node kept."""
        part = load_model()
        if part is None:  # a step of `PredictParty` says so, unless the server has no model either
            return self
        made = self.clone()
        kept = Model.from_bytes(part, "what this node saved in the run named as 'fitted'")
        vars(made)["chosen"], vars(made)["kept_here"] = predictions_of(kept.strategy), True
        return made

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Predict all samples by the model's own rounds."""
        if self.earlier is None:
            raise ConfigError(
                "no model: name the run of the fit (fitted='...' in an app), or the folder of its "
                f"saved result ({self.name}.model='/srv/...')"
            )
        if self.contributions not in self.chosen.contributions_had:
            raise ConfigError(
                f"contributions={self.contributions!r} is for boosted trees, and the model is one "
                f"of {self.earlier.strategy!r}; leave the setting out"
            )
        model = self.earlier.predictor
        fitted = list(model.parties)
        if strangers := sorted(set(federation.parties) - set(fitted)):
            raise ConfigError(
                f"parties {strangers} took no part in the fit, whose parties were {fitted}; leave "
                "them out, or fit again with them"
            )
        if left := [name for name in fitted if name not in federation.parties]:
            result.notes.append(f"parties {left} of the fit take no part; their blocks are missing")
        if self.earlier.settings.get("offset"):
            result.notes.append(
                "the fit had an offset, which these predictions lack: they are of samples whose "
                "offset is 0. Add it to linear_predictor (of gaussian labels to prediction)"
            )
        self.chosen(model, self.contributions).run(federation, alignment, result, progress)


def _chosen_by(fitted: Result) -> type[Predictions]:
    """Return how the model of a result predicts."""
    model = fitted.predictor
    if model is None:
        raise ConfigError(
            f"a result of {fitted.strategy!r} holds no model that predicts new rows; expected that "
            "of a fit that came to estimates, trees or networks and kept them at the parties. "
            "Without one, as with 'glm-admm', only the fit itself predicts samples without a label"
        )
    if isinstance(model, UnknownModel):
        raise ConfigError(
            f"the model of {fitted.strategy!r} ({model.name}, version {model.version}, of strategy "
            f"{model.strategy!r}) cannot be read here; install what it needs, or fit it again"
        )
    return predictions_of(model.strategy)
