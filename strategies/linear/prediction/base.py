"""What strategies that predict share: which fit they build on, and whose parties it had."""

from abc import abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, Self

from flwr_vertical import Result, Strategy
from flwr_vertical.errors import ConfigError
from flwr_vertical.settings import setting


def result_or_folder(model: object) -> Result | str:
    """Return a setting that names a fit: a result, or the folder of a saved one, as text."""
    if not isinstance(model, Result | str | Path):
        raise ConfigError(
            f"model must be a Result or the folder of a saved one, got {type(model).__name__}"
        )
    return model if isinstance(model, Result) else str(model)


class BuildsOnAFit(Strategy):
    """A strategy that needs what an earlier run fitted; the parties kept their parts of it."""

    model: Result | str | Path = setting(
        "",
        "The result of a fit, or the folder where it was saved. In an app it is by default the "
        "server's own result of the run named as ``fitted``.",
        parse=result_or_folder,
        plain=lambda model: str(model.where or "") if isinstance(model, Result) else model,
    )

    needs_common_samples: ClassVar[bool] = False  # each row is predicted by itself
    uses_labels: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def server_part(cls, fitted: Result) -> Any:
        """Return what the server kept of a fit."""

    @property
    def earlier(self) -> Result | None:
        """The result whose parties' parts a simulation hands on."""
        if not self.model:
            return None
        return self.model if isinstance(self.model, Result) else Result.load(Path(self.model))

    def building_on(self, folder: Path) -> Self:
        """Predict with the result of that run unless another is named."""
        if self.model:
            return self
        self.server_part(Result.load(folder))  # what is missing is said before anybody computes
        return type(self)(**(self.settings() | {"model": folder}))

    def fitted_part(self) -> Any:
        """Return the server's part of the fit that is named."""
        fitted = self.earlier
        if fitted is None:
            raise ConfigError(
                "no model: name the run of the fit (fitted='...' in an app), or the folder of its "
                f"saved result ({self.name}.model='/srv/...')"
            )
        return self.server_part(fitted)


def check_parties(present: Collection[str], fitted: Collection[str], result: Result) -> None:
    """Note which parties of the fit have left."""
    if strangers := sorted(set(present) - set(fitted)):
        raise ConfigError(
            f"parties {strangers} took no part in the fit, whose parties were {list(fitted)}; "
            "leave them out, or fit again with them"
        )
    if left := [name for name in fitted if name not in present]:
        result.notes.append(f"parties {left} of the fit take no part; their blocks are missing")
