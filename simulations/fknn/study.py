"""The FKNN study: Du, Wang, Meng and Guo (2024) on the motor data."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from simulations.data import Sources, VerticalData, load_motor, read_paper
from simulations.fknn import figures, tables
from simulations.fknn.experiments import replicate
from simulations.fknn.preset import SCOPES, Preset
from simulations.fknn.regression import cross_validation, regression_table
from simulations.page import Tables, beside_paper
from simulations.study import Study

READINGS = {
    "strong": "(a) usual local imputers",
    "label": "(b) the same, allowed to use the label",
    "printed": "(c) as the paper's numbers suggest",
}
REGRESSION_NAMES = {"A": "figure11_regression", "A and B": "figure15_regression"}


class FKNNStudy(Study):
    """Section 4 of the paper, through the federated code with masked sums."""

    name = "fknn"
    preset_class = Preset
    shared: VerticalData
    replicate = staticmethod(replicate)

    def prepare(self) -> VerticalData:
        """Load the motor data."""
        papers = (tables.paper_table(read_paper("fknn", name)) for name in ("table3", "table4"))
        self._paper3, self._paper4 = papers
        return load_motor(Sources.find(self.options.data))

    @property
    def context(self) -> str:
        """What replications depend on beside their settings."""
        return f"{self.shared.fingerprint} {self.preset.version}"

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return the paper's tables, and what they are compared with."""
        self._seeds = {str(k): int(n) for k, n in frame.groupby("part")["seed"].nunique().items()}
        paper3, paper4 = self._paper3, self._paper4
        table3 = tables.means(frame, "table3")[list(tables.TABLE3)]
        found = {
            "table3": table3,
            "table3_beside": beside_paper(table3, paper3),
            "table3_relative": beside_paper(tables.relative(table3), tables.relative(paper3)),
        }
        for reading in READINGS:
            table = tables.table4(frame, reading)
            found[f"table4_{reading}"] = table
            found[f"table4_{reading}_beside"] = beside_paper(table, paper4)
        found["targets"] = tables.targets(frame, paper4, self.preset["table4"]["target"])
        found["table4_stability"] = tables.stability(frame, paper4)
        found["table4_settings"] = tables.variants(frame, paper4)
        found["table4_closeness"] = tables.closeness(frame, paper4)
        found["table4_rows"] = tables.table4(frame, "strong", "rows")
        found["table5"] = tables.lossless(frame, read_paper("fknn", "table5"))
        found["table5_turned"] = found["table5"].T
        for scope in SCOPES:
            found[REGRESSION_NAMES[scope]] = regression_table(frame, scope)
        return {**found, "section42_regression": cross_validation(self.shared)}

    def figures(self, frame: pd.DataFrame, found: Tables) -> dict[str, Figure]:
        """Return Figures 4 to 18."""
        by_reading = {text: found[f"table4_{name}"] for name, text in READINGS.items()}
        return {
            "figure4_imputed": figures.imputed_figure(self.shared, self.preset),
            "figures5-7_runs": figures.runs_figure(frame, self._paper3),
            "figure8_rmse": figures.table4_figure(by_reading, self._paper4),
            "figure11_bars": figures.bars_figure(found["figure11_regression"]),
            "figures12-14_boxes": figures.box_figure(frame, "A"),
            "figure15_bars": figures.bars_figure(found["figure15_regression"]),
            "figures16-18_boxes": figures.box_figure(frame, "A and B"),
        }

    def words(self, found: Tables) -> dict[str, Any]:
        """Return how many seeds were run of each part."""
        return {"seeds": self._seeds}


open_study = FKNNStudy
