"""The logger of the library, and of all that belongs to it."""

import logging

logger = logging.getLogger("flwr_vertical")
