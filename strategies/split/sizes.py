"""Sizes of all networks of a method, as a message can carry them.

The paper names no widths or depths for tables; Table 3 has a discriminator of two layers, and of
images ResNet-18. The choice for tables here is that of FALSE-VFL's encoders.
"""

import json
from dataclasses import asdict, dataclass

from strategies.false_vfl.images import ImageShape, parse_shapes


@dataclass(frozen=True)
class SplitNetworks:
    """Sizes of all networks of a method.

    Parameters
    ----------
    fusion : {"concat", "mean", "final"}
        See `Method`.
    hybrid : bool
        Whether an extractor has two encoders (FedHSSL).
    latent_dim : int
        Numbers of an embedding (Tables 6 to 9: 128 for Isolet and HAPT); in FinalNet of a column.
    width : int
        Units of each hidden layer.
    layers : int
        Layers with weights of an extractor; of FinalNet, of each block.
    head_layers : int
        Layers with weights of the discriminator, two at least where embeddings are concatenated:
        its first one is at the parties.
    projected, predictor_width : int
        Units of SimSiam's projector, and of its predictor's hidden layer.
    activation : str
        A key of `ACTIVATIONS`.
    networks : {"mlp", "cnn", "resnet18"}
        Of parties whose columns are an image's pixels; others have perceptrons.
    image_shape : str
        See `parse_shapes`.
    image_channels : int
        Of ``cnn``.
    mixed : bool
        Whether encoders and projectors round to bfloat16; see `apply`.
    """

    fusion: str = "concat"
    hybrid: bool = False
    latent_dim: int = 128
    width: int = 128
    layers: int = 2
    head_layers: int = 2
    projected: int = 128
    predictor_width: int = 32
    activation: str = "relu"
    networks: str = "mlp"
    image_shape: str = ""
    image_channels: int = 16
    mixed: bool = False

    def image_of(self, party: str) -> ImageShape | None:
        """Return the shape of a party's image; None of one whose columns are a table."""
        if self.networks == "mlp":
            return None
        shapes = parse_shapes(self.image_shape)
        return shapes.get(party, shapes.get(""))

    @property
    def sent(self) -> int:
        """How many numbers of a sample a party sends."""
        if self.fusion == "final":
            return 2 * self.width
        return self.latent_dim if self.fusion == "mean" else self.width

    def to_text(self) -> str:
        """Return all of it as text, which a message can carry."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "SplitNetworks":
        """Read what `to_text` wrote."""
        return cls(**json.loads(text))
