"""Cross-validation: how well a strategy predicts labels that it was not given."""

from flwr_vertical.validation.cross_validation import CrossValidation, cross_validate

__all__ = ["CrossValidation", "cross_validate"]
