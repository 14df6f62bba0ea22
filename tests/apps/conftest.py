import pytest
from runtimes import Flower, stop_all


@pytest.fixture(scope="session")
def flower(tmp_path_factory):
    home = tmp_path_factory.mktemp("flower")
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local-in-memory:"\n'
    )
    yield Flower(home)
    stop_all(home)
