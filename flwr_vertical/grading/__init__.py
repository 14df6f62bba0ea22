"""Grades of synthetic tables: what attacks on them find, and how useful they are.

- `grade`, `Grade`: attacks and quality as letters, words and tables
- `quality_score`, `margin_quality`, `correlation_quality`, `downstream_quality`: utility alone
- `flwr_vertical.grading.risks`: the attacks; `flwr_vertical.grading.audit`: a lower bound of
  epsilon from many runs
"""

from flwr_vertical.grading.attacks import grade
from flwr_vertical.grading.quality import (
    correlation_quality,
    downstream_fit,
    downstream_quality,
    margin_quality,
)
from flwr_vertical.grading.quality_score import QualityScore, quality_score
from flwr_vertical.grading.record import Grade

__all__ = [
    "Grade",
    "QualityScore",
    "correlation_quality",
    "downstream_fit",
    "downstream_quality",
    "grade",
    "margin_quality",
    "quality_score",
]
