"""Alignment: which rows the parties share, and who has which."""

from flwr_vertical.alignment.base import ROWS, Aligner, Alignment, check_overlap
from flwr_vertical.alignment.blind_rsa import BlindRsaAligner
from flwr_vertical.alignment.kkrt import KkrtAligner
from flwr_vertical.alignment.plain import PlainAligner
from flwr_vertical.alignment.private_id import PrivateIdAligner
from flwr_vertical.alignment.registry import (
    aligner_class,
    alignment_name,
    alignment_steps,
    load_aligner,
    make_aligner,
    register_aligner,
    whole_protocol,
)
from flwr_vertical.alignment.steps import AlignmentSteps

__all__ = [
    "ROWS",
    "Aligner",
    "Alignment",
    "AlignmentSteps",
    "BlindRsaAligner",
    "KkrtAligner",
    "PlainAligner",
    "PrivateIdAligner",
    "aligner_class",
    "alignment_name",
    "alignment_steps",
    "check_overlap",
    "load_aligner",
    "make_aligner",
    "register_aligner",
    "whole_protocol",
]
