"""What a party keeps of a deep model, as far as its columns are concerned."""

from flwr_vertical import Model
from flwr_vertical.arrays import AnyArray
from flwr_vertical.tables import Table
from strategies.linear.prediction.party_model import fitted_features


class DeepPart(Model):
    """A party's part of a deep model; subclass it as a dataclass with these fields and others."""

    model: str
    sources: list[str]
    levels: list[str]
    known_levels: dict[str, list[str]]
    other: dict[str, list[str]]
    centre: AnyArray
    unit: AnyArray

    def features(self, table: Table, party: str) -> AnyArray:
        """Return the columns of a table as the networks see them, NaN where a cell is missing."""
        of = self.sources, self.levels, self.known_levels, self.other
        own = fitted_features(table, *of, party)
        scaled: AnyArray = (own - self.centre) / self.unit
        return scaled
