"""Linear discriminants of any number of classes, where parties lack rows."""

from strategies.lda.strategy import LDA, DiscriminantModel

__all__ = ["LDA", "DiscriminantModel"]
