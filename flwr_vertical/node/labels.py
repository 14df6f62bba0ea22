"""The step by which a party hands its label column to the server."""

from typing import Any

import numpy as np

from flwr_vertical.errors import ConfigError, DataError, PolicyError
from flwr_vertical.log import logger
from flwr_vertical.node.steps import StepGroup, step
from flwr_vertical.policy.record import key_of, text_of
from flwr_vertical.tables.readers import label_numbers


class LabelColumn(StepGroup):
    """Hands over the labels: the one column that the node's policy names, if a run asks for it."""

    @property
    def column(self) -> str:
        """The label column, if the run config names this party as the labels' holder, else ""."""
        config = self.party.services.run_config
        if config.get("label-holder") != self.name:
            return ""
        return str(config.get("label-column", ""))

    @step
    def labels(self) -> dict[str, Any]:
        """Hand the labels to the server, if the run config names this party as their holder."""
        column = self.column
        if not column:
            raise ConfigError(
                f"party {self.name!r} was asked for labels, but the run config does not name it as "
                "'label-holder' together with a 'label-column'"
            )
        allowed = self.party.policy.labels
        if column != allowed:
            raise PolicyError(
                f"party {self.name!r}",
                key_of("labels"),
                f"its column {column!r} as labels",
                text_of(allowed),
                f"its owner would have to set {key_of('labels')}={column!r}",
            )
        frame = self.party.services.load_table().frame
        if column not in frame.columns:
            raise DataError(
                f"party {self.name!r} has no column {column!r} for the labels; "
                f"its columns are {list(frame.columns)}"
            )
        values = label_numbers(
            frame[column],
            str(self.party.services.run_config.get("positive-label", "")),
            f"party {self.name!r}: the labels in column {column!r}",
            logger,  # a class is a value of the table, and an error goes to the server
        ).to_numpy()
        # Strategies may align further rows before those of the table (fitted donors).
        positions = self.party.positions[-len(values) :]
        # In the aligned order, as the order of the own rows may tell about their IDs; and none
        # of rows that are left out.
        order = np.argsort(positions)[np.count_nonzero(positions < 0) :]
        told: dict[str, Any] = {"labels": values[order], "positions": positions[order]}
        if self.party.remembers:
            # By it the server recognises the same labels in another run, whatever their order.
            told["version"] = self.party.privacy_ledger.version_of(values)
        return told
