"""``flwr-vertical align``: try an alignment on files of this machine."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.alignment.base import Alignment
from flwr_vertical.errors import ConfigError
from flwr_vertical.node import Party, step
from flwr_vertical.policy.record import ANY, Policy
from flwr_vertical.protocol.declaration import FACTS, Protocol, Round
from flwr_vertical.result import Result
from flwr_vertical.results import Progress
from flwr_vertical.server import Federation
from flwr_vertical.simulation import simulate
from flwr_vertical.strategy import Strategy
from flwr_vertical.tables import read_table

from .output import add_json, print_json


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "align",
        help="try an alignment on files of this machine and show who has which samples",
        description="Each file is a party, named after it. Prints how many samples there are for "
        "every pattern of who has them; no ID is shown.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="CSV or Parquet, two or more")
    parser.add_argument("--id-column", help="column of sample IDs, several with commas")
    parser.add_argument(
        "--alignment", default="private-id", choices=("private-id", "kkrt", "blind-rsa", "plain")
    )
    parser.add_argument("--rows", default="union", choices=("union", "intersection"))
    parser.add_argument("--normalise", default="", help="of strip,casefold,nfc; default none")
    add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Align the files and print the counts."""
    result = align_files(
        options.files,
        id_column=options.id_column,
        alignment=options.alignment,
        rows=options.rows,
        normalise=options.normalise,
    )
    patterns = pattern_table(result.model)
    if options.json:
        held = {name: [value == "yes" for value in patterns[name]] for name in result.parties}
        print_json({"patterns": patterns.assign(**held), "metrics": result.metrics,
                    "samples-of-parties": result.party_metrics})  # fmt: skip
    else:
        print(patterns.to_string(index=False))
        print(f"\n{result}")
    return 0


class _AlignedParty(Party):
    @step
    def rows(self) -> dict[str, Any]:
        """Take delivery of the positions and count the own rows that take part."""
        return {"kept": int(np.sum(np.asarray(self.positions) >= 0))}


class AlignOnly(Strategy):
    """Aligns the parties' samples and does nothing else; the mask is the result."""

    name = "align"
    party = _AlignedParty
    protocol = Protocol(Round("rows", "how many own rows take part", tells=FACTS))

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Count who has which samples."""
        replies = federation.call("rows")
        result.model = alignment
        result.party_metrics = {
            name: {"samples": float(reply["kept"])} for name, reply in replies.items()
        }
        present = ~alignment.mask
        result.metrics["samples"] = float(alignment.n_samples)
        result.metrics["samples_of_all"] = float(present.all(axis=1).sum())


def align_files(
    paths: Sequence[str],
    *,
    id_column: str | None = None,
    alignment: str = "private-id",
    rows: str = "union",
    normalise: str = "",
) -> Result:
    """Align the tables in some files, each as a party named after its file."""
    if len(paths) < 2:
        raise ConfigError(f"alignment needs at least two files, got {len(paths)}")
    names = [Path(path).name.split(".")[0] for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError(f"each file names a party, so the names must differ; got {names}")
    tables = {
        name: read_table(path, id_column=id_column, party=name)
        for name, path in zip(names, paths, strict=True)
    }
    # All files are here, whatever their sizes: nobody guesses anybody's IDs.
    own = f"{AlignOnly.__module__}:{AlignOnly.__qualname__}"
    agreed = Policy(
        alignments=(ANY,),
        modules=(own, alignment) if ":" in alignment else (own,),
        foreign_ids=2.0 * sum(table.n_samples for table in tables.values()) + 40,  # or bins of them
    )
    result = simulate(
        AlignOnly(),
        tables,
        alignment=alignment,
        align_rows=rows,
        normalise_ids=normalise,
        policy=agreed,
    )
    result.needed_keys = {}  # of this trial: a federation runs another strategy
    return result


def pattern_table(alignment: Alignment) -> pd.DataFrame:
    """Count the samples of every pattern of who has them, most frequent first."""
    frame = pd.DataFrame(~alignment.mask, columns=alignment.parties)
    counts = frame.value_counts().rename("samples").reset_index()
    return counts.replace({True: "yes", False: "-"})
