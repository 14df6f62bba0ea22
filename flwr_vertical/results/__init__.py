"""What a run leaves behind: its result, its ledger, its report and its progress.

Knows neither Flower nor the rest of the package but errors and privacy, so studies
and notebooks can use it alone.

- `Result`: metrics, history, tables, coefficients; `save`, `load`, `report`
- `Model`: a fitted model in a form that can be saved
- `Ledger`: rounds, messages, bytes, seconds, privacy spent
- `render_page`, `Section`, `dataframe_html`: self-contained HTML pages, for reports and studies
- `quality_score`, `margin_quality`, `correlation_quality`, `downstream_quality`: how good
  synthetic tables are
- `grade`, `Grade`: what attacks on synthetic tables find, and how useful these are
- `progress`, `Progress`: a bar in a terminal, log lines elsewhere
- `atomic_path`, `write_text_atomically`, `write_bytes_atomically`: files whole or not there
"""

from flwr_vertical.results.atomic import atomic_path, write_bytes_atomically, write_text_atomically
from flwr_vertical.results.graded import Grade
from flwr_vertical.results.grading import grade
from flwr_vertical.results.ledger import Ledger
from flwr_vertical.results.model import Model
from flwr_vertical.results.page import (
    Section,
    bullet_list,
    dataframe_html,
    details_html,
    format_value,
    paragraph,
    render_page,
    side_by_side,
    subheading,
)
from flwr_vertical.results.progress import Progress, progress
from flwr_vertical.results.quality import (
    correlation_quality,
    downstream_fit,
    downstream_quality,
    margin_quality,
)
from flwr_vertical.results.quality_score import QualityScore, quality_score
from flwr_vertical.results.result import Result
from flwr_vertical.results.units import human_bytes, human_seconds

__all__ = [
    "Grade",
    "Ledger",
    "Model",
    "Progress",
    "QualityScore",
    "Result",
    "Section",
    "atomic_path",
    "bullet_list",
    "correlation_quality",
    "dataframe_html",
    "details_html",
    "downstream_fit",
    "downstream_quality",
    "format_value",
    "grade",
    "human_bytes",
    "human_seconds",
    "margin_quality",
    "paragraph",
    "progress",
    "quality_score",
    "render_page",
    "side_by_side",
    "subheading",
    "write_bytes_atomically",
    "write_text_atomically",
]
