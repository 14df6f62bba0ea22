"""A strategy in a package of somebody else's: one file, and the entry point that names it."""

import os
import pathlib

MODULE = '''
"""How many cells are known, times a factor: a method that this project knows nothing of."""

from typing import Annotated, ClassVar

import numpy as np

from flwr_vertical import Party, Strategy, Summands, setting, step
from flwr_vertical.protocol.arguments import Within
from flwr_vertical.protocol.declaration import FACTS, Protocol, Round


class KnownCellsParty(Party):
    @step
    def known(self, scale: Annotated[float, Within(0, 1e6)], columns: list[str]):
        frame = self.table.frame
        chosen = [name for name in frame if not columns or name in columns]
        cells = float(frame[chosen].notna().to_numpy().sum())
        return Summands({"cells": np.array([scale * cells])}, {"columns": float(len(chosen))})


class KnownCells(Strategy):
    """Count the known cells of all parties."""

    scale: float = setting(1.0, "What the count is multiplied by.", above=0)
    columns: tuple[str, ...] = setting((), "Which columns count; all by default.")
    unit: str | None = setting(None, "Unit of the count.", choices=("cells", "kilocells"))

    name: ClassVar[str] = "known-cells"
    party = KnownCellsParty
    protocol = Protocol(Round("known", "summed, how many cells are known", tells=FACTS))
    uses_labels = True
    disclosure = (("server", "how many cells are known, summed over parties"),)

    def run(self, federation, alignment, result, progress):
        total = federation.sum("known", {"scale": self.scale, "columns": list(self.columns)})
        result.metrics["cells"] = float(total["cells"][0])
        labels = federation.labels
        result.metrics["labels"] = 0.0 if labels is None else float(np.isfinite(labels).sum())
        for name, values in total.public.items():
            result.party_metrics[name] = {"columns": values["columns"]}
'''


def install(folder, modules, entry_points):
    """Lay a package into a folder as pip would, so that it is installed where the folder is
    found.
    """
    about = folder / "somebody_elses-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-elses\nVersion: 1.0\n")
    lines = [f"{name} = {target}\n" for name, target in entry_points.items()]
    (about / "entry_points.txt").write_text("[flwr_vertical.strategies]\n" + "".join(lines))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def install_known_cells(folder):
    """Install the strategy ``known-cells``."""
    return install(folder, {"somebody_elses": MODULE}, {"known-cells": "somebody_elses:KnownCells"})


def install_rounds(folder):
    """Install the tests' own strategy ``rounds``."""
    text = pathlib.Path(__file__).with_name("rounds.py").read_text()
    return install(folder, {"rounds": text}, {"rounds": "rounds:Rounds"})


def python_path(folder):
    """``PYTHONPATH`` with the folder before what is there."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
