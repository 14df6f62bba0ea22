"""Data sets for tests that cannot do without: where they are absent, the test is skipped."""

import pytest

from flwr_vertical.errors import DataError
from simulations.data import Sources


def sources_with(*files):
    """The folder of data sets, or a skip where it lacks one of the files."""
    sources = Sources.find()
    try:
        for file in files:
            sources.path(file)
    except DataError as error:
        pytest.skip(str(error))
    return sources
