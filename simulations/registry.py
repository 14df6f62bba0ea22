"""The studies there are. A new one is a folder with ``study.py`` and ``page.toml``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

from flwr_vertical.errors import ConfigError
from flwr_vertical.optional import EXTRAS, how_to_install
from simulations.data import HERE
from simulations.page import read_words
from simulations.preset import Options
from simulations.study import Study


@dataclass(frozen=True)
class Entry:
    """A study that the command line offers, as ``page.toml`` of its folder says."""

    module: str  # Defines ``open_study(options) -> Study``; imported only when the study runs
    summary: str  # One line for ``list``
    # What ``--help`` shows: what is reproduced, from which data, how long it takes
    description: str
    # Whether replications are kept in the repository (`simulations.kept`): a run starts from
    # them, and ``--write`` writes them with the page
    keeps: bool
    # Options that choose among the replications, where these take hours: name and help
    choices: dict[str, str] = field(default_factory=dict)
    # Whether it takes a user's file in place of its data sets (``--file``)
    own_files: bool = False

    @classmethod
    def of(cls, name: str) -> "Entry":
        """Read the entry of a study."""
        words = read_words(HERE / name / "page.toml")
        keeps = words.get("keeps", False)
        return cls(f"simulations.{name}.study", keeps=keeps, **words["command"])

    def run(self, options: Options) -> bool:
        """Run the study (`Study.run`); `ConfigError` where a package that it needs is absent."""
        try:
            open_study: Callable[[Options], Study] = import_module(self.module).open_study
            return open_study(options).run()
        except ModuleNotFoundError as error:
            if (missing := error.name or "") not in EXTRAS:
                raise
            raise ConfigError(f"this study {how_to_install([missing])}") from error


NAMES = (
    "fknn", "vfem", "copula", "synthesis", "fedpsg", "false_vfl", "trees", "attacks", "audits",
)  # fmt: skip
STUDIES = {name: Entry.of(name) for name in NAMES}
