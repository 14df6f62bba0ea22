"""The Flower ``ClientApp``: serves the party half of whichever strategy the run config names."""

from flwr.app import Context

from apps.storage import AppStorage
from flwr_vertical import Arbiter, Party, load_strategy, party_app
from strategies import register_all


def pick(context: Context) -> tuple[type[Party], type[Arbiter]]:
    """Return the party and arbiter halves of the strategy named in the run config."""
    register_all()
    strategy = load_strategy(str(context.run_config["strategy"]))
    return strategy.party, strategy.arbiter


app = party_app(pick, storage=AppStorage())
