"""A strategy that leaks in every way that the attacks look for, one at a time."""

from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd

from flwr_vertical import Party, Strategy, Summands, setting, step
from flwr_vertical.node.steps import steps_of
from flwr_vertical.protocol.arguments import OWN
from flwr_vertical.protocol.declaration import FACTS, Either, Protocol, Repeat, Round

LEAKS = (
    "nothing",
    "fits",
    "coefficients",
    "column",
    "distances",
    "scaled distances",
    "pad",
    "labels",
)
_SCALE = 2.0**30


class LeakyParty(Party):
    @step
    def fit(self, turn: int, beta: Annotated[Any, OWN] = None):
        """Sum the fits, opened by sample: what the first edition of the linear methods did."""
        if beta is None:  # the party's own
            beta = np.random.default_rng([turn, *self.name.encode()]).normal(size=2)
        total = self.to_aligned(self._numbers() @ beta, 0.0)
        return Summands({"fit": total})

    @step
    def column(self):
        return {"first": self._numbers()[:, 0] * 3.0 + 1.0}

    @step
    def distances(self, scaled: bool):
        x = self._numbers()
        square = ((x[:, None] - x[None]) ** 2).sum(axis=-1)
        if scaled:  # one scale and shift for each row, the same at all parties
            rng = np.random.default_rng(3)
            scale, shift = rng.uniform(1, 9, (2, len(x), 1))
            square = scale * (square + shift)
        return Summands({"distance": square})

    @step
    def masked(self, content: int):
        """Mask another content by the same stream in each message."""
        mask = np.random.default_rng(5).integers(0, 2**64, self.n_samples, dtype=np.uint64)
        value = np.zeros(self.n_samples) if content == 0 else self._numbers()[:, 0]
        return {"masked": mask + np.rint(value * _SCALE).astype(np.int64).view(np.uint64)}

    @step
    def listen(self, **values: Annotated[Any, OWN]):
        return {}

    def _numbers(self):
        return self.table.frame.to_numpy(dtype=float)


class Leaky(Strategy):
    """Leak in one way."""

    leak: str = setting("nothing", "What leaks.", choices=LEAKS)
    rounds: int = setting(8, "How many sums are opened.", at_least=1)

    name: ClassVar[str] = "leaky"
    party = LeakyParty
    # It says that all of it is public.
    protocol = Protocol(
        Repeat(
            Either(*(Round(name, tells=FACTS) for name in sorted(steps_of(LeakyParty)))),
            at_most=1000,
        )
    )
    disclosure = (("server", "too much"),)

    def run(self, federation, alignment, result, progress):
        rng = np.random.default_rng(1)
        for turn in range(self.rounds):
            if self.leak == "fits":
                federation.sum("fit", {"turn": turn})
            elif self.leak == "coefficients":
                beta = {name: {"beta": rng.normal(size=2)} for name in federation.parties}
                federation.sum("fit", {"turn": turn}, per_party=beta)
            elif self.leak == "pad" and turn < 2:
                federation.call("masked", {"content": turn})
            elif self.leak == "labels":
                noisy = federation.labels + rng.normal(scale=0.5, size=len(federation.labels))
                federation.call("listen", {"residual": np.nan_to_num(noisy)})
        if self.leak == "column":
            federation.call("column")
        if "distances" in self.leak:
            federation.sum("distances", {"scaled": self.leak != "distances"})
        if self.leak == "nothing":
            federation.call("listen", {"number": 1.0})


def make_tables(n=300, n_parties=3, seed=0, missing=False):
    """A number and a flag at each party, and labels that depend on all."""
    rng = np.random.default_rng(seed)
    ids = [f"c{i:04}" for i in range(n)]
    tables = {}
    for name in ("bank", "court", "hospital", "shop", "town")[:n_parties]:
        columns = {
            f"{name}.number": rng.normal(40, 9, n).round(2),
            f"{name}.flag": (rng.random(n) < 0.3).astype(float),
        }
        tables[name] = pd.DataFrame(columns, index=ids)
    scaled = pd.concat([(t - t.mean()) / t.std() for t in tables.values()], axis=1)
    labels = scaled.sum(axis=1) + rng.normal(size=n)
    labels[rng.random(n) < 0.15] = np.nan
    if missing:
        last = list(tables)[-1]
        tables[last] = tables[last].drop(ids[: n // 3])
    return tables, labels.rename("y")
