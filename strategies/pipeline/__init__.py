"""Pipelines: several strategies one after the other, over one alignment."""

from strategies.pipeline.result import PipelineResult
from strategies.pipeline.stages import Evaluate
from strategies.pipeline.strategy import Pipeline

__all__ = ["Evaluate", "Pipeline", "PipelineResult"]
