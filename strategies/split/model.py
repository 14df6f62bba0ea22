"""What a run leaves: an extractor at each party, and the server's discriminator."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr_vertical import Model
from flwr_vertical.arrays import AnyArray
from strategies.common.deep_part import DeepPart
from strategies.false_vfl.model import load_arrays, precision_of, to_arrays
from strategies.split.networks import Extractor, Head, SplitNetworks, make_head

if TYPE_CHECKING:
    from strategies.false_vfl.scales import ColumnScales

Weights = dict[str, AnyArray]


@dataclass
class SplitPart(DeepPart):
    """A party's own extractor, and how its columns become what it sees."""

    strategy = "vanilla-vfl"  # or any other of these methods: what reads it again

    model: str  # See `DeepPart`
    networks: str  # `SplitNetworks` as text
    n_parties: int  # Of the fit
    precision: str  # Of the fit
    sources: list[str]  # See `DeepPart`
    levels: list[str]  # See `DeepPart`
    known_levels: dict[str, list[str]]  # See `DeepPart`
    other: dict[str, list[str]]  # See `DeepPart`
    centre: AnyArray  # See `DeepPart`
    unit: AnyArray  # See `DeepPart`
    weights: Weights  # Of `Extractor`

    @classmethod
    def of(
        cls,
        model: str,
        networks: SplitNetworks,
        n_parties: int,
        extractor: Extractor,
        scales: "ColumnScales",
    ) -> "SplitPart":
        """Write extractor and scales down."""
        return cls(
            model,
            networks.to_text(),
            n_parties,
            precision_of(extractor),
            scales.sources,
            scales.levels,
            scales.known_levels,
            scales.other,
            scales.centre,
            scales.unit,
            to_arrays(extractor),
        )

    def extractor(self, name: str) -> Extractor:
        """Make the extractor again, of the party of that name."""
        networks = SplitNetworks.from_text(self.networks)
        made = Extractor(len(self.sources), networks, self.n_parties, 0, name)
        return load_arrays(made, self.weights, self.precision)


@dataclass
class SplitModel(Model):
    """The server's discriminator; it has no party's network."""

    strategy = "vanilla-vfl"  # or any other of these methods: what reads it again

    name: str  # Names the model at the parties
    networks: str  # `SplitNetworks` as text
    precision: str  # Of the fit
    parties: list[str]  # Parties of the fit
    classes: list[float]  # Labels of the classes; empty for a regression
    centre: float  # What standardised labels are in units of
    unit: float  # What standardised labels are in units of
    head: Weights  # Weights of the server's network
    prediction_rows: int  # Samples predicted by one round

    def discriminator(self) -> Head:
        """Make the discriminator again."""
        networks = SplitNetworks.from_text(self.networks)
        made = make_head(networks, len(self.classes) or None, len(self.parties), 0)
        return load_arrays(made, self.head, self.precision)
