"""The party half of FALSE-VFL."""

from flwr_vertical import Party, Uses
from strategies.false_vfl.party_data import KeptPart, OwnColumns
from strategies.false_vfl.party_networks import Networks
from strategies.false_vfl.party_steps import PretrainingSteps, ScoringSteps


class FalseVFLParty(Party):
    """A party of FALSE-VFL."""

    kept = Uses(KeptPart)
    columns = Uses(OwnColumns)
    networks = Uses(Networks)
    pretraining = Uses(PretrainingSteps)
    scoring = Uses(ScoringSteps)
