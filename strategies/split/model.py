"""What a run leaves: an extractor at each party, and the server's discriminator."""

from dataclasses import dataclass

from strategies.neural.model import NeuralModel, NeuralPart
from strategies.neural.networks import load_arrays
from strategies.split.methods import SplitNetworks
from strategies.split.networks import Extractor, Head, make_head


@dataclass
class SplitPart(NeuralPart):
    """A party's own extractor, and how its columns become what it sees."""

    strategy = "vanilla-vfl"  # or any other of these methods: what reads it again

    n_parties: int  # Of the fit

    def extractor(self, name: str) -> Extractor:
        """Make the extractor again, of the party of that name."""
        networks = SplitNetworks.from_text(self.networks)
        made = Extractor(len(self.sources), networks, self.n_parties, 0, name)
        return load_arrays(made, self.weights, self.precision)


@dataclass
class SplitModel(NeuralModel):
    """The server's discriminator; it has no party's network."""

    strategy = "vanilla-vfl"  # or any other of these methods: what reads it again

    def discriminator(self) -> Head:
        """Make the discriminator again."""
        networks = SplitNetworks.from_text(self.networks)
        made = make_head(networks, len(self.classes) or None, len(self.parties), 0)
        return load_arrays(made, self.head, self.precision)
