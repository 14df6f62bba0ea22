"""The stages of a pipeline: how they are written, and which may follow which."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from flwr_vertical import Strategy, make_strategy
from flwr_vertical.errors import ConfigError
from flwr_vertical.policy.requirements import exchanges_of
from flwr_vertical.predictions import Predictions
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.registry import SETTINGS, name_of
from flwr_vertical.settings import Settings, nearest, setting, settings_of
from strategies.common.imputing_party import ImputingParty
from strategies.explore import Explore
from strategies.glm.penalties import SELECTING
from strategies.predict import Predict
from strategies.predict.linear import LinearPredictions

EXPLORE, IMPUTE, SELECT, FIT = "explore", "impute", "select", "fit"
EVALUATE, PREDICT = "evaluate", "predict"
ROLES = (EXPLORE, IMPUTE, SELECT, FIT, EVALUATE, PREDICT)
_NAME = re.compile(rf"({'|'.join(ROLES)})(-[a-z0-9-]{{1,40}})?")


class Evaluate(Settings):
    """A stage that compares predictions with labels that no stage before it was given.

    Examples
    --------
    >>> Evaluate(hold_out=0.3)
    Evaluate(hold_out=0.3)
    """

    hold_out: float = setting(
        0.2,
        "Share of the labels that the stages before do not see, drawn at random by the run's seed.",
        above=0,
        below=1,
    )


Made: TypeAlias = Strategy | Evaluate

_SETTLED: dict[str, type[Made]] = {EXPLORE: Explore, EVALUATE: Evaluate, PREDICT: Predict}
"""What stages are made of that can be one thing only, called as the stage is."""


@dataclass(frozen=True)
class Stage:
    """A stage: its name says what becomes of its outcome, its strategy what it does."""

    name: str
    made: Made
    predictions: type[Predictions] | None = None  # How a stage predicts: by its fit's strategy

    @property
    def role(self) -> str:
        """What becomes of its outcome, one of `ROLES`."""
        return self.name.partition("-")[0]

    @property
    def half(self) -> Any:
        """What has the stage's party, arbiter, disclosure and needs."""
        return self.predictions or self.made

    @property
    def method(self) -> str:
        """What its strategy is called in a run config."""
        if self.role in _SETTLED:
            return self.role
        return name_of(type(self.made))  # type: ignore[arg-type]

    @property
    def exchanges(self) -> tuple[str, ...]:
        """Exchanges to which each node must agree."""
        if self.predictions is not None:
            return self.predictions.exchanges_asked
        return () if isinstance(self.made, Evaluate) else exchanges_of(self.made)

    def protocol(self) -> Protocol | None:
        """Return what it exchanges, its settings filled in."""
        if isinstance(self.made, Evaluate):
            return Protocol()
        if self.predictions is None:
            return self.made.protocol_of_run()
        declared = self.predictions.protocol
        return None if declared is None else declared.given(_plain(self.made))

    def written(self) -> dict[str, Any]:
        """Return it as in a run config: name, strategy, and settings other than the defaults."""
        own = type(self.made)
        defaults = {} if own.by_hand else own.config_defaults()
        changed = {
            key: value
            for key, value in _plain(self.made).items()
            if key not in defaults or defaults[key] != value
        }
        named = {} if self.role in _SETTLED else {"strategy": self.method}
        return {"name": self.name, **named, **changed}


def _plain(made: Made) -> dict[str, Any]:
    """Return settings as a run config spells them; a model is named by the run."""
    if isinstance(made, Strategy) and made.by_hand:
        return made.settings()
    return {
        item.key: item.to_plain(getattr(made, item.name))
        for item in settings_of(type(made))
        if not (isinstance(made, Predict) and item.name == "model")
    }


def as_text(stages: Iterable[Stage]) -> str:
    """Write stages as one text, which `read_stages` reads."""
    return json.dumps([stage.written() for stage in stages]) if stages else ""


def items_of(given: Any) -> list[Any]:
    """Return what is said of each stage: of a list, or of a JSON text of one."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "[]")
        except ValueError as error:
            raise ConfigError(f"stages is no JSON list of stages ({error})") from None
    if not isinstance(given, list | tuple):
        raise ConfigError(
            "stages must be a list of (name, strategy) such as [('impute', JointNormal()), "
            f"('fit', VerticalGLM())], got {type(given).__name__}"
        )
    return list(given)


def methods_of(given: Any) -> list[str]:
    """Return the names of the stages' strategies, without importing any."""
    written = [item for item in items_of(given) if isinstance(item, Mapping)]
    return [str(item["strategy"]) for item in written if "strategy" in item]


def read_stages(given: Any) -> tuple[Stage, ...]:
    """Make stages of a list, or of a JSON text, and check that each may stand where it does."""
    stages: list[Stage] = []
    for item in items_of(given):
        stage = item if isinstance(item, Stage) else _stage(item)
        check_place(stage, stages)
        if stage.role == PREDICT:
            fit = next(one for one in reversed(stages) if one.role == FIT)
            assert isinstance(fit.made, Strategy)
            stage = Stage(stage.name, stage.made, fit.made.predictions or LinearPredictions)
        if stage.protocol() is None:
            raise ConfigError(
                f"stage {stage.name!r}: strategy {stage.method!r} declares no protocol, so nodes "
                "could not tell its messages from those of other stages; run it by itself"
            )
        stages.append(stage)
    return tuple(stages)


def _stage(item: Any) -> Stage:
    """Make a stage of (name, strategy), (name, name of a strategy) or a mapping."""
    if isinstance(item, Mapping):
        settings = dict(item)
        name = str(settings.pop("name", ""))
        method: Any = settings.pop("strategy", None)
    elif isinstance(item, list | tuple) and len(item) == 2:
        (name, method), settings = item, {}
        if isinstance(method, Mapping):
            return _stage({"name": name, **method})
    else:
        raise ConfigError(
            f"a stage is (name, strategy), or has the keys 'name', 'strategy' and settings of that "
            f"strategy; got {item!r}"
        )
    role = _role(name)
    try:
        return Stage(name, _made(role, method, settings))
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"stage {name!r}: {error}") from error


def _role(name: Any) -> str:
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        hint = nearest(str(name).partition("-")[0], ROLES)
        raise ConfigError(
            f"unknown stage {name!r}{hint}; a stage is named by what becomes of its outcome, one "
            f"of {list(ROLES)}, with more after a hyphen where there are several: 'fit-trees'"
        )
    return found[1]


def _made(role: str, method: Any, settings: dict[str, Any]) -> Made:
    settled = _SETTLED.get(role)
    if role == EVALUATE and method in (None, role):
        named = {key.replace("-", "_"): value for key, value in settings.items()}
        return Evaluate(**named)
    if isinstance(method, Strategy | Evaluate):
        if not isinstance(method, settled or Strategy):
            raise ConfigError(f"it is {role if settled else 'a strategy'!r} there, got {method!r}")
        return method
    method = method or (role if settled else None)
    if not isinstance(method, str) or (settled and method != role):
        wanted = f"{role!r} alone" if settled else "an object or the name of a strategy"
        raise ConfigError(f"its strategy must be {wanted}, got {method!r}")
    return make_strategy(method, {SETTINGS: json.dumps(settings)})


def check_place(stage: Stage, before: list[Stage]) -> None:
    """Raise unless a stage can use what those before it leave, and they it."""
    made, role, where = stage.made, stage.role, f"stage {stage.name!r}"
    roles = [one.role for one in before]
    if stage.name in [one.name for one in before]:
        raise ConfigError(f"{where} comes twice; name stages apart, as in '{role}-2'")
    if isinstance(made, Strategy):
        if made.name == "pipeline":
            raise ConfigError(f"{where} is a pipeline; write its stages into this one")
        if role not in _SETTLED and isinstance(made, Explore | Predict):
            raise ConfigError(
                f"{where}: strategy {made.name!r} fits no model; name the stage {made.name!r}"
            )
        makes_tables = issubclass(made.party, ImputingParty)
        if (role == IMPUTE) != makes_tables:
            what = "fills in no cells" if role == IMPUTE else "fills in cells, and fits no model"
            raise ConfigError(
                f"{where}: strategy {made.name!r} {what}; name the stage "
                f"{'fit' if role == IMPUTE else IMPUTE!r}, or choose another strategy"
            )
        if role == SELECT and getattr(made, "penalty", None) not in SELECTING:
            raise ConfigError(
                f"{where}: strategy {made.name!r} with these settings keeps all columns; select "
                f"by a penalty of {list(SELECTING)}, as strategy 'glm' with penalty='lasso' does"
            )
        if getattr(made, "epsilon", None) is not None and IMPUTE in roles:
            raise ConfigError(
                f"{where} promises differential privacy, and reads a table in which a cell may "
                "follow from other people's rows: its noise would not hide these; put it before "
                f"the stage that imputes"
            )
    if role == EVALUATE and role in roles:
        raise ConfigError(f"{where}: one stage of a pipeline evaluates")
    if role in (EVALUATE, PREDICT) and FIT not in roles:
        raise ConfigError(
            f"{where} comes before any stage that fits a model, and needs one; put a stage 'fit' "
            f"before it (here: {[one.name for one in before] or 'nothing'})"
        )
    if isinstance(made, Predict) and made.model:
        raise ConfigError(f"{where} predicts with the model of this pipeline's fit; name no other")
