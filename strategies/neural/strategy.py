"""Settings that all methods with neural networks have."""

from abc import abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import torch
from torch.nn import Module

from flwr_vertical import Strategy, setting
from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.declaration import Protocol
from strategies.neural.hardware import DEVICES
from strategies.neural.images import NETWORKS, parse_shapes
from strategies.neural.model import NeuralModel
from strategies.neural.networks import ACTIVATIONS, NetworkSizes, dtype_of, to_arrays
from strategies.neural.training import LabelTargets, NeuralRounds

_M = TypeVar("_M", bound=NeuralModel)


def epochs(default: int) -> Any:
    """Return the setting of that name with a method's own default; so do those below."""
    return setting(default, "Epochs of training with labels.", at_least=1)


def batch_size(default: int) -> Any:
    """See `epochs`."""
    return setting(default, "Labelled samples of a step.", at_least=1)


def learning_rate(default: float) -> Any:
    """See `epochs`."""
    return setting(default, "Adam's, in training with labels.", above=0)


def pretrain_epochs(default: int) -> Any:
    """See `epochs`."""
    return setting(default, "Epochs of pretraining.", at_least=1)


class NeuralStrategy(Strategy):
    """A method whose parties and server have networks."""

    task: str = setting(
        "classification",
        "What labels are: classes, or numbers.",
        choices=("classification", "regression"),
    )
    batch_size: int = batch_size(128)
    learning_rate: float = learning_rate(2e-4)
    weight_decay: float = setting(1e-4, "Adam's.", at_least=0)
    validation_share: float = setting(
        0.0,
        "Share of the samples that validate instead of being trained on: of those with a label in "
        "training with labels; 0 trains all epochs on all.",
        at_least=0,
        below=1,
    )
    validate_every: int = setting(5, "Epochs between two validations that take rounds.", at_least=1)
    patience: int = setting(
        30, "Epochs without a better validation after which training ends.", at_least=1
    )
    width: int = setting(128, "Units of each hidden layer.", at_least=1)
    precision: str = setting(
        "float32",
        "What networks compute in. mixed is float32 with matrix products of large networks in "
        "bfloat16, where the processor has instructions for them.",
        choices=("float32", "mixed", "float64"),
    )
    device: str = setting(
        "auto",
        "Where server and parties compute: auto takes a GPU at those that have one.",
        choices=DEVICES,
    )
    prediction_rows: int = setting(1024, "Samples predicted at once.", at_least=1)

    needs_labels: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("torch",)

    @property
    def dtype(self) -> torch.dtype:
        """What networks compute in."""
        return dtype_of(self.precision)

    @property
    @abstractmethod
    def network_settings(self) -> NetworkSizes:
        """Sizes of all networks."""

    @property
    def agreed(self) -> dict[str, Any]:
        """What nodes work out of their settings, and hold the server's messages against."""
        return {"network_sizes": self.network_settings.to_text()}

    def protocol_of_run(self) -> Protocol | None:
        """See `Strategy.protocol_of_run`; the settings have what follows from them as well."""
        declared = super().protocol_of_run()
        return None if declared is None else declared.given({**declared.settings, **self.agreed})

    def fitted(
        self, kind: type[_M], rounds: NeuralRounds, targets: LabelTargets, head: Module, **own: Any
    ) -> _M:
        """Return the server's part of the model, and what else the method keeps."""
        return kind(
            name=rounds.federation.random_bytes(16).hex(), parties=rounds.parties,
            networks=self.network_settings.to_text(), precision=self.precision,
            classes=targets.classes, centre=targets.centre, unit=targets.unit,
            head=to_arrays(head), prediction_rows=self.prediction_rows, **own,
        )  # fmt: skip

    def shared_with(self, record: type[Any]) -> dict[str, Any]:
        """Return the settings that a dataclass has fields for, by name."""
        names = [field.name for field in fields(record)]
        return {name: getattr(self, name) for name in names if hasattr(self, name)}


class ImageStrategy(NeuralStrategy):
    """A method whose parties have tables or images."""

    activation: str = setting("relu", "Of hidden layers.", choices=tuple(ACTIVATIONS))
    networks: str = setting(
        "mlp",
        "Networks of parties: for tables, or for images of the shape `image_shape`.",
        choices=NETWORKS,
    )
    image_shape: str = setting(
        "",
        "Height and width of the parties' images such as 14x7, channels before them such as "
        "3x32x32; of some parties, while others have tables: left=14x7, right=14x14.",
    )
    image_channels: int = setting(
        16, "Channels of cnn at the image's full size; resnet18 has 64.", at_least=4
    )

    def check(self) -> None:
        """Raise if settings do not go together."""
        if bool(parse_shapes(self.image_shape)) != (self.networks != "mlp"):
            raise ConfigError(
                f"networks={self.networks!r} with image_shape={self.image_shape!r}: cnn and "
                "resnet18 are for images and need their shape, such as '14x7'; mlp has none"
            )
