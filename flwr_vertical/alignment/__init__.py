"""Alignment: which rows the parties share, and who has which."""

from flwr_vertical.alignment.base import Aligner, Alignment, make_aligner, register_aligner
from flwr_vertical.alignment.plain import PlainAligner

__all__ = ["Aligner", "Alignment", "PlainAligner", "make_aligner", "register_aligner"]
