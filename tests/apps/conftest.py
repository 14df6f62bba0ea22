import pytest
from runtimes import IN_MEMORY, Flower, stop_all
from third_party import install_known_cells


@pytest.fixture(scope="session")
def flower(tmp_path_factory):
    home = tmp_path_factory.mktemp("flower")
    (home / "config.toml").write_text(IN_MEMORY)
    flower = Flower(home)
    # A package of somebody else: processes that are there already would not find it later.
    flower.env["PYTHONPATH"] = str(install_known_cells(home / "elsewhere"))
    yield flower
    stop_all(home)
