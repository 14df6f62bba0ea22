"""The app's own settings: keys of the run config beside those of runs and of strategies."""

from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.server import RunSettings
from flwr_vertical.settings import Settings, setting
from strategies import BUILTIN, register_all

TRANSPORTS = ("auto", "channel", "messages")


class AppSettings(Settings):
    """What the app is told in its run config, whatever its strategy."""

    strategy: str = setting("fknn", "A name, or ``module:Class`` of your own.")
    settings: str = setting(
        "",
        "Settings of a strategy that has no table of its own in the app, as a JSON object: "
        "``settings='{\"scale\": 2.0}'``; ``flwr-vertical run`` makes it of "
        "``my-strategy.scale=2.0``.",
    )
    run_name: str = setting(
        "",
        "Name of the run's folders (default: run- and its number). A name whose result is still "
        "there is refused, by the server and by each party.",
    )
    output: str = setting(
        "", "The server's folder of results (default: in ``~/flwr-vertical/server``)."
    )
    fitted: str = setting("", "An earlier run whose tables at the parties are used, not made anew.")
    checkpoint: bool = setting(False, "Keep what is needed to go on after a failure.")
    resume: bool = setting(False, "Go on with the run of that ``run-name`` that broke off.")
    live_page: bool = setting(
        False,
        "Serve a page that shows the run while it lasts, to the server's machine alone; "
        "``flwr-vertical watch`` shows the same in a terminal.",
    )
    transport: str = setting(
        "auto",
        "How rounds travel: by a live TLS stream from each node to the server, milliseconds a "
        "round; by Flower's own messages, seconds a round on real nodes; or by channels where "
        "they open.",
        choices=TRANSPORTS,
    )
    channel_bind: str = setting(
        "127.0.0.1:0",
        "Where the server listens for channels; ``0.0.0.0:7070`` if nodes are on other machines.",
    )
    channel_address: str = setting("", "The ``host:port`` at which nodes reach it.")
    channel_timeout: float = setting(60.0, "Seconds in which the channels must open.", at_least=0)
    labels: str = setting(
        "", "The server's label file; ``demo`` for those of the demonstration data."
    )
    label_column: str = setting("", "Its column, or the party's, if it has several.")
    weights_column: str = setting(
        "",
        "The column of the server's label file with what samples count, for strategies that "
        "take weights.",
    )
    offset_column: str = setting(
        "", "Its column with what is added to linear predictors, for the same strategies."
    )
    test_labels: str = setting(
        "",
        "The server's file of true labels of samples whose label is NaN: the result says how good "
        "predictions of them are; ``demo`` for those of the demonstration data.",
    )
    label_holder: str = setting("", "The party that holds the labels, if the server does not.")
    positive_label: str = setting(
        "",
        "Of labels of two classes the one that counts as 1, as it is written: ``yes``. Labels that "
        "are numbers need none.",
    )
    nodes: str = setting(
        "",
        "Of a simulation, the folder with its nodes' configs; ``flwr-vertical run --nodes FOLDER`` "
        "sets it. A node with a config of its own refuses it.",
    )
    nodes_start: str = setting(
        "", "The folder from which relative paths in these are taken; set by the same."
    )

    def check(self) -> None:
        """Raise if settings do not go together."""
        beside = self.weights_column or self.offset_column
        if beside and (not self.labels or self.labels == "demo"):
            raise ConfigError(
                f"column {beside!r} goes beside labels in a file of the server; set 'labels' to "
                "that file"
            )
        if self.label_column and not (self.labels or self.label_holder):
            raise ConfigError(
                f"label-column = {self.label_column!r}: nothing says whose it is; set 'labels' to "
                "a file of the server, or 'label-holder' to a party"
            )
        if (self.checkpoint or self.resume) and not self.run_name:
            raise ConfigError(
                "checkpoint=true and resume=true need a run-name: checkpoints are kept and found "
                "again under it, by the server and by every party"
            )


class DemoSettings(Settings):
    """The demonstration data, which simulated nodes without data of their own have."""

    dataset: str = setting(
        "breast-cancer",
        "A data set inside scikit-learn; ``blood-pressure`` is generated, 2,000 people.",
        choices=("breast-cancer", "diabetes", "wine", "blood-pressure"),
    )
    missing_cells: float = setting(0.1, "Share of cells to remove.", at_least=0, below=1)
    missing_blocks: float = setting(
        0.05, "Share of each party's rows to remove.", at_least=0, below=1
    )
    missing_labels: float = setting(
        0.0,
        "Share of the labels to remove, for methods that predict samples without one.",
        at_least=0,
        below=1,
    )


def app_config() -> dict[str, Any]:
    """Return all keys of the app's run config with their defaults, flat."""
    from flwr_vertical import load_strategy

    register_all()
    config = AppSettings.config_defaults() | RunSettings.config_defaults()
    config |= DemoSettings.config_defaults("demo.")
    for name in BUILTIN:
        config |= load_strategy(name).config_defaults(f"{name}.")
    return config
