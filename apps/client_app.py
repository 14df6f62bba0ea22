"""The Flower ``ClientApp``: serves the party half of whichever strategy the run config names."""

from functools import lru_cache
from typing import Any

from flwr.app import Context

from apps.settings import AppSettings
from apps.storage import AppStorage
from flwr_vertical import Arbiter, Party, make_strategy, party_app
from strategies import register_all


def pick(context: Context) -> tuple[type[Party], type[Arbiter]]:
    """Return the party and arbiter halves of the strategy named in the run config."""
    return _halves(tuple(sorted(context.run_config.items())))


@lru_cache(maxsize=8)
def _halves(items: tuple[tuple[str, Any], ...]) -> tuple[type[Party], type[Arbiter]]:
    """Check settings and packages on this node, too, once a run."""
    register_all()
    config = dict(items)
    strategy = make_strategy(AppSettings.from_config(config).strategy, config)
    strategy.check_requirements()
    return strategy.party, strategy.arbiter


app = party_app(pick, storage=AppStorage())
