"""Sizes of all networks of a method, as a message can carry them.

The paper names no widths or depths for tables; Table 3 has a discriminator of two layers, and of
images ResNet-18. The choice for tables here is that of FALSE-VFL's encoders.
"""

import json
from dataclasses import asdict, dataclass

from strategies.false_vfl.images import ImageShape, parse_shapes


@dataclass(frozen=True)
class SplitNetworks:
    """Sizes of all networks of a method."""

    fusion: str = "concat"  # See `Method`
    hybrid: bool = False  # Whether an extractor has two encoders (FedHSSL)
    # Numbers of an embedding (Tables 6 to 9: 128 for Isolet and HAPT); in FinalNet of a column
    latent_dim: int = 128
    width: int = 128  # Units of each hidden layer
    layers: int = 2  # Layers with weights of an extractor; of FinalNet, of each block
    # Layers with weights of the discriminator, two at least where embeddings are concatenated:
    # its first one is at the parties
    head_layers: int = 2
    projected: int = 128  # Units of SimSiam's projector, and of its predictor's hidden layer
    predictor_width: int = 32  # Units of SimSiam's projector, and of its predictor's hidden layer
    activation: str = "relu"  # A key of `ACTIVATIONS`
    # Of parties whose columns are an image's pixels; others have perceptrons
    networks: str = "mlp"
    image_shape: str = ""  # See `parse_shapes`
    image_channels: int = 16  # Of ``cnn``
    mixed: bool = False  # Whether encoders and projectors round to bfloat16; see `apply`

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
