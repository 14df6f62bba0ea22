"""Who learns what where a forest is grown."""

from strategies.trees.disclosure import DISCLOSURE

FOREST_DISCLOSURE = DISCLOSURE

PREDICT_DISCLOSURE = DISCLOSURE
