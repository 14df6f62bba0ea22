"""The FedPSG-AR study: samples that a party lacks, beside the paper and beside floors."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.errors import DataError
from flwr_vertical.log import logger
from simulations.data import Sources, read_paper
from simulations.fedpsg import figures, page, tables, targets
from simulations.fedpsg.data import NEWS_NAME, Joint, JointStudy, load
from simulations.fedpsg.experiments import replicate
from simulations.fedpsg.preset import Preset
from simulations.page import Part, Tables


class FedPSGStudy(JointStudy):
    """Bank Marketing, German Credit, Letter Recognition and, where it is, News."""

    name = "fedpsg"
    title = "FedPSG-AR beside the paper and beside floors"
    question = (
        "Liu, He, Tan, Chen, Qian, Wei and Zhu, participants sample generation based on "
        "association rules and data imputation in vertical federated learning (FedPSG-AR): how "
        "near do the samples that party B lacks come to the true ones, by the method, its variants "
        "and local generators? Do rows look like real ones? And do classifiers that are trained on "
        "completed tables predict better than those trained on the aligned rows alone?"
    )
    writes = "docs/fedpsg-study.md"
    goals: ClassVar[Mapping[str, str]] = {
        "target_default": "The error of the default, `FedPSGAR()`, is at most 0.05 standard "
        "deviations above that of boosting on A's attributes (limits in brackets), and below the "
        "paper's forms.",
        "target_errors": "RMSE of the best variant is near the conditional mean's (limits in "
        "brackets), and it and the paper's own variant are below imputation by B alone, rules "
        "left out, and every local generator.",
        "target_dependence": "RMSE alone rewards the mean. So drawn rows have a correlation "
        "distance of at most half of the conditional mean's, and a quality no worse than the "
        "copula methods' (limits in brackets).",
        "target_training": "Completed tables train better classifiers than aligned rows alone "
        "where few samples are aligned, and lose little AUC where many are.",
    }
    keeps = True
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
                frame, preset["default"], page.BESIDE, goals["default"]
            ),
            **{
                f"default_{name}": tables.by_method(frame, preset["default"], metric)
                for name, metric in page.DEFAULT.items()
            },
            "paired": tables.paired(frame),
            "rmse": every,
        }

    def figures(self, frame: pd.DataFrame, found: Tables) -> dict[str, Figure]:
        """Return errors by share, and AUC by number of aligned samples."""
        return {"errors": figures.errors_figure(frame), "aligned": figures.aligned_figure(frame)}

    def notes(self) -> list[str]:
        """Return what a reader must know."""
        return page.notes(self.preset, self._absent)

    def parts(self, found: Tables) -> Sequence[Part]:
        """Return the sections of the page."""
        return page.parts(self.preset)


def _rows_of(found: pd.DataFrame, rows: dict[str, int]) -> pd.DataFrame:
    """Return the means on so many rows of each data set; 0 = all."""
    chosen = [key[-1] == rows.get(key[0], 0) for key in found.index]
    return found[chosen].droplevel("rows")


open_study = FedPSGStudy
