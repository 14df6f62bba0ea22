"""Alignment: which rows the parties share, and who has which."""

from flwr_vertical.alignment.base import (
    ROWS,
    Aligner,
    Alignment,
    check_overlap,
    make_aligner,
    register_aligner,
)
from flwr_vertical.alignment.blind_rsa import BlindRsaAligner
from flwr_vertical.alignment.plain import PlainAligner
from flwr_vertical.alignment.private_id import PrivateIdAligner

__all__ = [
    "ROWS",
    "Aligner",
    "Alignment",
    "BlindRsaAligner",
    "PlainAligner",
    "PrivateIdAligner",
    "check_overlap",
    "make_aligner",
    "register_aligner",
]
