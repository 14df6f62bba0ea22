import pytest
from runtimes import IN_MEMORY, Flower, stop_all


@pytest.fixture(scope="session")
def flower(tmp_path_factory):
    home = tmp_path_factory.mktemp("flower")
    (home / "config.toml").write_text(IN_MEMORY)
    yield Flower(home)
    stop_all(home)
