import pytest
from data_sets import sources_with

from simulations.data import load_motor


@pytest.fixture(scope="session")
def motor():
    """The motor tables of guest and host, or a skip where they are absent."""
    files = (f"motor/motor_hetero_{name}.csv" for name in ("guest", "host"))
    tables = load_motor(sources_with(*files)).parties
    return tables["guest"], tables["host"]
