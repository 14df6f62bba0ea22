"""What a run leaves behind: data, costs, models and progress.

`flwr_vertical.Result` is above: it saves, reports and grades what stands here.

- `ResultData`: metrics, history, tables, coefficients
- `Model`: a fitted model in a form that can be saved
- `Ledger`: rounds, messages, bytes, seconds, privacy spent
- `progress`, `Progress`: a bar in a terminal, log lines elsewhere
"""

from flwr_vertical.results.data import ResultData
from flwr_vertical.results.ledger import Ledger
from flwr_vertical.results.model import Model
from flwr_vertical.results.progress import Progress

__all__ = ["Ledger", "Model", "Progress", "ResultData"]
