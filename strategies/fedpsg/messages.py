"""What the messages of FedPSG-AR take, where arguments have numbers or names in their names."""

from typing import Annotated, NotRequired, TypeAlias, TypedDict

from flwr_vertical.arrays import Array, Floats32, Indices, Integers, Unsigned16
from flwr_vertical.products.pair_keys import PairKeyFields
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Is, Shape, Within

MOST_CLASSES = 50
"""Columns of labels that networks are given at most."""

EMBEDDING, NEURONS = 32, 128
"""Numbers that a party's sample is mapped to where generators are joint; inputs of the top network
for each sample."""

PAD_BYTES = 32

Pad: TypeAlias = Annotated[bytes, Within(PAD_BYTES, PAD_BYTES)]
Rule: TypeAlias = Annotated[str, Is("rule")]
Rows: TypeAlias = Annotated[Indices, Shape(None), Within(0, "n_samples - 1"), DISTINCT]
OwnRows: TypeAlias = Annotated[Rows, OWN]
Seed: TypeAlias = Annotated[int, Within(0, 2**62 - 1)]

# Draws of a training step may have a row twice; the setting says how many there are.
Batch: TypeAlias = Annotated[Indices, Shape("batch"), Within(0, "n_samples - 1")]
Labels: TypeAlias = Annotated[Floats32, Shape("batch", None), Within(0, 1)]
Embedded: TypeAlias = Annotated[Integers, Shape("batch", EMBEDDING)]
ByNeuron: TypeAlias = Annotated[Floats32, Shape("batch", NEURONS)]
BySample: TypeAlias = Annotated[Floats32, Shape("batch")]


class BackFields(TypedDict):
    """What the server answers a forward pass: `strategies.fedpsg.gan.halves.Back`; labels."""

    labels: NotRequired[Labels]
    by_discriminator: ByNeuron
    by_generator: ByNeuron
    by_loss: BySample


_PerPair = TypedDict(
    "_PerPair",
    {"rows:*": OwnRows, "weights:*": Annotated[Unsigned16, OWN, Shape(None, None)]},
    total=False,
)
_PerSource = TypedDict("_PerSource", {"sealed:*": Annotated[bytes, OWN]}, total=False)


class RuleFields(_PerPair, PairKeyFields):
    """By number of a pair of attributes, samples to be generated, and rules; the parties' keys."""


class GeneratedFields(_PerSource, RuleFields, total=False):
    """Also what sources sealed, and what a party generates by itself."""

    locally: Annotated[list[int], OWN]
    within: Annotated[int, OWN, Is("n_associated")]


class AloneFields(GeneratedFields, total=False):
    """Also settings of what a party learns from its own table alone."""

    trees: Annotated[int, Is("trees if imputer == 'forest' else 0")]
    iterations: Annotated[int, Is("iterations")]
    batch: Annotated[int, Is("batch")]
    learning_rate: Annotated[float, Is("learning_rate")]
    alpha: Annotated[float, Is("alpha")]
    hidden: Annotated[float, Is("hidden")]


class NetworkFields(GeneratedFields):
    """Also the group seed, and the fields of `strategies.fedpsg.gan.halves.GanShape`."""

    owner: NotRequired[str]
    sealed: NotRequired[Annotated[bytes, OWN]]
    kind: Annotated[str, Is("imputer")]
    joint: Annotated[bool, Is("generator == 'joint'")]
    n_labels: Annotated[int, Within(0, f"{MOST_CLASSES} if imputer == 'cgain' else 0")]
    seed: Annotated[int, Within(0, 2**31 - 1)]
    learning_rate: Annotated[float, Is("learning_rate")]
    alpha: Annotated[float, Is("alpha")]
    hidden: Annotated[float, Is("hidden")]


TermFields = TypedDict(
    "TermFields",
    {"rows:*": Rows, "weights:*": Annotated[Array, OWN, Shape(None, None)]},
    total=False,
)
"""By number of a job, its samples, and weights of the own columns."""

FillFields = TypedDict(
    "FillFields",
    {
        "rows:*": OwnRows,
        "columns:*": Annotated[Indices, OWN, Shape(None)],
        "offset:*": Annotated[Array, OWN, Shape(None)],
        "root:*": Annotated[Array, OWN, Shape(None, None)],
        "term:*": Annotated[Integers, OWN, Shape(None, None)],
    },
    total=False,
)
"""By number of a job, its samples, the attributes that are missing there, and their predictions."""
