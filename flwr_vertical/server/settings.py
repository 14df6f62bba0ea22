"""The settings of a run, whatever its strategy."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypedDict

from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol import private_sum
from flwr_vertical.settings import Settings, nearest, setting
from flwr_vertical.tables.ids import check_normalisation

ROWS = ("union", "intersection", "labelled")


class RunSettings(Settings):
    """How a run goes, whatever its strategy; `ConfigError` if a setting cannot be used."""

    aggregation: str = setting(
        "masked", "Mode of the private sum.", choices=tuple(private_sum.MODES)
    )
    alignment: Any = setting(
        None,
        "How samples are aligned: ``private-id``, ``kkrt`` (two parties, faster), ``blind-rsa``, "
        "``plain``, ``module:Class``, or in Python an `Aligner` (default: the strategy's).",
        flower_default="private-id",
        plain=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    align_rows: str = setting("union", "Which samples take part.", choices=ROWS)
    normalise_ids: tuple[str, ...] = setting(
        (),
        "``strip``, ``casefold``, ``nfc``, or some of them with commas: how text IDs are made "
        "comparable.",
        parse=lambda value: tuple(check_normalisation(value)),
    )
    seed: int = setting(
        0, "Seed of simulation randomness; never of masks or privacy noise.", at_least=0
    )
    fraction_bits: int = setting(
        32, "Masked sums are rounded to multiples of two to the minus this."
    )
    parties: tuple[str, ...] | None = setting(
        None, "Names of the parties that must take part; by default whoever is connected."
    )
    min_nodes: int | None = setting(
        None,
        "Wait until so many nodes are connected (default: as many as parties, and the arbiter "
        "where there is one; without parties the first node is enough, so state one of the two).",
        at_least=1,
        flower_default=0,
        parse=lambda value: None if value == 0 and value is not False else value,
    )
    patience: float = setting(
        60.0,
        "Seconds to wait for nodes to connect and to answer the greeting, or to come back; with a "
        "journal a silent one is then asked again.",
        at_least=0,
        flower_default=120.0,
    )
    timeout: float = setting(3600.0, "Seconds to wait for the replies of one round.", above=0)
    retries: int = setting(
        2, "How often a message is sent again after a failure of transport.", at_least=0
    )
    progress: bool | None = setting(
        None,
        "Show progress (default: yes; a bar on a terminal, log lines elsewhere).",
        on_flower=False,
    )
    label_secret: Path | None = setting(
        None,
        "A file with a secret of the server's, made if it is not there. By it the parties' privacy "
        "ledgers recognise labels of earlier runs, without seeing them (default: labels count as "
        "new in each run).",
        parse=lambda value: None if value is None else Path(value),
        on_flower=False,
    )
    ready_by: float | None = setting(
        None,
        "Moment of `time.monotonic` at which the patience with nodes that have not answered yet "
        "ends (default: ``patience`` seconds after the opening began).",
        on_flower=False,
    )
    node_names: Path | None = setting(
        None,
        "A file in which the server keeps which node was which party, so that it can name one that "
        "is silent in a later run.",
        parse=lambda value: None if value is None else Path(value),
        on_flower=False,
    )
    checkpoint: Path | None = setting(
        None,
        "A folder for the journal of this run. Nodes keep checkpoints then, under the run-name of "
        "the run config. A node that is lost is waited for; a run that fails can be resumed. "
        "After a run that succeeds nothing of it is left.",
        parse=lambda value: None if value is None else Path(value),
        on_flower=False,
    )
    checkpoint_every: int | None = setting(
        None,
        "Steps of a training loop between two snapshots (default: every round is kept). Needs "
        "checkpoint.",
        at_least=1,
        flower_default=0,
        parse=lambda value: None if value == 0 and value is not False else value,
    )
    resume: bool = setting(
        False,
        "Go on with the run that broke off, whose journal is in that folder.",
        on_flower=False,
    )

    @classmethod
    def of(cls, run: "RunSettings | None", options: Mapping[str, object]) -> "RunSettings":
        """Return `run`, or the default settings, with other values of some of them.

        `ConfigError` if a setting cannot be used, `TypeError` if there is no such setting.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(f"a run has no setting {name!r}{nearest(name, known)}")
        values: dict[str, Any] = dict(options)
        return cls(**values) if run is None else replace(run, **values)

    def check(self) -> None:
        """Raise if settings do not go together."""
        private_sum.limit(self.aggregation, 1, self.fraction_bits)  # is there such a number?
        if self.resume and self.checkpoint is None:
            raise ConfigError("resume=True needs checkpoint: the folder of the run to go on with")


class SharedOptions(TypedDict, total=False):
    """Keyword arguments of `simulate`, `Strategy.start` and `Federation`, for type checkers."""

    alignment: Any
    align_rows: str
    normalise_ids: str | Sequence[str]
    fraction_bits: int
    min_nodes: int | None
    patience: float
    timeout: float
    retries: int
    progress: bool | None
    checkpoint: str | Path | None
    checkpoint_every: int | None
    resume: bool


class RunOptions(SharedOptions, total=False):
    """Those of the last two, which are the fields of `RunSettings`; a test compares them."""

    aggregation: str
    seed: int
    parties: Sequence[str] | None
    label_secret: str | Path | None
    ready_by: float | None
    node_names: str | Path | None
