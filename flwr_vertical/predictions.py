"""`Predictions`: how the strategy ``predict`` predicts new rows with the models of another one."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from flwr_vertical.alignment.base import Alignment
from flwr_vertical.node.party import Party
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.result import Result
from flwr_vertical.results import Progress
from flwr_vertical.server.federation import Federation


class Predictions(ABC):
    """How new rows are predicted with one kind of model; a strategy that fits it names the class.

    Parameters
    ----------
    model : Model
        What the server kept of the fit; it has ``parties``, the names of those of the fit.
    contributions : str
        The setting of `Predict` of that name; one of `contributions_had`.

    Attributes
    ----------
    party : type[Party]
        The party half; it has its part of the model from the run named ``fitted``.
    disclosure : tuple[tuple[str, str], ...]
        Who learns what, as of `Strategy`.
    protocol : Protocol, optional
        What is exchanged after the alignment, as of `Strategy`.
    needs_arbiter : str, optional
        What needs an arbiter whatever the mode of the sums.
    exchanges_asked : tuple[str, ...]
        Exchanges to which each node must agree.
    contributions_had : tuple[str, ...]
        Values of ``contributions`` that these models can be predicted with.
    """

    party: ClassVar[type[Party]]
    disclosure: ClassVar[tuple[tuple[str, str], ...]]
    protocol: ClassVar[Protocol | None] = None
    needs_arbiter: ClassVar[str | None] = None
    exchanges_asked: ClassVar[tuple[str, ...]] = ()
    contributions_had: ClassVar[tuple[str, ...]] = ("path", "none")

    def __init__(self, model: Any, contributions: str) -> None:
        self.model, self.contributions = model, contributions

    @abstractmethod
    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Predict all aligned samples and fill in the result, as `Strategy.run` does."""
