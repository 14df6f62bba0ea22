"""The FedPSG-AR study: samples that a party lacks, beside the paper and beside floors."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.errors import DataError
from flwr_vertical.log import logger
from simulations.data import Sources, read_paper
from simulations.fedpsg import figures, tables, targets
from simulations.fedpsg.data import NEWS_NAME, Joint, JointStudy, load
from simulations.fedpsg.experiments import replicate
from simulations.fedpsg.preset import Preset
from simulations.page import Tables, listed


class FedPSGStudy(JointStudy):
    """Bank Marketing, German Credit, Letter Recognition and, where it is, News."""

    name = "fedpsg"
    preset_class = Preset
    preset: Preset
    replicate = staticmethod(replicate)

    def prepare(self) -> dict[str, Joint]:
        """Load the data sets; one that few users have may be absent."""
        sources = Sources.find(self.options.data)
        data, self._absent = {}, []
        for name in self.preset.datasets:
            try:
                data[name] = load(name, sources)
            except DataError as error:
                if name != NEWS_NAME:
                    raise
                logger.warning("%s is left out: %s", name, error)
                self._absent.append(name)
        return data

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return the paper's tables, and what they are compared with."""
        preset = self.preset
        papers = [read_paper("fedpsg", f"table{number}") for number in range(1, 8)]
        paper, goals = tables.paper_errors(papers), preset["targets"]
        every = tables.means(frame, "rows", [*tables.KEYS, "rows"], "rmse")
        # Bank has parts on some of its rows, and parts on all.
        parts = {part: _rows_of(every, preset[part]["rows"]) for part in ("cnum", "imputers")}
        whole = _rows_of(every, {})
        most = max(preset["cnum"]["largest"].values())
        return {
            "target_default": targets.default(frame, goals),
            "target_errors": targets.errors(frame, goals),
            "target_dependence": targets.dependence(frame, goals),
            "target_training": targets.training(frame, goals),
            "tables12": tables.table12(parts["cnum"], paper, most),
            **{
                name: tables.laid_out(parts["imputers"], paper, columns)
                for name, columns in tables.COLUMNS.items()
            },
            "tables67": tables.table67(whole, paper, preset["methods_compared"]["methods"]),
            "quality": tables.quality_table(frame),
            "attributes": tables.attribute_table(frame, 0.5),
            **{
                f"experiment3_{measure}": tables.by_classifier(
                    frame, "downstream", ["dataset", "ratio", "method"], measure
                )
                for measure in ("auc", "acc", "f1")
            },
            "aligned": tables.by_classifier(frame, "aligned", ["aligned", "method"], "auc"),
            "default_beside": tables.beside_default(
                frame, preset["default"], tables.BESIDE, goals["default"]
            ),
            **{
                f"default_{name}": tables.by_method(frame, preset["default"], metric)
                for name, metric in tables.DEFAULT.items()
            },
            "paired": tables.paired(frame),
            "rmse": every,
        }

    def figures(self, frame: pd.DataFrame, found: Tables) -> dict[str, Figure]:
        """Return errors by share, and AUC by number of aligned samples."""
        return {"errors": figures.errors_figure(frame), "aligned": figures.aligned_figure(frame)}

    def words(self, found: Tables) -> dict[str, Any]:
        """Return how many rows are drawn where not all are used."""
        drawn = {**self.preset["cnum"]["rows"], **self.preset["imputers"]["rows"]}
        default = self.preset["default"]["rows"]
        return {
            "few_rows": listed(drawn, "{1:,} rows of {0}") or "nothing",
            "default_rows": listed(default, "{1:,} of {0}", " and "),
        }

    def notes(self, words: Mapping[str, Any]) -> list[str]:
        """Return what a reader must know, and which data sets are not here."""
        absent = [
            f"Not here, so left out: {name}; `python -m simulations data` says how to get it."
            for name in self._absent
        ]
        return super().notes(words) + absent


def _rows_of(found: pd.DataFrame, rows: dict[str, int]) -> pd.DataFrame:
    """Return the means on so many rows of each data set; 0 = all."""
    chosen = [key[-1] == rows.get(key[0], 0) for key in found.index]
    return found[chosen].droplevel("rows")


open_study = FedPSGStudy
